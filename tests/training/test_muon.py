"""Muon, beside the singular value decomposition, PyTorch's own two optimisers, and what it promises about sizes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probneural.training.optimizers import Muon, orthogonalized


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def weights(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    return [nn.Parameter(drawn(*shape, seed=number, dtype=dtype)) for number, shape in enumerate(shapes)]


def step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], number: int) -> None:
    for place, parameter in enumerate(parameters):
        parameter.grad = drawn(*parameter.shape, seed=100 * number + place, dtype=parameter.dtype)
    optimizer.step()


@pytest.mark.parametrize("shape", [(3, 5, 5), (2, 8, 3), (2, 3, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128], ids=str)
def test_singular_vectors_stay_and_values_come_near_one(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = drawn(*shape, dtype=dtype)
    left, values, right = torch.linalg.svd(given, full_matrices=False)
    found = left.mH @ orthogonalized(given) @ right.mH
    least = values / torch.linalg.matrix_norm(given)[:, None]
    off_diagonal = found - torch.diag_embed(torch.diagonal(found, dim1=-2, dim2=-1))
    rounding = 1e3 * torch.finfo(dtype).eps  # five passes multiply small singular values, and rounding, by up to 3.44 each
    assert off_diagonal.abs().max() < rounding
    gained = torch.diagonal(found, dim1=-2, dim2=-1)
    assert (gained - gained.real).abs().max() < rounding
    assert (gained.real[least > 0.05] > 0.65).all()
    assert (gained.real < 1.25).all()


def test_size_and_scale_of_a_gradient_do_not_matter() -> None:
    given = drawn(1, 6, 6)
    assert torch.allclose(orthogonalized(1e-30 * given), orthogonalized(given), rtol=1e-10, atol=1e-12)
    assert torch.equal(orthogonalized(torch.zeros(1, 4, 4)), torch.zeros(1, 4, 4))


def test_matrices_of_one_shape_move_as_each_would_alone() -> None:
    together, apart = weights((4, 6), (4, 6), (6, 4)), weights((4, 6), (4, 6), (6, 4))
    optimizer, optimizers = Muon(together, lr=0.1), [Muon([one], lr=0.1) for one in apart]
    for number in range(3):
        step(optimizer, together, number)
        for place, one in enumerate(apart):
            one.grad = together[place].grad
            optimizers[place].step()
    for one, other in zip(together, apart, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_matrices_move_as_by_pytorch_up_to_its_half_precision(decay: float) -> None:
    """torch.optim.Muon rounds its passes to bfloat16, eight bits: a few per cent of an update after five passes."""
    ours, theirs = weights((8, 8), (5, 9)), weights((8, 8), (5, 9))
    start = [one.detach().clone() for one in ours]
    mine = Muon(ours, lr=0.01, weight_decay=decay)
    other = torch.optim.Muon(theirs, lr=0.01, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    for number in range(4):
        step(mine, ours, number)
        step(other, theirs, number)
    for one, two, before in zip(ours, theirs, start, strict=True):
        assert torch.linalg.norm(one - two) < 0.05 * torch.linalg.norm(one - before)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_other_weights_move_as_by_adamw(decay: float) -> None:
    shapes: tuple[tuple[int, ...], ...] = ((7,), (1, 7), (7, 1), (2, 3, 4), (70, 66), ())
    ours, theirs = weights(*shapes), weights(*shapes)
    mine = Muon(ours, lr=0.01, weight_decay=decay)
    other = torch.optim.AdamW(theirs, lr=0.01, weight_decay=decay)
    for number in range(4):
        step(mine, ours, number)
        step(other, theirs, number)
    assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))


def test_which_weights_are_matrices() -> None:
    def rules(largest: int | None, *shapes: tuple[int, ...]) -> list[Any]:
        parameters = weights(*shapes)
        found = Muon(parameters, largest=largest)
        return [group["rule"] for one in parameters for group in found.param_groups if any(one is it for it in group["params"])]

    shapes = (64, 64), (64, 300), (65, 65), (65, 300), (4,), (4, 4, 4, 2)
    assert rules(64, *shapes) == ["muon", "muon", "adamw", "adamw", "adamw", "adamw"]
    assert rules(None, *shapes) == ["muon", "muon", "muon", "muon", "adamw", "adamw"]


def test_weights_without_gradients_stay_and_closures_are_called() -> None:
    parameters = weights((3, 3), (3, 3), (3,))
    before = [one.detach().clone() for one in parameters]

    def closure() -> float:
        loss = (parameters[0] ** 2).sum()
        loss.backward()
        return loss.item()

    assert Muon(parameters, lr=0.1).step(closure) == pytest.approx((before[0] ** 2).sum().item())
    assert not torch.equal(parameters[0], before[0])
    assert torch.equal(parameters[1], before[1])
    assert torch.equal(parameters[2], before[2])


def test_its_state_goes_on_in_another() -> None:
    ours, theirs = weights((4, 4), (5,)), weights((4, 4), (5,))
    first = Muon(ours, lr=0.1)
    step(first, ours, 1)
    second = Muon(theirs, lr=0.1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))  # which would share its moments otherwise
    with torch.no_grad():
        for one, other in zip(theirs, ours, strict=True):
            one.copy_(other)
    step(first, ours, 2)
    step(second, theirs, 2)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
