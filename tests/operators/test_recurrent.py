"""The recurrent operator: steps, pieces and whole sequences agree, nothing of the future is seen, and it learns a filter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.errors import ArgumentError, DataError, ShapeError, UnsupportedError
from probneural.grids import Grid
from probneural.operators import RecurrentOperator
from probneural.operators.layers.recurrent import LSTM, StateAttention
from probneural.operators.recurrent import RecurrentState
from tests.helpers import generator

LAYERS = {"width": 8, "depth": 2, "heads": 2, "horizon": 50}


def normal(*shape: int, name: str = "values") -> Tensor:
    return torch.randn(*shape, generator=generator(name), dtype=torch.float64)


def signals(**options: Any) -> RecurrentOperator:
    return RecurrentOperator(2, 3, **LAYERS, seed=0, **options).double()


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


def test_learns_to_average_what_it_has_seen() -> None:
    """A constant in noise: the mean so far is a filter of unit gain, whose error falls as one over the steps."""
    level = normal(400, 1, 1, name="level").float()
    values = level + normal(400, 1, 24, name="noise").float()
    grid = Grid.uniform(24, periodic=False)
    data = pn.FieldPairs(pn.Field(values, grid), pn.Field(level.expand(-1, -1, 24).contiguous(), grid))
    operator = RecurrentOperator(1, 1, width=8, heads=2, horizon=24, seed=0)
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
    operator, grid = signals(), Grid.uniform(12, periodic=False)
    data = pn.FieldPairs(pn.Field(normal(10, 2, 12), grid), pn.Field(normal(10, 3, 12, name="outputs"), grid))
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
    with pytest.raises(DataError, match="tensor"):
        signals().advance([[0.0]])  # type: ignore[arg-type]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_channels": 0}, "in_channels"),
        ({"out_channels": 1.5}, "out_channels"),
        ({"is_bidirectional": "no"}, "is_bidirectional"),
        *(({name: 0}, name) for name in LAYERS),
        ({"width": 8, "heads": 3}, "a width that is a multiple of 6"),
    ],
)
def test_refuses_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RecurrentOperator(**({"in_channels": 1, "out_channels": 1} | options))
