"""The dense Laplace posterior against autograd Jacobians and dense algebra."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from probneural.curvature import ParameterVector
from probneural.errors import ArgumentError, ShapeError, UnsupportedError
from probneural.heads import Laplace
from probneural.heads.laplace.structures import closed_form
from tests.curvature.reference import dense_jacobian
from tests.heads.cases import operator_case
from tests.helpers import cross_covariance, one_of_each

CASES = ["fno-1d", "fno-outputs", "fno-ends", "fno-2d", "complex", "denormalised"]


@pytest.mark.parametrize("operator", one_of_each(CASES, lambda name: name == "complex"))
@pytest.mark.parametrize("learned", [False, True])
def test_posterior_and_evidence_equal_dense_algebra(operator: str, learned: bool) -> None:
    case = operator_case(operator)
    module, data = copy.deepcopy(case.operator).eval(), case.data
    size = ParameterVector.of(module).size
    prior = None if learned else torch.linspace(0.5, 2.0, size, dtype=torch.float64)
    settings = (
        {} if learned else {"noise": data.outputs.values.var() / 50, "prior_precision": prior, "effective_observations": 4.0}
    )
    predictor = Laplace("full", **settings).fit(module, data)
    grid = data.outputs.grid
    share = grid.weights / grid.volume
    precision = predictor.effective_observations / predictor.noise
    rows = dense_jacobian(module, data.inputs)
    curvature = torch.einsum("ncpj,c,p,ncpk->jk", rows, precision, share, rows)
    if learned:
        assert len(predictor.prior_precision.unique()) == 1
        assert float((predictor.noise / predictor.noise[0]).log().std(correction=0)) > 0 or len(predictor.noise) == 1
    hessian = curvature + predictor.prior_precision.diag()
    expected = torch.linalg.inv(hessian)
    assert float((predictor.weight_covariance - expected).abs().max() / expected.abs().max()) <= 1e-8
    new = dense_jacobian(module, case.inputs).flatten(0, 2)
    field = predictor(case.inputs)
    covariance = cross_covariance(field, field)
    reference = new @ expected @ new.mT
    prior_std = reference.diagonal().sqrt()
    assert float(((covariance - reference) / prior_std / prior_std[:, None]).abs().max()) <= 1e-9
    with torch.no_grad():
        residuals = (data.outputs.values - module(data.inputs.values)).flatten(2)
    vector = predictor.layout.flatten(dict(module.named_parameters()))
    observations = predictor.effective_observations * len(data)
    value = (observations * (2 * math.pi * predictor.noise).log()).sum() + (
        (residuals.square() @ share).sum(0) * precision
    ).sum()
    value = value + (predictor.prior_precision * vector.square()).sum()
    value = value + torch.linalg.slogdet(hessian)[1] - predictor.prior_precision.log().sum()
    assert predictor.log_evidence == pytest.approx(-0.5 * float(value), rel=1e-9)


def test_chosen_parameters_vary_and_the_others_stay() -> None:
    case = operator_case("complex")
    predictor = Laplace("full", parameters=["spectral"], noise=0.01, prior_precision=1.0).fit(case.operator, case.data)
    assert predictor.layout.names == ("spectral",)
    assert predictor.latent.rank == 2 * case.operator.spectral.numel()
    rows = dense_jacobian(case.operator, case.inputs)[..., : predictor.latent.rank]
    expected = torch.einsum("ncpj,jk,ncpk->ncp", rows, predictor.weight_covariance, rows)
    torch.testing.assert_close(predictor(case.inputs).variance, expected, rtol=1e-9, atol=0)


def test_priors_by_name_as_a_vector_and_as_a_number_agree() -> None:
    case = operator_case("complex")
    layout = ParameterVector.of(case.operator)
    named = {name: torch.full(shape, 3.0) for name, shape in zip(layout.names, layout.shapes, strict=True)}
    fits = [
        Laplace("full", noise=0.01, prior_precision=prior).fit(case.operator, case.data)
        for prior in (3.0, torch.full((layout.size,), 3.0), named)
    ]
    for other in fits[1:]:
        assert torch.equal(other.weight_covariance, fits[0].weight_covariance)
        assert other.latent.id == fits[0].latent.id


def test_infinite_precision_fixes_parameters() -> None:
    case = operator_case("fno-1d")
    layout = ParameterVector.of(case.operator)
    named = {name: torch.full(shape, math.inf) for name, shape in zip(layout.names, layout.shapes, strict=True)}
    named["readout.weight"], named["readout.bias"] = torch.full((1, 6), 2.0), torch.full((1,), 2.0)
    fixed = Laplace("full", noise=0.01, prior_precision=named).fit(case.operator, case.data)
    chosen = Laplace("full", parameters=["readout"], noise=0.01, prior_precision=2.0).fit(case.operator, case.data)
    torch.testing.assert_close(fixed(case.inputs).variance, chosen(case.inputs).variance, rtol=1e-10, atol=0)
    assert fixed.log_evidence == pytest.approx(chosen.log_evidence, rel=1e-10)


def test_chosen_parameters_must_be_few(monkeypatch: pytest.MonkeyPatch) -> None:
    case = operator_case("fno-1d")
    monkeypatch.setattr(closed_form, "LARGEST", 10)
    with pytest.raises(UnsupportedError, match="at most 10 parameters"):
        Laplace("full").fit(case.operator, case.data)
    assert Laplace("full", parameters=["readout"]).fit(case.operator, case.data).latent.rank == 7


@pytest.mark.bad_input
def test_errors() -> None:
    case = operator_case("fno-1d")
    with pytest.raises(UnsupportedError, match="structure among low_rank, .*; got 'diagnoal'"):
        Laplace("diagnoal")
    with pytest.raises(ArgumentError, match="got 'read_out'"):
        Laplace("full", parameters=["read_out"]).fit(case.operator, case.data)
    with pytest.raises(ArgumentError, match="prior_precision for each of readout.weight, readout.bias"):
        Laplace("full", parameters=["readout"], prior_precision={"readout.weight": torch.ones(1, 6)}).fit(
            case.operator, case.data
        )
    named = {"readout.weight": torch.ones(6), "readout.bias": torch.ones(1)}
    with pytest.raises(ShapeError, match="readout.weight of shape"):
        Laplace("full", parameters=["readout"], prior_precision=named).fit(case.operator, case.data)
