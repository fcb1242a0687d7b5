"""The benchmark of local scales: what is averaged and counted, and standard errors of rank correlations over functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import calibration, calibration_units
from benchmarks.calibration_units import FAILED, HEADS, SCALES
from probneural.distributions import DenseRoot, GaussianField, PredictorTraits
from probneural.errors import CalibrationError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.helpers import PerSetPredictor, normal

GRID = Grid.uniform((64,))
FRONT = calibration.FRONTS[0]


class Stated(PerSetPredictor):
    """Zero, with a deviation that grows along the domain: errors in proportion to it are as stated."""

    def __init__(self) -> None:
        super().__init__(
            PredictorTraits(in_channels=1, noise=torch.zeros(1).double(), domain=GRID, like=torch.zeros(1).double())
        )

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        root = DenseRoot(DEVIATION.diag().expand(len(inputs), 1, -1, -1))
        return GaussianField(torch.zeros_like(inputs.values), root, latent="stated", grid=GRID)


DEVIATION = torch.linspace(0.1, 3.0, 64, dtype=torch.float64)


@pytest.mark.parametrize(("turned", "is_reached"), [(False, True), (True, False)])
def test_the_gap_of_errors_that_are_as_stated_is_within_its_errors(turned: bool, is_reached: bool) -> None:
    errors = normal(200, 1, 64, seed=0) * (DEVIATION.flip(0) if turned else DEVIATION)
    pairs = FieldPairs(Field(normal(200, 1, 64, seed=1), GRID), Field(errors, GRID))
    found = calibration_units.gap(Stated(), pairs)
    each = 0.11 / 200**0.5  # a rank correlation of 64 points varies by some 1/8 from function to function
    assert found["gap, error"] == pytest.approx(each, rel=0.7)
    assert (abs(found["gap"]) < 3 * found["gap, error"]) == is_reached
    assert is_reached or found["gap"] > 0.5  # the correlation has the other sign


def test_a_band_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise CalibrationError(expected="a band", got="none", remedy="take another")

    monkeypatch.setattr(calibration_units.evaluation, "bands", fails)
    pairs = FieldPairs(Field(normal(40, 1, 64, seed=1), GRID), Field(normal(40, 1, 64, seed=0) * DEVIATION, GRID))
    failed: list[dict[str, Any]] = []
    found = calibration_units.scores(Stated(), pairs, pairs, failed=failed)
    assert found["band"] is None
    assert [row["what"] for row in failed] == ["band"]


def rows(**changes: Any) -> list[dict[str, Any]]:
    """Two seeds of two problems, with the same numbers but for the second seed's rank."""
    numbers = {"nll": 0.0, "joint_nll": 0.0, "rank_within": 0.46, "rank_within_attainable": 0.5, "steepest tenth": 1.0}
    numbers |= {"gap": 0.04, "gap, error": 0.01, "band": 0.5, "whole fields": 0.9} | changes
    return [
        {"problem": problem, "head": "h", "seed": seed, "scale": scale} | numbers | {"rank_within": numbers["rank_within"] + up}
        for problem in ("p", FRONT)
        for seed, up in enumerate((-0.01, 0.01))
        for scale in SCALES
    ]


def test_gains_are_paired_by_seed() -> None:
    some = [row | {"nll": row["nll"] - 0.5 - 0.1 * row["seed"]} if row["scale"] == "local" else row for row in rows()]
    first, second, *_ = calibration.gains(some)
    assert (second["from"], second["to"]) == ("local", "mixed")
    assert second["nll"] == pytest.approx(0.55)
    assert first["nll"] == pytest.approx(-0.55)
    assert first["nll, error"] == pytest.approx(0.05)


@pytest.mark.slow
def test_a_small_run_has_all_rows(tmp_path: Path) -> None:
    found = calibration.main(mode="small", output=tmp_path, workers=1, problem="Burgers, viscosity 0.1")
    table = found["sections"]["runs"]
    assert {(row["head"], row["scale"]) for row in table} == {(head, scale) for head in HEADS for scale in SCALES}
    assert not [note for note in found["notes"] if note.startswith(FAILED)]
