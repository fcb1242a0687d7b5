"""Conversion of the weights of neuraloperator, another library of Fourier neural operators."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probneural.checks import check_flag, check_instance
from probneural.errors import ArgumentError, DataWarning, UnsupportedError, warn
from probneural.operators.fno import FNO

_NAMES = {
    r"lifting\.fcs\.0": "lift.0",
    r"lifting\.fcs\.1": "lift.2",
    r"fno_blocks\.convs\.(\d+)\.weight": r"spectral.\1.weight",
    r"fno_blocks\.convs\.(\d+)\.bias": r"pointwise.\1.bias",
    r"fno_blocks\.fno_skips\.(\d+)\.conv": r"pointwise.\1",
    r"fno_blocks\.channel_mlp\.(\d+)\.fcs\.0": r"networks.\1.0",
    r"fno_blocks\.channel_mlp\.(\d+)\.fcs\.1": r"networks.\1.2",
    r"fno_blocks\.channel_mlp_skips\.(\d+)\.weight": r"gates.\1",
    r"projection\.fcs\.0": "projection",
    r"projection\.fcs\.1": "readout",
}
"""Parts of the names of neuraloperator, and the names that the operator has for them."""
_UNSET = ("complex_data", "domain_padding", "max_n_modes", "norm", "preactivation", "resolution_scaling_factor", "stabilizer")
"""Arguments of neuraloperator's FNO without a counterpart."""


def from_neuraloperator(
    state_dict: Mapping[str, Any], *, embeds_position: bool = True, periodic: bool | Sequence[bool] = True
) -> FNO:
    """Convert the state dict of an FNO or TFNO of neuraloperator 2.0 with its default blocks.

    Outputs are equal up to rounding on grids with an even number of points on all axes but the last: on odd ones,
    neuraloperator shifts frequencies by one. An axis needs `n_modes + 1` points, one more than there, because an even number
    of modes is completed by the opposite frequency, with weight zero. Factors of Tucker are multiplied to dense weights.
    Sizes are read from the shapes. If the state dict has the entry `_metadata`, arguments without a counterpart, such as
    `domain_padding`, are refused; without it they cannot be seen.

    Args:
        state_dict: Tensors by name, as of `model.state_dict()`.
        embeds_position: Whether the model has neuraloperator's `positional_embedding="grid"`, its default.
        periodic: Whether the axes of the data's grids are periodic; neuraloperator computes the same in both cases.

    Returns:
        The operator, in evaluation mode, in the precision of the weights. Its normalisers are the identity, so its units are
        those of the foreign model's inputs and outputs.

    Warns:
        DataWarning: If entries are missing, and keep random initial weights; if entries are not used; or if the gates of
            blocks are exactly one. They are one before training and a step of any optimiser changes them, so those blocks
            were never trained, as in checkpoints of The Well's benchmark from before 2025-11-17, whose forward pass left out
            all blocks. Moments of spectral weights are no reliable sign: after short training they are those of the initial
            weights, up to sampling error.

    Raises:
        ArgumentError: If an entry is missing that sizes follow from, or has another size than others imply.
        UnsupportedError: If the model has an argument without a counterpart, or another position embedding.
    """
    check_instance(state_dict, Mapping, "state_dict", remedy="give model.state_dict()", error=ArgumentError)
    arguments, position = state_dict.get("_metadata") or {}, "grid" if check_flag(embeds_position, "embeds_position") else None
    known = {"positional_embedding": position, "non_linearity": nn.functional.gelu, **dict.fromkeys(_UNSET)}
    others = [f"{name}={arguments[name]}" for name in known if name in arguments and (arguments[name] or None) != known[name]]
    if others:
        expected, remedy = f"default blocks, and positional_embedding={position!r}", "heads take any module: give the model"
        raise UnsupportedError(expected=expected, got=", ".join(others), remedy=remedy)
    try:
        weights = _renamed({name: value for name, value in state_dict.items() if isinstance(value, Tensor)})
        *retained, _, width, _ = weights["spectral.0.weight"].shape
        lifting, lifted = weights["lift.0.weight"].shape
        out_channels, projection = weights["readout.weight"].shape
        operator = FNO(
            lifted - embeds_position * len(retained),
            out_channels,
            modes=(*((size + 1) // 2 for size in retained[:-1]), retained[-1]),
            width=width,
            depth=sum(name.startswith("spectral.") for name in weights),
            lifting=lifting,
            projection=projection,
            mixing=len(weights["networks.0.0.weight"]),
            periodic=periodic,
            continuation="periodic",
            embeds_position="linear" if embeds_position else False,
        ).to(weights["lift.0.weight"].dtype)
        unused = operator.load_state_dict({**operator.state_dict(), **weights}, strict=False).unexpected_keys
    except (LookupError, RuntimeError) as error:
        expected = "the state dict of an FNO or TFNO of neuraloperator 2.0"
        raise ArgumentError(
            expected=expected, got=f"another ({error})", remedy="other blocks: give a head the model"
        ) from error
    if embeds_position:  # W x + b = W/2 (2x - 1) + (b + W/2): coordinates are from -1 to 1, not from 0 to 1
        with torch.no_grad():
            coordinates = operator.get_parameter("lift.0.weight")[:, -len(retained) :].div_(2.0)
            operator.get_parameter("lift.0.bias").add_(coordinates.sum(1))
    parameters = dict(operator.named_parameters()).keys()
    _warn("weights without an entry, which keep random initial values", parameters - weights.keys())
    _warn("entries that are not used", unused)
    gates = [name for name, weight in weights.items() if name.startswith("gates.") and bool((weight == 1.0).all())]
    _warn("blocks that were never trained, with gates of exactly one", gates)
    return operator.eval()


def _warn(text: str, names: Collection[str]) -> None:
    if names:
        warn(f"{text}: {', '.join(sorted(names)[:5])}{' and others' if len(names) > 5 else ''}", DataWarning)


def _renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names and in the shapes of the operator, spectral ones dense, `(*retained, in, out, 2)`.

    On each axis but the last, frequencies of neuraloperator go from -(n // 2) to (n - 1) // 2; of an even number, the opposite
    of the first one gets weight zero.
    """
    weights: dict[str, Tensor] = {}
    for name, weight in state.items():
        stem, _, part = name.partition(".weight.")
        if part == "core":
            # W_AB... = sum over a, b, ... of core_ab... F_Aa F_Bb ...
            axes = string.ascii_lowercase[: weight.ndim]
            factors = [state[f"{name.removesuffix('core')}factors.factor_{number}"] for number in range(weight.ndim)]
            terms = ",".join([axes, *(f"{axis.upper()}{axis}" for axis in axes)])
            weight = torch.einsum(f"{terms}->{axes.upper()}", weight, *factors)
        if part in ("core", "tensor"):
            name, weight = f"{stem}.weight", torch.view_as_real(weight).movedim((0, 1), (-3, -2))
            for axis in range(weight.ndim - 4):
                if weight.shape[axis] % 2 == 0:
                    weight = torch.cat([weight, torch.zeros_like(weight.narrow(axis, 0, 1))], dim=axis)
                weight = weight.roll(-(weight.shape[axis] // 2), dims=axis)
        elif part.startswith("factors"):
            continue
        else:
            weight = weight.flatten(1) if re.search(r"(fcs\.\d|conv)\.weight", name) else weight.flatten()
        for old, new in _NAMES.items():
            name = re.sub(old, new, name)
        weights[name] = weight
    return weights
