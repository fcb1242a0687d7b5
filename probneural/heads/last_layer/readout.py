"""Numerical detection and verification of the read-out of any module: a pointwise affine last layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from probneural.checks import check_count, check_instance
from probneural.contexts import copy_for_call
from probneural.errors import ArgumentError, ReadoutError
from probneural.fields import Field, evaluate, takes_grid
from probneural.grids import Grid, resample
from probneural.heads.training_data import check_predicted, frozen_copy
from probneural.randomness import stream
from probneural.registry import stored

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""Largest relative deviation from an affine map that is treated as rounding."""
_ROUNDING = 32
"""Tolerated rounding error of a map's response, in units in the last place of its offset."""


@stored()
@dataclass(frozen=True)
class Readout:
    """An operator split into features and a pointwise affine last layer: u_c(x) = a_c(x) + m(x) sum over j of W_cj phi_j(x).

    The offset a may depend on the input, such as the state if the operator predicts its increment; the factor m is
    the same for all inputs, such as 0 at points with fixed boundary values. Features and their constant include the factor.
    An offset of one number per channel is part of W, as the weight of the constant, and a is 0.

    Attributes:
        operator: The head's copy of the operator in evaluation mode.
        name: The submodule's name.
        channel_axis: Axis of the features within the submodule's input: 1 or -1.
        has_bias: Whether the last feature is the constant 1.
        weight: W, `(c, f)`, in the outputs' physical units, float64.
        response: Derivative of the outputs in the submodule's outputs at m = 1, `(c, c)`, float64; None if m is 1 everywhere.
        is_parameter: Mask of the weights W that depend on parameters, `(c, f)`; None if all do. The remaining weights are
            zero, such as those of one channel for another channel's features.
    """

    operator: nn.Module
    name: str
    channel_axis: int
    has_bias: bool
    weight: Float64[Tensor, "c f"]
    response: Float64[Tensor, "c c"] | None = None
    is_parameter: Bool[Tensor, "c f"] | None = None

    def __post_init__(self) -> None:
        """Check that the submodule exists, and the axis."""
        if not self.name or self.name not in dict(self.operator.named_modules()) or self.channel_axis not in (1, -1):
            raise ReadoutError(
                expected="a submodule's name, and 1 or -1 as channel_axis",
                got=f"{self.name!r}, {self.channel_axis}",
                remedy="see named_modules()",
            )

    def parameters_of(self, channel: int) -> Int64[Tensor, " k"]:
        """Return the features of a channel whose weights depend on parameters."""
        if self.is_parameter is None:
            return torch.arange(self.weight.shape[1], device=self.weight.device)
        return torch.nonzero(self.is_parameter[channel])[:, 0]

    def evaluate(self, inputs: Field, query: Grid | None = None) -> tuple[Float[Tensor, "n c *grid"], Float[Tensor, "n p f"]]:
        """Return the operator's values and its features on the query, the features one row per point."""
        where = inputs.grid if query is None else query
        values, features = self._caught(inputs, query)
        home = self._home(inputs, where, tuple(features.shape[2:]))
        features = with_factor(features, self._factor(inputs, home), has_bias=self.has_bias)
        rows = resample(features, home, where).flatten(2).mT
        if self.has_bias and self.response is None:
            rows = torch.cat([rows, torch.ones_like(rows[..., :1])], dim=-1)
        check_count(rows.shape[-1], self.weight.shape[1], "features", remedy="fit the head again", error=ReadoutError)
        return values, rows

    def home_and_factor(self, inputs: Field, query: Grid) -> tuple[Grid, Float64[Tensor, "*grid"] | None]:
        """The grid of the features for outputs on a query, which may be interpolated; and the factor m on it."""
        _, features = self._caught(inputs[:1], None if query == inputs.grid else query)
        home = self._home(inputs, query, tuple(features.shape[2:]))
        return home, self._factor(inputs, home)

    def _caught(self, inputs: Field, query: Grid | None) -> tuple[Float[Tensor, "n c *query"], Float[Tensor, "n f *grid"]]:
        """The operator's values, and the features at the read-out's input."""
        caught: list[Tensor] = []
        hooked = _hooked(self.operator, self.name, lambda module, arguments, output: caught.append(arguments[0]))
        values = evaluate(hooked, inputs, query)
        return values, caught[-1].movedim(self.channel_axis, 1)

    def _home(self, inputs: Field, where: Grid, shape: tuple[int, ...]) -> Grid:
        """The grid of features of a shape: the query; or the inputs' grid, if outputs are interpolated from there.

        Raises:
            ReadoutError: If it is neither.
        """
        takes = takes_grid(self.operator)
        grids = [inputs.grid] if where == inputs.grid or not takes else [where, inputs.grid]
        grids = [grid for grid in grids if grid.shape == shape]
        is_open = takes and where != inputs.grid and inputs.grid in grids
        for grid in grids:
            if not is_open or self._follows_from(grid, inputs, where):
                return grid
        raise ReadoutError(
            expected=f"features on the grid {where.shape}", got=f"{shape} at {self.name}", remedy="name another read-out"
        )

    @torch.no_grad()
    def _follows_from(self, home: Grid, inputs: Field, where: Grid) -> bool:
        """Whether outputs are the affine map of a rough read-out output on a grid, interpolated to the query."""
        if home != where and not home.is_uniform:
            return False
        respond, like = _responses(self.operator, inputs[:1].detached(), self.name, self.channel_axis, where)
        rough, base = _rough(like), respond(torch.zeros_like(like))
        response = (respond(rough) - base).flatten(2)[0].mT
        given = resample(with_factor(rough, self._factor(inputs, home), has_bias=False), home, where)
        columns = given.flatten(2)[0].mT.to(torch.float64)
        misfit = columns @ torch.linalg.lstsq(columns, response).solution - response
        rounding = _ROUNDING * torch.finfo(like.dtype).eps * base.abs().max()
        return bool(misfit.abs().max() <= _TOLERANCE[like.dtype] * response.abs().max() + rounding)

    @torch.no_grad()
    def _factor(self, inputs: Field, home: Grid) -> Float64[Tensor, "*grid"] | None:
        """The factor m on the grid of the features, from the responses of one input; None if it is 1 everywhere."""
        if self.response is None:
            return None
        query = None if home == inputs.grid else home
        respond, like = _responses(self.operator, inputs[:1].detached(), self.name, self.channel_axis, query)
        base = respond(torch.zeros_like(like))
        change = torch.stack([respond(unit) - base for unit in _units(like)], dim=2)
        return _factor(change.flatten(3), self.response, _TOLERANCE[like.dtype]).unflatten(0, home.shape)


def with_factor(
    features: Float[Tensor, "n f *grid"], factor: Float64[Tensor, "*grid"] | None, *, has_bias: bool
) -> Float[Tensor, "n g *grid"]:
    """Features times the factor, with the factor as the constant's feature, the last; unchanged without a factor."""
    if factor is None:
        return features
    varying = factor.to(features)
    features = features * varying
    return torch.cat([features, varying.expand_as(features[:, :1])], dim=1) if has_bias else features


VERIFIED = 6
"""Number of samples for the verification of a read-out; several detect a factor that differs between samples."""


def find_readout(operator: nn.Module, inputs: Field, name: str | None, *, query: Grid | None = None) -> Readout:
    """Copy an operator and split off its read-out.

    Args:
        operator: Any module from fields to fields; it is not changed.
        inputs: A few samples for the verification, in the operator's dtype and on its device.
        name: The read-out's name; by default a submodule called `readout`, otherwise the last layer that passes the
            verification and is not a branch of a sum.
        query: Grid of the outputs, if the operator takes a query: required if outputs and inputs have different domains.

    Raises:
        ReadoutError: If the submodule does not exist, or it is not a pointwise affine last layer.
    """
    copied = frozen_copy(operator)
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
        if key and "parametrizations" not in key.split(".") and _is_layer(module):
            module.register_forward_hook(lambda *_, key=key: order.append(key))
    with torch.no_grad():
        check_predicted(evaluate(watched, inputs, query))
    reasons = []
    for key in dict.fromkeys(reversed(order)):
        try:
            return _verify(copied, inputs, key, query, may_vary=key.rpartition(".")[2] == "readout")
        except ReadoutError as error:
            reasons.append(f"{key}: {error.got}")
    raise ReadoutError(
        expected="a module whose last layer is pointwise and affine",
        got="; ".join(reasons) or "no layer with parameters",
        remedy="name it with readout=, or use Laplace(structure='full') over chosen parameters",
    )


def _is_layer(module: nn.Module) -> bool:
    """Whether a module has parameters, and no submodules except parametrisations."""
    children = [name for name, _ in module.named_children() if name != "parametrizations"]
    return not children and any(True for _ in module.parameters())


@torch.no_grad()
def _verify(operator: nn.Module, inputs: Field, name: str, query: Grid | None, *, may_vary: bool = True) -> Readout:
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
    check_predicted(values)
    if len(seen) != 1 or not all(isinstance(part, Tensor) and not part.is_complex() for part in seen[0]):
        raise _not_a_readout(name, f"called {len(seen)} times, or not on one real tensor")
    features, output = seen[0]
    for axis in (1, -1):
        parts = [tensor.movedim(axis, 1) for tensor in (features, output)] if features.ndim == output.ndim >= 2 else []
        if not parts or any(tuple(part.shape[2:]) != shape for part in parts):
            continue
        inner = _unit_responses(lambda unit, axis=axis: module(unit.movedim(1, axis)).movedim(axis, 1), parts[0])  # type: ignore[misc]
        if inner is None or not inner.agrees(*parts):
            continue
        outer = _outer_map(operator, inputs, name, axis, query)
        if outer is None or not outer.agrees(parts[1], values):
            raise _not_a_readout(name, "what follows it is not pointwise and affine")
        if not _is_invertible(outer.matrix):
            raise _not_a_readout(name, "the output channels are not free combinations of its own")
        if not may_vary and not outer.is_constant(values.dtype):
            raise _not_a_readout(name, "what is added to it varies, as of one branch among several")
        weight, bias = outer.matrix @ inner.matrix, outer.matrix @ inner.offset[0, :, 0] + outer.constant(values.dtype)
        is_parameter = _is_parameter(module, inner, outer, like=parts[0], axis=axis)
        has_bias = bool(is_parameter[:, -1].any())
        full = torch.cat([weight, bias[:, None]], dim=1) if has_bias else weight
        is_parameter = is_parameter[:, : full.shape[1]]
        return Readout(
            operator=operator,
            name=name,
            channel_axis=axis,
            has_bias=has_bias,
            weight=full,
            response=None if outer.factor is None else outer.matrix,
            is_parameter=None if bool(is_parameter.all()) or not bool(is_parameter.any()) else is_parameter,
        )
    raise _not_a_readout(name, "a layer that is not pointwise and affine on the output's grid")


@dataclass(frozen=True, eq=False)
class _AffineMap:
    """A pointwise map of channels, m(x) M v(x) + a(x), where a may differ between samples.

    Attributes:
        matrix: M, `(c2, c)`, float64.
        offset: a, `(n, c2, p)`, or one number per channel, `(1, c2, 1)`; float64.
        factor: m, `(p,)`, float64; None if it is 1 everywhere.
    """

    matrix: Float64[Tensor, "c2 c"]
    offset: Float64[Tensor, "n c2 p"]
    factor: Float64[Tensor, " p"] | None = None

    def constant(self, dtype: torch.dtype) -> Float64[Tensor, " c2"]:
        """The offset if it is one number per channel, up to rounding, and there is no factor; zeros otherwise."""
        first = self.offset[0, :, 0]
        return first if self.is_constant(dtype) else torch.zeros_like(first)

    def is_constant(self, dtype: torch.dtype) -> bool:
        """Whether the offset is one number per channel, up to rounding, and there is no factor."""
        first = self.offset[0, :, 0]
        rounding = _ROUNDING * torch.finfo(dtype).eps * first.abs()
        return self.factor is None and bool(((self.offset - first[:, None]).abs().amax((0, 2)) <= rounding).all())

    def agrees(self, inputs: Tensor, outputs: Tensor) -> bool:
        """Whether outputs `(n, c2, *grid)` equal the map of inputs `(n, c, *grid)`, up to rounding."""
        if inputs.shape[0] != outputs.shape[0] or self.matrix.shape != (outputs.shape[1], inputs.shape[1]):
            return False
        if inputs.shape[2:] != outputs.shape[2:]:
            return False
        expected = torch.einsum("oi,nip->nop", self.matrix, inputs.flatten(2).to(torch.float64))
        expected = self.offset + (expected if self.factor is None else expected * self.factor)
        actual = outputs.flatten(2).to(torch.float64)
        size = self.matrix.abs().amax(1) * inputs.abs().max().to(torch.float64)  # channels may differ in their units
        rounding = _ROUNDING * torch.finfo(inputs.dtype).eps * self.offset.abs().amax((0, 2))
        return bool(((expected - actual).abs().amax((0, 2)) <= _TOLERANCE[inputs.dtype] * size + rounding).all())


def _unit_responses(function: Callable[[Tensor], Tensor], like: Tensor) -> _AffineMap | None:
    """An affine map from its response to zero and to each constant unit input."""
    channels, size = like.shape[1], (2,) * (like.ndim - 2)
    units = torch.cat([torch.zeros(1, channels), torch.eye(channels)]).to(like)
    try:
        responses = function(units.reshape(channels + 1, channels, *(1,) * len(size)).expand(-1, -1, *size))
    except (RuntimeError, ValueError):
        return None  # a layer that is tied to its grid is not pointwise
    points = responses.flatten(2).to(torch.float64)
    return _AffineMap((points[1:, :, 0] - points[:1, :, 0]).mT, points[:1, :, :1])


def _responses(
    operator: nn.Module, inputs: Field, name: str, axis: int, query: Grid | None
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The operator's outputs for substituted read-out outputs, `(n, c, *grid)`, in float64; and the read-out's output."""

    def respond(replacement: Tensor) -> Tensor:
        hooked = _hooked(operator, name, lambda module, arguments, out: replacement.movedim(1, axis).expand_as(out))
        return evaluate(hooked, inputs, query).to(torch.float64)

    own: list[Tensor] = []
    evaluate(_hooked(operator, name, lambda module, arguments, out: own.append(out.movedim(axis, 1))), inputs, query)
    return respond, own[-1]


def _units(like: Tensor) -> Iterator[Tensor]:
    """Unit outputs of a read-out: 1 in one channel, 0 in the others."""
    for channel in range(like.shape[1]):
        unit = torch.zeros_like(like)
        unit[:, channel] = 1.0
        yield unit


def _rough(like: Tensor) -> Tensor:
    """White noise."""
    return torch.randn(like.shape, generator=stream(0, "read-out response")).to(like)


def _outer_map(operator: nn.Module, inputs: Field, name: str, axis: int, query: Grid | None) -> _AffineMap | None:
    """The map after the read-out, verified on white noise."""
    respond, like = _responses(operator, inputs, name, axis, query)
    base = respond(torch.zeros_like(like))
    change = torch.stack([(respond(unit) - base)[:1] for unit in _units(like)], dim=2).flatten(3)
    sizes = change.abs().amax((0, 2, 3))[:, None, None]
    strength = (change / torch.where(sizes > 0, sizes, 1.0)).square().sum((0, 1, 2))
    matrix = change[..., strength >= 0.5 * strength.max()].mean((0, 3))
    factor = _factor(change, matrix, _TOLERANCE[like.dtype])
    found = _AffineMap(matrix, base.flatten(2), None if bool((factor == 1.0).all()) else factor)
    rough = _rough(like)
    return found if found.agrees(rough, respond(rough)) else None


def _factor(change: Float64[Tensor, "n o i p"], matrix: Float64[Tensor, "o i"], tolerance: float) -> Float64[Tensor, " p"]:
    """Least-squares factor of the matrix at every point, with normalised outputs; values near 1 are set to 1."""
    norms = matrix.norm(dim=1, keepdim=True)
    relative = torch.where(norms > 0, matrix / norms.square(), 0.0)
    factor = torch.einsum("noip,oi->p", change, relative) / (len(change) * max(1, int((norms > 0).sum())))
    return torch.where((factor - 1.0).abs() <= tolerance, 1.0, factor)


def _is_invertible(matrix: Tensor) -> bool:
    """Whether a map between channels is square and regular, independent of the outputs' units."""
    norms = matrix.norm(dim=1, keepdim=True)
    if matrix.shape[0] != matrix.shape[1] or not bool((norms > 0).all()):
        return False
    return float(torch.linalg.cond(matrix / norms)) < 1e8


def _is_parameter(module: nn.Module, inner: _AffineMap, outer: _AffineMap, *, like: Tensor, axis: int) -> Bool[Tensor, "c f1"]:
    """Mask of the output weights, the constant's last, that depend on the layer's parameters."""
    probe = copy.deepcopy(module)
    generator = stream(0, "read-out parameters")
    for parameter in probe.parameters():
        parameter.add_(1.0 + torch.rand(parameter.shape, generator=generator).to(parameter))
    changed = _unit_responses(lambda unit: probe(unit.movedim(1, axis)).movedim(axis, 1), like)
    assert changed is not None  # the layer itself has responded
    before, after = (torch.cat([one.matrix, one.offset[0, :, :1]], dim=1) for one in (inner, changed))
    rounding = _ROUNDING * torch.finfo(like.dtype).eps * torch.maximum(before.abs(), after.abs())
    own = ((after - before).abs() > rounding).to(torch.float64)
    mixing = (outer.matrix.abs() > _TOLERANCE[like.dtype] * outer.matrix.abs().amax(1, keepdim=True)).to(torch.float64)
    return mixing @ own > 0


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
