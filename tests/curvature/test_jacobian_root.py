"""The lazy root against the same root formed from a dense Jacobian."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from probneural.curvature import ParameterVector
from probneural.curvature.jacobian_root import JacobianRoot, VarianceEstimation
from probneural.curvature.rows import KeptRows
from probneural.curvature.weights import DenseWeights, DiagonalWeights, LowRankWeights, WeightRoot
from probneural.distributions import DenseRoot, GaussianField
from probneural.distributions.roots.base import RecordedMaps
from probneural.errors import GridError, UnsupportedError
from probneural.fields import Field
from probneural.functionals import MatrixFunctional, integral
from probneural.grids import Grid
from probneural.linear_algebra.conditioning import LowRankUpdate
from tests.curvature.reference import dense_jacobian
from tests.heads.cases import fields, operator_case
from tests.helpers import normal, one_of_each

CASES = ["fno-1d", "fno-outputs", "fno-2d", "complex"]
WEIGHTS = ["dense", "diagonal", "low-rank"]
EVERY = pytest.mark.parametrize("operator", one_of_each(CASES, lambda name: name == "complex"))
KIND = pytest.mark.parametrize("kind", WEIGHTS)
KEEPS = pytest.mark.parametrize("keeps", [False, True], ids=["passes", "rows"])


def weights_of(kind: str, size: int) -> WeightRoot:
    if kind == "dense":
        return DenseWeights(normal(size, 9, seed=1) / size**0.5)
    if kind == "diagonal":
        return DiagonalWeights(normal(size, seed=1).abs())
    directions = torch.linalg.qr(normal(size, 5, seed=1)).Q
    return LowRankWeights(normal(size, seed=2).abs(), directions, factors=torch.linspace(0.1, 1.0, 5, dtype=torch.float64))


def built(
    operator: str, kind: str = "low-rank", *, query: Grid | None = None, keeps: bool = False, **variance_estimation: int
) -> tuple[JacobianRoot, Tensor]:
    """The lazy root and the dense one, `(n, c, p, k)`; the lazy one may keep its rows."""
    case = operator_case(operator)
    module = copy.deepcopy(case.operator).eval().requires_grad_(False)
    layout = ParameterVector.of(module)
    inputs = fields(case.data.inputs.grid, 3, case.data.inputs.channels, seed=99)
    weights = weights_of(kind, layout.size)
    vector = layout.flatten(dict(module.named_parameters()))
    rows = dense_jacobian(module, inputs, query)
    root = JacobianRoot(
        module,
        layout,
        vector=vector,
        inputs=inputs,
        query=query,
        weights=weights,
        recorded=RecordedMaps(torch.ones(rows.shape[1]).double()),
        variance_estimation=VarianceEstimation(**variance_estimation),
    )
    if not keeps:
        object.__setattr__(root, "rows_cache", None)
    return root, rows @ weights.dense()


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    assert actual.shape == expected.shape
    assert float((actual - expected).abs().max()) <= tolerance * float(expected.abs().max())


def same(root: JacobianRoot, dense: Tensor) -> None:
    """Every operation of a root."""
    reference = DenseRoot(dense)
    inputs, channels, points, rank = root.shape
    assert root.shape == tuple(dense.shape)
    latents, each = normal(4, rank, seed=3), normal(inputs, rank, seed=4)
    values, cotangents = normal(2, inputs, channels, points, seed=5), normal(inputs, 2, channels, points, seed=6)
    close(root.product(latents), reference.product(latents))
    close(root.product_each(each), reference.product_each(each))
    close(root.transposed_product(values), reference.transposed_product(values))
    close(root.pull(cotangents), reference.pull(cotangents))
    close(root.row_squares(), reference.row_squares())
    close(root.dense(), dense)
    close(root.gram(), reference.gram())
    assert bool((root.row_squares_error() == 0).all())
    ratio = root.magnitude() / reference.magnitude()
    assert float(ratio.min()) > 0.5
    assert float(ratio.max()) < 5


@EVERY
@KIND
@KEEPS
def test_equals_the_dense_root(operator: str, kind: str, keeps: bool) -> None:
    root, dense = built(operator, kind, keeps=keeps)
    same(root, dense)
    same(root, dense)  # with rows that the first round has formed


def test_rows_are_formed_once_for_all_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marginals, functionals and scales of one prediction share the passes through the operator; few draws need no rows."""
    import probneural.curvature.jacobian_root as module

    root, _ = built("fno-outputs", keeps=True)
    calls: list[int] = []
    evaluated = module.evaluate_at

    def counted(*arguments: Any, **options: Any) -> Tensor:
        calls.append(len(options["inputs"]))
        return evaluated(*arguments, **options)

    monkeypatch.setattr(module, "evaluate_at", counted)
    root.product(normal(1, root.shape[3]))
    assert root.rows_cache is not None
    assert not any(tensor is not None for tensor in root.rows_cache.tensors)
    calls.clear()
    for index in (2, 0):
        root.select(torch.tensor([index])).scale(2.0 * torch.ones(root.shape[1]).double()).row_squares()
    assert calls == [1, 1]
    root.row_squares()
    root.push(integral(root.grid)).gram()
    root.product(normal(1, root.shape[3]))
    assert calls == [1, 1, 1]


@KIND
@EVERY
def test_one_function_by_itself_takes_as_many_columns_as_values(operator: str, kind: str) -> None:
    root, dense = built(operator, kind, keeps=True)
    functions, channels, points, rank = root.shape
    functional = integral(root.grid)
    update = LowRankUpdate(torch.linalg.qr(normal(rank, 2, seed=5)).Q.mT, torch.tensor([0.3, 0.0], dtype=torch.float64))
    factors = torch.linspace(0.5, 2.0, channels, dtype=torch.float64)
    plain = DenseRoot(dense)
    for index in range(functions):
        for lazy, formed in (
            (root, plain),
            (root.scale(factors), plain.scale(factors)),
            (root.scale(factors).push(functional), plain.scale(factors).push(functional)),
            (root.compose(update), plain.compose(update)),
            (root.compose(update).push(functional), plain.compose(update).push(functional)),
        ):
            single = lazy.marginal(index)
            close(single.gram(), formed.select(slice(index, index + 1)).gram())
            assert single.shape[3] <= min(rank, channels * points)
    if rank > channels * points:
        assert root.marginal(0).shape == (1, channels, points, channels * points)
        assert root.rows_cache is not None
        assert len(root.rows_cache.narrow_tensors) == functions


def test_rows_that_take_too_much_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    import probneural.curvature.rows as module

    monkeypatch.setattr(module, "_LARGEST_KEPT", 100)
    for rank, is_held in ((10, True), (11, False)):
        kept = KeptRows.of(2, rows=5, rank=rank)
        formed = kept.form(lambda position: normal(5, rank, seed=position))  # noqa: B023
        assert kept.are_formed == is_held
        narrow = kept[1:].narrow("first", partial(list, formed[1:]))
        torch.testing.assert_close(narrow @ narrow.mT, formed[1] @ formed[1].mT)
        assert kept[1:].narrow("first", lambda: pytest.fail("formed again")) is narrow


def test_square_matrices_of_many_samples_stay_within_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import probneural.curvature.rows as module

    monkeypatch.setattr(module, "_LARGEST_NARROW", 100)
    shared: dict[Hashable, Tensor] = {}
    for number in range(9):
        kept = replace(KeptRows.of(1, rows=5, rank=10), narrow_tensors=shared)
        kept.narrow(number, lambda: [normal(5, 10, seed=number)])  # noqa: B023
        assert number in shared
        assert sum(matrix.numel() for matrix in shared.values()) <= 100
    assert len(shared) == 1  # four fit


@EVERY
def test_on_another_grid(operator: str) -> None:
    grid = operator_case(operator).data.inputs.grid
    same(*built(operator, query=Grid.scattered(grid.points[::2], torch.ones(len(grid.points[::2])))))


@EVERY
@KIND
@KEEPS
def test_functionals_transforms_and_scales_are_applied_in_order(operator: str, kind: str, keeps: bool) -> None:
    root, dense = built(operator, kind, keeps=keeps)
    grid = root.grid
    functional = MatrixFunctional(grid, normal(5, grid.size, seed=7))
    channels, rank = root.shape[1], root.shape[3]
    common = LowRankUpdate(torch.linalg.qr(normal(rank, 2, seed=8)).Q.mT, torch.tensor([0.0, 0.5], dtype=torch.float64))
    per_function = LowRankUpdate(
        torch.linalg.qr(normal(3, rank, 2, seed=9)).Q.mT, torch.tensor([0.3, 0.7], dtype=torch.float64).expand(3, 2)
    )
    factors = torch.linspace(0.5, 2.0, channels, dtype=torch.float64)
    lazy = root.compose(common).scale(factors).push(functional).compose(per_function)
    plain = DenseRoot(dense).compose(common).scale(factors).push(functional).compose(per_function)
    same(lazy, plain.dense())
    index = torch.tensor([2, 0])
    same(lazy.select(index), plain.select(index).dense())
    again = MatrixFunctional(Grid.scattered(torch.arange(5.0)[:, None], torch.ones(5)), normal(2, 5, seed=1))
    same(lazy.push(again).scale(factors), plain.push(again).scale(factors).dense())


@EVERY
def test_many_inputs_and_tangents_go_in_pieces(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import probneural.curvature.jacobian_root as module

    monkeypatch.setattr(module, "_POINTS", 1)
    root, dense = built(operator, chunk=2)
    same(root, dense)


@pytest.mark.parametrize("sketch", [40, 6])
def test_estimated_variances_are_within_their_errors(sketch: int) -> None:
    root, dense = built("fno-outputs", exact_passes=1, sketch=sketch, probes=30)
    exact = dense.square().sum(-1)
    assert not root.is_exact
    estimate, error = root.row_squares(), root.row_squares_error()
    assert bool((estimate > 0).all())
    standardised = (estimate - exact) / (error + 1e-9 * exact)
    assert float(standardised.square().mean().sqrt()) < 2
    if sketch == 40:  # more than there are rows: nothing is left to estimate
        close(estimate, exact, 1e-9)
    else:
        assert float(error.max()) > 0
        assert float((estimate / exact - 1).abs().mean()) < 0.3
    assert torch.equal(estimate, root.row_squares())


def test_differentiable_in_the_inputs() -> None:
    root, _ = built("complex")
    values = root.inputs.values[:1].clone()
    latents, cotangents = normal(2, root.shape[3], seed=1), normal(1, 2, *root.shape[1:3], seed=2)

    def total(inputs: Tensor) -> tuple[Tensor, ...]:
        moved = JacobianRoot(
            root.operator,
            root.layout,
            vector=root.vector,
            inputs=Field(inputs, root.inputs.grid),
            weights=root.weights,
            recorded=root.recorded,
        )
        return moved.product(latents).sum(), moved.pull(cotangents).square().sum(), moved.row_squares().sum()

    assert torch.autograd.gradcheck(total, (values.requires_grad_(),), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("keeps", [False, True])
def test_gaussian_fields_work_on_it(keeps: bool) -> None:
    """Constrain and condition through the lazy root equal those through the dense one."""
    root, dense = built("fno-outputs", keeps=keeps)
    grid, shape = root.grid, (*root.shape[:2], *root.grid.shape)
    mean, constraint = normal(*shape, seed=1), integral(root.grid)
    probe = MatrixFunctional(grid, normal(2, grid.size, seed=2))
    lazy, plain = (GaussianField(mean, kind, latent="xi", grid=grid) for kind in (root, DenseRoot(dense)))
    wanted, seen = normal(3, 2, 1, seed=3), normal(3, 2, 2, seed=4)
    pairs = [
        (lazy.constrain(constraint, wanted), plain.constrain(constraint, wanted)),
        (lazy.condition(probe, seen, noise=0.1), plain.condition(probe, seen, noise=0.1)),
        (lazy.apply(probe), plain.apply(probe)),
        (lazy[1:], plain[1:]),
    ]
    for one, other in pairs:
        close(one.mean, other.mean)
        close(one.variance, other.variance, 1e-9)
        close(one.rsample((3,), seed=0), other.rsample((3,), seed=0))
        values = other.mean + 0.1
        close(one.log_prob(values, noise=0.5), other.log_prob(values, noise=0.5))
    assert float((constraint(pairs[0][0].rsample((50,), seed=1)) - wanted).abs().max()) <= 1e-10


@pytest.mark.bad_input
def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    import probneural.curvature.jacobian_root as module

    root, _ = built("fno-1d")
    with pytest.raises(GridError, match="12 points"):
        root.push(integral(Grid.uniform(5)))
    monkeypatch.setattr(module, "_LARGEST_DENSE", 10)
    with pytest.raises(UnsupportedError, match="an integer from 0 to 10 as size of a root to form"):
        root.dense()
