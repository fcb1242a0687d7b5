"""Selectors: habits that all share, and their choices against the plainest computation of each rule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.active import (
    BAITSelection,
    IntegratedVarianceSelection,
    LCMDSelection,
    RandomSelection,
    Selector,
    SpaceFillingSelection,
    StochasticSelection,
    space_filling_designs,
)
from probneural.active.selection import latent_selectors, selectors
from probneural.active.selection.pool_features import FeatureSketch, integrated_variances, posterior_features
from probneural.distributions import DenseRoot, FeatureRoot, FieldDistribution, GaussianField, Predictor
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from tests.active.predictors import INPUT_GRID, KINDS, FeaturePredictor, certain, encode, feature_root, members
from tests.active.selection.test_pool_features import deviations, squared_scales
from tests.calibration.synthetic import scaled_by

SELECTORS: dict[str, Selector] = {
    "random": RandomSelection(),
    "space filling": SpaceFillingSelection(),
    "top k": StochasticSelection(power=1e4),
    "stochastic": StochasticSelection(),
    "LCMD": LCMDSelection(),
    "BAIT": BAITSelection(),
    "integrated variance": IntegratedVarianceSelection(),
}
GREEDY = {name: rule for name, rule in SELECTORS.items() if name not in ("random", "stochastic", "top k", "space filling")}
PREDICTIVE = {**GREEDY, "top k": SELECTORS["top k"], "stochastic": SELECTORS["stochastic"]}


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


def chosen(rule: Selector, count: int, *, seed: int = 0, labelled: Field | None = None) -> list[int]:
    return rule.select(build_predictor(), pool(), count=count, seed=seed, labelled=labelled).tolist()


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


def test_functions_that_a_coarser_grid_does_not_resolve() -> None:
    rough = Field(torch.randn(6, 1, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64), Grid.uniform((32,)))
    coarse = rough.resample(INPUT_GRID)
    for inputs, labelled in ((rough, coarse[1:3]), (coarse, rough[1:3])):
        selected = RandomSelection().select(build_predictor(), inputs, count=4, seed=0, labelled=labelled)
        assert sorted(selected.tolist()) == [0, 3, 4, 5]


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
def test_without_any_variance_the_order_is_random(name: str) -> None:
    predictor = build_predictor(certain)
    for seed in (0, 1):
        expected = RandomSelection().select(predictor, pool(), count=6, seed=seed)
        assert torch.equal(PREDICTIVE[name].select(predictor, pool(), count=6, seed=seed), expected)


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
    first = len(uncertain) if name in ("top k", "stochastic") else 3  # batches run out of information before they end
    assert set(selected[:first]) <= set(uncertain)


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
    inputs = Field(pool().values * 1e3, INPUT_GRID) if name == "space filling" else pool()
    assert torch.equal(
        SELECTORS[name].select(other, inputs, count=8, seed=0),
        SELECTORS[name].select(build_predictor(), pool(), count=8, seed=0),
    )


@pytest.mark.parametrize("name", SELECTORS)
def test_real_heads(name: str) -> None:
    pairs = pn.problems.Heat(dimension=1).sample(12, resolution=32, seed=0, dtype=torch.float64)
    inputs = pn.problems.Heat(dimension=1).sample(7, resolution=32, seed=1, dtype=torch.float64).inputs
    linear = pn.heads.LastLayerLaplace(noise=1e-4).fit(pn.operators.LinearRegression.fitted(pairs), pairs)
    for predictor in (linear, scaled_by(2.0, linear)):
        selected = SELECTORS[name].select(predictor, inputs, count=4, seed=0, labelled=pairs.inputs)
        assert len(set(selected.tolist())) == 4


def test_real_heads_follow_the_dense_rules() -> None:
    pairs = pn.problems.Heat(dimension=1).sample(12, resolution=32, seed=0, dtype=torch.float64)
    inputs = pn.problems.Heat(dimension=1).sample(7, resolution=32, seed=1, dtype=torch.float64).inputs
    linear = pn.heads.LastLayerLaplace(noise=1e-4).fit(pn.operators.LinearRegression.fitted(pairs), pairs)
    for predictor in (linear, scaled_by(2.0, linear)):
        root = deviations(predictor(inputs))[:, 0]
        expected = root.square().sum((1, 2)).argsort(descending=True)[:4]
        assert torch.equal(SELECTORS["top k"].select(predictor, inputs, count=4, seed=0), expected)


class Held(Predictor):
    """The joint posterior of some functions, held as one tensor, whose latent does not depend on what is asked."""

    def __init__(self, inner: Predictor, inputs: Field) -> None:
        super().__init__(inner.traits)
        field = inner(inputs)
        self.inputs, self.means, self.root = inputs.values, field.mean, field.root.dense()  # type: ignore[attr-defined]
        self.effective_observations = inner.effective_observations

    def _predict(self, inputs: Field, query: Grid | None) -> GaussianField:
        index = [int((self.inputs == one).flatten(1).all(1).nonzero()[0]) for one in inputs.values]
        return GaussianField(self.means[index], DenseRoot(self.root[index]), latent="held", grid=inputs.grid)


def test_a_latent_that_belongs_to_one_call() -> None:
    pairs = pn.problems.Heat(dimension=1).sample(12, resolution=32, seed=0, dtype=torch.float64)
    inputs = pn.problems.Heat(dimension=1).sample(7, resolution=32, seed=1, dtype=torch.float64).inputs
    predictor = pn.heads.KernelOperator("linear", output_components=3, groups=1).fit(None, pairs)
    held = Held(predictor, inputs)
    for rule in PREDICTIVE.values():
        assert torch.equal(rule.select(held, inputs, count=3, seed=0), rule.select(predictor, inputs, count=3, seed=0))


# Each rule, plainly


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


def test_a_large_power_takes_the_largest_variances() -> None:
    expected = build_predictor()(pool()).variance / squared_scales(build_predictor(), pool())[:, None]
    assert chosen(SELECTORS["top k"], 6) == expected.mean(2).sum(1).argsort(descending=True)[:6].tolist()


def test_space_filling_is_farthest_point() -> None:
    labelled = pool(2, seed=5)
    points, known = pool().values, labelled.values
    for centres in ([], [0, 1]):
        taken = [known[index] for index in centres]
        expected: list[int] = []
        if not centres:
            expected.append(int((points - points.mean(0)).square().mean((1, 2)).argmin()))
            taken.append(points[expected[0]])
        while len(expected) < 6:
            distances = torch.stack([(points - one).square().mean((1, 2)) for one in taken]).amin(0)
            expected.append(int(distances.argmax()))
            taken.append(points[expected[-1]])
        assert chosen(SpaceFillingSelection(), 6, labelled=labelled if centres else None) == expected


def test_channels_of_inputs_count_alike() -> None:
    values = torch.cat([pool().values, pool(seed=2).values], dim=1)
    scaled = values * torch.tensor([1.0, 1e5], dtype=torch.float64)[:, None] + 3.0
    first, second = (
        SpaceFillingSelection().select(build_predictor(), Field(v, INPUT_GRID), count=6, seed=0) for v in (values, scaled)
    )
    assert torch.equal(first, second)


def squared_distances(labelled: Field | None) -> tuple[Tensor, Tensor]:
    """Posterior variances of differences, and squared norms, from all functions' joint root."""
    inputs = pool() if labelled is None else Field(torch.cat([pool().values, labelled.values]), INPUT_GRID)
    root = deviations(build_predictor()(inputs)) / squared_scales(build_predictor(), pool()).sqrt()[:, None, None]
    differences = (root[:, None] - root[None]).square().sum((2, 4)).mean(2)
    return differences, root.square().sum((1, 3)).mean(1)


@pytest.mark.parametrize("known", [0, 3])
def test_lcmd_is_the_naive_one(known: int) -> None:
    labelled = pool(known, seed=5) if known else None
    distances, norms = squared_distances(labelled)
    centres, expected = list(range(14, 14 + known)), []
    if not centres:
        expected.append(int(norms.argmax()))
        centres.append(expected[0])
    while len(expected) < 7:
        clusters: dict[int, list[int]] = {centre: [] for centre in centres}
        for index in range(14):
            clusters[min(centres, key=lambda centre: float(distances[index, centre]))].append(index)
        largest = max(clusters, key=lambda centre: sum(float(distances[i, centre]) for i in clusters[centre]))
        expected.append(max(clusters[largest], key=lambda i: float(distances[i, largest])))
        centres.append(expected[-1])
    assert chosen(LCMDSelection(), 7, labelled=labelled) == expected


def information(*, noise: float = 1e-2, output: Callable[[Tensor, Tensor, Grid], FieldDistribution] = feature_root) -> Tensor:
    """X_a^T X_a of every function, one observation of weight m_c / (16 noise) at each of 16 points."""
    root = deviations(build_predictor(output)(pool()))
    weights = torch.linspace(3.0, 5.0, 2, dtype=torch.float64) / (16 * noise)
    return torch.einsum("ncpk,ncpl,c->nkl", root, root, weights)


def trace(grams: Tensor, moment: Tensor, indices: list[int]) -> float:
    return float((torch.linalg.inv(torch.eye(len(moment), dtype=torch.float64) + grams[indices].sum(0)) @ moment).trace())


def greedy_trace(grams: Tensor, moment: Tensor, count: int) -> list[int]:
    expected: list[int] = []
    while len(expected) < count:
        rest = [index for index in range(14) if index not in expected]
        expected.append(min(rest, key=lambda index: trace(grams, moment, [*expected, index])))
    return expected


@pytest.mark.parametrize("at_once", [1, 16])
@pytest.mark.parametrize("noise", [1e-2, 1.0, 30.0])
@pytest.mark.parametrize("targets", [None, pool(5, seed=6)])
@pytest.mark.parametrize("output", [feature_root, members])
def test_integrated_variance_is_greedy_trace(
    output: Callable[[Tensor, Tensor, Grid], FieldDistribution],
    targets: Field | None,
    noise: float,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latent_selectors, "_AT_ONCE", at_once)
    predictor, grams = build_predictor(output), information(noise=noise, output=output)
    scales = squared_scales(predictor, pool()).sqrt()
    root = deviations(predictor(pool() if targets is None else targets)) / scales[:, None, None]
    moment = torch.einsum("ncpk,ncpl->kl", root, root)
    selected = IntegratedVarianceSelection(targets=targets, noise=noise).select(predictor, pool(), count=7, seed=0).tolist()
    assert selected == greedy_trace(grams, moment, 7)


def test_bounds_of_reductions_hold_and_are_met_by_uninformative_functions() -> None:
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 4, 6, generator=random, dtype=torch.float64) * torch.logspace(-4, 1, 30)[:, None, None]
    root, half = (torch.randn(6, 6, generator=random, dtype=torch.float64) for _ in range(2))
    bounds = latent_selectors._ReductionBounds.of(rows)(root, half)
    covariance, moment = root @ root.mT, half @ half.mT
    after = torch.linalg.inv(torch.linalg.inv(covariance) + rows.mT @ rows)
    reductions = ((covariance - after) * moment).sum((1, 2))
    assert bool((bounds >= reductions * (1 - 1e-6)).all())
    assert float(bounds[0] / reductions[0]) == pytest.approx(1.0, rel=1e-4)
    assert float(bounds[-1] / reductions[-1]) > 2.0


@pytest.mark.parametrize("count", [3, 5])
def test_bait_goes_forward_and_back(count: int) -> None:
    grams = information()
    moment = grams.mean(0)
    kept = greedy_trace(grams, moment, 2 * count)
    while len(kept) > count:
        kept.remove(min(kept, key=lambda index: trace(grams, moment, [other for other in kept if other != index])))
    selected = chosen(BAITSelection(), count)
    assert selected == kept
    forward = greedy_trace(grams, moment, count)
    assert trace(grams, moment, selected) <= trace(grams, moment, forward) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["LCMD", "BAIT", "integrated variance"])
def test_batches_are_more_varied_than_top_k(name: str) -> None:
    """Near-copies of the most uncertain function: top-k takes them all, a batch-aware rule one."""
    values = pool().values.clone()
    best = chosen(SELECTORS["top k"], 1)[0]
    crowd = torch.cat([values, values[best] * (1 + 1e-6 * torch.arange(1, 5, dtype=torch.float64))[:, None, None]])
    field, alike = Field(crowd, INPUT_GRID), {best, 14, 15, 16, 17}
    assert len(alike & set(SELECTORS["top k"].select(build_predictor(), field, count=5, seed=0).tolist())) == 5
    assert len(alike & set(SELECTORS[name].select(build_predictor(), field, count=5, seed=0).tolist())) <= 1


def test_a_sketch_finds_centres_that_are_nearly_as_good() -> None:
    inputs = pool(200, seed=7)
    exact = posterior_features(build_predictor(), inputs, seed=0).pool

    def reach(selected: Tensor) -> float:
        return float(torch.cdist(exact, exact[selected]).amin(1).max())

    rule = LCMDSelection(sketch=FeatureSketch(dimension=256, exact_entries=1))
    whole = reach(LCMDSelection().select(build_predictor(), inputs, count=8, seed=0))
    assert reach(rule.select(build_predictor(), inputs, count=8, seed=0)) < 1.3 * whole


# Designs


@pytest.mark.parametrize("kind", ["sobol", "latin_hypercube"])
@pytest.mark.parametrize(("count", "dimension"), [(1, 1), (7, 3), (64, 2)])
def test_designs_fill_the_cube(kind: str, count: int, dimension: int) -> None:
    from scipy.stats import qmc

    selected = space_filling_designs(count, dimension, seed=0, kind=kind)  # type: ignore[arg-type]
    assert selected.shape == (count, dimension)
    assert selected.dtype == torch.float64
    assert float(selected.min()) >= 0
    assert float(selected.max()) < 1
    assert torch.equal(selected, space_filling_designs(count, dimension, seed=0, kind=kind))  # type: ignore[arg-type]
    assert not torch.equal(selected, space_filling_designs(count, dimension, seed=1, kind=kind))  # type: ignore[arg-type]
    if count == 64:
        random = torch.rand(64, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert qmc.discrepancy(selected.numpy()) < 0.7 * qmc.discrepancy(random.numpy())
    slices = (selected * count).floor().sort(0).values
    if kind == "latin_hypercube" or math.log2(count).is_integer():
        assert torch.equal(slices, torch.arange(count, dtype=torch.float64)[:, None].expand(-1, dimension))


# Errors


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize(("count", "labelled"), [(15, 0), (13, 2), (0, 0), (-1, 0)])
def test_counts_that_cannot_be_met(name: str, count: int, labelled: int) -> None:
    known = pool()[:labelled] if labelled else None
    with pytest.raises(ArgumentError, match=f"from 1 to {14 - labelled} as count.*draw a larger pool"):
        SELECTORS[name].select(build_predictor(), pool(), count=count, seed=0, labelled=known)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("count", [2.0, "3", None, True])
def test_counts_are_integers(name: str, count: object) -> None:
    with pytest.raises(ArgumentError, match="an integer from 1 to 14 as count"):
        SELECTORS[name].select(build_predictor(), pool(), count=count, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SELECTORS)
def test_pools_with_nothing_to_choose(name: str) -> None:
    with pytest.raises(DataError, match="the pool is empty"):
        SELECTORS[name].select(build_predictor(), pool()[:0], count=1, seed=0)
    with pytest.raises(DataError, match="the pool is fully labelled"):
        SELECTORS[name].select(build_predictor(), pool(), count=1, seed=0, labelled=pool())


@pytest.mark.bad_input
@pytest.mark.parametrize("name", PREDICTIVE)
def test_predictors_and_queries_are_checked(name: str) -> None:
    with pytest.raises(DataError, match="a Predictor as predictor"):
        SELECTORS[name].select(None, pool(), count=2, seed=0)  # type: ignore[arg-type]
    with pytest.raises(GridError, match="a Grid as query"):
        SELECTORS[name].select(build_predictor(), pool(), count=2, seed=0, query=(16,))  # type: ignore[arg-type]


@pytest.mark.bad_input
def test_pools_that_are_no_fields() -> None:
    with pytest.raises(DataError, match="a Field as pool"):
        RandomSelection().select(build_predictor(), pool().values, count=2, seed=0)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="a Field as labelled"):
        RandomSelection().select(build_predictor(), pool(), count=2, seed=0, labelled=pool().values)  # type: ignore[arg-type]


def test_functions_that_are_not_finite_or_do_not_fit() -> None:
    broken = pool().values.clone()
    broken[2, 0, 3] = torch.nan
    with pytest.raises(DataError, match="finite pool functions"):
        RandomSelection().select(build_predictor(), Field(broken, INPUT_GRID), count=2, seed=0)
    with pytest.raises(DataError, match="finite labelled functions"):
        RandomSelection().select(build_predictor(), pool(), count=2, seed=0, labelled=Field(broken, INPUT_GRID))
    with pytest.raises(ShapeError, match="labelled functions of 1 channels"):
        RandomSelection().select(
            build_predictor(), pool(), count=2, seed=0, labelled=Field(broken.expand(-1, 2, -1).nan_to_num(), INPUT_GRID)
        )


@pytest.mark.parametrize("name", PREDICTIVE)
def test_variances_that_are_not_finite(name: str) -> None:
    def broken(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        return GaussianField(mean, FeatureRoot(features, torch.full((1, 2, 9, 3), torch.nan).double()), latent="xi", grid=grid)

    with pytest.raises(DataError, match="finite"):
        PREDICTIVE[name].select(build_predictor(broken), pool(), count=2, seed=0)


@pytest.mark.parametrize("power", [-1.0, math.nan, math.inf])
def test_powers_that_make_no_sense(power: float) -> None:
    with pytest.raises(ArgumentError, match="at least 0 as power"):
        StochasticSelection(power=power)


LATENT = ("BAIT", "integrated variance")


@pytest.mark.bad_input
@pytest.mark.parametrize("name", LATENT)
@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf, "1", True, torch.tensor([1.0, 0.0])])
def test_noise_is_positive(name: str, noise: object) -> None:
    with pytest.raises(ArgumentError, match="noise > 0|noise as real numbers"):
        type(SELECTORS[name])(noise=noise)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", LATENT)
def test_each_channel_may_have_its_noise(name: str) -> None:
    predictor, noise = build_predictor(), torch.tensor([1e-3, 10.0])
    selected = type(SELECTORS[name])(noise=noise).select(predictor, pool(), count=5, seed=0)  # type: ignore[call-arg]
    assert torch.equal(selected, SELECTORS[name].select(build_predictor(noise=noise), pool(), count=5, seed=0))
    with pytest.raises(ShapeError, match="noise variance for each of 2 channels"):
        type(SELECTORS[name])(noise=torch.ones(3)).select(predictor, pool(), count=5, seed=0)  # type: ignore[call-arg]


@pytest.mark.bad_input
def test_targets_are_a_field() -> None:
    with pytest.raises(DataError, match="targets to be a Field"):
        IntegratedVarianceSelection(targets=pool().values)  # type: ignore[arg-type]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("count", "dimension", "kind"),
    [(0, 2, "sobol"), (2, 0, "sobol"), (2, 2, "halton"), (4, 30000, "sobol"), (4.0, 2, "sobol"), (True, 2, "latin_hypercube")],
)
def test_designs_that_do_not_exist(count: int, dimension: int, kind: str) -> None:
    with pytest.raises(ArgumentError, match="an integer|kind among"):
        space_filling_designs(count, dimension, seed=0, kind=kind)  # type: ignore[arg-type]
