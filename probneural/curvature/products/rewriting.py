"""Rewriting a traced graph into a cheaper one with the same values.

The rules hold for any graph without in-place operations. Those on Fourier transforms matter because automatic differentiation
pads half a spectrum to a whole one and takes a complex transform of it, of which it keeps the real part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

_ATEN = torch.ops.aten
_SHAPES_ONLY = (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.expand.default, _ATEN.reshape.default)


def simplify(module: fx.GraphModule) -> None:
    """Apply all rules to the module's graph, once each, in an order in which they help each other."""
    graph = module.graph
    _share_equal_operations(graph)
    _drop_idle_views(graph)
    for node in list(graph.nodes):
        if _is(node, _ATEN.select.int):
            _real_part_of_padded_spectrum(module, node)
        elif _is(node, _ATEN.slice_scatter.default):
            _scaled_slice(module, node)
    graph.eliminate_dead_code()


def _share_equal_operations(graph: fx.Graph) -> None:
    """Run equal operations once: forward and reverse mode both run the forward pass."""
    first_nodes: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op not in ("call_function", "get_attr") or _is_random(node):
            continue
        key = (node.op, node.target, repr(_arguments(node)), repr(node.kwargs))
        if key in first_nodes:
            _replace(graph, node, first_nodes[key])
        else:
            first_nodes[key] = node
    graph.eliminate_dead_code()


def _drop_idle_views(graph: fx.Graph) -> None:
    """Drop views that change neither shape nor strides."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _SHAPES_ONLY:
            before, after = _value(_arguments(node)[0]), _value(node)
            if before.shape == after.shape and before.stride() == after.stride():
                _replace(graph, node, _arguments(node)[0])


def _real_part_of_padded_spectrum(module: fx.GraphModule, node: fx.Node) -> None:
    """Re(inverse transform of half a spectrum g, padded by zeros) is the real transform of g, halved off its ends.

    A real inverse transform adds to every coefficient its conjugate, except to those at frequencies 0 and n / 2.
    """
    pairs, axis, position = _arguments(node)
    if position != 0 or not _is(pairs, _ATEN.view_as_real.default) or axis not in (-1, _value(pairs).ndim - 1):
        return
    transform = _arguments(pairs)[0]
    if not _is(transform, _ATEN._fft_c2c.default) or _arguments(transform)[3]:
        return
    padded, axes, normalisation, _ = _arguments(transform)
    half = _padded(padded, axes[-1])
    if half is None:
        return
    size = _value(padded).shape[axes[-1]]
    factor = torch.full((size // 2 + 1,), 0.5)
    factor[0] = 1.0
    if size % 2 == 0:
        factor[-1] = 1.0
    with module.graph.inserting_before(node):
        scaled = _scaled(module, half, factor, axes[-1])
        real = module.graph.call_function(_ATEN._fft_c2r.default, (scaled, axes, normalisation, size))
    real.meta["val"] = _value(node)
    _replace(module.graph, node, real)


def _padded(node: Any, axis: int) -> Any:
    """What was written into the first half of a tensor of zeros along an axis, or None."""
    size = _value(node).shape[axis]
    half = list(_value(node).shape)
    half[axis] = size // 2 + 1
    if _is(node, _ATEN.slice_scatter.default) and not node.kwargs:
        zeros, written, along, start, stop, *step = _arguments(node)
        fits = along == axis and start == 0 and stop == half[axis] and step in ([], [1])
    elif _is(node, _ATEN.as_strided_scatter.default) and not node.kwargs:
        zeros, written, shape, strides, *offset = _arguments(node)
        fits = list(shape) == half and tuple(strides) == _value(zeros).stride() and offset in ([], [0], [None])
    else:
        return None
    if not fits or not (_is(zeros, _ATEN.new_zeros.default) or _is(zeros, _ATEN._new_zeros_with_same_feature_meta.default)):
        return None
    if _is(written, _ATEN.copy.default):  # copy(part of the zeros, source) is the source, expanded
        source = _arguments(written)[1]
        written = source if isinstance(source, fx.Node) and _value(source).shape == _value(written).shape else written
    return written


def _scaled_slice(module: fx.GraphModule, node: fx.Node) -> None:
    """Scaling a slice and writing it back is scaling by a vector; cropping before it is cheaper than after."""
    if node.kwargs or len(_arguments(node)) != 5:
        return
    whole, scaled, axis, start, stop = _arguments(node)
    if not _is(scaled, _ATEN.mul.Scalar) and not _is(scaled, _ATEN.mul.Tensor):
        return
    part, by = _arguments(scaled)
    if isinstance(by, fx.Node) or not _is(part, _ATEN.slice.Tensor) or tuple(_arguments(part)) != (whole, axis, start, stop):
        return
    factor = torch.ones(_value(whole).shape[axis])
    factor[start:stop] = by
    users = list(node.users)
    crop: Any = users[0] if len(users) == 1 and _is(users[0], _ATEN.constant_pad_nd.default) else None
    from_end = _value(whole).ndim - 1 - axis
    amounts = [] if crop is None else _arguments(crop)[1]
    if all(amount <= 0 for amount in amounts) and len(amounts) >= 2 * from_end + 2 and amounts[2 * from_end] == 0:
        stop = len(factor) + amounts[2 * from_end + 1]
        with module.graph.inserting_before(crop):
            cropped = module.graph.call_function(_ATEN.constant_pad_nd.default, (whole, *_arguments(crop)[1:]))
            cropped.meta["val"] = _value(crop)
            _replace(module.graph, crop, _scaled(module, cropped, factor[:stop], axis))
        return
    with module.graph.inserting_before(node):
        _replace(module.graph, node, _scaled(module, whole, factor, axis))


def _scaled(module: fx.GraphModule, node: fx.Node, factor: Tensor, axis: int) -> fx.Node:
    """The node times a vector along an axis, kept as a constant of the module."""
    value = _value(node)
    shape = [1] * value.ndim
    shape[axis] = len(factor)
    name = f"factor_{sum(1 for other in module.graph.nodes if other.op == 'get_attr')}_{len(list(module.graph.nodes))}"
    real = torch.float64 if value.dtype in (torch.float64, torch.complex128) else torch.float32
    module.register_buffer(name, factor.reshape(shape).to(device=value.device, dtype=real), persistent=False)
    constant = module.graph.get_attr(name)
    product = module.graph.call_function(_ATEN.mul.Tensor, (node, constant))
    product.meta["val"] = value
    return product


def _replace(graph: fx.Graph, node: fx.Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    graph.erase_node(node)


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target is target


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _arguments(node: Any) -> Any:
    return node.args


def _value(node: Any) -> Tensor:
    """The tensor on shapes alone that the trace has left."""
    value: Tensor = node.meta["val"]
    return value
