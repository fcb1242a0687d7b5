"""Heads read any data set a few rows at a time, and fit what they fit to the same pairs in memory."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from probneural.calibration import SimultaneousBand, VarianceScale
from probneural.data import Trajectories
from probneural.distributions import FieldDistribution, Predictor
from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import (
    DeepEnsemble,
    KernelOperator,
    Laplace,
    LastLayerLaplace,
    weight_problem,
)
from probneural.heads import training_data as training_data_module
from probneural.heads.last_layer import laplace as last_layer
from probneural.heads.training_data import training_data
from probneural.metrics import score, score_pairs
from probneural.operators import FNO
from probneural.pairs import FieldPairs
from probneural.statistics import units
from tests.heads.cases import data_for, estimate_effective_observations, fields
from tests.helpers import LazyPairs, normal


def halve(operator: nn.Module, data: object, *, seed: int) -> None:
    for parameter in operator.parameters():
        parameter.data.mul_(0.5)


HEADS = {
    "last layer": LastLayerLaplace(),
    "moved": LastLayerLaplace(moves_mean=True),
    **{name: Laplace(name, parameters=["readout"], show_progress=False) for name in ("full", "low_rank", "kronecker")},
    "default": Laplace(show_progress=False),
    "deep": DeepEnsemble(3, train=halve, show_progress=False),
    "kernel": KernelOperator("linear"),
}


def operator_and_pairs(count: int = 40, *, dtype: torch.dtype = torch.float64) -> tuple[FNO, FieldPairs]:
    operator = FNO(1, 1, modes=(3,), width=4, depth=1, seed=0).double()
    pairs = data_for(operator, fields(Grid.uniform(16), count, 1, seed=1))
    return operator.to(dtype), pairs


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of eight functions."""
    monkeypatch.setattr(last_layer, "_BATCH_ELEMENTS", 8 * 16 * 5)
    monkeypatch.setattr(weight_problem, "_BATCH_POINTS", 8 * 16)
    monkeypatch.setattr("probneural.statistics._CHUNK_NUMBERS", 8 * 16)
    monkeypatch.setattr("probneural.heads.ensembles.deep_ensemble._BATCH_ELEMENTS", 3 * 8 * 16)
    monkeypatch.setattr("probneural.curvature.rows._READ_VALUES", 8 * 16)
    monkeypatch.setattr("probneural.pairs.provenance._VALUES_AT_ONCE", 8 * 16)
    monkeypatch.setattr("probneural.distributions.predictors.base._VALUES", 8 * 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.usefixtures("small_batches")
def test_lazy_data_give_the_bits_of_data_in_memory(name: str, dtype: torch.dtype) -> None:
    operator, pairs = operator_and_pairs(dtype=dtype)
    lazy = LazyPairs.of(pairs)
    expected, found = HEADS[name].fit(copy.deepcopy(operator), pairs), HEADS[name].fit(copy.deepcopy(operator), lazy)
    fresh = fields(Grid.uniform(16), 3, 1, seed=9)
    one, other = expected(fresh), found(fresh)
    for first, second in ((one.mean, other.mean), (one.variance, other.variance), (expected.noise, found.noise)):
        torch.testing.assert_close(first, second, rtol=0.0, atol=0.0)
    assert {row for _, rows in lazy.reads for row in rows} == set(range(len(pairs)))
    assert (lazy.most == len(pairs)) if name == "kernel" else (lazy.most <= 32)


@pytest.mark.parametrize("name", ["last layer", "full", "low_rank"])
@pytest.mark.usefixtures("small_batches")
def test_updates_read_lazily(name: str) -> None:
    operator, pairs = operator_and_pairs()
    predictor = HEADS[name].fit(operator, pairs[:20])
    lazy = LazyPairs.of(pairs[20:])
    expected, found = predictor.update(pairs[20:]).update(pairs[:5]), predictor.update(lazy).update(LazyPairs.of(pairs[:5]))
    fresh = fields(Grid.uniform(16), 3, 1, seed=9)
    assert torch.equal(expected(fresh).mean, found(fresh).mean)
    assert torch.equal(expected(fresh).variance, found(fresh).variance)
    assert expected.log_evidence == found.log_evidence
    assert {row for _, rows in lazy.reads for row in rows} == set(range(20))


@pytest.mark.usefixtures("small_batches")
def test_the_whole_road_is_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Head, scale, band and scores of a lazy set are those of pairs in memory, with nothing read at once."""
    monkeypatch.setattr("probneural.calibration.predictions._KEPT_VALUES", 0)
    monkeypatch.setattr("probneural.metrics.scores._BATCH_VALUES", 8 * 16)
    monkeypatch.setattr("probneural.pairs.provenance._VALUES_AT_ONCE", 8 * 16)
    monkeypatch.setattr("probneural.distributions.predictors.base._VALUES", 8 * 16)
    operator, pairs = operator_and_pairs(120)
    found = []
    for make in (lambda part: part, LazyPairs.of):
        train, scaling, band_set, test = (make(pairs[start : start + 30]) for start in range(0, 120, 30))
        predictor = VarianceScale().fit(LastLayerLaplace().fit(operator, train), scaling)
        band = SimultaneousBand(0.8).fit(predictor, band_set)
        found.append((predictor.scale, band.quantile, band.coverage(test), score_pairs(predictor, test)))
        if isinstance(test, LazyPairs):
            assert max(part.most for part in (train, scaling, band_set, test)) <= 8
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize("whole", [None, 11])
@pytest.mark.parametrize("name", ["last layer", "deep"])
def test_scores_in_parts_are_those_of_all(name: str, whole: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, pairs = operator_and_pairs(60)
    predictor, test = HEADS[name].fit(operator, pairs[:30]), pairs[30:]
    expected = score(predictor(test.inputs), test.outputs, noise=predictor.noise, whole=whole).to_dict()
    monkeypatch.setattr("probneural.metrics.scores._BATCH_VALUES", 7 * 16)
    found = [
        score_pairs(predictor, LazyPairs.of(test), whole=whole),
        score(predictor(test.inputs), test.outputs, noise=predictor.noise, whole=whole),
    ]
    for scores in found:
        assert scores.to_dict() == {
            key: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for key, value in expected.items()
        }


def test_a_kernel_operator_sees_the_groups_of_lazy_pairs() -> None:
    steps = torch.arange(5, dtype=torch.float64)[:, None, None]
    walks = normal(6, 1, 1, 16, seed=1) + 0.05 * steps * normal(6, 1, 1, 16, seed=2)
    lazy = Trajectories.from_array(walks.numpy(), times=list(range(5)), periodic=True).windows()
    pairs = lazy[:]
    assert pairs.groups is not None
    head = KernelOperator("linear", groups=1, iterations=2)
    found, expected = head.fit(None, lazy).noise, head.fit(None, pairs).noise
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    assert float(found) > 100.0 * float(head.fit(None, replace(pairs, groups=None)).noise)


def test_without_an_operator_the_wider_dtype_counts() -> None:
    grid = Grid.uniform(8)
    double, single = Field(1e5 + 1e-3 * normal(4, 1, 8), grid), Field(normal(4, 1, 8, dtype=torch.float32), grid)
    assert torch.equal(training_data(FieldPairs(double, single), None).inputs.values, double.values)
    assert training_data(FieldPairs(single, double), None).inputs.dtype == torch.float64


class TestEffectiveObservations:
    """The three ways of counting agree."""

    def test_second_moment_equals_pairs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = fields(Grid.uniform(48), 60, 2, seed=4, waves=6).values
        pairwise = estimate_effective_observations(values, grid=Grid.uniform(48))
        monkeypatch.setattr(training_data_module, "_KEPT_FUNCTIONS", 10)
        torch.testing.assert_close(estimate_effective_observations(values, grid=Grid.uniform(48)), pairwise, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("rank", [1, 10, 100, 4096])
    def test_sketch_errs_by_a_few_percent(self, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        grid = Grid.uniform(4096)
        basis = torch.linalg.qr(normal(4096, rank, seed=1)).Q.mT if rank < 4096 else None
        values = normal(200, rank, seed=2)
        values = (values if basis is None else values @ basis)[:, None]
        exact = float(estimate_effective_observations(values, grid=grid))
        monkeypatch.setattr(training_data_module, "_KEPT_VALUES", 0)
        assert float(estimate_effective_observations(values, grid=grid)) == pytest.approx(
            exact, rel=0.1 if rank == 4096 else 0.03
        )

    def test_smooth_residuals_on_a_fine_grid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = fields(Grid.uniform((64, 64)), 100, 1, seed=4, waves=4).values
        exact = float(estimate_effective_observations(values, grid=Grid.uniform((64, 64))))
        monkeypatch.setattr(training_data_module, "_KEPT_VALUES", 0)
        assert float(estimate_effective_observations(values, grid=Grid.uniform((64, 64)))) == pytest.approx(exact, rel=0.03)


def test_units_of_lazy_outputs() -> None:
    _, pairs = operator_and_pairs()
    assert all(map(torch.equal, units(pairs.outputs), units(LazyPairs.of(pairs).outputs)))


class Stated(Predictor):
    """Any predictor, whose inputs are remembered."""

    def __init__(self, inner: Predictor) -> None:
        super().__init__(inner.traits)
        self.inner = inner
        self.most = 0

    def _predict(self, sets: list[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        self.most = max(self.most, *(len(inputs) for inputs, _ in sets))
        return self.inner._predict(sets)


def test_calibration_predicts_anew_what_it_does_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, pairs = operator_and_pairs(70)
    inner = LastLayerLaplace().fit(operator, pairs[:30])
    kept = VarianceScale().fit(inner, pairs[30:])
    monkeypatch.setattr("probneural.metrics.scores._BATCH_VALUES", 7 * 16)
    monkeypatch.setattr("probneural.calibration.predictions._KEPT_VALUES", 0)
    monkeypatch.setattr("probneural.distributions.predictors.base._VALUES", 7 * 16)
    streamed = Stated(inner)
    again = VarianceScale().fit(streamed, pairs[30:])
    assert streamed.most == 7

    def numbers(one: object) -> list[Tensor]:
        parts = one.decomposition
        return [one.scale, one.noise_scale, parts.variance, parts.root_fraction, parts.white_fraction, parts.process.amplitudes]

    for first, second in zip(numbers(kept), numbers(again), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-10, atol=0)
    assert torch.equal(kept.calibrated_on, again.calibrated_on)


def test_draws_of_many_functions_are_evaluated_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, pairs = operator_and_pairs(30)
    streamed = Stated(LastLayerLaplace().fit(operator, pairs))
    whole = streamed.draw(3)(pairs.inputs.values)
    assert streamed.most == 30
    streamed.most = 0
    monkeypatch.setattr("probneural.distributions.predictors.base._DRAWN_VALUES", 7 * pairs.outputs.grid.size)
    torch.testing.assert_close(streamed.draw(3)(pairs.inputs.values), whole)
    assert streamed.most == 7


@pytest.mark.bad_input
def test_every_process_needs_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    _, pairs = operator_and_pairs(2)
    monkeypatch.setattr("probneural.heads.training_data.world_size", lambda: 3)
    with pytest.raises(DataError, match="3 or more training pairs, one for each process"):
        training_data(pairs, None)
    assert training_data(pairs, None, is_shared=False).functions == 2
