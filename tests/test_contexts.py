"""What is kept for later calls belongs to no transform, tracer or mode of the call that made it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from probneural.grids import Grid, resample
from probneural.operators import FNO, DeepONet, HiddenLayers
from probneural.operators.layers import SpectralConv
from tests.helpers import normal

CONVOLUTION = SpectralConv(1, 1, modes=(3,)).double().requires_grad_(False)
POINTWISE = FNO(1, 1, modes=(2,), width=4, depth=1, embeds_position=True, seed=0).double().requires_grad_(False)
PRODUCTS = DeepONet(1, 1, sensors=Grid.uniform(8), basis=2, layers=HiddenLayers(width=4, depth=1), seed=0)
PRODUCTS.double().requires_grad_(False)
CALLS: dict[str, Callable[[int, Tensor], Tensor]] = {
    "resample": lambda size, values: resample(values, Grid.uniform(size), Grid.uniform(size + 1)),
    "points": lambda size, values: values * Grid.uniform(size).points[:, 0],
    "spectral convolution": lambda size, values: CONVOLUTION(values),
    "position": lambda size, values: POINTWISE(values),
    "trunk": lambda size, values: PRODUCTS(values),
}
FIRST: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "jvp": lambda function, values: jvp(function, (values,), (values,)),
    "vjp": lambda function, values: vjp(function, values)[1](function(values)),
    "vmap of jvp": lambda function, values: vmap(lambda tangent: jvp(function, (values,), (tangent,))[1])(values[None]),
    "fake tracer": lambda function, values: make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(values),
    "tracer": lambda function, values: make_fx(function)(values),
    "inference": lambda function, values: torch.inference_mode()(function)(values),
}
SIZES = iter(range(100, 10_000, 2))  # a size that no cache has seen


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("name", CALLS)
def test_what_the_first_call_keeps_serves_all_others(name: str, first: str) -> None:
    size = next(SIZES)
    values = normal(2, 1, size, seed=size)
    FIRST[first](lambda tensor: CALLS[name](size, tensor), values)
    leaf = values.clone().requires_grad_()
    result = CALLS[name](size, leaf)
    (slope,) = torch.autograd.grad(result.square().sum(), leaf)
    assert type(result) is Tensor
    assert bool(torch.isfinite(slope).all())
    assert float(slope.abs().max()) > 0.0
