"""The comparison of heads: what is averaged, compared and ranked, and what a unit does where a head fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import head_makers, head_units, heads, measurements
from benchmarks.head_makers import ENSEMBLE, HEADS
from benchmarks.head_units import Unit
from probneural.errors import CalibrationError
from probneural.randomness import stream

COMMIT = "0123456789ab-modified"
UNIT = Unit("Burgers, viscosity 0.1", "FNO", None, 0, COMMIT, head_units.SMALL)


def rows(scores: dict[str, float], *, problem: str = "p", seeds: int = 2, on: str = "in distribution") -> list[dict[str, Any]]:
    """One row per head and seed, of scores that grow by a hundredth with the seed."""
    place = {"problem": problem, "operator": "FNO", "regime": "all functions", "on": on}
    return [
        place
        | {"head": head, "seed": seed, "training_seconds": 10.0, "fit_seconds": value}
        | dict.fromkeys(heads.COMPARED, value * (1.0 + 0.01 * seed))
        for head, value in scores.items()
        for seed in range(seeds)
    ]


def test_heads_are_compared_with_the_ensemble_of_their_own_seed() -> None:
    some = rows({"last layer": 2.0, ENSEMBLE: 1.0}) + rows({"last layer": 9.0}, on="amplitude")
    (line,) = heads.compared(some)
    assert (line["head"], line["seeds"]) == ("last layer", 2)
    assert line["crps"] == "2.00 (2.00 to 2.00)"
    assert line["joint_nll"].startswith("+1.00 ± 0.03")  # 1 and 1.01, and t(.95, 1) = 6.31 times .005


def test_ranks_are_of_means_over_seeds_and_averaged_over_blocks() -> None:
    order = {head: float(number) for number, head in enumerate(HEADS, start=1)}
    turned = {head: float(len(HEADS) + 1 - number) for head, number in order.items()}
    table = heads.ranked(rows(order) + rows(order, problem="q") + rows(turned, problem="r"))
    assert [line["crps"] for line in table[:2]] == pytest.approx([(1 + 1 + len(HEADS)) / 3, (2 + 2 + len(HEADS) - 1) / 3])
    assert {line["blocks"] for line in table} == {3}


def test_a_head_that_fails_costs_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(shop: head_makers.Workshop) -> Any:
        raise CalibrationError(expected="a head", got="none", remedy="take another")

    monkeypatch.setitem(HEADS, "fails", fails)
    found = replace(UNIT, heads=("fails", "last layer")).run(tmp_path)["rows"]
    assert [row["head"] for row in found] == ["fails", *["last layer"] * 3]
    assert "expected a head" in found[0]["failed"]
    assert {row["on"] for row in found[1:]} == {"in distribution", *(row["on"] for row in found[2:])}
    assert all(0.0 <= row["auroc"] <= 1.0 for row in found[2:])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mean_field has not converged")  # at the price of one training
@pytest.mark.filterwarnings(
    "ignore:the stated noise .* is more than errors leave"
)  # a regression through few functions has none
def test_a_small_run(tmp_path: Path) -> None:
    found = heads.main(mode="small", output=tmp_path, workers=1)
    assert not [note for note in found["notes"] if note.startswith("failed")]
    (seconds,) = [note for note in found["notes"] if note.startswith("a seed takes")]
    assert float(seconds.split()[3]) > 0.0
    assert {row["head"] for row in found["sections"]["scores"]} == set(HEADS)
    assert {row["regime"] for row in found["sections"]["scores"]} == {"all functions", f"{head_units.FEW} functions"}


def test_wins_count_problems_on_which_both_scores_are_lower() -> None:
    some = rows({"last layer": 1.0, "stacked": 2.0, ENSEMBLE: 1.5})
    other = rows({"last layer": 1.0, "stacked": 1.0, ENSEMBLE: 1.5}, problem="q")
    mixed = [row | {"crps": 9.0} if row["head"] == "last layer" else row for row in other]
    dear = [row | {"training_seconds": 30.0} if row["head"] == "stacked" else row for row in mixed]
    first, second = heads.wins(some + dear)
    counts = {"problems": 2, "joint_nll": 2, "crps": 1, "both": 1, "both, clearly": 1}
    assert first == {"head": "last layer"} | counts | {"cost": 1.1, "largest cost": 1.1, "both, cost up to 2": 1}
    counts |= {"joint_nll": 1}
    assert second == {"head": "stacked"} | counts | {"cost": 2.15, "largest cost": 3.1, "both, cost up to 2": 0}
    (alone, _) = heads.wins(rows({"last layer": 1.0, "stacked": 2.0, ENSEMBLE: 1.5}, seeds=1))
    assert (alone["both"], alone["both, clearly"]) == (1, 0)  # one seed has no interval


def test_measured_outputs_have_the_noise_that_is_stated() -> None:
    source, _ = head_units._case(UNIT.problem, UNIT.kind, is_small=True)
    pairs = source.problem.sample(50, resolution=64, seed=0)
    noise = torch.tensor([1e-4], dtype=torch.float64)
    noisy = measurements.measured(pairs, noise, stream(1, "heads noise", 0))
    assert torch.equal(noisy.inputs.values, pairs.inputs.values)
    square = float((noisy.outputs.values - pairs.outputs.values).square().mean())
    assert square == pytest.approx(1e-4, rel=4.0 * (2.0 / 3200) ** 0.5)  # four standard errors of a variance of 3,200 values
    again, other = (measurements.measured(pairs, noise, stream(1, "heads noise", part)) for part in (0, 1))
    assert torch.equal(again.outputs.values, noisy.outputs.values)
    assert not torch.equal(other.outputs.values, noisy.outputs.values)
