"""Sensors at random places: the exact side, what is made of results, and one small unit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import kept_units, masked_sensors, masks
from benchmarks.masked_sensors import FEWEST, MOST, Masked
from benchmarks.masks import SIZES, Unit
from benchmarks.sparse_sensors import POINTS

COMMIT = "0123456789ab"


def test_outputs_are_distributed_as_the_posterior_says() -> None:
    """Whitened by the exact moments, 3,000 outputs are standard normal, whatever the number of sensors; nothing is fitted."""
    drawn = Masked.drawn(3000, seed=0, part=0)
    mean, covariance = drawn.posterior()
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (drawn.outputs - mean)[..., None], upper=False)
    found = white[..., 0]
    many = drawn.present.sum(1) > (FEWEST + MOST) / 2
    for some in (found[many], found[~many]):
        assert float(some.mean(0).abs().max()) < 5 / math.sqrt(len(some))
        chi2 = some.square().sum(1)
        assert float(chi2.mean()) == pytest.approx(POINTS, abs=4 * math.sqrt(2 * POINTS / len(some)))
    # With the covariances of others they are not.
    wrong = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance.roll(1, 0)), (drawn.outputs - mean)[..., None], upper=False
    )
    assert float(wrong.square().sum((1, 2)).mean()) > POINTS + 2


def test_what_operators_are_given() -> None:
    drawn = Masked.drawn(40, seed=1, part=0)
    mask, seen = drawn.pairs.inputs.values.unbind(1)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert (int(mask.sum(1).min()), int(mask.sum(1).max())) == (FEWEST, MOST)
    torch.testing.assert_close(mask.sum(1).double(), drawn.present.sum(1))
    assert bool((seen[mask == 0] == 0).all())
    # Where there is no sensor, its number does not matter.
    moved = replace(drawn, places=torch.where(drawn.present > 0, drawn.places, (drawn.places + 5) % POINTS))
    for one, other in zip(drawn.posterior(), moved.posterior(), strict=True):
        torch.testing.assert_close(one, other)


def test_scores_of_the_exact_posterior_and_the_floors() -> None:
    exact = Masked.drawn(30, seed=2, part=0).posterior()
    mean, covariance = exact
    found = masked_sensors.scores(exact, exact)
    assert found == pytest.approx(
        {"regret": 0.0, "mean error": 0.0, "sd ratio": 1.0, "covariance error": 0.0, "sd correlation": 1.0}, abs=1e-9
    )
    floors = masked_sensors.floors(covariance)
    for name, stated in (
        ("best diagonal", torch.diag_embed(covariance.diagonal(dim1=1, dim2=2))),
        ("best covariance that ignores the places", covariance.mean(0).expand_as(covariance)),
    ):
        least = masked_sensors.scores((mean, stated), exact)["regret"]
        assert least == pytest.approx(floors[name], abs=1e-12)
        for factor in (0.9, 1.1):
            worse = masked_sensors.scores((mean, factor * stated), exact)["regret"]
            assert worse is not None
            assert worse > floors[name] > 0
    off = masked_sensors.scores((mean + 0.1 * covariance.diagonal(dim1=1, dim2=2).sqrt(), covariance), exact)
    assert off["mean error"] == pytest.approx(0.1)
    assert masked_sensors.scores((mean, torch.zeros_like(covariance)), exact)["regret"] is None


@pytest.mark.filterwarnings("ignore:the operator was trained on other pairs")  # its read-out is fitted to pairs of its own
def test_units_are_kept_and_shown(tmp_path: Path) -> None:
    unit = Unit(SIZES["small"], 0, COMMIT)
    first = kept_units.spread([unit], tmp_path, workers=1)
    again = kept_units.spread([unit], tmp_path, workers=1)
    assert again[unit] == first[unit] | {"resumed": True}
    assert not first[unit][masks.FAILED]
    shown = masks.rows([first[unit], first[unit] | {"rows": [row | {"regret": None} for row in first[unit]["rows"]]}])
    assert len(shown) == len(first[unit]["rows"]) == 2 + 2 * 7 + 1
    assert all((row["seeds"], row["regret"]) == (2, None) for row in shown)
    assert all(math.isfinite(row["energy distance"]) for row in first[unit]["rows"][2:])
