"""Weights from neuraloperator: against a plain reading of its architecture, and against it where it is installed."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.errors import ArgumentError, DataError, ProbneuralError, ShapeError
from probneural.operators import from_neuraloperator
from tests.helpers import normal

COUNTS = {"in_channels": 2, "out_channels": 3, "hidden_channels": 6, "n_layers": 2}
PLAIN = {"use_channel_mlp": False, "lifting_channel_ratio": 0, "positional_embedding": None}
CASES: dict[str, tuple[dict[str, Any], list[tuple[int, ...]]]] = {
    "defaults 1-D": ({"n_modes": (6,)}, [(8,), (9,), (20,), (21,)]),
    "odd modes 1-D": ({"n_modes": (5,), **PLAIN}, [(6,), (7,)]),
    "defaults 2-D": ({"n_modes": (6, 4)}, [(8, 6), (8, 7), (14, 12)]),
    "odd modes 2-D": ({"n_modes": (5, 7), "channel_mlp_skip": "identity", "fno_skip": "soft-gating"}, [(8, 9), (12, 10)]),
    "without skips": ({"n_modes": (4, 5), "channel_mlp_skip": None, "fno_skip": None}, [(6, 6)]),
    "plain 2-D": ({"n_modes": (4, 4), "fno_skip": "identity", **PLAIN}, [(6, 8)]),
    "one block": ({"n_modes": (1, 2), **PLAIN, "n_layers": 1}, [(2, 4)]),
    "ratios": (
        {"n_modes": (6,), "lifting_channel_ratio": 1.3, "projection_channel_ratio": 0.7, "channel_mlp_expansion": 0.4},
        [(9,)],
    ),
    "defaults 3-D": ({"n_modes": (4, 2, 4)}, [(6, 4, 6), (6, 6, 5)]),
}
every_case = pytest.mark.parametrize("name", CASES)


def arguments_of(name: str) -> dict[str, Any]:
    return COUNTS | CASES[name][0]


def state_of(arguments: dict[str, Any], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """A state dict as neuraloperator 2.0 names and shapes it, with random weights."""
    width, modes = arguments["hidden_channels"], arguments["n_modes"]
    ones = (1,) * len(modes)
    seen = arguments["in_channels"] + (len(modes) if arguments.get("positional_embedding", "grid") else 0)
    lifting = int(arguments.get("lifting_channel_ratio", 2) * width)
    projection = int(arguments.get("projection_channel_ratio", 2) * width)
    hidden = round(arguments.get("channel_mlp_expansion", 0.5) * width)
    shapes: dict[str, tuple[int, ...]] = {}

    def network(name: str, *sizes: int) -> None:
        for number, (incoming, outgoing) in enumerate(itertools.pairwise(sizes)):
            shapes[f"{name}.fcs.{number}.weight"] = (outgoing, incoming, 1)
            shapes[f"{name}.fcs.{number}.bias"] = (outgoing,)

    for number in range(arguments["n_layers"]):
        shapes[f"fno_blocks.convs.{number}.bias"] = (width, *ones)
        shapes[f"fno_blocks.convs.{number}.weight.tensor"] = (width, width, *modes[:-1], modes[-1] // 2 + 1)
        for kind, default in (("fno_skip", "linear"), ("channel_mlp_skip", "soft-gating")):
            if kind == "channel_mlp_skip" and not arguments.get("use_channel_mlp", True):
                continue
            if arguments.get(kind, default) == "linear":
                shapes[f"fno_blocks.{kind}s.{number}.conv.weight"] = (width, width, 1)
            if arguments.get(kind, default) == "soft-gating":
                shapes[f"fno_blocks.{kind}s.{number}.weight"] = (1, width, *ones)
        if arguments.get("use_channel_mlp", True):
            network(f"fno_blocks.channel_mlp.{number}", width, hidden, width)
    network("lifting", *((seen, lifting, width) if lifting else (seen, width)))
    network("projection", width, projection, arguments["out_channels"])
    complex_of = {torch.float32: torch.complex64, torch.float64: torch.complex128}[dtype]
    return {
        name: 0.5
        * normal(*shape, 2, seed=name, dtype=dtype).view(*shape, 2).mul(math.sqrt(0.5)).contiguous().view(complex_of)[..., 0]
        if name.endswith(".tensor")
        else 0.5 * normal(*shape, seed=name, dtype=dtype)
        for name, shape in shapes.items()
    }


def theirs(state: dict[str, Tensor], arguments: dict[str, Any], values: Tensor) -> Tensor:
    """Their forward pass, read from their source and written with full complex transforms and one frequency at a time."""
    modes, sizes = arguments["n_modes"], values.shape[2:]
    gelu = nn.functional.gelu

    def network(name: str, hidden: Tensor) -> Tensor:
        number = 0
        while f"{name}.fcs.{number}.weight" in state:
            hidden = gelu(hidden) if number else hidden
            weight, bias = state[f"{name}.fcs.{number}.weight"][..., 0], state[f"{name}.fcs.{number}.bias"]
            hidden = torch.einsum("oi,ni...->no...", weight, hidden) + bias.reshape(-1, *(1,) * len(sizes))
            number += 1
        return hidden

    def skip(name: str, kind: str | None, hidden: Tensor) -> Tensor:
        if kind == "linear":
            return torch.einsum("oi,ni...->no...", state[f"{name}.conv.weight"][..., 0], hidden)
        return state[f"{name}.weight"] * hidden if kind == "soft-gating" else hidden * (kind == "identity")

    def convolution(number: int, hidden: Tensor) -> Tensor:
        weight = state[f"fno_blocks.convs.{number}.weight.tensor"]
        axes = tuple(range(2, hidden.ndim))
        spectrum = torch.fft.rfftn(hidden, dim=axes, norm="forward")
        kept = torch.zeros_like(spectrum)
        for index in torch.cartesian_prod(*(torch.arange(n) for n in weight.shape[2:])).reshape(-1, len(modes)).tolist():
            frequency = (*tuple(i - n // 2 for i, n in zip(index[:-1], modes[:-1], strict=True)), index[-1])
            kept[(..., *frequency)] = torch.einsum("ni,io->no", spectrum[(..., *frequency)], weight[(..., *index)])
        return torch.fft.irfftn(kept, s=sizes, dim=axes, norm="forward") + state[f"fno_blocks.convs.{number}.bias"]

    hidden = values
    if arguments.get("positional_embedding", "grid") is not None:
        places = torch.meshgrid(*(torch.arange(n, dtype=values.dtype) / n for n in sizes), indexing="ij")
        hidden = torch.cat([values, torch.stack(places).expand(len(values), *(-1,) * (len(sizes) + 1))], dim=1)
    hidden = network("lifting", hidden)
    for number in range(arguments["n_layers"]):
        activation: Callable[[Tensor], Tensor] = gelu if number < arguments["n_layers"] - 1 else lambda given: given
        skipped = skip(f"fno_blocks.fno_skips.{number}", arguments.get("fno_skip", "linear"), hidden)
        result = activation(convolution(number, hidden) + skipped)
        if arguments.get("use_channel_mlp", True):
            kind = arguments.get("channel_mlp_skip", "soft-gating")
            gated = skip(f"fno_blocks.channel_mlp_skips.{number}", kind, hidden)
            result = network(f"fno_blocks.channel_mlp.{number}", result) + gated
        hidden = activation(result)
    return network("projection", hidden)


@every_case
def test_outputs_are_theirs(name: str) -> None:
    arguments = arguments_of(name)
    state = state_of(arguments)
    operator = from_neuraloperator(state, arguments=arguments)
    assert not operator.training
    for shape in CASES[name][1]:
        values = normal(2, arguments["in_channels"], *shape, seed="values")
        torch.testing.assert_close(operator(values), theirs(state, arguments, values), atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_real_and_complex_weights_keep_their_precision(dtype: torch.dtype) -> None:
    arguments = arguments_of("defaults 2-D")
    operator = from_neuraloperator(state_of(arguments, dtype), arguments=arguments)
    assert all(parameter.dtype == dtype for parameter in operator.parameters())


def test_units_go_into_the_first_and_the_last_layer() -> None:
    arguments = arguments_of("defaults 2-D")
    state = state_of(arguments)
    mean, std = normal(2, seed="mean"), normal(2, seed="std").exp()
    shift, scale = normal(1, 3, 1, 1, seed="shift"), normal(1, 3, 1, 1, seed="scale").exp()
    operator = from_neuraloperator(state, arguments=arguments, input_units=(mean, std), output_units=(shift, scale))
    values = normal(2, 2, 8, 8, seed="values")
    normalised = (values - mean[:, None, None]) / std[:, None, None]
    expected = theirs(state, arguments, normalised) * scale + shift
    torch.testing.assert_close(operator(values), expected, atol=1e-6, rtol=1e-6)  # normalisers begin in single precision


@pytest.mark.parametrize("given", [True, False], ids=["with units", "without"])
def test_training_goes_on_from_their_weights(given: bool) -> None:
    """`pn.fit` takes no units of its own, so a vanishing learning rate leaves the operator as it is."""
    arguments = arguments_of("defaults 1-D") | {"in_channels": 1, "out_channels": 1}
    units = {"input_units": (torch.ones(1), torch.ones(1))} if given else {}
    operator = from_neuraloperator(state_of(arguments), arguments=arguments, **units)
    before = copy.deepcopy(operator)
    fields = pn.Field(3.0 + normal(4, 1, 16), pn.Grid.uniform(16))
    pn.fit(operator, pn.FieldPairs(fields, fields), epochs=1, learning_rate=1e-12, show_progress=False)
    torch.testing.assert_close(operator(fields.values), before(fields.values), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("endpoint", [True, False], ids=["both ends", "left end"])
def test_axes_that_are_not_periodic_are_taken_as_they_take_them(endpoint: bool) -> None:
    arguments = arguments_of("defaults 2-D")
    state = state_of(arguments)
    operator = from_neuraloperator(state, arguments=arguments, periodic=(False, True))
    grid = pn.Grid.uniform((8, 10), lengths=(2.0, 3.0), periodic=(False, True), endpoint=(endpoint, False))
    values = normal(2, 2, 8, 10, seed="values")
    torch.testing.assert_close(operator(values, grid=grid), theirs(state, arguments, values), atol=1e-11, rtol=1e-11)


def test_the_ends_of_their_embedding_count() -> None:
    """A coordinate from a to b instead of 0 to 1 is a first layer with other weights."""
    arguments = arguments_of("defaults 1-D")
    state = state_of(arguments)
    embedding = nn.Module()
    embedding.grid_boundaries = [[-1.0, 3.0]]
    operator = from_neuraloperator(state, arguments=arguments | {"positional_embedding": embedding})
    stretched = copy.deepcopy(state)
    stretched["lifting.fcs.0.weight"][:, 2] *= 4.0
    stretched["lifting.fcs.0.bias"] -= state["lifting.fcs.0.weight"][:, 2, 0]
    values = normal(2, 2, 9, seed="values")
    torch.testing.assert_close(operator(values), theirs(stretched, arguments, values), atol=1e-11, rtol=1e-11)


def test_metadata_say_the_arguments() -> None:
    """Their own state dicts hold them: defaults by name, those given without a name in `args`."""
    arguments = arguments_of("defaults 1-D")
    unnamed = tuple(arguments[name] for name in ("n_modes", "in_channels", "out_channels", "hidden_channels", "n_layers"))
    metadata = {"n_layers": 4, "use_channel_mlp": True, "rank": 1.0, "_version": "0.1.0", "_name": "FNO", "args": unnamed}
    state = state_of(arguments)
    operator = from_neuraloperator({**state, "_metadata": metadata})
    assert operator.configuration() == from_neuraloperator(state, arguments=arguments).configuration()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "norm": ({"norm": "group_norm"}, "norm=None"),
    "complex data": ({"complex_data": True}, "complex_data=False"),
    "scaling": ({"resolution_scaling_factor": 2}, "resolution_scaling_factor=None"),
    "padding": ({"domain_padding": [0.1]}, "domain_padding=None"),
    "precision": ({"fno_block_precision": "half"}, "fno_block_precision='full'"),
    "stabilizer": ({"stabilizer": "tanh"}, "stabilizer=None"),
    "factorisation": ({"factorization": "tucker"}, "factorization=None"),
    "separable": ({"separable": True}, "separable=False"),
    "preactivation": ({"preactivation": True}, "preactivation=False"),
    "activation": ({"non_linearity": nn.functional.relu}, "non_linearity gelu"),
    "convolution": ({"conv_module": nn.Conv1d}, "conv_module SpectralConv"),
    "skip": ({"fno_skip": "dense"}, "fno_skip among"),
    "channel skip": ({"channel_mlp_skip": "linear"}, "channel_mlp_skip among"),
    "embedding": ({"positional_embedding": "fourier"}, "positional_embedding"),
    "embedding of another dimension": ({"positional_embedding": functools.partial(print)}, "positional_embedding"),
    "unknown": ({"sht_norm": "ortho"}, "also sht_norm"),
    "modes": ({"n_modes": (0,)}, "n_modes"),
    "ratio": ({"lifting_channel_ratio": "2"}, "lifting_channel_ratio"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_it_cannot_represent(name: str) -> None:
    changed, said = REFUSED[name]
    arguments = arguments_of("defaults 1-D")
    with pytest.raises(ArgumentError, match=said):
        from_neuraloperator(state_of(arguments), arguments=arguments | changed)


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: {key: value for key, value in state.items() if key != name}


def changed(name: str, change: Callable[[Tensor], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: state | {name: change(state[name])}


SPECTRAL = "fno_blocks.convs.1.weight.tensor"
DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], type[ProbneuralError], str]] = {
    "missing": (without(SPECTRAL), DataError, f"no {SPECTRAL}"),
    "unexpected": (lambda state: state | {"fno_blocks.norm.0.weight": torch.ones(6)}, DataError, "also fno_blocks.norm"),
    "factorised": (
        lambda state: state | {"fno_blocks.convs.0.weight.core": torch.ones(2)},
        DataError,
        "dense spectral weights",
    ),
    "shape": (changed(SPECTRAL, lambda value: value[..., :-1]), ShapeError, SPECTRAL),
    "real": (changed(SPECTRAL, lambda value: value.real), DataError, "complex128 weights"),
    "mixed": (changed("lifting.fcs.0.bias", Tensor.float), DataError, "float64 weights"),
    "half": (changed("projection.fcs.1.weight", Tensor.half), DataError, "float32 or float64"),
    "not finite": (changed(SPECTRAL, lambda value: value * math.nan), DataError, "finite weights"),
    "no tensor": (changed(SPECTRAL, lambda value: value.tolist()), DataError, SPECTRAL),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_refuses_other_weights(name: str) -> None:
    damage, error, said = DAMAGED[name]
    arguments = arguments_of("defaults 1-D")
    with pytest.raises(error, match=said):
        from_neuraloperator(damage(state_of(arguments)), arguments=arguments)


def test_refuses_what_does_not_say_its_arguments() -> None:
    arguments = arguments_of("defaults 1-D")
    state = state_of(arguments)
    with pytest.raises(ArgumentError, match="without `_metadata`"):
        from_neuraloperator(state)
    with pytest.raises(ArgumentError, match="no hidden_channels"):
        from_neuraloperator(state, arguments={"n_modes": (6,), "in_channels": 2, "out_channels": 3})
    with pytest.raises(ArgumentError, match="without names"):
        from_neuraloperator({**state, "_metadata": {"args": (1,) * 30}})


def test_refuses_units_of_another_kind() -> None:
    arguments = arguments_of("defaults 1-D")
    state = state_of(arguments)
    with pytest.raises(ShapeError, match="mean and standard deviation of 2 channels"):
        from_neuraloperator(state, arguments=arguments, input_units=(torch.zeros(16), torch.ones(16)))
    with pytest.raises(DataError, match="positive deviations"):
        from_neuraloperator(state, arguments=arguments, output_units=(torch.zeros(3), torch.zeros(3)))


@pytest.mark.bad_input
def test_refuses_other_kinds() -> None:
    arguments = arguments_of("defaults 1-D")
    with pytest.raises(ArgumentError, match="a Mapping as arguments"):
        from_neuraloperator(state_of(arguments), arguments=[1])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="state dict"):
        from_neuraloperator("model.pt")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def peer() -> Any:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WANDB_MODE", "disabled")
        return pytest.importorskip("neuralop.models", reason="needs neuraloperator: make peers").FNO


def perturbed(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            real = torch.view_as_real(parameter) if parameter.is_complex() else parameter
            real.add_(0.1 * normal(*real.shape, seed=number, dtype=torch.float32))
    return model.eval()


@every_case
@torch.no_grad()
def test_outputs_are_those_of_the_library(peer: Any, name: str) -> None:
    """On several grids."""
    arguments = arguments_of(name)
    model = perturbed(peer(**arguments))
    operator = from_neuraloperator(model)
    for shape in CASES[name][1]:
        values = normal(2, arguments["in_channels"], *shape, seed="values", dtype=torch.float32)
        torch.testing.assert_close(operator(values), model(values), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_library_is_another_operator_on_odd_leading_axes(peer: Any) -> None:
    """Version 2.0.0 puts coefficients back by a shift that only undoes itself on even axes: then nothing can be equal."""
    model = perturbed(peer(n_modes=(5, 5), positional_embedding=None, **COUNTS))
    operator = from_neuraloperator(model)
    values = pn.problems.Heat(dimension=2, random_field=pn.problems.GaussianRandomField(2, 2))
    on = {size: values.sample_inputs(1, resolution=(size, 18), seed=0).values.expand(-1, 2, -1, -1) for size in (17, 18)}
    distances = {size: float((operator(given) - model(given)).norm() / model(given).norm()) for size, given in on.items()}
    assert distances[18] < 1e-5
    assert distances[17] > 1e-2
