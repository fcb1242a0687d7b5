"""The dense Laplace posterior against autograd Jacobians and dense algebra."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from probneural.curvature import ParameterVector
from probneural.errors import ArgumentError, ShapeError, UnsupportedError
from probneural.fields import Field, evaluate
from probneural.functionals import integral, stack
from probneural.grids import Grid
from probneural.heads import Kronecker, Laplace
from probneural.heads.laplace.laplace import LaplacePredictor
from probneural.heads.laplace.structures import STRUCTURES, Structure, closed_form
from probneural.pairs import FieldPairs
from tests.curvature.reference import dense_jacobian
from tests.heads.cases import MESHES, operator_case
from tests.helpers import cross_covariance, one_of_each

CASES = ["fno-1d", "meshes", "fno-outputs", "fno-ends", "fno-2d", "complex", "denormalised", "meshes-attention"]


@pytest.mark.parametrize("operator", one_of_each(CASES, lambda name: name in ("complex", "meshes")))
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
    share = grid.sample_weights.expand(len(data), 1, -1)[:, 0]
    precision = predictor.effective_observations / predictor.noise
    rows = dense_jacobian(module, data.inputs)
    curvature = torch.einsum("ncpj,c,np,ncpk->jk", rows, precision, share, rows)
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
        residuals = (data.outputs.values - evaluate(module, data.inputs)).flatten(2)
    vector = predictor.layout.flatten(dict(module.named_parameters()))
    observations = predictor.effective_observations * len(data)
    value = (observations * (2 * math.pi * predictor.noise).log()).sum() + (
        torch.einsum("ncp,np->c", residuals.square(), share) * precision
    ).sum()
    value = value + (predictor.prior_precision * vector.square()).sum()
    value = value + torch.linalg.slogdet(hessian)[1] - predictor.prior_precision.log().sum()
    assert predictor.log_evidence == pytest.approx(-0.5 * float(value), rel=1e-9)


def test_later_predictions_take_no_passes_for_the_variances_of_the_same_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same input on the same grid only; conditioned predictors share the passes and not the variances."""
    import probneural.curvature.jacobian_root as roots
    import probneural.heads.laplace.laplace as module

    monkeypatch.setattr(module, "_MATERIALISED", 0)
    case = operator_case("fno-1d")
    inputs, functional = case.inputs[:2], integral(case.data.outputs.grid)

    def variances(predictor: LaplacePredictor) -> list[Tensor]:
        measured = predictor.condition(
            inputs[:1], functional, values=case.data.outputs.values.mean((0, 2))[None, :, None], noise=1e-2
        )
        finer = inputs.grid.resized(2 * inputs.grid.size)
        changed = replace(inputs, values=inputs.values + 1e-9)
        return [
            predictor(inputs).variance,
            predictor(inputs, finer).variance,
            predictor(changed).variance,
            measured(inputs).variance,
        ]

    def fitted() -> LaplacePredictor:
        return Laplace("diagonal", noise=0.1, prior_precision=1.0).fit(case.operator, case.data)

    predictor, passes = fitted(), []
    evaluated = roots.evaluate_at
    monkeypatch.setattr(roots, "evaluate_at", lambda *args, **options: passes.append(1) or evaluated(*args, **options))
    first = variances(predictor)
    count = len(passes)
    again = variances(predictor)
    assert len(passes) - count < count / 2
    for one, other, fresh in zip(first, again, variances(fitted()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0.0)
        torch.testing.assert_close(one, fresh, rtol=1e-12, atol=0.0)
    assert float((first[0] - first[2]).abs().max()) > 0
    passes.clear()
    predictor(inputs).variance  # noqa: B018
    assert not passes


@pytest.mark.parametrize("structure", [*STRUCTURES, Kronecker(probes=4)])
def test_padding_of_meshes_changes_nothing(structure: str | Structure) -> None:
    """Training data, predictions, functionals and selections; each sample alone is the reference."""
    case = operator_case("meshes")
    padded = Grid.batch(MESHES).select(slice(6))
    sides = (case.data.inputs, case.data.outputs)
    longer = FieldPairs(*(Field(nn.functional.pad(side.values, (0, 8), value=9.0), padded) for side in sides))
    predictor, other = (Laplace(structure, show_progress=False).fit(case.operator, data) for data in (case.data, longer))
    torch.testing.assert_close(other.noise, predictor.noise, rtol=1e-8, atol=0)
    torch.testing.assert_close(other.effective_observations, predictor.effective_observations, rtol=1e-10, atol=0)
    u, v = predictor(case.inputs), other(longer.inputs[:2])
    draws, total = u.draw([3, 4]), stack([integral(u.grid), 2.0 * integral(u.grid)])
    for row in range(2):
        mesh = MESHES[row]
        alone = predictor(Field(case.inputs.values[row : row + 1, :, : mesh.size], mesh))
        same = other(Field(longer.inputs.values[row : row + 1, :, : mesh.size], mesh))
        for name in ("mean", "variance"):
            values = getattr(u, name)[row : row + 1, :, : mesh.size]
            torch.testing.assert_close(values, getattr(alone, name), rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(
                getattr(v, name)[row : row + 1, :, : mesh.size], getattr(same, name), rtol=1e-9, atol=1e-12
            )
        torch.testing.assert_close(draws[:, row : row + 1, :, : mesh.size], alone.draw([3, 4]), rtol=1e-8, atol=1e-10)
        expected = alone.apply(integral(mesh)).variance
        torch.testing.assert_close(u.apply(total).variance[row : row + 1, :, :1], expected, rtol=1e-8, atol=0)
        torch.testing.assert_close(
            u[row].apply(total.select(slice(row, row + 1))).variance[..., :1], expected, rtol=1e-8, atol=0
        )
    torch.testing.assert_close(other(case.inputs).variance, u.variance, rtol=1e-6, atol=0)


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
    with pytest.raises(UnsupportedError, match="an integer from 1 to 10 as number of parameters for a dense covariance"):
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
