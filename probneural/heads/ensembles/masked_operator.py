"""Operators whose dropout layers are held at one mask, and what a mask is so that the result is a function on any grid."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from probneural.checks import check_module
from probneural.contexts import copy_for_call
from probneural.errors import ArgumentError, ProbneuralError, UnsupportedError
from probneural.fields import Field, evaluate, takes_grid
from probneural.grids import Grid, resample
from probneural.pairs import FieldPairs
from probneural.registry import stored

_POINTWISE, _CHANNELWISE = (nn.Dropout,), (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@stored()
class MaskedOperator(nn.Module):
    """An operator in which each dropout layer multiplies its input by a mask of its own, whatever its mode.

    Args:
        operator: Any module with dropout layers; it is held, not changed.
        masks: Factors by name of the layer; each broadcasts to the layer's input.

    Raises:
        ArgumentError: If a name is no dropout layer of the operator.

    Examples:
        >>> layers = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1, bias=False))
        >>> layers[1].weight.data.fill_(1.0).sum()
        tensor(2.)
        >>> MaskedOperator(layers, {"0": torch.tensor([2.0, 0.0])})(torch.ones(3, 2))[:, 0].tolist()
        [2.0, 2.0, 2.0]
    """

    def __init__(self, operator: nn.Module, masks: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.operator = check_module(operator, "operator")
        self.layers = tuple(masks)
        modules = dict(operator.named_modules())
        for number, (name, mask) in enumerate(masks.items()):
            if not isinstance(modules.get(name), _DropoutNd):
                raise ArgumentError(expected="names of dropout layers", got=repr(name), remedy="see operator.named_modules()")
            self.register_buffer(f"mask_{number}", mask)

    @property
    def masks(self) -> dict[str, Tensor]:
        """Factors by name of the layer."""
        return {name: getattr(self, f"mask_{number}") for number, name in enumerate(self.layers)}

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate under the masks.

        Args:
            values: Input functions, `(n, c, *grid)`, in physical units.
            grid: Where they live; by default where the operator takes them to live.
            query: Where to evaluate; by default where the inputs live.
        """
        copied = copy_for_call(self.operator)
        for name, mask in self.masks.items():
            copied.get_submodule(name).register_forward_hook(partial(_mask_input, mask=mask))
        result: Tensor
        if takes_grid(self.operator):
            result = copied(values, grid=grid, query=query)
            return result
        result = copied(values)
        if query is None or result.shape[2:] != values.shape[2:]:  # as `evaluate` does
            return result
        return resample(result, Grid.uniform(tuple(values.shape[2:])) if grid is None else grid, query)


def _mask_input(module: nn.Module, arguments: tuple[Any, ...], output: Tensor, *, mask: Tensor) -> Tensor:
    """In place of the layer's output, whose own mask is another at every point."""
    masked: Tensor = arguments[0] * mask
    return masked


def dropout_layers(operator: nn.Module) -> dict[str, _DropoutNd]:
    """Dropout layers that drop anything, by name.

    Raises:
        UnsupportedError: If there is none, or one of another kind.
    """
    found = {name: module for name, module in operator.named_modules() if isinstance(module, _DropoutNd) and module.p > 0}
    if not found:
        raise UnsupportedError(
            expected="an operator that was trained with dropout layers (nn.Dropout, nn.Dropout1d, ...)",
            got=f"{type(operator).__name__} with none",
            remedy="train one that has them: FNO(..., dropout=0.1), or put nn.Dropout1d(0.1) (2d, 3d) behind activations of "
            "your module; dropout within functions or nn.LSTM is not seen",
        )
    for name, module in found.items():
        if not isinstance(module, _POINTWISE + _CHANNELWISE):
            raise UnsupportedError(
                expected="nn.Dropout, nn.Dropout1d, nn.Dropout2d or nn.Dropout3d",
                got=f"{type(module).__name__} as {name}",
                remedy="use one of those",
            )
    return found


def feature_shapes(
    operator: nn.Module, layers: Mapping[str, _DropoutNd], some: FieldPairs, query: Grid | None
) -> dict[str, tuple[int, ...]]:
    """Shapes of masks: the sizes of the axes of features of each layer's input, 1 along all others.

    An axis is one of features if its size depends neither on the number of functions nor on the grid, so the operator is
    called with one function, with two, and where it takes them on finer grids.

    Raises:
        UnsupportedError: If a layer's input has no features, or is of several shapes.
    """
    runs = [_input_shapes(operator, layers, *probe) for probe in _probes(operator, some, query)]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, module in layers.items():
        seen = [run[name] for run in runs]
        first = seen[0]
        if not first or any(len(one) != 1 or len(one[0]) != len(first[0]) for one in seen):
            raise UnsupportedError(
                expected=f"one call of {name}, with an input of always as many axes",
                got=str(seen),
                remedy="give each place of the network a dropout layer of its own",
            )
        size = first[0]
        is_feature = [all(one[0][axis] == size[axis] for one in seen) for axis in range(len(size))]
        if isinstance(module, _CHANNELWISE):
            is_feature = [flag and axis == 1 for axis, flag in enumerate(is_feature)]
        if not any(is_feature):
            raise UnsupportedError(
                expected=f"features in the input of {name}, of a number that depends on no grid",
                got=f"shape {size}",
                remedy="drop channels of hidden states, or features of linear layers",
            )
        shapes[name] = tuple(length if flag else 1 for length, flag in zip(size, is_feature, strict=True))
    return shapes


def _probes(operator: nn.Module, some: FieldPairs, query: Grid | None) -> Iterator[tuple[Field, Grid | None]]:
    """One function, two, and one on finer grids, or at fewer points, if the operator takes it."""
    inputs = some.inputs[:1]
    yield inputs, query
    yield Field(inputs.values.repeat(2, 1, *(1,) * len(inputs.grid.shape)), inputs.grid), query
    finer = _finer(inputs.grid)
    where = _finer(inputs.grid if query is None else query) or _fewer(inputs.grid if query is None else query)
    candidates = [(inputs if finer is None else inputs.resample(finer), where), (inputs, where)]
    for candidate in candidates:
        try:
            with torch.no_grad():
                evaluate(operator, *candidate)
        except ProbneuralError:  # it lives on one grid, so what has its size is a feature
            continue
        yield candidate


def _finer(grid: Grid) -> Grid | None:
    """A uniform grid with one more point between any two."""
    if not grid.is_uniform:
        return None
    return grid.resized([2 * size - int(end) for size, end in zip(grid.shape, grid.endpoint, strict=True)])


def _fewer(grid: Grid) -> Grid:
    """A scattered grid without its last point."""
    return Grid.scattered(grid.points[:-1], grid.weights[:-1])


@torch.no_grad()
def _input_shapes(
    operator: nn.Module, layers: Mapping[str, nn.Module], inputs: Field, query: Grid | None
) -> dict[str, list[tuple[int, ...]]]:
    """Shapes of all inputs of each layer in one call."""
    seen: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    copied = copy.deepcopy(operator).eval()
    for name in layers:

        def note(module: nn.Module, arguments: tuple[Any, ...], name: str = name) -> None:
            seen[name].append(tuple(arguments[0].shape))

        copied.get_submodule(name).register_forward_pre_hook(note)
    evaluate(copied, inputs, query)
    return seen
