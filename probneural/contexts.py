"""Computing apart from what a caller has switched on in PyTorch for work of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_AUTOCAST = ("cpu", "cuda", "mps")


@contextlib.contextmanager
def undisturbed(*, keeps_autocast: bool = False) -> Iterator[None]:
    """Leave inference mode, autocast and another default device, for a while; also a decorator.

    Inference tensors would be refused by autograd later, half precision would spoil what heads measure, and tensors without a
    device of their own belong on the CPU. Whether gradients are recorded stays the caller's choice.

    Args:
        keeps_autocast: Whether a caller's autocast is left on: for training, where it may be meant.

    Examples:
        >>> with torch.device("meta"), undisturbed():
        ...     torch.zeros(1).device.type
        'cpu'
    """
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            grad = torch.is_grad_enabled()
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(grad))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in () if keeps_autocast else _AUTOCAST:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
