"""Weights of neuraloperator's FNO as ours. Their package is not imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probneural.checks import check_flag, check_instance, check_integer, check_real, check_sequence, described
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.grids import per_axis
from probneural.operators.fno import FNO

_REQUIRED = ("n_modes", "in_channels", "out_channels", "hidden_channels")
_POSITIONAL = (
    *_REQUIRED,
    *("n_layers", "lifting_channel_ratio", "projection_channel_ratio", "positional_embedding", "non_linearity", "norm"),
    *("complex_data", "use_channel_mlp", "channel_mlp_dropout", "channel_mlp_expansion", "channel_mlp_skip", "fno_skip"),
)
"""neuraloperator's leading positional arguments in order."""

_DEFAULTS: dict[str, Any] = {
    "n_layers": 4,
    "lifting_channel_ratio": 2,
    "projection_channel_ratio": 2,
    "positional_embedding": "grid",
    "use_channel_mlp": True,
    "channel_mlp_expansion": 0.5,
    "channel_mlp_skip": "soft-gating",
    "fno_skip": "linear",
}
"""Their arguments that change the architecture of our operator, with their defaults."""

_SKIPS = {"fno_skip": ("linear", "soft-gating", "identity"), "channel_mlp_skip": ("soft-gating", "identity")}
"""Their kinds of skip connections that convert."""
_RATIOS = ("lifting_channel_ratio", "projection_channel_ratio", "channel_mlp_expansion")
_WITHOUT_EFFECT = ("channel_mlp_dropout", "rank", "fixed_rank_modes", "implementation", "decomposition_kwargs", "max_n_modes")
"""Their arguments that have no effect on outputs in evaluation mode, under the other checks of arguments and weights."""

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}

_DENSE = "give a model with dense weights: a factorised one has them as convs[i].weight.to_tensor()"
_REFUSED: dict[str, tuple[Any, str]] = {
    "norm": (None, "train without norm: our blocks have no normalisation layers"),
    "complex_data": (False, "give real and imaginary parts as two channels"),
    "resolution_scaling_factor": (None, "our blocks keep the grid; evaluate on other grids by query="),
    "domain_padding": (None, "train without domain_padding: our hidden states are not padded"),
    "fno_block_precision": ("full", "convert a model of full precision"),
    "stabilizer": (None, "train without stabilizer: ours has no tanh before convolutions"),
    "factorization": (None, _DENSE),
    "separable": (False, "train with separable=False: our convolutions mix channels"),
    "preactivation": (False, "train with preactivation=False"),
}
"""neuraloperator's arguments with a single convertible value, and the remedy for other values."""


def from_neuraloperator(
    model: nn.Module | Mapping[str, Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    periodic: bool | Sequence[bool] = True,
    input_units: tuple[Tensor, Tensor] | None = None,
    output_units: tuple[Tensor, Tensor] | None = None,
) -> FNO:
    """Build an `FNO` with the weights of a `neuralop.models.FNO` (neuraloperator 2.0); outputs agree up to rounding.

    Their default configuration converts, and skips of every kind in the convolutions. Their frequencies of an axis other than
    the last are -n/2 ... n/2 - 1 where their n is even: ours has +n/2 too, with weights of zero.

    The outputs are theirs where a grid has more points per axis than frequencies, and an even number of them on all axes but
    the last: on an odd one neuraloperator 2.0 puts coefficients back one frequency off, and is another operator than on its
    even grids. Dropout is left out.

    Units that their `DataProcessor` applies are no part of their model, so give them here. Without any, the operator has the
    inputs and outputs of their model, which `pn.fit` preserves: the scale of the output is 2, and the read-out's weights halve.

    Args:
        model: neuraloperator's module, or its state dict.
        arguments: The keyword arguments that the module was built with, if they are not stored with it: their
            modules and the state dicts made by them do, under `_metadata`.
        periodic: Whether each axis of your data is periodic. Theirs takes every axis as periodic; where yours is not, ours
            does so too (`continuation="periodic"`).
        input_units: Mean and standard deviation of each input channel, by which inputs were normalised, `(in_channels,)`
            each, in physical units; theirs are `data_processor.in_normalizer.mean` and `.std`.
        output_units: The same of outputs.

    Returns:
        An operator of the weights' dtype, on the CPU, in evaluation mode.

    Raises:
        ArgumentError: If an argument is missing, unknown, or one that our operator cannot represent.
        DataError: If weights are missing, unknown, factorised, not finite, or of another dtype.
        ShapeError: If shapes of weights contradict the arguments, or units are not one number per channel.

    Reference:
        Kossaifi et al. (2024), A library for learning neural operators.
    """
    state, stated = _read(model, arguments)
    plan = _Architecture(stated)
    ends = per_axis(periodic, len(plan.modes), "periodic", check_flag)
    operator = FNO(
        plan.in_channels,
        plan.out_channels,
        modes=plan.our_modes,
        width=plan.width,
        depth=plan.depth,
        lifting=plan.lifting or None,
        projection=plan.projection,
        channel_mlp=plan.channel_mlp,
        periodic=ends,
        continuation="periodic",
        embeds_position=False if plan.boundaries is None else "linear",
        seed=0,
    )
    _check_state(state, plan, operator)
    operator = operator.to(state["projection.fcs.1.weight"].dtype)
    weights = _ours(state, plan, operator) | _units("input_normalizer", input_units, plan.in_channels)
    if input_units is None and output_units is None:  # powers of two round nothing
        twos = torch.full((plan.out_channels,), 2.0)
        output_units = torch.zeros(plan.out_channels), twos
        weights["readout.weight"], weights["readout.bias"] = weights["readout.weight"] / 2, weights["readout.bias"] / 2
    operator.load_state_dict(weights | _units("output_normalizer", output_units, plan.out_channels))
    return operator.eval()


class _Architecture:
    """Our architecture for their arguments; modes are counted as theirs.

    Raises:
        ArgumentError: If one is missing, unknown, or unsupported by our operator.
    """

    def __init__(self, stated: Mapping[str, Any]) -> None:
        _check_arguments(stated)
        merged = {**_DEFAULTS, **stated}
        ratios = {name: check_real(merged[name], name, least=0.0) for name in _RATIOS}
        modes = merged["n_modes"]
        modes = (modes,) if isinstance(modes, int) else check_sequence(modes, "n_modes", remedy="give e.g. n_modes=(16, 16)")
        self.modes = tuple(check_integer(mode, "n_modes") for mode in modes)
        self.in_channels = check_integer(merged["in_channels"], "in_channels")
        self.out_channels = check_integer(merged["out_channels"], "out_channels")
        self.width = check_integer(merged["hidden_channels"], "hidden_channels")
        self.depth = check_integer(merged["n_layers"], "n_layers")
        self.lifting = int(ratios["lifting_channel_ratio"] * self.width)
        self.projection = int(ratios["projection_channel_ratio"] * self.width)
        has_mixers = check_flag(merged["use_channel_mlp"], "use_channel_mlp")
        self.channel_mlp = round(ratios["channel_mlp_expansion"] * self.width) if has_mixers else 0
        self.fno_skip: str | None = merged["fno_skip"]
        self.channel_mlp_skip: str | None = merged["channel_mlp_skip"] if has_mixers else None
        self.boundaries = _boundaries(merged["positional_embedding"], len(self.modes))

    @property
    def our_modes(self) -> tuple[int, ...]:
        """Frequencies |k| < m; neuraloperator's are 0 ... n // 2 on the last axis, -(n // 2) ... (n - 1) // 2 on others."""
        return tuple(mode // 2 + 1 for mode in self.modes)

    def shapes(self, operator: FNO) -> dict[str, tuple[int, ...]]:
        """Names and shapes of their weights, for our operator of this architecture."""
        ones = (1,) * len(self.modes)
        expected: dict[str, tuple[int, ...]] = {}
        layer: Any
        for ours, theirs in _layers(operator).items():
            layer = operator.get_submodule(ours)
            expected[f"{theirs}.weight"], expected[f"{theirs}.bias"] = (*layer.weight.shape, 1), tuple(layer.bias.shape)
        for number in range(self.depth):
            expected[f"fno_blocks.convs.{number}.weight.tensor"] = (
                self.width,
                self.width,
                *self.modes[:-1],
                self.our_modes[-1],
            )
            expected[f"fno_blocks.convs.{number}.bias"] = (self.width, *ones)
            if self.fno_skip == "linear":
                expected[f"fno_blocks.fno_skips.{number}.conv.weight"] = (self.width, self.width, 1)
            if self.fno_skip == "soft-gating":
                expected[f"fno_blocks.fno_skips.{number}.weight"] = (1, self.width, *ones)
            if self.channel_mlp_skip == "soft-gating":
                expected[f"fno_blocks.channel_mlp_skips.{number}.weight"] = (1, self.width, *ones)
        return expected


def _layers(operator: FNO) -> dict[str, str]:
    """Names of their pointwise layers by those of ours."""
    layers = {"lift": "lifting.fcs.0", "projection": "projection.fcs.0", "readout": "projection.fcs.1"}
    if operator.lift_output is not None:
        layers["lift_output"] = "lifting.fcs.1"
    for number in range(len(operator.mixers)):
        for place, name in enumerate(("first", "second")):
            layers[f"mixers.{number}.{name}"] = f"fno_blocks.channel_mlp.{number}.fcs.{place}"
    return layers


def _read(model: object, arguments: Mapping[str, Any] | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights by name, and arguments by name."""
    if not isinstance(model, nn.Module | Mapping):
        raise ArgumentError(
            expected="a module of neuraloperator, or its state dict", got=described(model), remedy="give model.state_dict()"
        )
    state = dict(model.state_dict() if isinstance(model, nn.Module) else model)
    metadata = state.pop("_metadata", None)
    if arguments is not None:
        stated = dict(check_instance(arguments, Mapping, "arguments", remedy="give a dict by name", error=ArgumentError))
    elif isinstance(metadata, Mapping):
        stated = {name: value for name, value in metadata.items() if name not in ("args", "_version", "_name", "verbose")}
        unnamed = metadata.get("args", ())
        if len(unnamed) > len(_POSITIONAL):
            raise ArgumentError(
                expected=f"a model built with at most {len(_POSITIONAL)} arguments without names",
                got=str(len(unnamed)),
                remedy="give all of them by name in arguments=",
            )
        stated |= dict(zip(_POSITIONAL, unnamed, strict=False))
    else:
        raise ArgumentError(
            expected="the arguments that the model was built with",
            got="weights alone, without `_metadata`",
            remedy="give them: arguments={'n_modes': (16, 16), 'in_channels': 1, ...}",
        )
    return state, stated


def _check_arguments(stated: Mapping[str, Any]) -> None:
    missing = [name for name in _REQUIRED if name not in stated]
    if missing:
        raise ArgumentError(expected=f"arguments {', '.join(_REQUIRED)}", got=f"no {missing[0]}", remedy="add it")
    supported = {*_POSITIONAL, *_WITHOUT_EFFECT, *_REFUSED, "conv_module"}
    unknown = sorted(set(stated) - supported)
    if unknown:
        raise ArgumentError(
            expected="arguments of neuraloperator's FNO (2.0)",
            got=f"also {', '.join(unknown)}",
            remedy="leave them out if they have no effect; other models of that library do not convert",
        )
    for name, (value, remedy) in _REFUSED.items():
        if name in stated and stated[name] != value and not (name == "domain_padding" and _is_nothing(stated[name])):
            raise ArgumentError(expected=f"{name}={value!r}", got=repr(stated[name]), remedy=remedy)
    if getattr(stated.get("non_linearity", nn.functional.gelu), "__name__", None) != "gelu":
        raise ArgumentError(expected="non_linearity gelu", got=repr(stated["non_linearity"]), remedy="ours has no other one")
    if getattr(stated.get("conv_module"), "__name__", "SpectralConv") != "SpectralConv":
        raise ArgumentError(
            expected="conv_module SpectralConv", got=repr(stated["conv_module"]), remedy="other convolutions do not convert"
        )
    for name, kinds in _SKIPS.items():
        kind = stated.get(name, _DEFAULTS[name])
        is_used = name == "fno_skip" or stated.get("use_channel_mlp", True)
        if is_used and kind is not None and kind not in kinds:
            raise ArgumentError(expected=f"{name} among {', '.join(kinds)}, None", got=repr(kind), remedy="choose one of those")


def _is_nothing(padding: Any) -> bool:
    return not any(padding if isinstance(padding, Sequence) else (padding,))


def _boundaries(embedding: Any, dimension: int) -> tuple[tuple[float, float], ...] | None:
    """Coordinates of the ends that a position embedding counts from and to, or None without one."""
    if embedding is None:
        return None
    ends = [[0.0, 1.0]] * dimension if isinstance(embedding, str) and embedding == "grid" else None
    ends = getattr(embedding, "grid_boundaries", None) if ends is None else ends
    if ends is None or len(ends) != dimension:
        raise ArgumentError(
            expected='positional_embedding "grid", None, or one with grid_boundaries per axis',
            got=repr(embedding),
            remedy="other embeddings do not convert",
        )
    return tuple((float(low), float(high)) for low, high in ends)


def _check_state(state: Mapping[str, Any], plan: _Architecture, operator: FNO) -> None:
    expected = plan.shapes(operator)
    if any(".weight.factors." in name or name.endswith((".core", ".weights")) for name in state):
        raise DataError(expected="dense spectral weights", got="factorised ones", remedy=_DENSE)
    missing, unknown = sorted(set(expected) - set(state)), sorted(set(state) - set(expected))
    if missing or unknown:
        first = f"no {missing[0]}" if missing else f"also {unknown[0]}"
        raise DataError(
            expected=f"the {len(expected)} weights of the arguments",
            got=f"{first} ({len(missing)} missing, {len(unknown)} unknown)",
            remedy="give the arguments that the model was built with",
        )
    dtype = getattr(state["projection.fcs.1.weight"], "dtype", None)
    if dtype not in _COMPLEX:
        raise DataError(expected="float32 or float64 weights", got=str(dtype), remedy="convert the model: model.float()")
    for name, shape in expected.items():
        value = state[name]
        kind = _COMPLEX[dtype] if name.endswith(".tensor") else dtype
        if not isinstance(value, Tensor) or value.dtype != kind:
            raise DataError(expected=f"{kind} weights as {name}", got=described(value), remedy="convert the whole model alike")
        if tuple(value.shape) != shape:
            raise ShapeError(
                expected=f"{name} of shape {shape}", got=str(tuple(value.shape)), remedy="check the arguments of the model"
            )
        if not bool(torch.isfinite(value).all()):
            raise DataError(expected=f"finite weights as {name}", got="NaN or infinity", remedy="train it again")


def _ours(state: Mapping[str, Tensor], plan: _Architecture, operator: FNO) -> dict[str, Tensor]:
    """Our state dict without the normalisers."""
    converted: dict[str, Tensor] = {}
    for ours, theirs in _layers(operator).items():
        converted[f"{ours}.weight"], converted[f"{ours}.bias"] = state[f"{theirs}.weight"][..., 0], state[f"{theirs}.bias"]
    if plan.boundaries is not None:  # theirs runs from low to high over a period, ours from -1 to 1
        weight, bias = converted["lift.weight"].double(), converted["lift.bias"].double()
        low, high = torch.tensor(plan.boundaries, dtype=torch.float64, device=weight.device).unbind(1)
        position = weight[:, plan.in_channels :]
        converted["lift.bias"] = bias + position @ (low + high) / 2
        converted["lift.weight"] = torch.cat([weight[:, : plan.in_channels], position * (high - low) / 2], dim=1)
    like = state["projection.fcs.1.weight"]
    for number in range(plan.depth):
        converted[f"spectral.{number}.weight"] = _our_frequencies(
            state[f"fno_blocks.convs.{number}.weight.tensor"], plan.our_modes
        )
        converted[f"pointwise.{number}.bias"] = state[f"fno_blocks.convs.{number}.bias"].flatten()
        converted[f"pointwise.{number}.weight"] = _skip(
            state, f"fno_blocks.fno_skips.{number}", plan.fno_skip, plan.width, like
        )
        if plan.channel_mlp:
            skip = _skip(state, f"fno_blocks.channel_mlp_skips.{number}", plan.channel_mlp_skip, plan.width, like)
            converted[f"mixers.{number}.gate"] = skip.diagonal()
    return converted


def _units(name: str, units: tuple[Tensor, Tensor] | None, channels: int) -> dict[str, Tensor]:
    """State of a normaliser."""
    if units is None:
        return {f"{name}.mean": torch.zeros(channels), f"{name}.scale": torch.ones(channels)}
    mean, std = (torch.as_tensor(part).detach().flatten() for part in units)
    if len(mean) != channels or len(std) != channels:
        raise ShapeError(
            expected=f"mean and standard deviation of {channels} channels for the {name}",
            got=f"{len(mean)} and {len(std)} numbers",
            remedy="normalisers with a mean per point do not convert: give one number per channel",
        )
    if not (bool(torch.isfinite(mean).all()) and bool(((std > 0) & torch.isfinite(std)).all())):
        raise DataError(
            expected=f"finite means and positive deviations for the {name}", got=f"{mean}, {std}", remedy="check them"
        )
    return {f"{name}.mean": mean, f"{name}.scale": std}


def _skip(state: Mapping[str, Tensor], name: str, kind: str | None, width: int, like: Tensor) -> Tensor:
    """A skip connection as a matrix, `(width, width)`."""
    if kind == "linear":
        return state[f"{name}.conv.weight"][..., 0]
    if kind == "soft-gating":
        return torch.diag(state[f"{name}.weight"].flatten())
    return torch.eye(width).to(like) * (kind == "identity")


def _our_frequencies(weight: Tensor, modes: Sequence[int]) -> Tensor:
    """Map `(in, out, *theirs)`, frequencies -(n // 2) first, to `(*ours, in, out, 2)`, frequency 0 first."""
    for axis, mode in enumerate(modes[:-1], start=2):
        size = weight.shape[axis]
        padding = weight.new_zeros(*weight.shape[:axis], 2 * mode - 1 - size, *weight.shape[axis + 1 :])
        weight = torch.cat([weight, padding], dim=axis).roll(-(size // 2), dims=axis)
    return torch.view_as_real(weight.movedim((0, 1), (-2, -1)).resolve_conj())
