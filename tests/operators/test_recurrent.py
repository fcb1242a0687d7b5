"""The recurrent operator: steps, pieces and whole sequences agree, nothing of the future is seen, and it learns a filter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.errors import ArgumentError, DataError, GridError, ShapeError, UnsupportedError
from probneural.grids import Grid
from probneural.operators import RecurrentLayers, RecurrentOperator, SpectralEncoder
from probneural.operators.layers.attention import StateAttention
from probneural.operators.layers.lstm import LSTM
from probneural.operators.recurrent import RecurrentState
from tests.helpers import generator

LAYERS = RecurrentLayers(width=8, depth=2, heads=2, horizon=50)


def normal(*shape: int, name: str = "values") -> Tensor:
    return torch.randn(*shape, generator=generator(name), dtype=torch.float64)


def signals(**options: Any) -> RecurrentOperator:
    return RecurrentOperator(2, 3, layers=LAYERS, seed=0, **options).double()


def fields(*, history: int = 3, parameters: int = 1) -> RecurrentOperator:
    encoder = SpectralEncoder(modes=(3,), depth=1, history=history, parameters=parameters)
    return RecurrentOperator(history * 2 + parameters, 2, encoder=encoder, layers=LAYERS, seed=0).double()


@pytest.mark.parametrize("sizes", [[1] * 70, [33, 37], [70], [1, 31, 6, 32]], ids=["single", "two", "whole", "mixed"])
def test_steps_and_sequences_agree(sizes: list[int]) -> None:
    """Pieces of any length, longer than the attention's chunks and than its horizon too, give what the whole gives."""
    operator, values = signals(), normal(2, 2, 70)
    whole, state, parts = operator(values), None, []
    for piece in values.split(sizes, dim=-1):
        outputs, state = operator.advance(piece, state)
        parts.append(outputs)
    assert state is not None
    assert state.steps == 70
    torch.testing.assert_close(torch.cat(parts, dim=-1), whole, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states_of_fields_one_by_one(dtype: torch.dtype) -> None:
    operator, grid = fields().to(dtype), Grid.uniform(12, lengths=2.0)
    states, given = normal(2, 3, 2, 12).to(dtype), normal(2, 1, 12, name="given").to(dtype)
    whole = operator(torch.cat([states.flatten(1, 2), given], dim=1), grid=grid)
    state = None
    for step in range(3):
        seen = torch.cat([states[:, step], given], dim=1)[:, None]
        last, state = operator.advance(seen, state, grid=grid)
    torch.testing.assert_close(last[:, 0], whole, atol=10 * torch.finfo(dtype).eps, rtol=0)
    together, _ = operator.advance(torch.cat([states, given[:, None].expand(-1, 3, -1, -1)], dim=2), grid=grid)
    torch.testing.assert_close(together[:, -1], whole, atol=10 * torch.finfo(dtype).eps, rtol=0)


def test_the_future_is_not_seen() -> None:
    values = normal(1, 2, 70)
    for operator, is_causal in ((signals(), True), (signals(is_bidirectional=True), False)):
        later = values.clone()
        later[..., 40:] += 1.0
        difference = (operator(later) - operator(values)).abs().amax(dim=(0, 1))
        assert bool((difference[40:] > 0).all())
        assert bool((difference[:40] == 0).all()) == is_causal
        assert bool((difference[:40] > 0).all()) != is_causal


def test_memory_does_not_grow() -> None:
    operator = signals()
    _, short = operator.advance(normal(2, 2, 3))
    _, long = operator.advance(normal(2, 2, 90))
    for one, other in zip(short.blocks, long.blocks, strict=True):
        assert (one.hidden.shape, one.cell.shape, one.sums.shape) == (other.hidden.shape, other.cell.shape, other.sums.shape)


def test_a_detached_state_ends_gradients() -> None:
    operator, values = signals(), normal(1, 2, 4).requires_grad_()
    _, state = operator.advance(values)
    for kept, reaches in ((state, True), (state.detached(), False)):
        outputs, _ = operator.advance(normal(1, 2, 2, name="next"), kept)
        gradient = torch.autograd.grad(outputs.sum(), values, allow_unused=True, retain_graph=True)[0]
        assert (gradient is not None) == reaches


def test_lstm_is_that_of_pytorch() -> None:
    """With the same weights, whose gates PyTorch keeps in the same order up to the last two."""
    ours, theirs = LSTM(3, 4).double(), nn.LSTM(3, 4, batch_first=True).double()
    order = [*range(4), *range(4, 8), *range(12, 16), *range(8, 12)]  # i, f, u, o of ours, which are i, f, o, u
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.inputs.weight[order])
        theirs.weight_hh_l0.copy_(ours.recurrent[order])
        theirs.bias_ih_l0.copy_(ours.inputs.bias[order])
        theirs.bias_hh_l0.zero_()
    values = normal(2, 5, 3)
    states, hidden, cell = ours(values)
    expected, (last, content) = theirs(values)
    torch.testing.assert_close(states, expected, atol=1e-14, rtol=1e-14)
    torch.testing.assert_close(hidden, last[0], atol=1e-14, rtol=1e-14)
    torch.testing.assert_close(cell, content[0], atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_is_a_sum_over_steps(is_causal: bool) -> None:
    """Against the double sum, with turns by matrices of angle times distance."""
    layer = StateAttention(8, heads=2, horizon=50, is_causal=is_causal).double()
    normalised, states = normal(1, 40, 8, name="normalised"), normal(1, 40, 8)
    read, _ = layer(normalised, states)
    query, key, value = (
        one[0].unflatten(-1, (2, 4)) for one in (layer.query(normalised), layer.key(normalised), layer.value(states))
    )
    expected = torch.zeros(40, 2, 4, dtype=torch.float64)
    for at in range(40):
        for past in range(at + 1 if is_causal else 40):
            for head in range(2):
                score = 0.0
                for pair in range(2):
                    angle = torch.tensor(2.0 * math.pi * (2 * head + pair) * (at - past) / 50, dtype=torch.float64)
                    asked, kept = (torch.complex(one[head, pair], one[head, pair + 2]) for one in (query[at], key[past]))
                    score += (asked.conj() * kept * torch.polar(torch.ones_like(angle), -angle)).real
                expected[at, head] += score * value[past, head] / 2.0
        expected[at] /= at + 1 if is_causal else 40
    torch.testing.assert_close(read[0], layer.out(expected.flatten(1)), atol=1e-13, rtol=1e-12)


def test_units_of_a_history_are_pooled() -> None:
    operator, grid = fields(history=2, parameters=1), Grid.uniform(8)
    inputs = torch.cat([normal(50, 2, 8) * 3.0 + 1.0, normal(50, 2, 8, name="later") * 3.0 + 5.0, normal(50, 1, 8)], dim=1)
    operator.fit_normalizers(pn.FieldPairs(pn.Field(inputs, grid), pn.Field(normal(50, 2, 8), grid)))
    for channel in range(2):
        seen = inputs[:, [channel, channel + 2]]
        torch.testing.assert_close(operator.input_normalizer.mean[channel], seen.mean(), atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(operator.input_normalizer.scale[channel], seen.std(correction=0), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(operator.input_normalizer.mean[2], inputs[:, 4].mean(), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("rest", [0.0, 0.25])
@pytest.mark.parametrize("history", [2, 3])
def test_a_constant_state_of_a_history_has_no_spread(history: int, rest: float) -> None:
    """As where trajectories begin at rest: a scale of 1 stands for no unit there, and is none to average with."""
    operator, grid = fields(history=history, parameters=1), Grid.uniform(8)
    moving = normal(50, 2 * (history - 1), 8) * 1e-3
    inputs = torch.cat([torch.full((50, 2, 8), rest, dtype=torch.float64), moving, torch.ones(50, 1, 8).double()], dim=1)
    operator.fit_normalizers(pn.FieldPairs(pn.Field(inputs, grid), pn.Field(normal(50, 2, 8), grid)))
    for channel in range(2):
        seen = inputs[:, channel:-1:2]
        torch.testing.assert_close(operator.input_normalizer.mean[channel], seen.mean(), atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(operator.input_normalizer.scale[channel], seen.std(correction=0), atol=0, rtol=1e-12)
    assert (operator.input_normalizer.mean[2], operator.input_normalizer.scale[2]) == (1.0, 1.0)


@pytest.mark.bad_input
def test_units_are_of_as_many_channels_as_inputs_have() -> None:
    operator, grid = fields(history=2, parameters=1), Grid.uniform(8)
    with pytest.raises(DataError, match="expected fields of 5 channels; got 4"):
        operator.fit_normalizers(pn.FieldPairs(pn.Field(normal(5, 4, 8), grid), pn.Field(normal(5, 2, 8), grid)))


def test_a_history_that_never_varies_keeps_its_units() -> None:
    operator, grid = fields(history=2, parameters=1), Grid.uniform(8)
    inputs = torch.cat([torch.full((50, 4, 8), 0.3, dtype=torch.float64), normal(50, 1, 8)], dim=1)
    operator.fit_normalizers(pn.FieldPairs(pn.Field(inputs, grid), pn.Field(normal(50, 2, 8), grid)))
    assert operator.input_normalizer.scale[:2].tolist() == [1.0, 1.0]


def test_learns_to_average_what_it_has_seen() -> None:
    """A constant in noise: the mean so far is a filter of unit gain, whose error falls as one over the steps."""
    level = normal(400, 1, 1, name="level").float()
    values = level + normal(400, 1, 24, name="noise").float()
    grid = Grid.uniform(24, periodic=False)
    data = pn.FieldPairs(pn.Field(values, grid), pn.Field(level.expand(-1, -1, 24).contiguous(), grid))
    operator = RecurrentOperator(1, 1, layers=RecurrentLayers(width=8, heads=2, horizon=24), seed=0)
    pn.fit(
        operator,
        data[:300],
        epochs=8,
        seed=0,
        learning_rate=1e-2,
        loss=lambda p, t, g: (p - t).square().mean(),
        show_progress=False,
    )
    with torch.no_grad():
        errors = (operator(values[300:], grid=grid) - level[300:]).square().mean((0, 1))
    exact = 1.0 / (1.0 + torch.arange(1, 25))  # prior and noise of variance one
    assert 0.7 < errors[0] / exact[0] < 1.4
    assert errors[-1] < 2.0 * exact[-1]


def test_last_layer_and_files(tmp_path: Any) -> None:
    operator, grid = fields(), Grid.uniform(12)
    data = pn.FieldPairs(pn.Field(normal(10, 7, 12), grid), pn.Field(normal(10, 2, 12, name="outputs"), grid))
    operator.fit_normalizers(data)
    predictor = pn.heads.LastLayerLaplace().fit(operator, data)
    assert predictor.readout.name == "readout"
    pn.save(predictor, tmp_path / "predictor")
    loaded = pn.load(tmp_path / "predictor")
    assert torch.equal(loaded(data.inputs).mean, predictor(data.inputs).mean)
    assert torch.equal(loaded(data.inputs).variance, predictor(data.inputs).variance)


@pytest.mark.bad_input
def test_refuses_steps_of_a_bidirectional_operator() -> None:
    with pytest.raises(UnsupportedError, match="causal operator for single steps"):
        signals(is_bidirectional=True).advance(normal(1, 2, 1))


@pytest.mark.bad_input
def test_refuses_states_of_others() -> None:
    operator = signals()
    _, state = operator.advance(normal(2, 2, 1))
    with pytest.raises(ShapeError, match="a state of 2 blocks"):
        operator.advance(normal(3, 2, 1), state)
    with pytest.raises(ShapeError, match="a state of 2 blocks"):
        operator.advance(normal(2, 2, 1), RecurrentState(1, state.blocks[:1]))
    with pytest.raises(DataError, match="a state of torch.float32"):
        operator.float().advance(normal(2, 2, 1).float(), state)
    with pytest.raises(DataError, match="pass on what advance returned"):
        operator.advance(normal(2, 2, 1).float(), 3)  # type: ignore[arg-type]


@pytest.mark.bad_input
def test_refuses_values_that_are_no_steps() -> None:
    with pytest.raises(ShapeError, match=r"values of shape \(n, 2, points\)"):
        signals().advance(normal(1, 3, 4))
    with pytest.raises(ShapeError, match="time comes second"):
        fields().advance(normal(3, 12))
    with pytest.raises(DataError, match="tensor"):
        fields().advance([[0.0]])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"values of shape \(n, 3, points\)"):
        fields().advance(normal(1, 2, 4, 12))
    with pytest.raises(GridError, match="periodic"):
        fields().advance(normal(1, 2, 3, 12), grid=Grid.uniform(12, periodic=False))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_channels": 0}, "in_channels"),
        ({"out_channels": 1.5}, "out_channels"),
        ({"layers": 32}, "RecurrentLayers"),
        ({"encoder": (16,)}, "SpectralEncoder"),
        ({"is_bidirectional": "no"}, "is_bidirectional"),
        ({"encoder": SpectralEncoder(modes=(3,), history=2), "in_channels": 3}, "history"),
        ({"encoder": SpectralEncoder(modes=(3,), parameters=2), "in_channels": 2}, "parameters"),
        ({"encoder": SpectralEncoder(modes=(3,), history=1), "is_bidirectional": True}, "causal"),
    ],
)
def test_refuses_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RecurrentOperator(**({"in_channels": 1, "out_channels": 1} | options))


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["width", "depth", "heads", "horizon"])
def test_refuses_layers(name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        replace(LAYERS, **{name: 0})
    with pytest.raises(ArgumentError, match="a width that is a multiple of 6"):
        RecurrentLayers(width=8, heads=3)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modes": ()}, "modes"),
        ({"depth": 0}, "depth"),
        ({"history": 0}, "history"),
        ({"parameters": -1}, "parameters"),
        ({"periodic": (True, True)}, "periodic"),
    ],
)
def test_refuses_encoders(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SpectralEncoder(**({"modes": (3,)} | options))
