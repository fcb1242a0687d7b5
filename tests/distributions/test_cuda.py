"""On CUDA the core gives what it gives on the CPU, and takes arguments from either."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from probneural.distributions import (
    DenseRoot,
    EmpiricalField,
    FeatureRoot,
    GaussianField,
    MixtureField,
    Root,
    ScaleMixtureField,
)
from probneural.distributions.roots.lazy import LazyFeatureRoot
from probneural.distributions.roots.modulated import WeightedRoot
from probneural.distributions.roots.sums import CorrectedRoot
from probneural.fields import Field
from probneural.functionals import derivative, integral, sensors, stack
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.distributions.cases import (
    EmpiricalCase,
    GaussianCase,
    assert_close,
    functionals,
    normal,
    observed,
    on_every_empirical,
    on_every_gaussian,
)
from tests.helpers import accelerator, cross_covariance

pytestmark = pytest.mark.gpu


def root_on_cuda(root: Root) -> Root:
    if isinstance(root, DenseRoot):
        return DenseRoot(root.matrix.to(accelerator()))
    if isinstance(root, WeightedRoot):
        return WeightedRoot(root_on_cuda(root.base), root.weights.to(accelerator()))
    if isinstance(root, CorrectedRoot):
        return CorrectedRoot(root_on_cuda(root.base), root.columns.to(accelerator()), root.rows.to(accelerator()))
    if isinstance(root, LazyFeatureRoot):
        example = root.example.to(accelerator())
        evaluate = partial(_evaluated_on_cuda, root)
        return replace(root, evaluate=evaluate, factor=root.factor.to(accelerator()), example=example)
    assert isinstance(root, FeatureRoot)
    return FeatureRoot(root.features.to(accelerator()), root.factor.to(accelerator()))


def _evaluated_on_cuda(root: LazyFeatureRoot, indices: Tensor) -> Tensor:
    return root.evaluate(indices).to(accelerator())


def on_cuda(field: GaussianField) -> GaussianField:
    return GaussianField(field.mean.to(accelerator()), root_on_cuda(field.root), latent=field.latent, grid=field.grid)


def check(there: Tensor, here: Tensor, tolerance: float) -> None:
    assert there.device.type == accelerator()
    assert there.dtype == here.dtype
    assert_close(there.cpu(), here, tolerance)


@on_every_gaussian
def test_gaussian_fields(case: GaussianCase) -> None:
    here, there, tolerance = case.field, on_cuda(case.field), 100 * case.tolerance
    functional = observed(here.grid, 2)
    values = functional(here.rsample(seed=2))
    constraints = [lambda u: u, *(lambda u, f=f: u.apply(f) for f in functionals(here.grid))]
    constraints += [lambda u: u.constrain(functional, values), lambda u: u.condition(functional, values, noise=0.1)]
    constraints += [
        lambda u: u[:1].condition(functional, values[:1]),
        lambda u: u[[-1, 0]],
        lambda u: u.scale(torch.ones(values.shape[1])),
    ]
    learned = here.condition(functional, values, noise=0.1).latent
    constraints += [
        lambda u: u.under(learned),
        lambda u: u.under(u.under(learned).condition(functional, values, noise=0.2).latent),
    ]
    for constraint in constraints:
        check(constraint(there).mean, constraint(here).mean, tolerance)
        check(constraint(there).variance, constraint(here).variance, tolerance)
        check(constraint(there).rsample((3,), seed=0), constraint(here).rsample((3,), seed=0), tolerance)
    draw = here.rsample(seed=5)
    for options in ({"noise": 0.3}, {"noise": torch.full(draw.shape, 0.3)}, {"noise": 0.1, "joint": False}):
        check(there.log_prob(draw, **options), here.log_prob(draw, **options), tolerance)
    check(there.apply(functional).log_prob(values), here.apply(functional).log_prob(values), tolerance)
    check(cross_covariance(there, there), cross_covariance(here, here), tolerance)


@on_every_gaussian
def test_mixtures_with_weights_on_the_cpu(case: GaussianCase) -> None:
    field, tolerance = case.field, 100 * case.tolerance
    draw = field.rsample(seed=5)
    weights, scales = torch.tensor([0.3, 0.7], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    pairs = [(MixtureField([u, u.scale(torch.full((draw.shape[1],), 2.0))], weights) for u in (field, on_cuda(field)))]
    pairs.append(ScaleMixtureField(u, scales, weights=weights) for u in (field, on_cuda(field)))
    for here, there in pairs:
        for name in ("mean", "variance", "standard_deviation"):
            check(getattr(there, name), getattr(here, name), tolerance)
        check(there.quantile([0.1, 0.6], noise=0.1), here.quantile([0.1, 0.6], noise=0.1), tolerance)
        check(there.cdf(draw, noise=0.1), here.cdf(draw, noise=0.1), tolerance)
        check(there.log_prob(draw, noise=0.3), here.log_prob(draw, noise=0.3), tolerance)
        check(there.rsample((3,), seed=0), here.rsample((3,), seed=0), tolerance)
        check(there.moment_matched().variance, here.moment_matched().variance, tolerance)


@on_every_empirical
def test_empirical_fields(case: EmpiricalCase) -> None:
    here = case.field
    there = EmpiricalField(here.samples.to(accelerator()), case.weights, grid=here.grid)
    for f in functionals(here.grid):
        check(there.apply(f).variance, here.apply(f).variance, case.tolerance)
    check(there.rsample((9,), seed=0), here.rsample((9,), seed=0), 0.0)
    check(there.moment_matched().variance, here.moment_matched().variance, 10 * case.tolerance)
    check(
        there.scale(torch.full((here.mean.shape[1],), 2.0))[[0, -1]].variance, 4 * here[[0, -1]].variance, 10 * case.tolerance
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fields_and_functionals(dtype: torch.dtype) -> None:
    grid, tolerance = Grid.uniform((6, 7), periodic=(True, False)), 1e-5 if dtype == torch.float32 else 1e-12
    here = Field(normal("field", 3, 2, 6, 7, dtype=dtype), grid)
    there = here.to(accelerator())
    check(there.norm(), here.norm(), tolerance)
    check(there.resample(grid.resized((9, 8))).values, here.resample(grid.resized((9, 8))).values, tolerance)
    check(there[[2, 0]].values, here[[2, 0]].values, 0.0)
    check(
        FieldPairs(there, there).split(2, seed=0)[0].inputs.values,
        FieldPairs(here, here).split(2, seed=0)[0].inputs.values,
        0.0,
    )
    functional = stack([integral(grid), sensors(grid, [[0.3, 0.4]]), derivative(grid, axis=1)])
    check(functional(there.values), functional(here.values), 10 * tolerance)
    check(functional.adjoint(functional(there.values)), functional.adjoint(functional(here.values)), 100 * tolerance)
