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
    r"fno_blocks\.fno_skips\.(\d+)(\.conv)?": r"pointwise.\1",
    r"fno_blocks\.channel_mlp\.(\d+)\.fcs\.0": r"networks.\1.0",
    r"fno_blocks\.channel_mlp\.(\d+)\.fcs\.1": r"networks.\1.2",
    r"fno_blocks\.channel_mlp_skips\.(\d+)\.weight": r"gates.\1",
    r"projection\.fcs\.0": "projection",
    r"projection\.fcs\.1": "readout",
}
"""Parts of the names of neuraloperator, and the names that the operator has for them."""
_UNSET = ("complex_data", "domain_padding", "max_n_modes", "norm", "preactivation", "resolution_scaling_factor", "stabilizer")
_ARGUMENTS = {"non_linearity": nn.functional.gelu, **dict.fromkeys(_UNSET)}
"""Values that arguments of neuraloperator's FNO must have, since there is no counterpart of others."""


def from_neuraloperator(
    state_dict: Mapping[str, Any], *, embeds_position: bool = True, periodic: bool | Sequence[bool] = True
) -> FNO:
    """Convert the state dict of an FNO or TFNO of neuraloperator 2.0 with its default blocks.

    State dicts of version 0.3 without channel networks, its default, are converted too, but for odd numbers of modes. Outputs
    are equal up to rounding on grids with an even number of points on all axes but the last: on odd ones, neuraloperator shifts
    frequencies by one. An axis needs `n_modes + 1` points, one more than there, because an even number of modes is completed by
    the opposite frequency, with weight zero. Factors of Tucker are multiplied to dense weights. Sizes are read from the shapes.
    If the state dict has the entry `_metadata`, arguments without a counterpart, such as `domain_padding`, are refused; without
    it they cannot be seen.

    Args:
        state_dict: Tensors by name, as of `model.state_dict()`; a prefix `model.` is ignored.
        embeds_position: Whether the model has neuraloperator's `positional_embedding="grid"`, its default since version 1.
        periodic: Whether the axes of the data's grids are periodic; neuraloperator computes the same in both cases.

    Returns:
        The operator, in evaluation mode, in the precision of the weights. Its normalisers are the identity, so its units are
        those of the foreign model's inputs and outputs.

    Warns:
        DataWarning: If entries are missing, and keep random initial weights; if entries are not used; or if linear skip
            connections of 32 or more channels have the bounds of initial weights. Such blocks were never trained, as in The
            Well's checkpoints from before 2025-11-17, whose forward pass left out all blocks. Spectral weights are no sign:
            after short training their moments are those of the initial ones, up to sampling error.

    Raises:
        ArgumentError: If an entry is missing that sizes follow from, or has another size than others imply.
        UnsupportedError: If the model has an argument without a counterpart, or another position embedding.
    """
    check_instance(state_dict, Mapping, "state_dict", remedy="give model.state_dict()", error=ArgumentError)
    is_old = any("fno_blocks.convs.weight" in str(name) for name in state_dict)
    embeds_position = check_flag(embeds_position, "embeds_position") and not is_old
    known = {**_ARGUMENTS, "positional_embedding": "grid" if embeds_position else None}
    arguments = known | dict(state_dict.get("_metadata", {}))
    others = {name: arguments[name] for name in known if (arguments[name] or None) != known[name]}
    expected, remedy = "default blocks", "set embeds_position= as in the model, or give a head the model itself"
    if others:
        raise UnsupportedError(expected=expected, got=str(others), remedy=remedy)
    try:
        weights = _renamed(state_dict)
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
            mixing=None if is_old else len(weights["networks.0.0.weight"]),
            periodic=periodic,
            continuation="periodic",
            embeds_position="linear" if embeds_position else False,
        ).to(weights["lift.0.weight"].dtype)
        unused = operator.load_state_dict({**operator.state_dict(), **weights}, strict=False).unexpected_keys
    except (LookupError, RuntimeError) as error:
        raise ArgumentError(expected=f"entries of {expected}", got=f"others ({error})", remedy=remedy) from error
    if embeds_position:  # W x + b = W/2 (2x - 1) + (b + W/2): coordinates are from -1 to 1, not from 0 to 1
        with torch.no_grad():
            coordinates = operator.get_parameter("lift.0.weight")[:, -len(retained) :].div_(2.0)
            operator.get_parameter("lift.0.bias").add_(coordinates.sum(1))
    _warn("random weights in place of missing entries", dict(operator.named_parameters()).keys() - weights.keys())
    _warn("entries that are not used", unused)
    _warn("initial weights of blocks, which were never trained", [name for name in weights if _is_initial(name, weights[name])])
    return operator.eval()


def _warn(text: str, names: Collection[str]) -> None:
    if names:
        warn(f"{text}: {', '.join(sorted(names)[:5])}{' and others' if len(names) > 5 else ''}", DataWarning)


def _is_initial(name: str, weight: Tensor) -> bool:
    """Whether a weight is that of a linear skip connection before training.

    Initial weights are uniform in +-1/sqrt(width): the largest of n lies between 1 - 20/n and 1 times the bound but for a
    probability of e^-20. After a few steps of training, some of a thousand weights lie outside.
    """
    reach = float(weight.abs().max()) * len(weight) ** 0.5
    is_skip = name.startswith("pointwise.") and weight.ndim == 2 and len(weight) >= 32
    return is_skip and 1.0 - 20.0 / weight.numel() < reach < 1.0 + 1e-6


def _renamed(state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights by the names and in the shapes of the operator, spectral ones dense, `(*retained, in, out, 2)`.

    On each axis but the last, frequencies of neuraloperator go from -(n // 2) to (n - 1) // 2; of an even number, the opposite
    of the first one gets weight zero.
    """
    tensors = {name.removeprefix("model."): value.detach() for name, value in state_dict.items() if isinstance(value, Tensor)}
    state = {name: _complex(tensor) if ".weight." in name else tensor for name, tensor in tensors.items()}
    biases = state.pop("fno_blocks.convs.bias", ())
    weights = {f"pointwise.{number}.bias": bias.flatten() for number, bias in enumerate(biases)}
    for name, weight in state.items():
        stem, _, part = re.sub(r"convs\.weight\.(\d+)", r"convs.\1.weight", name).partition(".weight.")
        if part.startswith("factors"):
            continue
        if part == "core":
            # W_AB... = sum over a, b, ... of core_ab... F_Aa F_Bb ...
            factors = [state[f"{name.removesuffix(part)}factors.factor_{number}"] for number in range(weight.ndim)]
            axes = string.ascii_lowercase[: len(factors)]
            terms = ",".join([axes, *(f"{axis.upper()}{axis}" for axis in axes)])
            weight = torch.einsum(f"{terms}->{axes.upper()}", weight, *factors)
        if part:
            stem, weight = f"{stem}.weight", torch.view_as_real(weight).movedim((0, 1), (-3, -2))
            for axis in range(weight.ndim - 4):
                if weight.shape[axis] % 2 == 0:
                    weight = torch.cat([weight, torch.zeros_like(weight.narrow(axis, 0, 1))], dim=axis)
                weight = weight.roll(-(weight.shape[axis] // 2), dims=axis)
        else:
            weight = weight.flatten(1) if re.search(r"(fcs|fno_skips)\..*weight", name) else weight.flatten()
        for old, new in _NAMES.items():
            stem = re.sub(old, new, stem)
        weights[stem] = weight
    return weights


def _complex(weight: Tensor) -> Tensor:
    """A complex tensor, which neuraloperator 0.3 holds as real pairs."""
    return weight if weight.is_complex() else torch.view_as_complex(weight.contiguous())
