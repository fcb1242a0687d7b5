"""Two processes with half the functions each give what one process with all of them gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from probneural.curvature.problem import Minibatches
from probneural.errors import UnsupportedError
from tests.distributed import needs_distributed, run_in_ranks

SCRIPT = """
from dataclasses import replace
from probneural.curvature import Minibatches
from probneural.curvature.products.functions import fisher_vector_product, gauss_newton_vector_product
from probneural.curvature.products.functions import hessian_vector_product, vector_jacobian_product
from probneural.curvature.products.functions import jacobian_vector_product
from probneural.curvature.products.linear_operators import GaussNewton
from tests.curvature.cases import product_case


case = product_case("conv")
whole = case.problem
own = [0, 1, 2] if rank == 0 else [3, 4]
shard = replace(whole, inputs=whole.inputs[own], targets=whole.targets[own], batches=Minibatches(is_sharded=True))
theta, vectors, cotangents = case.parameters, case.vectors(5), case.cotangents(5)


def compare(name, actual, expected):
    error = float((actual - expected).abs().max() / expected.abs().max())
    assert error < 1e-12, f"{name}: {error}"


def derivatives(function, problem, block):
    leaves = theta.clone().requires_grad_(True), block.clone().requires_grad_(True)
    result = function(problem, *leaves)
    first = torch.autograd.grad(result.square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(part.sum() for part in first), leaves[0])
    return result.detach(), *(part.detach() for part in first), *second


for function in (hessian_vector_product, gauss_newton_vector_product, fisher_vector_product):
    for place, pair in enumerate(zip(derivatives(function, shard, vectors), derivatives(function, whole, vectors))):
        compare(f"{function.__name__} {place}", *pair)
pulled = vector_jacobian_product(shard, theta, cotangents[:, own])
compare("pulled", pulled, vector_jacobian_product(whole, theta, cotangents))
compare("pushed", jacobian_vector_product(shard, theta, vectors), jacobian_vector_product(whole, theta, vectors)[:, own])
for function, mine, all_of_them in (
    (vector_jacobian_product, cotangents[:, own], cotangents),
    (jacobian_vector_product, vectors, vectors),
):
    def gradient(problem, block):
        leaf = theta.clone().requires_grad_(True)
        return torch.autograd.grad(function(problem, leaf, block).square().sum(), leaf)[0]
    compare(function.__name__, gradient(shard, mine), gradient(whole, all_of_them))
compare("matrix", GaussNewton(theta, shard) @ vectors.mT, GaussNewton(theta, whole) @ vectors.mT)
unaware = gauss_newton_vector_product(replace(shard, batches=Minibatches()), theta, vectors)
summed = gauss_newton_vector_product(shard, theta, vectors)
assert (unaware - summed).abs().max() > 1e-3, "an initialised group alone changed a sum"
"""


@pytest.mark.slow
@needs_distributed
def test_two_processes_equal_one(tmp_path: Path) -> None:
    run_in_ranks(SCRIPT, tmp_path)


@pytest.mark.bad_input
def test_sharding_takes_an_initialised_group() -> None:
    Minibatches()
    with pytest.raises(UnsupportedError, match="torchrun"):
        Minibatches(is_sharded=True)
