"""The Fourier neural operator with channel networks and gates, and the conversion of neuraloperator's weights to it."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probneural.checks import check_count, check_flag, check_instance, check_integer, check_sequence
from probneural.errors import ArgumentError, DataWarning, UnsupportedError, warn
from probneural.grids import Grid
from probneural.operators.base import Operator, initial_weights
from probneural.operators.fno import FNO
from probneural.operators.layers import Embedding, PointwiseLinear, position_channels
from probneural.registry import stored


@stored(parts="configuration")
class GatedFNO(FNO):
    """The default FNO of neuraloperator: each block has a network over channels and a gated skip connection.

    Lifting and projection are pointwise networks of two layers. A block maps h to gelu(N(gelu(Kh + Wh + b)) + g * h): K is a
    spectral convolution, N a pointwise network of two layers, g one factor per channel. The last block has no activation of
    its two sums. Axes that are not periodic are continued periodically, as in neuraloperator.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        modes: Frequencies |k| < m kept per axis; their number sets the dimension, 1 to 3.
        width: Channels of the hidden states.
        depth: Number of blocks.
        hidden: Hidden channels of the lifting, of the projection, and of the network in each block.
        periodic: Whether each axis is periodic.
        embeds_position: Whether coordinates are added as input channels, see `FNO`; neuraloperator's are `"linear"`.
        seed: Seed of the initial weights; by default torch's global generator is used.

    Raises:
        ArgumentError: If a size is not a positive integer, the dimension is not 1, 2 or 3, or a word is another one.

    Reference:
        Kossaifi et al. (2024), Multi-grid tensorized Fourier neural operator for high-resolution PDEs.

    Examples:
        >>> operator = GatedFNO(in_channels=1, out_channels=2, modes=(4, 4), width=8, depth=2, hidden=(16, 16, 4))
        >>> operator(torch.zeros(3, 1, 16, 16)).shape
        torch.Size([3, 2, 16, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        modes: Sequence[int],
        width: int = 32,
        depth: int = 4,
        hidden: Sequence[int] = (64, 64, 16),
        periodic: bool | Sequence[bool] = True,
        embeds_position: Embedding = "linear",
        seed: int | None = None,
    ) -> None:
        sizes = check_sequence(hidden, "hidden", remedy="give hidden=(64, 64, 16)")
        check_count(len(sizes), 3, "sizes in hidden", remedy="give hidden=(64, 64, 16)")
        lifting, projection, mixing = (check_integer(size, "hidden") for size in sizes)
        with initial_weights(seed):
            super().__init__(
                in_channels,
                out_channels,
                modes=modes,
                width=width,
                depth=depth,
                projection=projection,
                periodic=periodic,
                continuation="periodic",
                embeds_position=embeds_position,
            )
            self.lift = _network(in_channels + position_channels(self.embeds_position, self.periodic), lifting, width)
            self.mixing = nn.ModuleList(_network(width, mixing, width) for _ in range(depth))
        self.hidden = (lifting, projection, mixing)
        self.gates = nn.ParameterList(torch.ones(width) for _ in range(depth))

    def _block(self, hidden: Tensor, number: int, where: Grid) -> Tensor:
        """Apply one block to `(n, width, *where.shape)`."""
        gated = self.gates[number].reshape(-1, *(1,) * len(self.modes)) * hidden
        mixing = self.mixing[number]
        result = mixing(super()._block(hidden, number, where)) + gated
        return result if number == self.depth - 1 else nn.functional.gelu(result)

    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return Operator.configuration(self)

    def reset_parameters(self) -> None:
        """Reinitialise all weights; normalisers keep their units."""
        super().reset_parameters()
        for gate in self.gates:
            nn.init.ones_(gate)


def _network(in_channels: int, hidden: int, out_channels: int) -> nn.Sequential:
    """A pointwise network of two layers."""
    return nn.Sequential(PointwiseLinear(in_channels, hidden), nn.GELU(), PointwiseLinear(hidden, out_channels))


_SOURCES = {
    r"lift\.0": "lifting.fcs.0",
    r"lift\.2": "lifting.fcs.1",
    r"spectral\.(\d+)": r"fno_blocks.convs.\1",
    r"pointwise\.(\d+)\.weight": r"fno_blocks.fno_skips.\1.conv.weight",
    r"pointwise\.(\d+)\.bias": r"fno_blocks.convs.\1.bias",
    r"mixing\.(\d+)\.0": r"fno_blocks.channel_mlp.\1.fcs.0",
    r"mixing\.(\d+)\.2": r"fno_blocks.channel_mlp.\1.fcs.1",
    r"gates\.(\d+)": r"fno_blocks.channel_mlp_skips.\1.weight",
    r"projection": "projection.fcs.0",
    r"readout": "projection.fcs.1",
}
"""Beginnings of the names of parameters, and the names that neuraloperator has for them."""
_UNREPRESENTED = (
    "complex_data",
    "domain_padding",
    "max_n_modes",
    "norm",
    "preactivation",
    "resolution_scaling_factor",
    "stabilizer",
)
"""Arguments of neuraloperator's FNO without a counterpart."""


def from_neuraloperator(
    state_dict: Mapping[str, Any], *, embeds_position: bool = True, periodic: bool | Sequence[bool] = True
) -> GatedFNO:
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
        ArgumentError: If an entry is missing that sizes follow from, or the model has or lacks a position embedding.
        ShapeError: If an entry has another size than others imply.
        UnsupportedError: If the model has an argument, or a factorisation, without a counterpart.
    """
    check_instance(state_dict, Mapping, "state_dict", remedy="give model.state_dict()", error=ArgumentError)
    embeds_position = check_flag(embeds_position, "embeds_position")
    _check_arguments(state_dict.get("_metadata") or {}, embeds_position=embeds_position)
    entries = _dense({name: value for name, value in state_dict.items() if isinstance(value, Tensor)})
    gates = [name for name, entry in entries.items() if "channel_mlp_skips" in name and bool((entry == 1.0).all())]
    operator = _of_sizes(entries, embeds_position=embeds_position, periodic=periodic)
    missing = []
    with torch.no_grad():
        for name, parameter in operator.named_parameters():
            source = next(re.sub(old, new, name) for old, new in _SOURCES.items() if re.match(old, name))
            entry = entries.pop(source, None)
            if entry is None:
                missing.append(source)
            else:
                check_count(entry.numel(), parameter.numel(), f"values of {source}", remedy="give a state dict of one model")
                parameter.copy_(entry.reshape(parameter.shape))
        if embeds_position:  # W x + b = W/2 (2x - 1) + (b + W/2): coordinates are from -1 to 1, not from 0 to 1
            coordinates = operator.get_parameter("lift.0.weight")[:, -len(operator.modes) :]
            coordinates /= 2.0
            operator.get_parameter("lift.0.bias").add_(coordinates.sum(1))
    for text, names in (
        ("missing entries, which keep random initial weights", missing),
        ("entries that are not used", list(entries)),
        ("blocks that were never trained, since their gates are exactly one", gates),
    ):
        if names:
            warn(f"{text}: {', '.join(names[:5])}{' and others' if len(names) > 5 else ''}", DataWarning)
    return operator.eval()


def _check_arguments(arguments: Mapping[str, Any], *, embeds_position: bool) -> None:
    """Raise an error if the architecture, as far as it is known, is not that of the operator."""
    if "positional_embedding" in arguments:
        has_position = arguments["positional_embedding"] is not None
        if has_position != embeds_position:
            raise ArgumentError(expected=f"embeds_position={has_position}", got=str(embeds_position), remedy="as in the model")
    others = [name for name in _UNREPRESENTED if arguments.get(name)]
    if others or arguments.get("non_linearity", nn.functional.gelu) is not nn.functional.gelu:
        raise UnsupportedError(
            expected="the default blocks of neuraloperator's FNO",
            got=", ".join(others or ["another activation"]),
            remedy="give a head the model itself: heads take any module",
        )


def _dense(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Entries by name, with one dense spectral weight per block, as real pairs in the order of `SpectralConv`."""
    entries: dict[str, Tensor] = {}
    for name, tensor in state.items():
        stem, _, part = name.partition(".weight.")
        if part == "core":
            # W_AB... = sum over a, b, ... of core_ab... F_Aa F_Bb ...
            lower, upper = string.ascii_lowercase[: tensor.ndim], string.ascii_uppercase[: tensor.ndim]
            factors = [state[f"{stem}.weight.factors.factor_{number}"] for number in range(tensor.ndim)]
            terms = ",".join([lower, *map("".join, zip(upper, lower, strict=True))])
            tensor = torch.einsum(f"{terms}->{upper}", tensor, *factors)
        if part in ("core", "tensor"):
            entries[f"{stem}.weight"] = _mode_major(tensor)
        elif not part.startswith("factors"):
            entries[name] = tensor
    return entries


def _mode_major(weight: Tensor) -> Tensor:
    """Convert weights `(in, out, *modes)`, complex, to `(*retained, in, out, 2)`.

    On each axis but the last, frequencies go from -(n // 2) to (n - 1) // 2; of an even number, the opposite of the first
    one gets weight zero.
    """
    pairs = torch.view_as_real(weight).movedim((0, 1), (-3, -2))
    for axis in range(pairs.ndim - 4):
        if pairs.shape[axis] % 2 == 0:
            pairs = torch.cat([pairs, torch.zeros_like(pairs.narrow(axis, 0, 1))], dim=axis)
        pairs = pairs.roll(-(pairs.shape[axis] // 2), dims=axis)
    return pairs


def _of_sizes(entries: Mapping[str, Tensor], *, embeds_position: bool, periodic: bool | Sequence[bool]) -> GatedFNO:
    """An operator of the sizes and precision of the entries."""
    blocks = [name for name in entries if re.fullmatch(r"fno_blocks\.convs\.\d+\.weight", name)]
    try:
        *retained, _, width, _ = entries["fno_blocks.convs.0.weight"].shape
        lifting, lifted = entries["lifting.fcs.0.weight"].shape[:2]
        out_channels, projection = entries["projection.fcs.1.weight"].shape[:2]
        mixing = entries["fno_blocks.channel_mlp.0.fcs.0.weight"].shape[0]
    except KeyError as error:
        raise ArgumentError(
            expected=f"an entry {error.args[0]}",
            got=f"a state dict without it, {', '.join(list(entries)[:5])}",
            remedy="give model.state_dict() of an FNO or TFNO of neuraloperator 2.0 with its default blocks",
        ) from error
    operator = GatedFNO(
        lifted - embeds_position * len(retained),
        out_channels,
        modes=(*(size // 2 + 1 for size in retained[:-1]), retained[-1]),
        width=width,
        depth=len(blocks),
        hidden=(lifting, projection, mixing),
        periodic=periodic,
        embeds_position="linear" if embeds_position else False,
    )
    return operator.to(entries["lifting.fcs.0.weight"].dtype)
