"""The lists of cases: put a head or an operator in here, and the contract suite runs on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields as fields_of
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from probneural.calibration import ScaleMixture, VarianceScale
from probneural.distributions import Predictor
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads import (
    BayesianOperator,
    DeepEnsemble,
    InContext,
    KernelOperator,
    Laplace,
    LaplaceEnsemble,
    LastLayerLaplace,
    LowRank,
)
from probneural.heads.laplace.structures import STRUCTURES, Structure
from probneural.heads.training_data import ResidualSums, TrainingData
from probneural.operators import (
    FNO,
    AttentionOperator,
    DeepONet,
    HiddenLayers,
    InContextOperator,
    LinearRegression,
    PODDeepONet,
    PointFNO,
)
from probneural.pairs import FieldPairs
from tests.helpers import generator, held_out, one_of_each


def fields(grid: Grid, count: int, channels: int, *, seed: int, waves: int = 3) -> Field:
    """Smooth random functions, the same ones on every grid of the domain, float64."""
    points = grid.points if grid.has_points_per_sample else grid.points[None]
    basis = torch.ones(len(points), 1, grid.size, dtype=torch.float64)
    for axis, periodic in enumerate(grid.periodic):
        turn = 2 * torch.pi * points[..., axis] * (1.0 if periodic else 0.5)
        along = [torch.cos(k * turn) for k in range(waves)]
        along += [torch.sin(k * turn) for k in range(1, waves)] if periodic else []
        basis = (basis[:, :, None] * torch.stack(along, 1)[:, None]).flatten(1, 2)
    coefficients = torch.randn(count, channels, basis.shape[1], generator=generator(seed), dtype=torch.float64)
    return Field((coefficients @ basis / basis.shape[1] ** 0.5).unflatten(-1, grid.shape), grid)


def data_for(operator: nn.Module, inputs: Field, *, query: Grid | None = None, seed: int = 7, noise: float = 0.1) -> FieldPairs:
    """Pairs whose outputs are smooth perturbations of the operator's own, so that nothing needs training."""
    with torch.no_grad():
        values = evaluate(operator, inputs, query)
    grid = inputs.grid if query is None else query
    return FieldPairs(inputs, Field(values + noise * fields(grid, len(inputs), values.shape[1], seed=seed).values, grid))


def estimate_effective_observations(residuals: Tensor, *, grid: Grid) -> Tensor:
    """Effective observations of fields of residuals `(n, c, *grid)`, a few functions at a time; `(c,)`."""
    field = Field(residuals, grid)
    largest = residuals.abs().flatten(2).amax((0, 2)).clamp_min(torch.finfo(torch.float64).tiny)
    data = TrainingData(FieldPairs(field, field), functions=len(residuals))
    sums = ResidualSums(data, channels=field.channels, unit=largest)
    step = max(1, 2**23 // (field.channels * grid.size))
    for start in range(0, len(residuals), step):
        rows = slice(start, start + step)
        sums.add(residuals[rows], grid=grid.select(rows))
    return sums.effective_observations()


class ConvStack(nn.Module):
    """An ordinary convolutional network, in training mode, with everything that fitting might disturb."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 4, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Conv1d(4, 1, 1, bias=bias)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(self.dropout(torch.tanh(self.norm(self.first(values)))))


class ChannelsLast(nn.Module):
    """A network that keeps its channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))

    def forward(self, values: Tensor) -> Tensor:
        return self.layers(values.movedim(1, -1)).movedim(-1, 1)


class ComplexSpectral(nn.Module):
    """A spectral layer as other libraries have it, with complex weights."""

    def __init__(self, modes: int = 3, width: int = 4) -> None:
        super().__init__()
        self.spectral = nn.Parameter(torch.randn(1, width, modes, dtype=torch.complex128, generator=generator(3)))
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, values: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(values, norm="forward")[..., : self.spectral.shape[-1]]
        mixed = torch.einsum("nik,iok->nok", spectrum, self.spectral.to(spectrum))
        hidden = torch.fft.irfft(mixed, n=values.shape[-1], norm="forward")
        return self.head(torch.tanh(hidden))


class Denormalised(nn.Module):
    """A network with its output's units, very different ones, after the read-out."""

    mean: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Conv1d(1, 5, 3, padding=1, padding_mode="circular")
        self.readout = nn.Conv1d(5, 2, 1)
        self.register_buffer("mean", torch.tensor([2e4, -1e-5]))
        self.register_buffer("scale", torch.tensor([1e3, 1e-6]))

    def forward(self, values: Tensor) -> Tensor:
        return self.readout(torch.tanh(self.hidden(values))) * self.scale[:, None] + self.mean[:, None]


class BranchTrunk(nn.Module):
    """sum_k b_k(a) t_k(x): evaluated at any points."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(8, 3)
        self.trunk = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 3))

    def forward(self, values: Tensor, *, grid: Grid, query: Grid | None = None) -> Tensor:
        where = grid if query is None else query
        modes = self.trunk(where.points.to(values))
        return torch.einsum("nk,pk->np", torch.tanh(self.branch(values[:, 0])), modes)[:, None].unflatten(-1, where.shape)


@dataclass(frozen=True)
class OperatorCase:
    """An operator with pairs to fit a head on."""

    name: str
    operator: nn.Module
    data: FieldPairs
    readout: str

    @property
    def inputs(self) -> Field:
        """New inputs."""
        return fields(self.data.inputs.grid.select(slice(2)), 2, self.data.inputs.channels, seed=99)


PERIODIC = Grid.uniform(12)
ENDS = Grid.uniform(11, periodic=False)
PLANE = Grid.uniform((8, 7), lengths=(1.0, 2.0))
MESHES = [
    Grid.mesh(torch.linspace(0.0, 1.0, n)[:, None] ** 1.5, [[i, i + 1] for i in range(n - 1)])
    for n in (9, 12, 7, 10, 8, 11, 20)
]


def _built(make: Callable[[], nn.Module], *, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return to_dtype(make(), torch.float64)


def to_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """What `.to(dtype)` does, but complex parameters stay complex."""
    partner = {torch.float32: torch.complex64, torch.float64: torch.complex128}[dtype]
    return module._apply(
        lambda tensor: tensor.to(partner if tensor.is_complex() else dtype if tensor.is_floating_point() else tensor.dtype)
    )


def _case(
    name: str, make: Callable[[], nn.Module], grid: Grid, channels: int, readout: str, *, train: bool = False
) -> OperatorCase:
    operator = _built(make)
    data = data_for(operator.eval(), fields(grid, 6, channels, seed=1))
    return OperatorCase(name, operator.train(train), data, readout)


def small_fno(out_channels: int = 1, *, in_channels: int = 1, **settings: object) -> Callable[[], nn.Module]:
    arguments = {"modes": (3,), "width": 4, "depth": 2, "projection": 6, **settings}
    return lambda: FNO(in_channels, out_channels, **arguments)


def small_deeponet() -> nn.Module:
    return DeepONet(1, 2, sensors=PERIODIC.resized(7), basis=3, layers=HiddenLayers(width=4, depth=1))


def small_pod_deeponet() -> nn.Module:
    operator = PODDeepONet(1, 1, sensors=PERIODIC.resized(7), out_grid=PERIODIC, basis=3, layers=HiddenLayers(width=4, depth=1))
    operator.fit_normalizers(FieldPairs(fields(PERIODIC, 8, 1, seed=4), fields(PERIODIC, 8, 1, seed=5)))
    return operator


@cache
def operator_cases() -> tuple[OperatorCase, ...]:
    inputs = fields(PERIODIC, 20, 1, seed=4, waves=6)
    targets = inputs.values.cumsum(-1) * inputs.values.mean(-1, keepdim=True)
    regression = LinearRegression.fitted(FieldPairs(inputs, Field(targets, PERIODIC)), components=3)
    denormalised = _built(Denormalised)
    scaled = data_for(denormalised, fields(PERIODIC, 6, 1, seed=1), noise=0.0)
    perturbed = scaled.outputs.values + 0.1 * denormalised.scale[:, None] * fields(PERIODIC, 6, 2, seed=7).values
    return (
        _case("fno-1d", small_fno(), PERIODIC, 1, "readout", train=True),
        _case("fno-outputs", small_fno(2, in_channels=2), PERIODIC, 2, "readout"),
        _case("fno-ends", small_fno(periodic=False, embeds_position=True), ENDS, 1, "readout"),
        _case("fno-2d", small_fno(modes=(2, 2), depth=1), PLANE, 1, "readout"),
        _case("deeponet", small_deeponet, PERIODIC, 1, "readout"),
        _case("pod-deeponet", small_pod_deeponet, PERIODIC, 1, "readout"),
        OperatorCase("regression", regression, data_for(regression, fields(PERIODIC, 6, 1, seed=1)), "readout"),
        _case("conv", ConvStack, PERIODIC, 1, "last", train=True),
        _case("no-bias", lambda: ConvStack(bias=False), PERIODIC, 1, "last"),
        _case("channels-last", ChannelsLast, PERIODIC, 2, "layers.2"),
        _case("complex", ComplexSpectral, PERIODIC, 1, "head"),
        OperatorCase("denormalised", denormalised, FieldPairs(scaled.inputs, Field(perturbed, PERIODIC)), "readout"),
    )


@cache
def mesh_cases() -> tuple[OperatorCase, ...]:
    """Operators on one mesh per sample."""
    grid = Grid.batch(MESHES[:6])
    return (
        _case("meshes", lambda: PointFNO(2, 2, modes=(2,), width=3, depth=1, projection=4), grid, 2, "readout"),
        _case("meshes-attention", lambda: AttentionOperator(1, 1, dimension=1, width=4, depth=1, heads=2), grid, 1, "readout"),
    )


@cache
def context_cases() -> tuple[OperatorCase, ...]:
    """Operators that learn in context; the data are one."""
    settings = {"modes": (3,), "width": 8, "depth": 1, "rank": 1}
    data = FieldPairs(fields(PERIODIC, 6, 1, seed=1), fields(PERIODIC, 6, 1, seed=2))
    return tuple(
        OperatorCase(
            name, _built(lambda ordered=ordered: InContextOperator(1, 1, ordered=ordered, **settings)), data, "readout"
        )
        for name, ordered in (("in-context", False), ("in-context-ordered", True))
    )


def structured(name: str, *, rank: int | None = None, probes: int | None = None) -> Structure:
    """A structure by name, with the settings that it has."""
    wanted = {"rank": rank, "probes": probes}
    known = {each.name for each in fields_of(STRUCTURES[name])}
    return STRUCTURES[name](**{setting: value for setting, value in wanted.items() if setting in known})


HEADS = {
    "last-layer": LastLayerLaplace(),
    "last-layer-given": LastLayerLaplace(noise=0.01, prior_precision=2.0, effective_observations=5.0),
    "full": Laplace("full"),
    "full-given": Laplace("full", noise=0.01, prior_precision=2.0, effective_observations=5.0),
    "low-rank": Laplace(LowRank(rank=40)),
    "low-rank-grown": Laplace("low_rank", noise=0.01, prior_precision=2.0, effective_observations=5.0),
    "kronecker": Laplace("kronecker"),
    "diagonal": Laplace("diagonal"),
}


def briefly(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
    """Three training steps that leave the mode alone: enough to move weights, dropout and running statistics included."""
    optimizer = torch.optim.Adam([value for value in operator.parameters() if value.requires_grad], lr=1e-2)
    order = torch.randperm(len(data), generator=generator(seed))
    query = None if data.outputs.grid == data.inputs.grid else data.outputs.grid
    for rows in order.split(max(2, len(data) // 2)) * 2:
        optimizer.zero_grad()
        (evaluate(operator, data[rows].inputs, query) - data[rows].outputs.values).square().mean().backward()
        optimizer.step()


def reinitialise(operator: nn.Module) -> None:
    """For modules that own parameters and have no `reset_parameters`."""
    for parameter in operator.parameters():
        parameter.copy_(0.5 * torch.randn_like(parameter))


@dataclass(frozen=True)
class Combined:
    """Two posteriors of one operator, brought to one by what is called with them and held-out data."""

    combine: Callable[[list[Predictor], FieldPairs], Predictor]

    def fit(self, operator: nn.Module, data: FieldPairs) -> Predictor:
        """As heads do."""
        settings = {"noise": 0.01, "prior_precision": 2.0, "effective_observations": 5.0}
        heads = (LastLayerLaplace(), LastLayerLaplace(**settings))
        return self.combine([head.fit(operator, data) for head in heads], held_out(data))


_SHORT = {"chains": 2, "burn_in": 2, "draws": 4, "thinning": 1, "members": 4}
_GIVEN = Laplace("diagonal", noise=0.01, prior_precision=2.0, effective_observations=5.0, show_progress=False)
ENSEMBLES = {
    "deep-ensemble": DeepEnsemble(4, train=briefly, reinitialise=reinitialise, show_progress=False),
    "network-variational": BayesianOperator(steps=3, laplace=_GIVEN, batch_size=3, show_progress=False),
    "laplace-ensemble": LaplaceEnsemble(2, train=briefly, head=Laplace("diagonal", show_progress=False), show_progress=False),
    "residual-process": KernelOperator(groups=1, iterations=2),
    "in-context": InContext(),
    "in-context-permuted": InContext(3, tolerance=0.05),
    "mixture": Combined(lambda predictors, data: MixturePredictor(predictors)),
    "random-scale": Combined(lambda predictors, data: ScaleMixture(draws=50).fit(predictors[0], data)),
    "calibrated-scale": Combined(
        lambda predictors, data: ScaleMixture(draws=50).fit(VarianceScale().fit(predictors[0], data), data)
    ),
}
"""Heads whose mean is not the operator's own output, or whose scatter is not that of weights."""
COMBINED = ("mixture", "random-scale", "calibrated-scale")
FRESH_DRAWS = ("laplace-ensemble", "residual-process", *COMBINED)
"""Heads whose function draw of a seed is not a prediction's draw of that seed."""


def operator_case(name: str) -> OperatorCase:
    return next(case for case in (*operator_cases(), *mesh_cases(), *context_cases()) if case.name == name)


OPERATORS = [case.name for case in operator_cases()]


def operators_of(head: str) -> tuple[str, ...]:
    """What contracts run a head on that is in no list of pairs; the first one where one is enough."""
    if head.startswith("in-context"):
        return ("in-context-ordered" if head == "in-context-permuted" else "in-context",)
    if head == "network-variational":
        return ("fno-1d", "conv", "complex")
    if head == "laplace-ensemble":  # draws weights anew, so every parameter has to belong to a module that can
        return ("fno-1d", "fno-ends", "conv")
    return ("fno-1d", "fno-ends", "conv", "complex")


_SLOW = {"low-rank", "low-rank-grown"}
_FEW = ("fno-1d", "complex")
PAIRS = [(head, operator) for head in HEADS for operator in OPERATORS if head not in _SLOW or operator in _FEW]
"""What contracts run on: every head on every operator, but for heads that repeat others slowly."""
EVIDENCE_PAIRS = [(head, operator) for head, operator in PAIRS if hasattr(HEADS[head], "effective_observations")]
"""What contracts run on that ask for noise and prior from an evidence."""
ALL_HEADS = HEADS | ENSEMBLES
ALL_PAIRS = [*PAIRS, *((head, operator) for head in ENSEMBLES for operator in operators_of(head))]
"""What contracts run on that ask for no Gaussian field."""


def parameters(pairs: list[tuple[str, str]]) -> list[Any]:
    """Pairs as parameters: in `make test`, every head on its first operator, and two heads on every operator."""
    return one_of_each(pairs, lambda pair: pair if pair[0] in ("last-layer", "diagonal") else pair[0])


@cache
def fitted(head: str, operator: str):
    """A predictor, fitted once for all tests that only read it."""
    case = operator_case(operator)
    return ALL_HEADS[head].fit(case.operator, case.data)
