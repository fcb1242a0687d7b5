"""What cases of bad input are tried on: small things that work, each made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import probneural as pn
from probneural.calibration.bands.conformal import Band
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.distributions import DenseRoot, EmpiricalField, GaussianField, Predictor
from probneural.fields import Field
from probneural.functionals import Functional
from probneural.grids import Grid
from probneural.metrics.comparison import Comparison
from probneural.pairs import FieldPairs
from tests import helpers
from tests.calibration.synthetic import changed

GRID = Grid.uniform((16,))
PLANE = Grid.uniform((4, 6))
SCATTERED = Grid.scattered([[0.1], [0.5], [0.8]], [0.3, 0.3, 0.4])


class Case(NamedTuple):
    """A call that must be refused.

    Attributes:
        name: What is wrong.
        call: Makes the mistake.
        error: The kind that is raised.
        mentions: What its message says, a pattern.
    """

    name: str
    call: Callable[[], object]
    error: type[Exception]
    mentions: str


class Good(NamedTuple):
    """A call that must be accepted, and what it gives.

    Attributes:
        name: What is unusual.
        call: Makes it.
        expected: The same in the usual way; both are compared.
    """

    name: str
    call: Callable[[], torch.Tensor]
    expected: Callable[[], torch.Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in single precision."""
    return helpers.normal(*shape, seed=seed, dtype=torch.float32)


@cache
def pairs(count: int = 12, *, seed: int = 0, channels: int = 1) -> FieldPairs:
    """Smooth random functions and their squares."""
    angle = 2 * torch.pi * GRID.points[:, 0].float()
    waves = torch.stack([torch.ones_like(angle), angle.sin(), angle.cos()])
    inputs = (normal(count * channels, 3, seed=seed) @ waves).reshape(count, channels, 16)
    return FieldPairs(Field(inputs, GRID), Field(inputs.square(), GRID))


def fno(**changes: Any) -> pn.operators.FNO:
    """A small untrained operator."""
    settings: dict[str, Any] = {"in_channels": 1, "out_channels": 1, "modes": (3,), "width": 4, "depth": 1, "projection": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return pn.operators.FNO(**(settings | changes))


@cache
def trained() -> pn.operators.FNO:
    """A briefly trained operator; not to be changed."""
    operator = fno()
    pn.fit(operator, pairs(), epochs=2, show_progress=False)
    return operator


@cache
def build_predictor() -> Predictor:
    """A last-layer predictor of `trained`."""
    return pn.heads.LastLayerLaplace().fit(trained(), pairs())


@cache
def laplace() -> Predictor:
    """A full Laplace predictor of the read-out's weights."""
    return pn.heads.Laplace("full", parameters=["readout"]).fit(trained(), pairs())


@cache
def kernel() -> Predictor:
    """A kernel predictor."""
    return pn.heads.KernelOperator(iterations=1).fit(None, pairs())


def halve(operator: torch.nn.Module, data: FieldPairs, *, seed: int) -> None:
    """A recipe that takes no time."""
    for parameter in operator.parameters():
        parameter.data.mul_(0.5)


@cache
def ensemble() -> Predictor:
    """A predictor of two members."""
    return pn.heads.DeepEnsemble(2, train=halve, show_progress=False).fit(trained(), pairs())


@cache
def gaussian() -> GaussianField:
    """A Gaussian field of three functions with five latent dimensions."""
    return GaussianField(normal(3, 1, 16), DenseRoot(0.1 * normal(3, 1, 16, 5, seed=1)), latent="xi", grid=GRID)


@cache
def empirical() -> EmpiricalField:
    """An empirical field of four members."""
    return EmpiricalField(normal(4, 3, 1, 16), grid=GRID)


@cache
def truth() -> Field:
    """Three functions to hold against either."""
    return Field(normal(3, 1, 16, seed=7), GRID)


@cache
def probe() -> Functional:
    """Two sensors."""
    return pn.functionals.sensors(GRID, [[0.25], [0.75]])


@cache
def comparison() -> Comparison:
    """The Gaussian field beside the truth."""
    return pn.metrics.compare(gaussian(), truth(), noise=0.1)


@cache
def band() -> Band:
    """A calibrated band."""
    return pn.calibration.SimultaneousBand(level=0.5).fit(build_predictor(), pairs(10, seed=3))


@cache
def burgers() -> pn.problems.Burgers:
    """A problem of few modes."""
    return pn.problems.Burgers(random_field=pn.problems.GaussianRandomField(1, 3), design_dim=2)


def encode(design: Tensor) -> Field:
    """Designs `(..., 2)` as input functions on the grid."""
    return burgers().encode(design, grid=GRID)


@cache
def model() -> Any:
    """The predictor as a BoTorch model."""
    return pn.active.OperatorModel(build_predictor(), encode=encode, functional=probe())


def designs(*shape: int) -> Tensor:
    """Designs in the unit cube."""
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def select(selector: Any, **changes: Any) -> object:
    """Let a selector choose two of twelve functions."""
    settings: dict[str, Any] = {"count": 2, "seed": 0} | changes
    chosen_by = settings.pop("predictor", build_predictor())
    return selector.select(chosen_by, settings.pop("pool", pairs().inputs), count=settings.pop("count"), **settings)


def refused(
    name: str, call: Callable[[Any], object], values: Iterable[object], error: type[Exception], mentions: str
) -> list[Case]:
    """One case for each of several values."""
    return [Case(f"{name}={_shown(value)}", partial(call, value), error, mentions) for value in values]


def _shown(value: object) -> str:
    return " ".join(repr(value).split())[:40]


@cache
def scaled() -> ScaledPredictor:
    return pn.calibration.VarianceScale().fit(build_predictor(), pairs(10, seed=3))


def rescaled(scale: Any) -> ScaledPredictor:
    return changed(scaled(), scale=scale)
