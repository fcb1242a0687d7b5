"""Selectors: habits that all share, and their choices against the plainest computation of each rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.active import RandomSelection, Selector, StochasticSelection, selectors
from probneural.active.selectors import integrated_variances
from probneural.distributions import DenseRoot, EmpiricalField, FeatureRoot, FieldDistribution, GaussianField, Predictor
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from tests.active.predictors import INPUT_GRID, KINDS, FeaturePredictor, certain, encode, feature_root
from tests.calibration.synthetic import scaled_by
from tests.helpers import PerSetPredictor

SELECTORS: dict[str, Selector] = {
    "random": RandomSelection(),
    "top k": StochasticSelection(power=1e4),
    "stochastic": StochasticSelection(),
}
PREDICTIVE = {name: SELECTORS[name] for name in ("top k", "stochastic")}
UNEVEN = Grid.scattered([[0.1], [0.15], [0.4], [0.8]], [0.05, 0.2, 0.3, 0.45])


def designs(count: int, *, seed: int = 1) -> Tensor:
    return 2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1


def pool(count: int = 14, *, seed: int = 1) -> Field:
    return encode(designs(count, seed=seed))


def build_predictor(
    output: Callable[[Tensor, Tensor, Grid], FieldDistribution] = feature_root,
    channels: int = 2,
    *,
    noise: Tensor | None = None,
) -> FeaturePredictor:
    predictor = FeaturePredictor(output, out_channels=channels, noise=noise)
    predictor.effective_observations = torch.linspace(3.0, 5.0, channels)
    return predictor


# What all share


@pytest.mark.parametrize("kind", [*KINDS, "certain"])
@pytest.mark.parametrize("name", SELECTORS)
def test_choices_are_distinct_and_repeatable(name: str, kind: str) -> None:
    rule, predictor = SELECTORS[name], build_predictor({**KINDS, "certain": certain}[kind])
    selected = rule.select(predictor, pool(), count=5, seed=3)
    assert selected.dtype == torch.int64
    assert selected.shape == (5,)
    assert len(set(selected.tolist())) == 5
    assert torch.equal(rule.select(predictor, pool(), count=5, seed=3), selected)
    assert sorted(rule.select(predictor, pool(), count=14, seed=3).tolist()) == list(range(14))


@pytest.mark.parametrize("name", SELECTORS)
def test_labelled_functions_are_never_chosen(name: str) -> None:
    labelled = pool()[[2, 11, 5]]
    selected = SELECTORS[name].select(build_predictor(), pool(), count=11, seed=0, labelled=labelled)
    assert sorted(selected.tolist()) == [index for index in range(14) if index not in (2, 5, 11)]
    single = Field(labelled.values.float(), INPUT_GRID)  # as a data set in single precision would have them
    assert torch.equal(
        SELECTORS[name].select(build_predictor(), pool(), count=11, seed=0, labelled=single).sort().values,
        selected.sort().values,
    )


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("points", [12, 24])
def test_labelled_functions_on_another_grid_are_never_chosen(name: str, points: int) -> None:
    labelled = pool()[[2, 11, 5]].resample(Grid.uniform((points,)))
    labelled = Field(labelled.values.float(), labelled.grid)
    selected = SELECTORS[name].select(build_predictor(), pool(), count=11, seed=0, labelled=labelled)
    assert sorted(selected.tolist()) == [index for index in range(14) if index not in (2, 5, 11)]


@pytest.mark.parametrize(("change", "same"), [(1e-7, True), (1e-5, False)])
def test_tolerance_of_labelled_functions(change: float, same: bool) -> None:
    labelled = Field(1e-9 * pool().values[4:5] * (1 + change), INPUT_GRID)
    values = pool().values.clone()
    values[4] *= 1e-9  # a small function among large ones has its own measure
    count = 13 if same else 14
    selected = RandomSelection().select(build_predictor(), Field(values, INPUT_GRID), count=count, seed=0, labelled=labelled)
    assert (4 not in selected.tolist()) == same


@pytest.mark.parametrize("name", SELECTORS)
def test_copies_come_last(name: str) -> None:
    values = pool().values.clone()
    values[[3, 9, 12]] = values[7].clone()
    for labelled, originals in ((None, 11), (Field(values[3:4], INPUT_GRID), 10)):
        count = 14 if labelled is None else 10
        selected = (
            SELECTORS[name]
            .select(build_predictor(), Field(values, INPUT_GRID), count=count, seed=0, labelled=labelled)
            .tolist()
        )
        assert len({tuple(values[index].flatten().tolist()) for index in selected[:originals]}) == originals
        assert len(set(selected)) == count


@pytest.mark.parametrize("name", PREDICTIVE)
def test_functions_of_no_variance_come_last(name: str) -> None:
    def half_certain(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        field = feature_root(features, mean, grid)
        known = features[:, 0, 0] > 0
        root = field.root.dense() * torch.where(known, 0.0, 1.0)[:, None, None, None]
        return GaussianField(mean, DenseRoot(root), latent="weights", grid=grid)

    predictor = build_predictor(half_certain)
    uncertain = (integrated_variances(predictor, pool()) > 0).nonzero()[:, 0].tolist()
    assert 2 < len(uncertain) < 12
    selected = PREDICTIVE[name].select(predictor, pool(), count=14, seed=0).tolist()
    assert set(selected[: len(uncertain)]) == set(uncertain)


@pytest.mark.parametrize("name", SELECTORS)
def test_resolution_does_not_matter(name: str) -> None:
    for seed in (0, 1):
        coarse, fine = (
            SELECTORS[name].select(build_predictor(), pool(24, seed=seed).resample(Grid.uniform((points,))), count=8, seed=0)
            for points in (64, 128)
        )
        assert torch.equal(coarse, fine)


@pytest.mark.parametrize("name", SELECTORS)
def test_units_do_not_matter(name: str) -> None:
    units = torch.tensor([1e-3, 1e4], dtype=torch.float64)
    zero = torch.tensor([[273.15], [0.0]], dtype=torch.float64)

    def rescaled(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        field = feature_root(features, mean, grid)
        return GaussianField(mean * units[:, None] + zero, field.root.scale(units), latent="weights", grid=grid)

    other = build_predictor(rescaled, noise=build_predictor().noise * units.square())
    assert torch.equal(
        SELECTORS[name].select(other, pool(), count=8, seed=0),
        SELECTORS[name].select(build_predictor(), pool(), count=8, seed=0),
    )


def test_real_heads_follow_the_dense_rules() -> None:
    pairs = pn.problems.Heat(dimension=1).sample(12, resolution=32, seed=0, dtype=torch.float64)
    inputs = pn.problems.Heat(dimension=1).sample(7, resolution=32, seed=1, dtype=torch.float64).inputs
    linear = pn.heads.LastLayerLaplace(noise=1e-4).fit(pn.operators.LinearRegression.fitted(pairs), pairs)
    for predictor in (linear, scaled_by(2.0, linear)):
        root = deviations(predictor(inputs))[:, 0]
        expected = root.square().sum((1, 2)).argsort(descending=True)[:4]
        assert torch.equal(SELECTORS["top k"].select(predictor, inputs, count=4, seed=0), expected)


class Held(PerSetPredictor):
    """The joint posterior of some functions, held as one tensor, whose latent does not depend on what is asked."""

    def __init__(self, inner: Predictor, inputs: Field) -> None:
        super().__init__(inner.traits)
        field = inner(inputs)
        self.inputs, self.means, self.root = inputs.values, field.mean, field.root.dense()  # type: ignore[attr-defined]
        self.effective_observations = inner.effective_observations

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        index = [int((self.inputs == one).flatten(1).all(1).nonzero()[0]) for one in inputs.values]
        return GaussianField(self.means[index], DenseRoot(self.root[index]), latent="held", grid=inputs.grid)


def test_a_latent_that_belongs_to_one_call() -> None:
    pairs = pn.problems.Heat(dimension=1).sample(12, resolution=32, seed=0, dtype=torch.float64)
    inputs = pn.problems.Heat(dimension=1).sample(7, resolution=32, seed=1, dtype=torch.float64).inputs
    predictor = pn.heads.KernelOperator("linear", output_components=3, groups=1).fit(None, pairs)
    held = Held(predictor, inputs)
    for rule in PREDICTIVE.values():
        assert torch.equal(rule.select(held, inputs, count=3, seed=0), rule.select(predictor, inputs, count=3, seed=0))


# Variances


def deviations(field: FieldDistribution) -> Tensor:
    """The joint root of all functions, `(n, c, p, k)`, formed at once."""
    if isinstance(field, GaussianField):
        return field.root.dense().double()
    assert isinstance(field, EmpiricalField)
    return field.moment_matched().root.dense().double()


@pytest.mark.parametrize("kind", KINDS)
def test_integrated_variances_are_averages_of_dense_covariances(kind: str) -> None:
    predictor = build_predictor(KINDS[kind])
    field, weights = predictor(pool(), UNEVEN), UNEVEN.weights / UNEVEN.volume
    mean = field.mean.double()
    centre = torch.einsum("ncp,p->c", mean, weights) / len(mean)
    squares = (mean - centre[:, None]).square() + field.variance.double()
    scales = torch.einsum("ncp,p->c", squares, weights) / len(mean)
    expected = torch.einsum("ncpk,c,p->n", deviations(field).square(), 1 / scales, weights)
    torch.testing.assert_close(integrated_variances(predictor, pool(), query=UNEVEN), expected, rtol=1e-10, atol=0.0)


def test_runs_of_functions_join(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = integrated_variances(build_predictor(), pool())
    monkeypatch.setattr(selectors, "_CHUNK_VALUES", 3 * 32)  # three functions of two channels and 16 points
    torch.testing.assert_close(integrated_variances(build_predictor(), pool()), scores, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("offset", [273.15, -1e6])
def test_zero_points_do_not_matter(offset: float) -> None:
    units = torch.tensor([1.0, 1.8], dtype=torch.float64)
    zero = torch.tensor([[0.0], [offset]], dtype=torch.float64)

    def shifted(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        field = feature_root(features, mean, grid)
        return GaussianField(mean * units[:, None] + zero, field.root.scale(units), latent="weights", grid=grid)

    scores = integrated_variances(build_predictor(shifted), pool())
    torch.testing.assert_close(scores, integrated_variances(build_predictor(), pool()), rtol=1e-9, atol=0.0)


def test_predicted_means_that_are_not_finite() -> None:
    def broken(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        mean[0, 0, 0] = torch.nan
        return GaussianField(mean, DenseRoot(torch.ones(*mean.shape, 2).to(mean)), latent="xi", grid=grid)

    with pytest.raises(DataError, match="finite predicted means"):
        integrated_variances(build_predictor(broken), pool())


# Rules


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5])
def test_stochastic_choice_has_the_stated_probabilities(power: float, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, inputs, draws = torch.tensor([1.0, 4.0, 2.0, 3.0], dtype=torch.float64), pool(4), 1000
    monkeypatch.setattr(selectors, "integrated_variances", lambda *_, **__: scores)
    shares = scores.pow(power) / scores.pow(power).sum()
    rule = StochasticSelection(power=power)
    selected = [tuple(rule.select(build_predictor(), inputs, count=2, seed=seed).tolist()) for seed in range(draws)]
    chi2 = 0.0
    for first, second in itertools.permutations(range(4), 2):
        expected = draws * float(shares[first] * shares[second] / (1 - shares[first]))
        chi2 += (selected.count((first, second)) - expected) ** 2 / expected
    assert chi2 < 31.3  # the 99.9 % quantile with 11 degrees of freedom


# Errors


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize(("count", "labelled"), [(15, 0), (13, 2), (0, 0), (-1, 0)])
def test_counts_that_cannot_be_met(name: str, count: int, labelled: int) -> None:
    known = pool()[:labelled] if labelled else None
    with pytest.raises(ArgumentError, match=f"from 1 to {14 - labelled} as count.*draw a larger pool"):
        SELECTORS[name].select(build_predictor(), pool(), count=count, seed=0, labelled=known)


@pytest.mark.parametrize("name", SELECTORS)
def test_pools_with_nothing_to_choose(name: str) -> None:
    with pytest.raises(DataError, match="1 or more functions in the pool"):
        SELECTORS[name].select(build_predictor(), pool()[:0], count=1, seed=0)
    with pytest.raises(DataError, match="1 or more unlabelled functions"):
        SELECTORS[name].select(build_predictor(), pool(), count=1, seed=0, labelled=pool())


@pytest.mark.bad_input
@pytest.mark.parametrize("name", PREDICTIVE)
def test_predictors_and_queries_are_checked(name: str) -> None:
    with pytest.raises(DataError, match="a Predictor as predictor"):
        SELECTORS[name].select(None, pool(), count=2, seed=0)  # type: ignore[arg-type]
    with pytest.raises(GridError, match="a Grid as query"):
        SELECTORS[name].select(build_predictor(), pool(), count=2, seed=0, query=(16,))  # type: ignore[arg-type]


def test_functions_that_are_not_finite_or_do_not_fit() -> None:
    broken = pool().values.clone()
    broken[2, 0, 3] = torch.nan
    with pytest.raises(DataError, match="finite pool functions"):
        RandomSelection().select(build_predictor(), Field(broken, INPUT_GRID), count=2, seed=0)
    with pytest.raises(DataError, match="finite labelled functions"):
        RandomSelection().select(build_predictor(), pool(), count=2, seed=0, labelled=Field(broken, INPUT_GRID))
    with pytest.raises(ShapeError, match="1 channels of labelled functions"):
        RandomSelection().select(
            build_predictor(), pool(), count=2, seed=0, labelled=Field(broken.expand(-1, 2, -1).nan_to_num(), INPUT_GRID)
        )


@pytest.mark.parametrize("name", PREDICTIVE)
def test_variances_that_are_not_finite(name: str) -> None:
    def broken(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        return GaussianField(mean, FeatureRoot(features, torch.full((1, 2, 9, 3), torch.nan).double()), latent="xi", grid=grid)

    with pytest.raises(DataError, match="finite"):
        PREDICTIVE[name].select(build_predictor(broken), pool(), count=2, seed=0)
