"""Suggested operators: the choice that grids and a few rows of a data set allow, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probneural.errors import DataError, UnsupportedError
from probneural.grids import Grid
from probneural.operators.base import Operator
from probneural.operators.deeponet import DeepONet
from probneural.operators.fno import FNO
from probneural.operators.pod_deeponet import PODDeepONet
from probneural.operators.point_fno import PointFNO
from probneural.pairs import Dataset, FieldSource, check_dataset, evenly_spread_rows

KERNEL = "KernelOperator"
"""Name of the head that is suggested in place of an operator."""
_CLASSES: dict[str, type[Operator]] = {"FNO": FNO, "DeepONet": DeepONet, "PODDeepONet": PODDeepONet, "PointFNO": PointFNO}
_MODES = {1: 16, 2: 12, 3: 8}
"""Maximum number of Fourier modes per axis, by dimension."""
_MESH_MODES = {1: 16, 2: 6, 3: 4}
"""The same on meshes, where a mode costs an operation per point."""
_FEW = 30
"""Number of samples below which Gaussian processes are suggested in place of a neural operator."""
_LEAST = 3
"""Minimum number of samples for a head."""
_ROWS = 8
"""Number of rows that are read."""
_ROUNDING = 1e-6
"""Variation that counts as none, as a fraction of the largest value."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Suggestion:
    """A recommended operator with the reason for it; printing gives both.

    Attributes:
        name: A class of `pn.operators`, or `"KernelOperator"`, a head of `pn.heads` that needs no trained operator.
        options: Arguments of the constructor other than channels, grids and seed.
        reason: Why this one, in one sentence.
        arguments: Channels and grids, by the names of the constructor's arguments.
        dtype: Data type of the weights, that of the inputs.
    """

    name: str
    options: Mapping[str, Any]
    reason: str
    arguments: Mapping[str, Any]
    dtype: torch.dtype

    @property
    def is_head(self) -> bool:
        """Whether the suggestion is a head without an operator."""
        return self.name == KERNEL

    def build(self, *, seed: int | None = None) -> Operator:
        """Build the operator, untrained.

        Args:
            seed: Seed of the initial weights; by default torch's global generator is used.

        Raises:
            UnsupportedError: If the suggestion is a head.
            ArgumentError: If the seed is not a non-negative integer.
        """
        if self.is_head:
            raise UnsupportedError(
                expected="a suggestion of a neural operator",
                got=f"{self.name}, a head that is fitted to the data alone",
                remedy="fit it: pn.heads.KernelOperator().fit(None, data)",
            )
        return _CLASSES[self.name](**self.arguments, **self.options, seed=seed).to(self.dtype)

    def __str__(self) -> str:
        """Class, options and reason."""
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.options.items())}): {self.reason}"

    __repr__ = __str__


def suggest(data: Dataset) -> Suggestion:
    """Recommend an operator that can represent the map of a data set, from its grids and a few of its rows.

    With fewer than 30 samples this is the head [`KernelOperator`][probneural.heads.KernelOperator]; on meshes a `PointFNO`; for
    inputs that are constant in space, or outputs at one point, a `PODDeepONet`; at scattered points and between two domains a
    `DeepONet`; else an `FNO`, on non-periodic domains with a position embedding and, in two and three dimensions, alternating
    continuation.

    Args:
        data: Training pairs; eight rows are read, and all only where these are equal.

    Returns:
        Class, options, reason, and `build(seed=)`.

    Raises:
        DataError: If there are fewer than three pairs, or all inputs or all outputs are equal.

    Examples:
        >>> from probneural.fields import Field
        >>> from probneural.pairs import FieldPairs
        >>> grid = Grid.uniform(16)
        >>> numbers = torch.randn(40, 1, 1, generator=torch.Generator().manual_seed(0))
        >>> sines = numbers * torch.sin(6.283185307179586 * grid.points[:, 0]).float()
        >>> suggest(FieldPairs(Field(sines, grid), Field(2 * sines, grid))).name
        'FNO'
        >>> suggest(FieldPairs(Field(numbers.expand(40, 1, 16), grid), Field(sines, grid))).name
        'PODDeepONet'
    """
    return suggestion(data, count=len(check_dataset(data, "training")))


def suggestion(data: Dataset, *, count: int, needs_operator: bool = False) -> Suggestion:
    """As `suggest`, for `count` training pairs out of the data.

    Args:
        data: Pairs; their grids and a few of their rows count.
        count: Number of training samples.
        needs_operator: Whether a neural operator is needed, however few pairs there are.
    """
    if count < _LEAST:
        raise DataError(expected=f"{_LEAST} or more training pairs", got=str(count), remedy="give more data")
    rows = data[evenly_spread_rows(len(data), _ROWS)].detached()
    _check_differences(data, "inputs", rows.inputs.values)
    _check_differences(data, "outputs", rows.outputs.values)
    name, reason, options = _neural(data, rows.inputs.values, rows.outputs.values)
    if count < _FEW and not needs_operator and not data.inputs.grid.has_points_per_sample:
        reason = (
            f"{count} samples are few for a neural operator, and Gaussian processes between principal components need fewer"
        )
        return Suggestion(name=KERNEL, options={}, reason=reason, arguments={}, dtype=data.inputs.dtype)
    return Suggestion(
        name=name,
        options=default_options(name, data, count=count) | options,
        reason=reason,
        arguments=data_arguments(name, data),
        dtype=data.inputs.dtype,
    )


def default_options(name: str, data: Dataset, *, count: int) -> dict[str, Any]:
    """Sizes and boundary treatment of an operator from the data.

    Args:
        name: A class of `pn.operators`.
        data: Pairs; their grids count.
        count: Number of training samples.
    """
    grid = data.inputs.grid
    if name == "PODDeepONet":
        return {"basis": max(1, min(32, 2 * count // 3, data.outputs.grid.size))}
    if name == "DeepONet":
        return {"basis": 64}
    if name == "PointFNO":
        return {"modes": [_MESH_MODES[grid.dimension]] * grid.dimension, "width": 24, "depth": 3}
    modes = [min(_MODES[grid.dimension], (size + 1) // 2) for size in grid.shape]
    options: dict[str, Any] = {"modes": modes, "width": 32 if grid.dimension == 1 else 16, "depth": 4}
    if not all(grid.periodic):
        options["embeds_position"] = True
        if grid.dimension > 1:
            options["continuation"] = "alternating"
    return options


def data_arguments(name: str, data: Dataset) -> dict[str, Any]:
    """Channels and grids of an operator for these data, by the names of the constructor's arguments."""
    grid, out_grid = data.inputs.grid, data.outputs.grid
    channels = {"in_channels": data.inputs.channels, "out_channels": data.outputs.channels}
    if name == "FNO":
        return channels | {"periodic": grid.periodic}
    if name == "PointFNO":
        return channels
    if name == "DeepONet":
        return channels | {"sensors": grid, "domain": _bounding_box(out_grid)}
    return channels | {"sensors": grid, "out_grid": out_grid}


def _neural(data: Dataset, inputs: Tensor, outputs: Tensor) -> tuple[str, str, dict[str, Any]]:
    """Class of the neural operator, reason, and non-default options."""
    grid, out_grid = data.inputs.grid, data.outputs.grid
    if out_grid == grid and grid.cells is not None and grid.dimension in _MESH_MODES:
        return "PointFNO", "the samples are on meshes, where a PointFNO computes Fourier coefficients by quadrature", {}
    if grid.size == 1 or not any(_varies_along(inputs, 2 + axis) for axis in range(len(grid.shape))):
        said = "at one point" if grid.size == 1 else "constant in space"
        reason = (
            f"the inputs are {said}, so they are parameters ({data.inputs.channels} per sample): an FNO maps constants to "
            "constants unless it sees positions, while a PODDeepONet learns coefficients of the outputs' principal components"
        )
        return "PODDeepONet", reason, {}
    if out_grid.size == 1:
        return "PODDeepONet", "the outputs are numbers at one point, which a branch network predicts from all of an input", {}
    if not (grid.is_uniform and out_grid.is_uniform):
        scattered = " and ".join(side for side, where in (("inputs", grid), ("outputs", out_grid)) if not where.is_uniform)
        return "DeepONet", f"the {scattered} are at scattered points, where a DeepONet needs no Fourier transform", {}
    if grid.dimension > max(_MODES):
        return "DeepONet", f"an FNO has at most {max(_MODES)} dimensions, and the grid {grid.dimension}", {}
    if grid.domain != out_grid.domain:
        return "DeepONet", "inputs and outputs live on different domains, and an FNO needs one", {}
    if not all(grid.periodic):
        remedies = "a position embedding" if grid.dimension == 1 else "a position embedding and alternating continuation"
        return "FNO", f"the domain has boundaries, where {remedies} lowered the error of an FNO on elliptic problems", {}
    axes = [axis for axis in range(grid.dimension) if not _varies_along(inputs, 2 + axis) and _varies_along(outputs, 2 + axis)]
    if axes:
        reason = (
            f"the inputs are constant along axis {', '.join(map(str, axes))} and the outputs are not, so an FNO needs a "
            "position embedding: without it, it commutes with translations"
        )
        return "FNO", reason, {"embeds_position": True}
    return "FNO", "all axes are periodic, where an FNO commutes with translations and needs no position embedding", {}


def _varies_along(values: Tensor, axis: int) -> bool:
    """Whether a channel of a sample varies along an axis by more than rounding."""
    spread = values.amax(axis) - values.amin(axis)
    return bool((spread > _ROUNDING * values.abs().amax()).any())


def _check_differences(data: Dataset, side: str, rows: Tensor) -> None:
    """Raise a DataError if all samples of a side are equal."""
    if bool((rows != rows[:1]).any()):
        return
    source: FieldSource = getattr(data, side)
    if not any(bool((source[start : start + 64].values != rows[:1]).any()) for start in range(0, len(source), 64)):
        raise DataError(
            expected=f"{side} that differ between samples",
            got=f"{len(source)} equal ones",
            remedy=f"there is nothing to learn: name other variables as {side}, or check the file",
        )


def _bounding_box(grid: Grid) -> Grid:
    """The grid, or the bounding box of scattered points, of length 1 along degenerate axes."""
    if grid.is_uniform:
        return grid
    low, high = grid.points.amin(0), grid.points.amax(0)
    lengths = torch.where(high > low, high - low, 1.0).tolist()
    return Grid.uniform((2,) * grid.dimension, lengths=lengths, periodic=False, origin=low.tolist())
