"""Pairs with groups, such as windows of trajectories: what is held out, ranked and counted are whole groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.calibration import Novelty, SimultaneousBand, VarianceScale
from probneural.calibration.bands.conformal import conformal_quantile
from probneural.calibration.novelty.detector import conformal_p_values
from probneural.calibration.predictions import group_means, group_numbers
from probneural.calibration.variance.discrepancy import likelihood_rows
from probneural.errors import CalibrationError
from probneural.fields import Field
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Synthetic, basis, pairs
from tests.helpers import normal


def twice(data: FieldPairs) -> FieldPairs:
    """Each function two times, as a group of its own, in the order of the functions."""
    rows = torch.arange(len(data)).repeat_interleave(2)
    return replace(data[rows], groups=rows)


def windows(trajectories: int, count: int, *, seed: int) -> FieldPairs:
    """Functions that resemble each other within a trajectory, and errors of a size that says nothing of other trajectories."""
    weights = normal(trajectories, 1, 3, seed=seed).repeat_interleave(count, 0)
    weights = weights + 0.01 * normal(len(weights), 1, 3, seed=seed + 1)
    sizes = normal(trajectories, 1, 1, seed=seed + 2).exp().repeat_interleave(count, 0)
    values = weights @ basis(GRID).mT
    errors = 0.3 * sizes * normal(len(weights), 1, GRID.size, seed=seed + 3)
    groups = torch.arange(trajectories).repeat_interleave(count)
    return FieldPairs(Field(values, GRID), Field(values + errors, GRID), groups=groups)


def fronts(count: int, *, seed: int) -> FieldPairs:
    """Errors that are larger where the second half of the domain is."""
    data = pairs(count, seed=seed)
    there = torch.where(GRID.points[:, 0] > 0.5, 1.0, 0.2)
    return FieldPairs(data.inputs, Field(data.inputs.values + 0.4 * there * normal(count, 1, GRID.size, seed=seed + 9), GRID))


def test_functions_that_are_given_twice_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probneural.distributions.predictors.base._SAMPLES", 80)
    data = fronts(40, seed=0)
    one, two = VarianceScale().fit(Synthetic(), data), VarianceScale().fit(Synthetic(), twice(data))
    assert one.local is not None
    assert two.local is not None
    torch.testing.assert_close(two.local.coefficients, one.local.coefficients, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(two.scale, one.scale)
    for name in ("root_fraction", "white_fraction", "variance"):
        torch.testing.assert_close(getattr(two.decomposition, name), getattr(one.decomposition, name))


def test_a_local_scale_does_not_learn_trajectories_by_heart() -> None:
    """Neighbouring windows were held out in turn: then ten of ten fits have a local scale that is worse elsewhere."""
    fitted = [VarianceScale().fit(Synthetic(sd=0.0, noise=0.1), windows(20, 8, seed=10 * seed)).local for seed in range(10)]
    assert sum(local is not None for local in fitted) <= 2


def test_bands_count_groups() -> None:
    data = pairs(40)
    for method in (SimultaneousBand(0.9), SimultaneousBand(0.9, modulation="constant")):
        one, two = method.fit(Synthetic(), data), method.fit(Synthetic(), twice(data))
        assert two.quantile == one.quantile
    with pytest.raises(CalibrationError, match="at least 9 groups of calibration fields"):
        SimultaneousBand(0.9).fit(Synthetic(), twice(data[:8]))


def inside(scores: Tensor, groups: Tensor | None, new: Tensor) -> Tensor:
    """Whether a function of a new group lies inside, for each calibration set."""
    found = [conformal_quantile(one, 0.85, groups=groups) for one in scores]
    return (new <= torch.tensor(found, dtype=torch.float64)).double()


def test_bands_hold_functions_of_new_trajectories_as_often_as_stated() -> None:
    """Nine trajectories of one to eight windows, over 2,000 calibration sets; without groups .85 would be less than .83."""
    sizes = torch.tensor([1, 8, 8, 8, 8, 8, 8, 8, 8])
    groups = torch.arange(9).repeat_interleave(sizes)
    levels = normal(2000, 10, seed=0)
    scores = levels[:, :9].repeat_interleave(sizes, dim=1) + 0.01 * normal(2000, len(groups), seed=1)
    new = levels[:, 9] + 0.01 * normal(2000, seed=2)
    error = (0.85 * 0.15 / 2000) ** 0.5
    assert 0.85 - 3 * error < inside(scores, groups, new).mean() < 0.95
    assert inside(scores, None, new).mean() < 0.83


def test_p_values_of_functions_of_new_trajectories_are_not_too_small() -> None:
    sizes = torch.arange(1, 10)
    groups = torch.arange(9).repeat_interleave(sizes)
    levels = normal(2000, 10, seed=0)
    ranked = zip(levels[:, :9].repeat_interleave(sizes, dim=1), levels[:, 9:], strict=True)
    below = (torch.cat([conformal_p_values(new, one, groups=groups) for one, new in ranked]) <= 0.2).double().mean()
    assert 0.1 < below < 0.2 + 3 * (0.2 * 0.8 / 2000) ** 0.5


def test_a_detector_ranks_among_trajectories() -> None:
    data = windows(30, 4, seed=0)
    found = Novelty().fit(Synthetic(), data)
    assert "60 samples of 15 groups" in repr(found)
    p_values = found(windows(5, 3, seed=9).inputs)
    torch.testing.assert_close(p_values * 64, (p_values * 64).round())  # fractions of 4 among 15
    for count in (1, 2):
        with pytest.raises(CalibrationError, match="hold out more groups"):
            Novelty().fit(Synthetic(), windows(count, 40, seed=0)[: 20 + 20 * count])
    few = Novelty().fit(Synthetic(), windows(4, 20, seed=0))  # too few to hold out whole ones: standards are of windows
    assert bool(torch.isfinite(few.scores(data.inputs)["combined"]).all())


def test_functions_that_decide_what_is_shared_are_spread_over_the_calibration_set() -> None:
    rows = likelihood_rows(pairs(1000))
    assert len(rows) == 256  # of 16 points
    assert rows[0] == 0
    assert rows[-1] > 990
    assert torch.equal(likelihood_rows(pairs(7)), torch.arange(7))


def test_what_is_shared_does_not_follow_the_first_functions_alone() -> None:
    """Errors of the first half have no correlation, those of the second half are one function: order must not decide."""
    fine = pn.Grid.uniform((256,))
    base = Field(normal(100, 1, 3, seed=0) @ basis(fine).mT, fine)
    rough, smooth = 0.3 * normal(100, 1, 256, seed=1), 0.3 * normal(100, 1, 1, seed=2).expand(100, 1, 256)
    errors = torch.where(torch.arange(100)[:, None, None] < 50, rough, smooth)
    data = FieldPairs(base, Field(base.values + errors, fine))
    other = data[list(range(99, -1, -1))]
    forwards, backwards = (VarianceScale(local=False).fit(Synthetic(), some).decomposition for some in (data, other))
    assert torch.equal(forwards.white_fraction, backwards.white_fraction)


def test_means_of_groups() -> None:
    data = replace(pairs(4), groups=torch.tensor([7, 2, 7, 5]))
    groups = group_numbers(data)
    assert groups.tolist() == [2, 0, 2, 1]
    assert group_means(torch.tensor([1.0, 2.0, 3.0, 4.0]), groups).tolist() == [2.0, 4.0, 2.0]
    assert group_numbers(pairs(3)).tolist() == [0, 1, 2]
