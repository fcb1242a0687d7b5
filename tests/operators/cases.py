"""The list of cases: put an operator in here, and the contract suite runs on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import (
    FNO,
    AttentionOperator,
    DeepONet,
    HiddenLayers,
    LinearRegression,
    Operator,
    PODDeepONet,
    PointFNO,
)
from probneural.operators.layers.box import box_of
from probneural.pairs import FieldPairs
from tests.helpers import generator, one_of_each


def smooth(grid: Grid, *, count: int = 2, channels: int = 1, name: str = "smooth") -> Tensor:
    """Random functions of a few frequencies per axis, float64: the same functions on every uniform grid of a domain."""
    basis = torch.ones(1, grid.size, dtype=torch.float64)
    for number, axis in enumerate(grid.axes):
        turn = (grid.points[:, number] - axis.origin) / axis.length
        waves = [torch.ones_like(turn)]
        if axis.periodic:
            waves += [wave(2.0 * math.pi * k * turn) for k in (1, 2) for wave in (torch.cos, torch.sin)]
        else:
            waves += [torch.cos(math.pi * k * turn) for k in (1, 2, 3)]
        basis = (basis[:, None] * torch.stack(waves)).flatten(0, 1)
    coefficients = torch.randn(count, channels, len(basis), generator=generator(name), dtype=torch.float64)
    return (coefficients @ basis / math.sqrt(len(basis))).unflatten(-1, grid.shape)


@dataclass(frozen=True)
class Case:
    """An operator and where its inputs live.

    Attributes:
        build: Makes the operator; weights come from the global random state.
        grid: A grid just fine enough to call it on.
        resolved: A grid that resolves smooth inputs and hidden states.
        difference: Bound on the relative change of the output between inputs on `resolved` and on finer grids. Where every
            axis is periodic it stands for the frequencies that the activations add beyond `resolved`; an axis with ends has
            second order, because hidden states have a slope there, and their even continuation a kink.
        equivariant: Whether the operator commutes with translations.
        takes_points: Whether inputs may live on scattered points.
    """

    name: str
    build: Callable[[], Operator]
    grid: Grid
    resolved: Grid
    difference: float
    equivariant: bool = False
    takes_points: bool = False

    def operator(self, dtype: torch.dtype = torch.float64) -> Operator:
        return self.build().to(dtype)

    def values(self, grid: Grid | None = None, *, count: int = 2, name: str = "smooth", **options: torch.dtype) -> Tensor:
        channels = self.build().in_channels
        return smooth(self.grid if grid is None else grid, count=count, channels=channels, name=name).to(**options)


def fno(*modes: int, channels: tuple[int, int] = (1, 1), **options: Any) -> Callable[[], Operator]:
    def build() -> Operator:
        operator = FNO(*channels, modes=modes, width=4, depth=2, projection=4, **options)
        if operator.linear is not None:
            operator.linear.reset_parameters()
        return operator

    return build


def point_fno(*modes: int, channels: tuple[int, int] = (1, 1)) -> Callable[[], Operator]:
    def build() -> Operator:
        operator = PointFNO(*channels, modes=modes, width=4, depth=2, projection=4, embeds_position=False)
        grid = LINE if len(modes) == 1 else PLANE
        operator.box.set(*box_of(grid))
        return operator

    return build


def attention(grid: Grid, *, channels: tuple[int, int] = (1, 1), latents: int | None = None) -> Callable[[], Operator]:
    def build() -> Operator:
        operator = AttentionOperator(*channels, dimension=grid.dimension, width=4, depth=3, heads=2, latents=latents)
        operator.box.set(*box_of(grid))
        return operator

    return build


def regression(in_grid: Grid, out_grid: Grid, *, channels: tuple[int, int], components: int) -> Callable[[], Operator]:
    def build() -> Operator:
        inputs = Field(smooth(in_grid, count=12, channels=channels[0], name="inputs"), in_grid)
        outputs = Field(smooth(out_grid, count=12, channels=channels[1], name="outputs"), out_grid)
        return LinearRegression.fitted(FieldPairs(inputs, outputs), components=components)

    return build


def deeponet(
    sensors: Grid | None, *, channels: tuple[int, int] = (1, 1), activation: str = "gelu", **options: Any
) -> Callable[[], Operator]:
    layers = HiddenLayers(width=5, depth=2, activation=activation)
    return lambda: DeepONet(*channels, sensors=sensors, basis=3, layers=layers, **options)


def pod_deeponet(sensors: Grid, out_grid: Grid, *, channels: tuple[int, int], **options: Any) -> Callable[[], Operator]:
    def build() -> Operator:
        operator = PODDeepONet(
            *channels, sensors=sensors, out_grid=out_grid, basis=3, layers=HiddenLayers(width=5, depth=2), **options
        )
        inputs = Field(smooth(sensors, count=8, channels=channels[0], name="inputs"), sensors)
        outputs = Field(smooth(out_grid, count=8, channels=channels[1], name="outputs"), out_grid)
        operator.double().fit_normalizers(FieldPairs(inputs, outputs))
        return operator.float()

    return build


LINE, PLANE = Grid.uniform(9, lengths=2.0), Grid.uniform((6, 7), lengths=(1.0, 3.0), origin=(0.5, -1.0))
ENDS = Grid.uniform(8, periodic=False)
MIXED = Grid.uniform((6, 5), lengths=(2.0, 1.0), periodic=(True, False))
CASES = [
    Case("FNO-1-D", fno(3), LINE, Grid.uniform(64, lengths=2.0), 1e-9, equivariant=True),
    Case("FNO-1-D-channels", fno(4, channels=(2, 3)), LINE, Grid.uniform(63, lengths=2.0), 1e-13, equivariant=True),
    Case("FNO-1-D-mixing", fno(3, lifting=3, mixing=5), LINE, Grid.uniform(64, lengths=2.0), 1e-9, equivariant=True),
    Case("FNO-1-D-ends", fno(3, periodic=False), ENDS, Grid.uniform(65, periodic=False), 1e-3),
    Case("FNO-1-D-ends-embedded", fno(3, periodic=False, embeds_position=True), ENDS, Grid.uniform(65, periodic=False), 1e-3),
    Case("FNO-1-D-ends-odd", fno(3, periodic=False, continuation="odd", embeds_position=True), ENDS, ENDS.resized(65), 1e-3),
    Case(
        "FNO-2-D-mixed-alternating",
        fno(2, 3, periodic=(True, False), continuation="alternating"),
        Grid.uniform((6, 5), periodic=(True, False)),
        Grid.uniform((32, 65), periodic=(True, False)),
        1e-3,
    ),
    Case(
        "FNO-1-D-ends-closed",
        fno(3, periodic=False, continuation="periodic", embeds_position="linear"),
        ENDS,
        ENDS.resized(65),
        0.1,
    ),
    Case("FNO-1-D-embedded", fno(3, embeds_position=True), LINE, Grid.uniform(64, lengths=2.0), 1e-13),
    Case("FNO-2-D", fno(2, 3), PLANE, PLANE.resized((32, 32)), 1e-6, equivariant=True),
    Case("FNO-2-D-channels-embedded", fno(3, 2, channels=(3, 2), embeds_position=True), PLANE, PLANE.resized((32, 32)), 1e-8),
    Case(
        "FNO-2-D-mixed",
        fno(2, 3, periodic=(True, False)),
        Grid.uniform((6, 5), periodic=(True, False)),
        Grid.uniform((32, 65), periodic=(True, False)),
        1e-3,
    ),
    Case("FNO-3-D", fno(2, 2, 2), Grid.uniform((4, 3, 5)), Grid.uniform((16, 16, 16)), 1e-4, equivariant=True),
    Case("PointFNO-1-D", point_fno(3), LINE, Grid.uniform(64, lengths=2.0), 1e-9, equivariant=True, takes_points=True),
    Case(
        "PointFNO-2-D-channels",
        point_fno(2, 3, channels=(2, 3)),
        PLANE,
        PLANE.resized((32, 32)),
        1e-6,
        equivariant=True,
        takes_points=True,
    ),
    Case("attention-1-D", attention(LINE), LINE, Grid.uniform(256, lengths=2.0), 1e-6, takes_points=True),
    Case(
        "attention-2-D-latents",
        attention(PLANE, channels=(2, 3), latents=5),
        PLANE,
        PLANE.resized((32, 32)),
        1e-5,
        takes_points=True,
    ),
    Case("regression-1-D", regression(LINE, LINE, channels=(1, 1), components=4), LINE, LINE.resized(16), 1e-12),
    Case(
        "regression-2-D-channels",
        regression(PLANE, PLANE.resized((5, 8)), channels=(2, 3), components=3),
        PLANE,
        PLANE.resized((8, 9)),
        1e-12,
    ),
    Case("DeepONet-1-D", deeponet(LINE.resized(7)), LINE, LINE.resized(16), 1e-12),
    Case(
        "DeepONet-1-D-ends",
        deeponet(ENDS.resized(9), channels=(2, 2), activation="tanh"),
        ENDS,
        Grid.uniform(65, periodic=False),
        1e-12,
    ),
    Case(
        "DeepONet-2-D-mixed",
        deeponet(MIXED.resized((5, 4)), channels=(2, 3), activation="silu"),
        MIXED,
        MIXED.resized((16, 61)),
        1e-7,
    ),
    Case(
        "DeepONet-points",
        deeponet(None, domain=PLANE, channels=(2, 3), frequencies=1),
        PLANE,
        PLANE.resized((32, 32)),
        1e-6,
        takes_points=True,
    ),
    Case("POD-DeepONet-1-D", pod_deeponet(LINE.resized(7), LINE, channels=(1, 1)), LINE, LINE.resized(16), 1e-12),
    Case(
        "POD-DeepONet-2-D-channels",
        pod_deeponet(PLANE, PLANE.resized((8, 9)), channels=(2, 2)),
        PLANE,
        PLANE.resized((12, 11)),
        1e-12,
    ),
]
KINDS = one_of_each(CASES, lambda case: (type(case.build()), case.takes_points, case.grid.dimension, all(case.grid.periodic)))
cases = pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
