"""Laplace ensembles: members of a deep ensemble, each with a posterior of its own."""

from __future__ import annotations

import copy

import pytest
import torch

from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import ArgumentError, DataError
from probneural.heads import DeepEnsemble, Laplace, LaplaceEnsemble, LastLayerLaplace
from tests.heads.cases import briefly, operator_case, small_fno, to_dtype

CASE = operator_case("fno-1d")
SETTINGS = {"train": briefly, "show_progress": False}
FITTED = LaplaceEnsemble(2, **SETTINGS).fit(CASE.operator, CASE.data)
INPUTS = CASE.inputs


def test_members_are_those_of_the_deep_ensemble_with_the_heads_own_posteriors() -> None:
    deep = DeepEnsemble(2, **SETTINGS).fit(CASE.operator, CASE.data)
    members = deep.operators()
    u = FITTED(INPUTS)
    for operator, component, sample in zip(members, u.components, deep(INPUTS).samples, strict=True):
        torch.testing.assert_close(component.mean, sample)
        own = LastLayerLaplace().fit(operator, CASE.data)
        torch.testing.assert_close(component.root.dense(), own(INPUTS).root.dense())
    assert not torch.equal(*(component.mean for component in u.components))


def test_variance_is_within_plus_between() -> None:
    u = FITTED(INPUTS)
    first, second = u.components
    within = (first.variance + second.variance) / 2
    between = ((first.mean - second.mean) / 2).square()
    torch.testing.assert_close(u.variance, within + between)


def test_trained_operators_are_the_members_as_they_are() -> None:
    other = to_dtype(small_fno()(), torch.float64)
    before = copy.deepcopy(other.state_dict())
    predictor = LaplaceEnsemble(head=Laplace("diagonal", show_progress=False)).fit([CASE.operator, other, other], CASE.data)
    assert isinstance(predictor, MixturePredictor)
    assert len(predictor(INPUTS).components) == 3
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(predictor(INPUTS).components[1].mean, other.eval()(INPUTS.values))


def test_kept_operators_and_factories() -> None:
    def build(seed: int) -> torch.nn.Module:
        return to_dtype(small_fno()(), torch.float64)

    predictor = LaplaceEnsemble(2, build=build, keeps_operator=True, **SETTINGS).fit(CASE.operator, CASE.data)
    own = copy.deepcopy(CASE.operator).eval()
    with torch.no_grad():
        torch.testing.assert_close(predictor(INPUTS).components[0].mean, own(INPUTS.values))


def test_frozen_parameters_stay_frozen_and_buffers_are_the_members_own() -> None:
    case = operator_case("conv")
    operator = copy.deepcopy(case.operator).train()
    deep = DeepEnsemble(3, train=briefly, show_progress=False).fit(operator, case.data)
    for member, sample in zip(deep.operators(), deep(case.inputs).samples, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(member(case.inputs.values), sample)
    assert len({float(member.norm.running_mean.sum()) for member in deep.operators()}) == 3  # type: ignore[union-attr]


@pytest.mark.bad_input
class TestBadInput:
    def test_no_training_function(self) -> None:
        with pytest.raises(ArgumentError, match="a callable as train; got None"):
            LaplaceEnsemble(2).fit(CASE.operator, CASE.data)

    def test_no_operators(self) -> None:
        with pytest.raises(DataError, match="1 or more trained operators"):
            LaplaceEnsemble().fit([], CASE.data)

    def test_a_head_without_predictor(self) -> None:
        class Broken:
            def fit(self, operator: object, data: object) -> None:
                return None

        with pytest.raises(DataError, match="a Predictor as what the head returns"):
            LaplaceEnsemble(head=Broken()).fit([CASE.operator], CASE.data)  # type: ignore[arg-type]
