"""Copies of modules that are made for one call, and what PyTorch has one of per process."""

from __future__ import annotations

import copy
import functools
import os
import signal
import threading
import time

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from probneural.contexts import AUTOGRAD_STATE, GLOBAL_GENERATORS, copy_for_call, forward_mode, jvp
from probneural.errors import ArgumentError


class Tied(nn.Module):
    """Reaches one layer in every way that a module can."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.alias = self.first
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.calls = [self.first.forward, functools.partial(self.second), (self.first,)]
        self.table = {"second": self.second}
        self.__dict__["plain"] = self.first.bias

    def forward(self, values: Tensor) -> Tensor:
        total = self.alias(values) + self.table["second"](values) + self.plain
        return total + self.calls[0](values) + self.calls[1](values) + self.calls[2][0](values)


class Remembering(nn.Module):
    """Keeps what it computes, as much research code does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.seen: list[Tensor] = []

    def forward(self, values: Tensor) -> Tensor:
        self.hidden = self.layer(values)
        self.seen.append(self.hidden)
        return self.hidden.tanh()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values)[0]


MODULES = {
    "tied": Tied,
    "remembering": Remembering,
    "recurrent": Recurrent,
    "attention": lambda: nn.TransformerEncoderLayer(3, 1, 4, batch_first=True),
    "parametrised": lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv1d(4, 4, 1)), nn.Tanh()),
    "graph": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh())),
    "compiled": lambda: torch.compile(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), backend="eager"),
    "complex": lambda: nn.Sequential(nn.Linear(3, 3, dtype=torch.complex64), nn.Tanh()),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_copy_for_a_call_is_the_module_with_other_tensors(name: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    kind = next(module.parameters()).dtype
    values = torch.randn(2, 4, 3, dtype=kind)
    replaced = {key: torch.randn_like(parameter) for key, parameter in module.named_parameters()}
    other = copy.deepcopy(module)
    with torch.no_grad():
        for key, parameter in other.named_parameters():
            parameter.copy_(replaced[key])
        before = module(values)
        expected = other(values)
        torch.testing.assert_close(copy_for_call(module, replaced)(values), expected)
        torch.testing.assert_close(copy_for_call(module)(values), before)
        torch.testing.assert_close(module(values), before)
    assert not torch.allclose(before, expected)
    shared = dict(copy_for_call(module).named_parameters())
    assert all(shared[key] is parameter for key, parameter in module.named_parameters())


def test_nothing_of_a_call_reaches_the_module() -> None:
    module = Remembering()
    copied = copy_for_call(module)
    copied.layer.register_forward_hook(lambda *_: None)
    copied.register_buffer("late", torch.zeros(1))
    copied(torch.zeros(1, 3))
    copied.train(False)
    assert not hasattr(module, "hidden")
    assert not module.seen
    assert not module.layer._forward_hooks
    assert "late" not in module._buffers
    assert module.training
    assert module.layer.training
    assert copied.layer.weight is module.layer.weight


def test_names_that_a_module_lacks() -> None:
    with pytest.raises(ArgumentError, match=r"parameters and buffers of Linear; got wieght"):
        copy_for_call(nn.Linear(2, 2), {"wieght": torch.zeros(2, 2)})


def test_forward_mode_is_one_threads() -> None:
    """A slow derivative does not meet the end of a quick one."""
    begun, results = threading.Event(), {}

    def slow(values: Tensor) -> Tensor:
        begun.set()
        squares = values.square()
        time.sleep(0.02)
        return squares * values

    def work() -> None:
        results["slow"] = jvp(slow, (torch.tensor(2.0),), (torch.tensor(1.0),))[1]

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    results["quick"] = jvp(torch.square, (torch.tensor(3.0),), (torch.tensor(1.0),))[1]
    thread.join()
    assert {name: float(value) for name, value in results.items()} == {"slow": 12.0, "quick": 6.0}


def test_a_backward_pass_does_not_wait_for_forward_mode() -> None:
    """It says that it may not enter, where waiting could be for itself."""
    free: list[bool] = []

    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, values: Tensor) -> Tensor:
            return values.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            with forward_mode() as is_free:
                free.append(is_free)
            return gradient

    def backward() -> None:
        Asking.apply(torch.ones(1, requires_grad=True)).backward()

    backward()
    with forward_mode() as is_free:
        assert is_free
        thread = threading.Thread(target=backward)
        thread.start()
        thread.join(10.0)
        assert not thread.is_alive()
    assert free == [True, False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_frees_the_locks_that_other_threads_hold() -> None:
    """The child ends by an alarm where it waits for a thread that it does not have."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with AUTOGRAD_STATE, GLOBAL_GENERATORS:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with forward_mode(), GLOBAL_GENERATORS:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
