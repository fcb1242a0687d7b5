"""The simulated GPU: it computes what the CPU does, and refuses what a GPU refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.device import simulated
from tests.helpers import accelerator, generator

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def device() -> str:
    name = accelerator()
    if name != simulated.NAME:
        pytest.skip("there is a GPU")
    return name


def square(seed: int) -> Tensor:
    return torch.randn(4, 4, generator=generator(seed), requires_grad=True)


def gradient(x: Tensor) -> Tensor:
    return torch.autograd.grad((x @ x.sin()).square().sum(), x)[0]


def convolution(x: Tensor) -> Tensor:
    weight = x[:3, None, :3]
    return torch.autograd.grad(torch.nn.functional.conv1d(x[:, None], weight, x[:3, 0], padding=1).square().sum(), x)[0]


COMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "gradient": gradient,
    "gradient of a convolution": convolution,
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x @ x.mT),
    "Fourier modes, conjugate": lambda x: torch.view_as_real(torch.fft.rfft(x).conj().resolve_conj()),
    "in place, through a view": lambda x: x.detach().clone().view(2, 8)[0].mul_(2.0),
    "indices from the CPU": lambda x: x[torch.tensor([2, 0])],
    "scalar from the CPU": lambda x: x + torch.tensor(1.0),
    "vmap": torch.func.vmap(lambda row: row.outer(row)),
    "deep copy": copy.deepcopy,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computes_what_the_cpu_does(name: str, device: str) -> None:
    x = square(0)
    value = COMPUTED[name](x.detach().to(device).requires_grad_())
    assert value.device == torch.device(device, 0)
    torch.testing.assert_close(value.cpu(), COMPUTED[name](x), rtol=0, atol=0)


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Tensor, Tensor], object]]] = {
    "sum with the CPU": (RuntimeError, "same device", lambda x, host: x + host),
    "product with the CPU": (RuntimeError, "same device", lambda x, host: host @ x),
    "concatenation with the CPU": (RuntimeError, "same device", lambda x, host: torch.cat([x, host])),
    "choice from the CPU": (RuntimeError, "same device", lambda x, host: torch.where(x > 0, x, host)),
    "convolution by the CPU": (
        RuntimeError,
        "same device",
        lambda x, host: torch.nn.functional.conv1d(x[:, None], host[:, None]),
    ),
    "write to the CPU": (RuntimeError, "same device", lambda x, host: torch.tensor(0.0).add_(x[0, 0])),
    "values of the CPU at indices": (RuntimeError, "same device", lambda x, host: x.index_put_((x[0] > 0,), host[0])),
    "indices of the device on the CPU": (RuntimeError, "same device", lambda x, host: host[x[0] > 0]),
    "generator of the CPU": (RuntimeError, "generator", lambda x, host: x.normal_(generator=generator())),
    "generator of the device for the CPU": (
        RuntimeError,
        "same device",
        lambda x, host: host.normal_(generator=torch.Generator(x.device)),
    ),
    "NumPy": (TypeError, "numpy", lambda x, host: x.numpy()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_a_gpu_does(name: str, device: str) -> None:
    error, message, call = REFUSED[name]
    host = square(1).detach()
    with pytest.raises(error, match=message):
        call(square(0).detach().to(device), host)
    call(square(0).detach(), host)


def test_random_numbers_of_its_own(device: str) -> None:
    """A seed starts the stream of the device, apart from the one of the CPU; dropout continues it too."""
    dropout = torch.nn.Dropout(0.5)

    def draws() -> list[Tensor]:
        return [torch.rand(8, device=device), dropout(torch.ones(8, device=device)), torch.randperm(8, device=device)]

    torch.manual_seed(3)
    torch.rand(5)  # of the CPU
    first = draws()
    torch.manual_seed(3)
    assert all(torch.equal(one, other) for one, other in zip(first, draws(), strict=True))
    assert torch.equal(torch.rand(5), torch.rand(5, generator=torch.Generator().manual_seed(3)))
    assert not any(torch.equal(one, other) for one, other in zip(first, draws(), strict=True))


@pytest.mark.parametrize("call", [lambda x: x.double(), lambda x: x + x.new_ones(1, dtype=torch.float64)])
def test_float64_is_refused_on_request(call: Callable[[Tensor], Tensor], device: str) -> None:
    x = torch.ones(2, device=device)
    with simulated.without_float64(), pytest.raises(TypeError, match="no float64"):
        call(x)
    assert call(x).dtype == torch.float64
