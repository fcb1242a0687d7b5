"""Updates in closed form against regression on all data at once."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from probneural.errors import UnsupportedError
from probneural.heads import Laplace, LastLayerLaplace, LowRank
from probneural.heads.laplace import laplace
from probneural.pairs import FieldPairs
from tests.heads.cases import OperatorCase, operator_case, structured
from tests.heads.test_head_contract import close, own_output
from tests.helpers import cross_covariance, one_of_each

HEADS = {
    "last-layer": LastLayerLaplace,
    "full": lambda **given: Laplace("full", **given),
    "low_rank": lambda **given: Laplace(LowRank(rank=300), **given),
}
CASES = ["fno-1d", "fno-outputs", "fno-2d", "complex", "denormalised"]
EVERY = pytest.mark.parametrize("operator", one_of_each(CASES, lambda name: name in ("complex", "denormalised")))
HEAD = pytest.mark.parametrize("head", HEADS)


def parts(case: OperatorCase) -> tuple[FieldPairs, FieldPairs]:
    return case.data[:4], case.data[4:]


def settings(case: OperatorCase) -> dict[str, object]:
    """Noise in units of the outputs, which differ much between the channels of one case."""
    variance = case.data.outputs.values.var((0, *range(2, case.data.outputs.values.ndim)))
    return {"noise": variance / 50, "prior_precision": 3.0, "effective_observations": 4.0}


def make(head: str, case: OperatorCase):
    return HEADS[head](**settings(case))


@HEAD
@EVERY
def test_covariance_equals_refitting_on_all_data(head: str, operator: str) -> None:
    case = operator_case(operator)
    first, second = parts(case)
    predictor = make(head, case).fit(case.operator, first)
    both = make(head, case).fit(case.operator, case.data)
    result = predictor.update(second)
    close(result.weight_covariance, both.weight_covariance, 1e-8)
    close(result(case.inputs).variance, both(case.inputs).variance, 1e-8)
    assert result.latent.id not in (predictor.latent.id, both.latent.id)
    assert float(result(case.inputs).variance.sum()) < float(predictor(case.inputs).variance.sum())


@HEAD
@EVERY
def test_mean_and_evidence_equal_dense_regression(head: str, operator: str) -> None:
    """The prediction error of the new data is regressed on the Jacobian with the old posterior as the prior."""
    case = operator_case(operator)
    first, second = parts(case)
    predictor = make(head, case).fit(case.operator, first)
    result = predictor.update(second)
    grid = second.outputs.grid
    field = predictor(second.inputs)
    covariance = cross_covariance(field, field)
    share = (grid.weights / grid.volume).repeat(predictor.out_channels)
    precision = (predictor.effective_observations / predictor.noise).repeat_interleave(grid.size) * share
    noise = precision.repeat(len(second)).reciprocal()
    residual = (second.outputs.values - own_output(case, second.inputs)).flatten()
    new = cross_covariance(predictor(case.inputs), field)
    total = covariance + noise.diag()
    moved = (new @ torch.linalg.solve(total, residual)).reshape(own_output(case, case.inputs).shape)
    expected = own_output(case, case.inputs) + moved
    shift = (result(case.inputs).mean - expected).abs().amax((0, *range(2, expected.ndim)))
    size = moved.abs().amax((0, *range(2, expected.ndim)))
    assert bool((shift <= 1e-7 * size).all())
    # log p(new | old) with m effective observations: the determinant of the noise is that of m, not of the points
    quadratic = residual @ torch.linalg.solve(total, residual)
    ratio = torch.linalg.slogdet(total)[1] - noise.log().sum()
    observations = predictor.effective_observations * len(second)
    gain = -0.5 * ((observations * (2 * math.pi * predictor.noise).log()).sum() + ratio + quadratic)
    assert result.log_evidence - predictor.log_evidence == pytest.approx(float(gain), rel=1e-7)


@HEAD
def test_two_updates_equal_one(head: str) -> None:
    case = operator_case("fno-outputs")
    predictor = make(head, case).fit(case.operator, case.data[:2])
    once = predictor.update(case.data[2:])
    twice = predictor.update(case.data[2:4]).update(case.data[4:])
    close(twice(case.inputs).mean - own_output(case, case.inputs), once(case.inputs).mean - own_output(case, case.inputs), 1e-7)
    close(twice(case.inputs).variance, once(case.inputs).variance, 1e-8)
    assert twice.log_evidence == pytest.approx(once.log_evidence, rel=1e-9)


@pytest.mark.parametrize("operator", ["fno-1d", "complex"])
def test_bounds_of_a_truncation_hold_after_an_update(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """New data may not fit into the span: what stays outside counts into the bounds."""
    case = operator_case(operator)
    monkeypatch.setattr(laplace, "LARGEST_RANK", 12)
    given = settings(case)
    predictor = Laplace(LowRank(rank=12), **given).fit(case.operator, case.data[:2])
    result = predictor.update(case.data[2:])
    exact = Laplace("full", **given).fit(case.operator, case.data)(case.inputs).variance
    lower, upper = result.variance_bounds(case.inputs)
    assert bool((lower <= exact * (1 + 1e-9)).all())
    assert bool((exact <= upper * (1 + 1e-9)).all())
    assert result.report["next_ratio"] > predictor.report["next_ratio"]


@pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
@pytest.mark.bad_input
def test_other_structures_must_be_refitted(structure: str) -> None:
    case = operator_case("fno-1d")
    predictor = Laplace(structured(structure, rank=20), noise=0.02, prior_precision=3.0).fit(case.operator, case.data[:3])
    with pytest.raises(UnsupportedError, match="fit on all data"):
        predictor.update(case.data[3:])


@HEAD
def test_a_function_is_no_more_observations_than_points(head: str) -> None:
    case = operator_case("fno-1d")
    first, second = parts(case)
    predictor = make(head, case).fit(case.operator, first)
    size = float(second.outputs.grid.size)
    results = []
    for count in (size / 2, size, 1000 * size):
        other = copy.copy(predictor)
        object.__setattr__(other, "effective_observations", torch.full_like(predictor.effective_observations, count))
        results.append(other.update(second))
    half, full, many = (result.weight_covariance for result in results)
    close(many, full, 1e-12)
    assert float(full.diagonal().sum()) < float(half.diagonal().sum())
    assert results[1].log_evidence == pytest.approx(results[2].log_evidence)
