"""Monte Carlo dropout against its closed form, and masks against weights that are cut by hand."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from probneural.calibration import VarianceScale
from probneural.errors import ArgumentError, UnsupportedError
from probneural.export import to_torch_export
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads import MCDropout
from probneural.heads.ensembles.masked_operator import MaskedOperator
from probneural.operators import FNO, DeepONet, HiddenLayers
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from probneural.training import DataOptions, fit
from tests.heads.cases import PERIODIC, BranchTrunk, data_for, fields, operator_case, small_fno, to_dtype

CASE = operator_case("fno-dropout")
P = 0.3


class Read(nn.Module):
    """u = sum over j of w_j h_j with dropout on the features h."""

    def __init__(self, dropout: nn.Module, *, channels_last: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 5, 3, padding=1, padding_mode="circular"), nn.Conv1d(5, 1, 1, bias=False)
        self.dropout, self.channels_last = dropout, channels_last

    def features(self, values: Tensor) -> Tensor:
        return torch.tanh(self.first(values))

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.features(values)
        if self.channels_last:
            return self.last(self.dropout(hidden.movedim(1, -1)).movedim(-1, 1))
        return self.last(self.dropout(hidden))


def read(dropout: nn.Module, **settings: bool) -> Read:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Read(dropout, **settings).double()


INPUTS = fields(PERIODIC, 4, 1, seed=3)


def test_outputs_of_a_plain_module_may_live_on_another_grid() -> None:
    operator = nn.Sequential(read(nn.Dropout1d(P)), nn.AvgPool1d(2))
    coarse = Grid.uniform(PERIODIC.size // 2)
    outputs = Field(evaluate(operator.eval(), INPUTS, coarse), coarse)
    predictor = MCDropout(3).fit(operator, FieldPairs(INPUTS, outputs))
    assert predictor(INPUTS, coarse).samples.shape == (3, 4, 1, PERIODIC.size // 2)


KINDS = [(nn.Dropout1d(P), False), (nn.Dropout(P), False), (nn.Dropout(P), True)]


@pytest.mark.parametrize(("dropout", "channels_last"), [KINDS[0], KINDS[2]])
def test_moments_of_a_linear_read_out_are_those_of_bernoulli_masks(dropout: nn.Module, channels_last: bool) -> None:
    """Mean: the operator's own output; covariance: p / (1 - p) sum over j of w_j^2 h_j h_j^T."""
    operator, count = read(dropout, channels_last=channels_last), 800
    predictor = MCDropout(count).fit(operator, data_for(operator.eval(), INPUTS))
    u = predictor(INPUTS)
    with torch.no_grad():
        parts = operator.features(INPUTS.values) * operator.last.weight.flatten()[:, None]
        flat = parts.movedim(1, 0).flatten(1)
    exact = P / (1 - P) * flat.mT @ flat
    draws = u.samples.flatten(1)
    error = (exact.diagonal() / count).sqrt()
    assert bool(((draws.mean(0) - flat.sum(0)).abs() <= 5 * error).all())
    covariance = draws.mT.cov(correction=0)
    spread = 5 * (2.0 / count) ** 0.5  # the fourth moment of sums of few Bernoulli numbers is below a Gaussian's
    scale = (exact.diagonal()[:, None] * exact.diagonal()).sqrt()
    assert bool(((covariance - exact).abs() <= spread * scale).all())


def test_a_member_is_the_operator_with_weights_cut_out() -> None:
    operator = read(nn.Dropout1d(P))
    predictor = MCDropout(8).fit(operator, data_for(operator.eval(), INPUTS))
    for member, sample in zip(predictor.operators(), predictor(INPUTS).samples, strict=True):
        assert isinstance(member, MaskedOperator)
        (mask,) = member.masks.values()
        assert set(mask.flatten().tolist()) <= {0.0, 1.0 / (1.0 - P)}
        cut = copy.deepcopy(operator).eval()
        cut.last.weight.data *= mask.flatten()[None, :, None]
        with torch.no_grad():
            torch.testing.assert_close(cut(INPUTS.values), sample)


def test_masks_are_named_by_seed_and_number() -> None:
    few, many = (MCDropout(count, seed=4).fit(CASE.operator, CASE.data)(CASE.inputs) for count in (3, 7))
    torch.testing.assert_close(many.samples[:3], few.samples)
    other = MCDropout(3, seed=5).fit(CASE.operator, CASE.data)(CASE.inputs)
    assert not torch.allclose(other.samples, few.samples)


def test_features_of_a_trunk_are_not_its_points() -> None:
    """A trunk sees (points, features): both may be of one size."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        operator = to_dtype(BranchTrunk(), torch.float64)
    operator.trunk.append(nn.Dropout(0.5))
    grid = Grid.uniform(8)
    predictor = MCDropout(4).fit(operator, data_for(operator, fields(grid, 3, 1, seed=1)))
    assert [tuple(mask.shape) for mask in predictor.operator.masks.values()] == [(1, 3)]  # type: ignore[union-attr, operator]
    inputs = fields(grid, 2, 1, seed=2)
    fine = evaluate(predictor.draw(1), inputs, grid.resized(16))
    torch.testing.assert_close(fine[..., ::2], evaluate(predictor.draw(1), inputs))


def test_an_fno_trains_with_dropout_and_evaluates_without() -> None:
    operator, plain = (to_dtype(small_fno(dropout=rate, seed=0)(), torch.float64) for rate in (0.4, 0.0))
    with torch.no_grad():
        assert torch.equal(operator.eval()(INPUTS.values), plain.eval()(INPUTS.values))
        operator.train()
        first, second = operator(INPUTS.values), operator(INPUTS.values)
        assert not torch.allclose(first, second)
    history = fit(operator, data_for(plain, INPUTS), epochs=2, data=DataOptions(validation=0.0), show_progress=False)
    assert history.epochs == 2
    assert FNO(**operator.configuration()).dropout == 0.4  # type: ignore[operator]
    for dimension in (2, 3):
        deeper = FNO(1, 1, modes=(2,) * dimension, width=4, depth=3, projection=4, dropout=0.5, seed=0)
        hidden: list[Tensor] = []
        deeper.drops[0].register_forward_hook(lambda module, arguments, output: hidden.append(output))  # noqa: B023
        deeper(torch.randn(2, 1, *(4,) * dimension))
        is_dropped = (hidden[0] == 0).flatten(2)
        assert bool((is_dropped.all(2) | ~is_dropped.any(2)).all())  # whole channels


def test_a_deeponet_drops_products() -> None:
    layers = HiddenLayers(width=4, depth=1)
    operator = to_dtype(DeepONet(1, 2, sensors=PERIODIC, basis=5, layers=layers, dropout=0.4, seed=0), torch.float64)
    operator.train()
    with torch.no_grad():
        assert not torch.allclose(operator(INPUTS.values), operator(INPUTS.values))
    predictor = MCDropout(3).fit(operator, data_for(operator.eval(), INPUTS))
    assert [tuple(mask.shape) for mask in predictor.operator.masks.values()] == [(1, 2, 5)]  # type: ignore[union-attr, operator]
    for member, sample in zip(predictor.operators(), predictor(INPUTS).samples, strict=True):
        cut = copy.deepcopy(operator)
        cut.readout.weight.data *= member.masks["drop"][0]  # type: ignore[index, operator]
        with torch.no_grad():
            torch.testing.assert_close(cut(INPUTS.values), sample)
    assert DeepONet(**operator.configuration()).dropout == 0.4  # type: ignore[operator]
    with pytest.raises(ArgumentError, match="dropout"):
        DeepONet(1, 1, sensors=PERIODIC, dropout=1.0)


def test_saved_and_calibrated(tmp_path: Path) -> None:
    predictor = MCDropout(5).fit(CASE.operator, CASE.data)
    save(predictor, tmp_path / "dropout")
    loaded = load(tmp_path / "dropout")
    assert torch.equal(loaded(CASE.inputs).samples, predictor(CASE.inputs).samples)  # type: ignore[operator]
    held_out = data_for(CASE.operator.eval(), fields(PERIODIC, 8, 1, seed=31), seed=32)
    assert bool((VarianceScale(local=False).fit(predictor, held_out)(CASE.inputs).variance > 0).all())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fno-dropout", "conv"])
def test_exported(name: str, tmp_path: Path) -> None:
    case = operator_case(name)
    predictor = MCDropout(3).fit(case.operator, case.data)
    to_torch_export(predictor, tmp_path / "dropout.pt2", example=case.inputs)
    mean, deviation = torch.export.load(tmp_path / "dropout.pt2").module()(case.inputs.values)
    torch.testing.assert_close(mean, predictor(case.inputs).mean)
    torch.testing.assert_close(deviation, predictor(case.inputs).standard_deviation)


@pytest.mark.bad_input
class TestBadInput:
    def test_no_dropout_says_how_to_add_it(self) -> None:
        case = operator_case("fno-1d")
        with pytest.raises(UnsupportedError, match=r"FNO\(\.\.\., dropout=0\.1\)"):
            MCDropout().fit(case.operator, case.data)
        operator = read(nn.Dropout(0.0))
        with pytest.raises(UnsupportedError, match="with none"):
            MCDropout().fit(operator, data_for(operator, INPUTS))

    def test_other_dropout(self) -> None:
        operator = read(nn.AlphaDropout(0.2))
        with pytest.raises(UnsupportedError, match="AlphaDropout as dropout"):
            MCDropout().fit(operator, data_for(operator.eval(), INPUTS))

    def test_a_layer_that_is_called_twice(self) -> None:
        layer = nn.Dropout1d(P)
        operator = nn.Sequential(nn.Conv1d(1, 3, 1), layer, nn.Conv1d(3, 2, 1), layer, nn.Conv1d(2, 1, 1)).double()
        with pytest.raises(UnsupportedError, match="dropout layer of its own"):
            MCDropout().fit(operator, data_for(operator.eval(), INPUTS))

    def test_points_are_no_features(self) -> None:
        operator = nn.Sequential(nn.Flatten(1), nn.Dropout(0.5), nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 1, 1)).double()
        with pytest.raises(UnsupportedError, match="a number that depends on no grid"):
            MCDropout().fit(operator, data_for(operator.eval(), INPUTS))

    def test_masks_of_other_layers(self) -> None:
        with pytest.raises(ArgumentError, match="names of dropout layers"):
            MaskedOperator(nn.Linear(1, 1), {"weight": torch.ones(1)})
