"""Find and verify the read-out of any module: a pointwise affine last layer, by numbers and not by class."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import check_instance
from probneural.distributions.predictor import JointDraws
from probneural.errors import ArgumentError, ReadoutError
from probneural.fields import Field, evaluate, takes_grid
from probneural.grids import Grid, resample
from probneural.randomness import stream
from probneural.threads import copy_for_call

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""Relative deviation from an affine map that is still put down to rounding."""


@dataclass(frozen=True)
class Readout:
    """An operator split into features and a pointwise affine last layer: u_c(x) = sum over j of W_cj phi_j(x).

    Attributes:
        operator: The head's own evaluation copy.
        name: The submodule's name.
        channel_axis: Axis of the features within the submodule's input: 1 or -1.
        has_bias: Whether the last feature is the constant 1.
        weight: W, `(c, f)`, in the outputs' physical units, float64.
    """

    operator: nn.Module
    name: str
    channel_axis: int
    has_bias: bool
    weight: Float64[Tensor, "c f"]

    def __post_init__(self) -> None:
        """Check that there is such a submodule, and the axis."""
        if not self.name or self.name not in dict(self.operator.named_modules()) or self.channel_axis not in (1, -1):
            raise ReadoutError(
                expected="a submodule's name, and 1 or -1 as channel_axis",
                got=f"{self.name!r}, {self.channel_axis}",
                remedy="see named_modules()",
            )

    def evaluate(self, inputs: Field, query: Grid | None = None) -> tuple[Float[Tensor, "n c *grid"], Float[Tensor, "n p f"]]:
        """Return the operator's values and its features on the query, the features one row per point."""
        where = inputs.grid if query is None else query
        native = takes_grid(self.operator)
        caught: list[Tensor] = []
        hooked = _hooked(self.operator, self.name, lambda module, arguments, output: caught.append(arguments[0]))
        values = evaluate(hooked, inputs, query)
        features = caught[-1].movedim(self.channel_axis, 1)
        if not native:
            features = resample(features, inputs.grid, where)
        if tuple(features.shape[2:]) != where.shape:
            raise ReadoutError(
                expected=f"features on the grid {where.shape}",
                got=f"{tuple(features.shape[2:])} at {self.name}",
                remedy="name a read-out that acts on the output's grid",
            )
        rows = features.flatten(2).mT
        if self.has_bias:
            rows = torch.cat([rows, torch.ones_like(rows[..., :1])], dim=-1)
        return values, rows


_DRAWN_ELEMENTS = 2**23
"""Feature values evaluated at once (32 MiB in float32)."""


def draws_of_weights(readout: Readout, deviations: Float64[Tensor, "s c f"]) -> JointDraws:
    """Draws of the last layer side by side: the operator's values, and features times deviations of the weights from its own.

    Args:
        readout: The operator.
        deviations: Of the weights of each draw, in physical units.
    """

    def evaluated(values: Tensor, grid: Grid) -> Tensor:
        step = max(1, _DRAWN_ELEMENTS // (values.shape[1] * grid.size * deviations.shape[2]))
        parts = []
        for some, moved in zip(values.split(step), deviations.split(step), strict=True):
            mean, features = readout.evaluate(Field(some.flatten(0, 1), grid))
            parts.append(deviated(mean, features, moved))
        return torch.cat(parts)

    return evaluated


def deviated(mean: Tensor, rows: Float[Tensor, "m p f"], deviations: Float64[Tensor, "s c f"]) -> Float[Tensor, "s n c *grid"]:
    """Values of draws of the last layer, draw i at the i-th of s equal parts of the functions.

    Args:
        mean: What the operator gives, `(s n, c, *grid)`.
        rows: Its features at all points, of all s n functions.
        deviations: Of the weights of each draw from those that gave the mean, in physical units.
    """
    count = (len(deviations), -1)
    change = torch.einsum("snpf,scf->sncp", rows.unflatten(0, count), deviations.to(rows))
    values = mean.unflatten(0, count)
    return values + change.reshape(values.shape)


def find_readout(operator: nn.Module, inputs: Field, name: str | None, *, query: Grid | None = None) -> Readout:
    """Copy an operator and split off its read-out.

    Args:
        operator: Any module from fields to fields; it is not touched.
        inputs: A few functions to verify on, in the operator's dtype and on its device.
        name: The read-out's name; by default a submodule called `readout`, else the last layer that proves to be one.
        query: Where to evaluate, if the operator takes a query: needed where outputs live on another domain than inputs.

    Raises:
        ReadoutError: If there is no such submodule, or it is not a pointwise affine last layer.
    """
    copied = copy.deepcopy(operator).eval().requires_grad_(False)
    if not takes_grid(copied):
        query = None
    if name is not None:
        name = check_instance(name, str, "readout", remedy="name a submodule", error=ArgumentError)
        return _verify(copied, inputs, name, query)
    if isinstance(getattr(copied, "readout", None), nn.Module):
        return _verify(copied, inputs, "readout", query)
    order: list[str] = []
    watched = copy_for_call(copied)
    for key, module in watched.named_modules():
        if key and not list(module.children()) and list(module.parameters()):
            module.register_forward_hook(lambda *_, key=key: order.append(key))
    with torch.no_grad():
        evaluate(watched, inputs, query)
    reasons = []
    for key in dict.fromkeys(reversed(order)):
        try:
            return _verify(copied, inputs, key, query)
        except ReadoutError as error:
            reasons.append(f"{key}: {error.got}")
    raise ReadoutError(
        expected="a module whose last layer is pointwise and affine",
        got="; ".join(reasons) or "no layer with parameters",
        remedy="name it with readout=, or use Laplace(structure='full') over chosen parameters",
    )


@torch.no_grad()
def _verify(operator: nn.Module, inputs: Field, name: str, query: Grid | None) -> Readout:
    shape = (inputs.grid if query is None else query).shape
    try:
        module = operator.get_submodule(name)
    except AttributeError as error:
        names = [key for key, _ in operator.named_modules() if key]
        raise ReadoutError(
            expected=f"a submodule among {', '.join(names)}", got=repr(name), remedy="see named_modules()"
        ) from error
    seen: list[tuple[Any, Any]] = []
    hooked = _hooked(operator, name, lambda module, arguments, output: seen.append((arguments[0], output)))
    values = evaluate(hooked, inputs, query)
    if len(seen) != 1 or not all(isinstance(part, Tensor) and not part.is_complex() for part in seen[0]):
        raise _not_a_readout(name, f"called {len(seen)} times, or not on one real tensor")
    features, output = seen[0]
    for axis in (1, -1):
        parts = [tensor.movedim(axis, 1) for tensor in (features, output)] if features.ndim == output.ndim >= 2 else []
        if not parts or any(tuple(part.shape[2:]) != shape for part in parts):
            continue
        inner = _unit_responses(lambda unit, axis=axis: module(unit.movedim(1, axis)).movedim(axis, 1), parts[0])  # type: ignore[misc]
        if inner is not None and _agrees(*inner, *parts):
            outer = _outer_map(operator, inputs, name, axis, output, query)
            if outer is None or not _agrees(*outer, parts[1], values):
                raise _not_a_readout(name, "what follows it is not pointwise and affine")
            if not _is_invertible(outer[0]):
                raise _not_a_readout(name, "the output channels are not free combinations of its own")
            weight, bias = outer[0] @ inner[0], outer[0] @ inner[1] + outer[1]
            has_bias = _has_bias(module, parts[0], axis)
            full = torch.cat([weight, bias[:, None]], dim=1) if has_bias else weight
            return Readout(operator=operator, name=name, channel_axis=axis, has_bias=has_bias, weight=full)
    raise _not_a_readout(name, "a layer that is not pointwise and affine on the output's grid")


def _unit_responses(function: Callable[[Tensor], Tensor], like: Tensor) -> tuple[Tensor, Tensor] | None:
    """Matrix and offset of an affine map from its response to zero and to each constant unit input."""
    channels, size = like.shape[1], (2,) * (like.ndim - 2)
    units = torch.cat([torch.zeros(1, channels), torch.eye(channels)]).to(like)
    try:
        responses = function(units.reshape(channels + 1, channels, *(1,) * len(size)).expand(-1, -1, *size))
    except (RuntimeError, ValueError):
        return None  # a layer bound to its grid cannot be a pointwise one
    points = responses.flatten(2).to(torch.float64)
    return (points[1:, :, 0] - points[:1, :, 0]).mT, points[0, :, 0]


def _outer_map(
    operator: nn.Module, inputs: Field, name: str, axis: int, output: Tensor, query: Grid | None
) -> tuple[Tensor, Tensor] | None:
    """Matrix and offset of what the operator does after its read-out, verified on a rough random output."""

    def respond(replacement: Tensor) -> Tensor:
        hooked = _hooked(operator, name, lambda module, arguments, out: replacement.movedim(1, axis).expand_as(out))
        return evaluate(hooked, inputs, query).to(torch.float64)

    moved = output.movedim(axis, 1)
    channels = moved.shape[1]
    base = respond(torch.zeros_like(moved))
    offset = base[0].flatten(1)[:, 0]
    columns = []
    for channel in range(channels):
        unit = torch.zeros_like(moved)
        unit[:, channel] = 1.0
        columns.append((respond(unit) - base)[0].flatten(1)[:, 0])
    matrix = torch.stack(columns, dim=1)
    generator = stream(0, "read-out response")
    rough = torch.randn(moved.shape, generator=generator).to(moved)
    return (matrix, offset) if _agrees(matrix, offset, rough, respond(rough)) else None


def _agrees(matrix: Tensor, offset: Tensor, inputs: Tensor, outputs: Tensor) -> bool:
    if inputs.shape[0] != outputs.shape[0] or matrix.shape != (outputs.shape[1], inputs.shape[1]):
        return False
    if inputs.shape[2:] != outputs.shape[2:]:
        return False
    expected = torch.einsum("oi,nip->nop", matrix, inputs.flatten(2).to(torch.float64)) + offset[:, None]
    actual = outputs.flatten(2).to(torch.float64)
    size = matrix.abs().amax(1) * inputs.abs().max().to(torch.float64) + offset.abs()  # channels may differ in their units
    return bool(((expected - actual).abs().amax((0, 2)) <= _TOLERANCE[inputs.dtype] * size).all())


def _is_invertible(matrix: Tensor) -> bool:
    """Whether a map between channels is square and regular, in whatever units its outputs are."""
    norms = matrix.norm(dim=1, keepdim=True)
    if matrix.shape[0] != matrix.shape[1] or not bool((norms > 0).all()):
        return False
    return float(torch.linalg.cond(matrix / norms)) < 1e8


def _has_bias(module: nn.Module, features: Tensor, axis: int) -> bool:
    """Whether some parameter moves the layer's response to zero features."""
    probe = copy.deepcopy(module)
    generator = stream(0, "read-out bias")
    for parameter in probe.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter))
    zeros = torch.zeros_like(features[:1]).movedim(1, axis)
    return bool((probe(zeros) - module(zeros)).abs().max() > 0)


def _not_a_readout(name: str, reason: str) -> ReadoutError:
    return ReadoutError(
        expected="a read-out: one pointwise affine layer whose output channels become the operator's",
        got=f"{name!r}, {reason}",
        remedy="name another with readout=, or use Laplace(structure='full')",
    )


def _hooked(operator: nn.Module, name: str, hook: Callable[[nn.Module, Any, Any], Tensor | None]) -> nn.Module:
    """A copy of the operator for one call, with a forward hook on one submodule."""
    copied = copy_for_call(operator)
    copied.get_submodule(name).register_forward_hook(hook)
    return copied
