"""Conversion of neuraloperator's weights: equal outputs, and warnings about entries and blocks.

`python -m tests.operators.test_neuraloperator` writes the reference file where neuraloperator 2.0.0 is installed.
"""

from __future__ import annotations

import warnings
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, gelu

import probneural as pn
from probneural.errors import ArgumentError, DataWarning, UnsupportedError
from probneural.operators import from_neuraloperator
from probneural.randomness import seeded
from probneural.training import files
from tests.helpers import generator

REFERENCE = Path(__file__).with_name("neuraloperator.safetensors")
MODES = {"FNO-1-D": (6,), "FNO-2-D": (4, 5), "TFNO-1-D": (5,), "TFNO-2-D": (5, 4)}
SHAPES = {1: (12,), 2: (8, 9)}


def peer(name: str, **options: Any) -> Any:
    """A model of neuraloperator whose weights were all changed."""
    from neuralop import models

    sizes = {"n_modes": MODES[name], "in_channels": 2, "out_channels": 3, "hidden_channels": 4, "n_layers": 3}
    random, model = generator(name), getattr(models, name[:-4])(**sizes, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    return model


def inputs(name: str) -> Tensor:
    return torch.randn(2, 2, *SHAPES[len(MODES[name])], generator=generator("inputs"))


def write_reference() -> None:
    tensors = {}
    for name in MODES:
        model = peer(name)
        tensors |= {f"{name}/{key}": value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
        tensors |= {f"{name}/inputs": inputs(name), f"{name}/outputs": model(inputs(name)).detach()}
    files.write(REFERENCE, tensors, metadata={"neuraloperator": "2.0.0"})


@cache
def reference(name: str) -> tuple[dict[str, Any], Tensor, Tensor]:
    """The state dict of a model, its inputs and outputs."""
    tensors = {key.partition("/")[2]: value for key, value in files.read(REFERENCE)[0].items() if key.startswith(f"{name}/")}
    return tensors, tensors.pop("inputs"), tensors.pop("outputs")


@pytest.mark.parametrize("name", MODES)
def test_outputs_are_those_of_neuraloperator(name: str) -> None:
    state, values, expected = reference(name)
    operator = from_neuraloperator(state, periodic=False)
    torch.testing.assert_close(operator(values), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert not any(parameter.is_complex() for parameter in operator.parameters())


def test_a_converted_operator_has_heads_and_files(tmp_path: Path) -> None:
    state, values, expected = reference("TFNO-2-D")
    operator = from_neuraloperator(state, periodic=False)
    grid = pn.Grid.uniform(values.shape[2:], periodic=False)
    noise = 0.1 * torch.randn(6, 3, *grid.shape, generator=generator("noise"))
    pairs = pn.FieldPairs(pn.Field(values.repeat(3, 1, 1, 1), grid), pn.Field(expected.repeat(3, 1, 1, 1) + noise, grid))
    predictor = pn.heads.LastLayerLaplace().fit(operator, pairs)
    torch.testing.assert_close(predictor(pairs.inputs).mean, operator(pairs.inputs.values), rtol=0, atol=1e-5)
    assert predictor(pairs.inputs).variance.min() > 0
    structured = pn.heads.Laplace(structure="kronecker", noise=0.01, prior_precision=1.0).fit(operator, pairs)
    assert structured(pairs.inputs[:2]).variance.min() > 0
    pn.save(predictor, tmp_path / "predictor")
    loaded = pn.load(tmp_path / "predictor")
    assert torch.equal(loaded(pairs.inputs).mean, predictor(pairs.inputs).mean)
    operator.reset_parameters()
    assert all(bool((gate == 1.0).all()) for gate in operator.gates)


def test_entries_that_do_not_fit_are_named() -> None:
    state, values, expected = reference("FNO-1-D")
    with pytest.warns(DataWarning, match=r"not used: lifting\.fcs\.2\.bias$"):
        from_neuraloperator({**state, "lifting.fcs.2.bias": torch.ones(3)})
    lacking = {key: value for key, value in state.items() if key not in ("projection.fcs.1.bias", "lifting.fcs.0.bias")}
    with pytest.warns(DataWarning, match=r"missing entries: lift\.0\.bias, readout\.bias$"):
        operator = from_neuraloperator(lacking)
    assert not torch.allclose(operator(values), expected, atol=1e-3)


def test_other_models_are_refused() -> None:
    state = reference("FNO-2-D")[0]
    with pytest.raises(UnsupportedError, match=r"got \{'domain_padding': 0\.25\}; "):
        from_neuraloperator({**state, "_metadata": {"domain_padding": 0.25, "norm": None}})
    with pytest.raises(UnsupportedError, match="got {'positional_embedding': 'grid'}; set embeds_position="):
        from_neuraloperator({**state, "_metadata": {"positional_embedding": "grid"}}, embeds_position=False)
    with pytest.raises(ArgumentError, match="spectral"):
        from_neuraloperator({key: value for key, value in state.items() if "convs" not in key})
    with pytest.raises(ArgumentError, match="size mismatch"):
        from_neuraloperator({**state, "projection.fcs.0.bias": torch.ones(5)})
    with pytest.raises(ArgumentError, match="periodic"):
        from_neuraloperator(state, periodic=(True, False, True))


def old_state(width: int) -> dict[str, Tensor]:
    """A state dict of neuraloperator 0.3 before training, with two blocks and five modes in one dimension."""
    sizes = {"lifting.fcs.0": (2, 6), "lifting.fcs.1": (6, width), "projection.fcs.0": (width, 7), "projection.fcs.1": (7, 3)}
    with seeded(0, "old weights"):
        skips = {f"fno_blocks.fno_skips.{number}": nn.Conv1d(width, width, 1, bias=False) for number in range(2)}
        layers = {name: nn.Conv1d(*shape, 1) for name, shape in sizes.items()} | skips
        state = {f"{name}.{key}": value for name, layer in layers.items() for key, value in layer.state_dict().items()}
        for number in range(2):
            state[f"fno_blocks.convs.weight.{number}.tensor"] = width**-0.5 * torch.randn(width, width, 5, 2)
        return {**state, "fno_blocks.convs.bias": width**-0.5 * torch.randn(2, width, 1)}


def old_outputs(state: dict[str, Tensor], values: Tensor) -> Tensor:
    """u -> projection of two blocks h -> gelu(Kh + Wh + b), the last one without activation, from the equations."""

    def network(values: Tensor, name: str) -> Tensor:
        first, second = (
            partial(conv1d, weight=state[f"{name}.fcs.{k}.weight"], bias=state[f"{name}.fcs.{k}.bias"]) for k in (0, 1)
        )
        return second(gelu(first(values)))

    hidden = network(values, "lifting")
    for number in range(2):
        weight = torch.view_as_complex(state[f"fno_blocks.convs.weight.{number}.tensor"])
        spectrum = torch.einsum("nik,iok->nok", torch.fft.rfft(hidden)[..., :5], weight)
        result = torch.fft.irfft(spectrum, n=values.shape[-1]) + state["fno_blocks.convs.bias"][number]
        hidden = result + conv1d(hidden, state[f"fno_blocks.fno_skips.{number}.weight"])
        hidden = hidden if number else gelu(hidden)
    return network(hidden, "projection")


def test_blocks_that_were_never_trained_are_named() -> None:
    """Of models of version 0.3, whose outputs are those of its equations; five steps of training silence the warning."""
    state, values = old_state(32), torch.randn(4, 2, 12, generator=generator("old inputs"))
    with pytest.warns(DataWarning, match=r"never trained: pointwise\.0\.weight, pointwise\.1\.weight$"):
        operator = from_neuraloperator({f"model.{name}": value for name, value in state.items()})
    torch.testing.assert_close(operator(values), old_outputs(state, values), rtol=0, atol=1e-5)
    optimizer = torch.optim.Adam([tensor.requires_grad_() for tensor in state.values()], lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        old_outputs(state, values).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(from_neuraloperator(state)(values), old_outputs(state, values), rtol=0, atol=1e-5)
    untrained = state | {"fno_blocks.fno_skips.1.weight": old_state(32)["fno_blocks.fno_skips.1.weight"]}
    with pytest.warns(DataWarning, match=r"never trained: pointwise\.1\.weight$"):
        from_neuraloperator(untrained)
    from_neuraloperator(old_state(16))  # too few weights to tell


@pytest.mark.parametrize("name", MODES)
def test_beside_neuraloperator(name: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        pytest.importorskip("neuralop")
        for embedding in ("grid", None):
            model = peer(name, positional_embedding=embedding, projection_channel_ratio=3)
            operator = from_neuraloperator(model.state_dict(), embeds_position=embedding is not None)
            expected = model(inputs(name)).detach()
            torch.testing.assert_close(operator(inputs(name)), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    untrained = type(model)(n_modes=MODES[name], in_channels=1, out_channels=1, hidden_channels=32).state_dict()
    with pytest.warns(DataWarning, match="never trained"):
        from_neuraloperator(untrained)


if __name__ == "__main__":
    write_reference()
