"""Copies under symmetries: the problems have those that they are given, and networks with copies see as many functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import probneural as pn
from benchmarks import copies, exact, head_makers, head_units, recipes
from benchmarks.head_makers import COPIED, DEFAULT, ENSEMBLE, FEWER, HEADS, Data, Workshop
from benchmarks.recipes import Recipe

NAMES = [name for name, _ in copies.cases()]


def shop_of(beginning: str, *, epochs: int = 16) -> Workshop:
    (case,) = exact.chosen("full", problem=copies.named(beginning))
    pairs = case.source.problem.sample(3, resolution=case.source.resolution, seed=0, dtype=torch.float64)
    recipe = recipes.fno(*(4,) * case.source.dimension, epochs=epochs, width=4, projection=4)
    return Workshop(recipe, Data(pairs, pairs, pairs, torch.zeros(1)), seed=0)


@pytest.mark.parametrize("beginning", NAMES)
def test_images_of_solutions_are_solutions(beginning: str) -> None:
    (case,) = exact.chosen("full", problem=copies.named(beginning))
    shop = shop_of(beginning)
    found = shop.copies(FEWER)
    solved = case.source.problem.solve(found.inputs).values
    own = case.source.problem.solve(shop.pairs.inputs).values - shop.pairs.outputs.values
    # nodal values say a little less than coefficients do where a problem has boundaries, and as much less of every image
    allowed = 2.0 * own.abs().max() + 1e-9
    assert (solved - found.outputs.values).abs().max() <= allowed < 1e-2 * solved.abs().max()
    line = beginning == "Darcy 1-D"
    assert len(found) == len(shop.pairs) * (2 if line else 1 + FEWER)


@pytest.mark.parametrize(("beginning", "epochs"), [("Darcy 1-D", 8), ("Darcy 2-D", 2)])
def test_networks_with_copies_see_as_many_functions(beginning: str, epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def train(self: Recipe, pairs: pn.FieldPairs, **_: Any) -> tuple[torch.nn.Module, None, None]:
        seen.append((self.epochs, len(pairs)))
        return self.build(pairs[:1], seed=0), None, None

    monkeypatch.setattr(Recipe, "train", train)
    shop = shop_of(beginning)
    shop.head(f"{ENSEMBLE}, {FEWER} copies")
    assert seen == [(epochs, 48 // epochs)] * head_makers.MEMBERS


def test_heads_are_known_and_compared_with_the_ensemble() -> None:
    for _, chosen in copies.cases():
        assert set(chosen) <= {*HEADS, *COPIED}
        assert {DEFAULT, ENSEMBLE} <= {*chosen}  # costs are in units of the one, scores beside the other


@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    found = copies.main(mode="small", output=tmp_path, workers=1)
    rows = {row["head"]: row for row in found["sections"]["scores"]}
    assert set(rows) == set(copies.cases()[0][1])
    assert rows[copies.COPIED]["relative_l2"] < 0.5 * rows[copies.KERNEL]["relative_l2"]
    assert len(found["sections"]["beside the ensemble"]) == len(rows) - 1


@pytest.mark.slow
@pytest.mark.parametrize("beginning", copies.MIRRORED)
def test_a_small_unit_with_boundaries(beginning: str, tmp_path: Path) -> None:
    chosen = dict(copies.cases())[beginning]
    unit = head_units.Unit(copies.named(beginning), "FNO", 8, 0, "0123456789ab", head_units.SMALL, chosen, 0)
    assert [row["head"] for row in unit.run(tmp_path)["rows"]] == list(chosen)
