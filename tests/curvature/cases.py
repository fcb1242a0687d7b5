"""The list of problems that every curvature product is checked on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from probneural.curvature.parameters import ParameterVector
from probneural.curvature.problem import CurvatureProblem, Minibatches, QuadratureGaussian
from probneural.curvature.products.linear_operators import EmpiricalFisher, GaussNewton, Hessian
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import AttentionOperator, PointFNO
from tests.curvature.reference import dense_fisher, dense_gauss_newton, dense_hessian, dense_jacobian
from tests.heads.cases import BranchTrunk, ComplexSpectral, ConvStack, data_for, fields, small_fno, to_dtype
from tests.helpers import one_of_each

F64 = torch.float64
LINE = Grid.uniform(8)
PLANE = Grid.uniform((4, 5), lengths=(1.0, 2.0))
SCATTERED = Grid.scattered([[0.1], [0.35], [0.4], [0.75], [0.9]], [0.2, 0.1, 0.2, 0.3, 0.2])
MESHES = Grid.batch(
    [Grid.mesh(torch.linspace(0.0, 1.0, n)[:, None] ** 1.5, [[i, i + 1] for i in range(n - 1)]) for n in (5, 8, 6, 4, 7)]
)
TINY_FNO = {"modes": (2,), "width": 2, "depth": 2, "projection": 3}


class Tiny(nn.Module):
    """Six parameters, for derivatives of derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 2, 1)
        self.last = nn.Conv1d(2, 1, 1, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(values)))


@dataclass(frozen=True)
class ProductCase:
    """A problem of five functions in minibatches of two, two, and one, and chunks of three vectors."""

    name: str
    problem: CurvatureProblem

    @property
    def parameters(self) -> Tensor:
        return self.problem.parameters

    def vectors(self, count: int, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(count, self.problem.size, generator=generator, dtype=F64)

    def cotangents(self, count: int, *, seed: int = 1) -> Tensor:
        shape = (count, len(self.problem.inputs), *self.problem.likelihood.weights.shape[-2:])
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)

    @property
    def columns(self) -> list[int]:
        """Where the chosen parameters stand among all of them."""
        chosen, every, start = set(self.problem.layout.names), ParameterVector.of(self.problem.operator), 0
        places: list[int] = []
        for name, shape in zip(every.names, every.shapes, strict=True):
            if name in chosen:
                places.extend(range(start, start + shape.numel()))
            start += shape.numel()
        return places

    @cache  # noqa: B019 - the cases live as long as the tests
    def jacobian(self) -> Tensor:
        return dense_jacobian(self.problem.operator, self.problem.inputs, self.problem.grid)[..., self.columns]

    @cache  # noqa: B019
    def matrix(self, kind: str) -> Tensor:
        """One of `MATRICES`, densely and slowly."""
        weights, targets = self.problem.likelihood.weights, self.problem.targets
        if kind == "gauss-newton":
            return dense_gauss_newton(self.jacobian(), weights)
        if kind == "fisher":
            values = self.problem.outputs(self.parameters).detach()
            return dense_fisher(self.jacobian(), weights, values - targets.values.flatten(2))
        rows = dense_hessian(self.problem.operator, self.problem.inputs, targets, weights, self.problem.grid)
        return rows[self.columns][:, self.columns]


MATRICES = {"hessian": Hessian, "gauss-newton": GaussNewton, "fisher": EmpiricalFisher}


def problem_for(
    operator: nn.Module,
    grid: Grid,
    *,
    channels: int = 1,
    query: Grid | None = None,
    chosen: list[str] | None = None,
    chunk: int = 3,
) -> CurvatureProblem:
    data = data_for(operator.eval(), fields(grid, 5, channels, seed=1, waves=2), query=query, noise=0.5)
    precision = torch.linspace(2.0, 3.0, data.outputs.channels, dtype=F64)
    return CurvatureProblem(
        operator,
        data.inputs,
        layout=ParameterVector.of(operator, chosen),
        likelihood=QuadratureGaussian.of(data.outputs.grid, precision),
        targets=data.outputs,
        grid=query,
        batches=Minibatches(size=2, chunk=chunk),
    )


def _case(name: str, make: Callable[[], nn.Module], grid: Grid, **settings) -> ProductCase:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ProductCase(name, problem_for(to_dtype(make(), F64), grid, **settings))


@cache
def product_cases() -> tuple[ProductCase, ...]:
    fno = small_fno(**TINY_FNO)
    return (
        _case("fno-1d", fno, LINE),
        _case("fno-channels", small_fno(2, in_channels=2, **{**TINY_FNO, "depth": 1}), LINE, channels=2),
        _case("fno-2d", small_fno(**{**TINY_FNO, "modes": (2, 2), "depth": 1}), PLANE),
        _case("fno-query", fno, LINE, query=Grid.uniform(10)),
        _case("fno-chosen", fno, LINE, chosen=["spectral.1", "readout"]),
        _case("branch-trunk", BranchTrunk, LINE, query=SCATTERED),
        _case("attention", lambda: AttentionOperator(1, 1, dimension=1, width=4, depth=2, heads=2, latents=2), LINE),
        _case("meshes", lambda: PointFNO(1, 1, **TINY_FNO), MESHES),
        _case("meshes-attention", lambda: AttentionOperator(1, 1, dimension=1, width=4, depth=1, heads=2), MESHES),
        _case("conv", ConvStack, LINE),
        _case("complex", lambda: ComplexSpectral(modes=2, width=2), LINE),
    )


def product_case(name: str) -> ProductCase:
    return next(case for case in product_cases() if case.name == name)


@cache
def tiny() -> ProductCase:
    return _case("tiny", Tiny, Grid.uniform(3), chunk=2)


def changed(case: ProductCase, **settings) -> CurvatureProblem:
    """The same problem with other settings, or other minibatches."""
    names = {"batch": "size", "chunk": "chunk", "is_sharded": "is_sharded", "group": "group"}
    streamed = {names[name]: settings.pop(name) for name in names if name in settings}
    return replace(case.problem, batches=replace(case.problem.batches, **streamed), **settings)


def in_single(problem: CurvatureProblem) -> CurvatureProblem:
    """The same problem in float32; the operator is a copy."""
    operator = to_dtype(copy.deepcopy(problem.operator), torch.float32)
    targets = Field(problem.targets.values.float(), problem.targets.grid)
    return replace(problem, operator=operator, inputs=problem.inputs.to(torch.float32), targets=targets)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Agreement relative to the largest entry."""
    assert actual.shape == expected.shape
    difference = (actual - expected).detach().abs().max()
    assert float(difference) <= tolerance * float(expected.detach().abs().max())


class Sizes(TorchDispatchMode):
    """The numbers of entries of all tensors that any operation yields, derivatives and vmap seen from below."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if isinstance(result, Tensor) and result.ndim > 2:
            self.seen.append(result.numel())
        return result


FAST = ("fno-1d", "branch-trunk", "complex")
KINDS = one_of_each(product_cases(), lambda case: case.name if case.name in FAST else None)
EVERY = pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)
"""Run a test on every case."""
