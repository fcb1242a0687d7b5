"""Flow through two materials: what bands promise and by which rule, the second network, and one small unit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import kept_units, two_materials
from benchmarks.two_materials_units import (
    BANDS,
    BOUND,
    CONSTANT,
    DEFAULT,
    FAILED,
    HEADS,
    PROMISES,
    RANK,
    SCALES,
    SCRATCH,
    SECOND,
    SIZES,
    Parts,
    Pinball,
    Strays,
    TwoNetworks,
    Unit,
    band_rows,
    by_bound,
    by_ranks,
)
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.helpers import normal

COMMIT = "0123456789ab"
GRID = Grid.uniform((500,))
DEVIATION = torch.linspace(0.2, 1.0, 500, dtype=torch.float64)


class Fixed(nn.Module):
    """A field that does not depend on the input."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.values.expand(len(inputs), 1, -1)


def pairs(count: int, *, seed: int, scales: bool) -> FieldPairs:
    """Zero inputs, and independent normal outputs of these deviations, times a factor for every function if asked for."""
    factors = torch.linspace(0.5, 1.5, count, dtype=torch.float64)[:, None, None] if scales else 1.0
    return FieldPairs(
        Field(torch.zeros(count, 1, 500, dtype=torch.float64), GRID),
        Field(factors * DEVIATION * normal(count, 1, 500, seed=seed, dtype=torch.float64), GRID),
    )


def stated(like: FieldPairs) -> TwoNetworks:
    return TwoNetworks(Fixed(torch.zeros(500).double()), Fixed(DEVIATION.clone()), like=like)


def test_a_second_network_is_the_deviation_and_never_negative() -> None:
    given = pairs(2, seed=0, scales=False)
    torch.testing.assert_close(stated(given)(given.inputs).variance.sqrt(), DEVIATION.expand(2, 1, -1))
    below = TwoNetworks(Fixed(torch.ones(500).double()), Fixed(-DEVIATION), like=given)(given.inputs)
    assert float(below.variance.abs().max()) == 0.0
    assert float((below.mean - 1).abs().max()) == 0.0


def test_pinball_is_least_at_the_quantile() -> None:
    errors = normal(4000, seed=1, dtype=torch.float64).abs()
    candidates = torch.linspace(0.5, 3.0, 251, dtype=torch.float64)
    losses = torch.stack([Pinball(0.9)(one.expand(4000), errors, GRID) for one in candidates])
    assert float(candidates[losses.argmin()]) == pytest.approx(float(errors.quantile(0.9)), abs=0.011)
    torch.testing.assert_close(Pinball(0.9)(0.5 * errors, errors, GRID), Pinball(0.9)(5e-9 * errors, 1e-8 * errors, GRID))


def test_bands_hold_what_is_promised() -> None:
    """Deviations are true but for a factor of each function, so that ranks decide; the constant band is wider."""
    every = Parts(*(pairs(count, seed=seed, scales=True) for seed, count in enumerate((2, 2, 400, 2000, 2))))
    rows = {(row["α"], row["δ"], row["rule"]): row for row in band_rows(SECOND, stated(every.train), parts=every)}
    wide = {(row["α"], row["δ"], row["rule"]): row for row in band_rows(CONSTANT, stated(every.train), parts=every)}
    assert list(rows) == [(*promise, rule) for promise in PROMISES for rule in (RANK, BOUND)]
    unit = float(every.test.outputs.values.square().mean().sqrt())
    for alpha, delta in PROMISES:
        row = rows[alpha, delta, RANK]
        assert row["held"] == pytest.approx(1 - delta, abs=0.03)
        # The quantile is that of a standard normal variable, times the factor below which 1 - δ of the functions are.
        quantile = float(torch.special.ndtri(torch.tensor(1 - alpha / 2, dtype=torch.float64))) * (1.5 - delta)
        assert row["width"] == pytest.approx(quantile * float(DEVIATION.mean()) / unit, rel=0.06)
        assert wide[alpha, delta, RANK]["held"] == pytest.approx(1 - delta, abs=0.03)
        assert wide[alpha, delta, RANK]["width"] > 1.05 * row["width"]
        bound = rows[alpha, delta, BOUND]
        if bound["held"] is not None:
            assert bound["held"] > 1 - delta
            assert 1.05 * row["width"] < bound["width"] < 2.1 * row["width"]
    assert [promise for promise in PROMISES if rows[*promise, BOUND]["held"] is None] == [(0.05, 0.05), (0.02, 0.1)]


def test_the_bound_is_that_of_the_published_code() -> None:
    """Order statistics written out, on a grid whose points do not weigh alike; ranks take weights into account."""
    grid = Grid.uniform((40, 50), periodic=False)
    ratios = normal(70, 1, 40, 50, seed=3, dtype=torch.float64).abs() * (1 + torch.arange(70).double()[:, None, None, None])
    strays = Strays(ratios, 1.0, grid)
    for alpha, delta in ((0.1, 0.1), (0.1, 0.05), (0.2, 0.1)):
        n, points = 70, 2000
        least = math.sqrt(-math.log(delta) / 2 / points)
        t = (alpha - least) / 3 + least
        inside = math.ceil((alpha - t) * points)
        each = [sorted(row.flatten().tolist(), reverse=True)[inside] for row in ratios]
        chosen = math.ceil((n + 1) * (delta - math.exp(-2 * points * t * t)))
        assert by_bound(strays, alpha, delta) == sorted(each, reverse=True)[chosen]
        weighed = by_ranks(strays, alpha, delta)
        assert weighed is not None
        assert weighed == float(strays.quantiles(1 - alpha).sort().values[math.ceil(71 * (1 - delta)) - 1])
        assert weighed < by_bound(strays, alpha, delta)
    assert by_bound(Strays(ratios[..., :2], 1.0, grid), 0.1, 0.1) is None  # 80 points
    assert by_ranks(Strays(ratios[:10], 1.0, grid), 0.1, 0.05) is None  # 11th of 10


def test_tables() -> None:
    rows = [
        {"seed": seed, "head": head, "scale": "none", "relative L2": 0.1, "CRPS": crps * (1 + seed), "energy": 1.0}
        | {"coverage": 0.9, "whole": None}
        for seed in (0, 1)
        for head, crps in ((DEFAULT, 3.0), (SCRATCH, 2.0), ("another", 4.0))
    ]
    first, second, third = two_materials.head_rows(rows)
    over = f"CRPS over {SCRATCH}"
    assert [row[over] for row in (first, second, third)] == [f"{x} ({x} to {x})" for x in ("1.50", "1.00", "2.00")]
    assert first["published, over the same"] == pytest.approx(0.0621 / 0.0462)
    assert third["published"] is third["published, over the same"] is None
    assert (first["seeds"], first["whole"]) == (2, None)
    bands = [
        {"seed": seed, "band": band, "α": alpha, "δ": 0.1, "rule": rule, "held": held, "width": width * (1 + seed)}
        for seed in (0, 1)
        for alpha in (0.05, 0.1)
        for band, rule, held, width in ((CONSTANT, BOUND, 1.0, 3.0), (CONSTANT, RANK, 0.9, 2.0), (SECOND, RANK, None, 1.0))
    ]
    table = two_materials.promise_rows(bands)
    assert [(row["α"], row["band"], row["rule"]) for row in table[:3]] == [
        (0.1, CONSTANT, RANK),
        (0.1, SECOND, RANK),
        (0.1, CONSTANT, BOUND),
    ]
    assert [row["over constant"] for row in table[:3]] == ["1.00 (1.00 to 1.00)", None, "1.50 (1.50 to 1.50)"]
    assert [row["seeds"] for row in table[:3]] == [2, 0, 2]


@pytest.mark.slow
def test_a_unit(tmp_path: Path) -> None:
    unit = Unit(replace(SIZES["small"], pairs=20, conformal=40, tests=10), 0, COMMIT)
    found = kept_units.spread([unit], tmp_path, workers=1)[unit]
    assert not found[FAILED]
    assert [(row["head"], row["scale"]) for row in found["heads"]] == [(head, scale) for head in HEADS for scale in SCALES]
    assert [row["band"] for row in found["bands"]] == [band for band in BANDS for _ in range(2 * len(PROMISES))]
    assert all(math.isfinite(row["CRPS"]) for row in found["heads"])
    by_rank = [row for row in found["bands"] if row["rule"] == RANK]
    assert all(row["width"] > 0 and 0 <= row["held"] <= 1 for row in by_rank)
    again = kept_units.spread([unit], tmp_path, workers=1)[unit]
    assert again == found | {"resumed": True}
