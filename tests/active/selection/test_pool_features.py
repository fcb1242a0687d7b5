"""Features and rows of a pool, against dense covariances of the whole pool at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.active.information.observation import observation_weights, whitened_rows
from probneural.active.selection import pool_features
from probneural.active.selection.pool_features import FeatureSketch, integrated_variances, observation_rows, posterior_features
from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField, Predictor
from probneural.errors import ArgumentError, DataError, GridError, LatentError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from tests.active.predictors import (
    INPUT_GRID,
    KINDS,
    FeaturePredictor,
    certain,
    encode,
    feature_root,
    members,
    weighted_members,
)
from tests.calibration.synthetic import scaled_by

FINE = Grid.uniform((48,))
UNEVEN = Grid.scattered([[0.1], [0.15], [0.4], [0.8]], [0.05, 0.2, 0.3, 0.45])
HEAT = pn.problems.Heat(dimension=1)
PAIRS = HEAT.sample(16, resolution=64, seed=0, dtype=torch.float64)
BURGERS = pn.problems.Burgers().sample(5, resolution=64, seed=0)


def pool(count: int = 12, *, seed: int = 1) -> Field:
    return encode(torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def deviations(field: FieldDistribution) -> Tensor:
    """The joint root of all functions, `(n, c, p, k)`, formed at once."""
    if isinstance(field, GaussianField):
        return field.root.dense().double()
    assert isinstance(field, EmpiricalField)
    root = field.moment_matched().root
    return root.dense().double()


def squared_scales(predictor: Predictor, inputs: Field, *, query: Grid | None = None) -> Tensor:
    """Variance of each output channel over functions, domain and posterior, from all values at once."""
    field, where = predictor(inputs, query), query or inputs.grid
    share = where.weights / where.volume / len(inputs)
    mean = field.mean.double().flatten(2)
    centre = torch.einsum("ncp,p->c", mean, share)
    return torch.einsum("ncp,p->c", (mean - centre[:, None]).square() + field.variance.double().flatten(2), share)


def dense_gram(predictor: Predictor, inputs: Field, *, query: Grid | None = None, scaled_over: int | None = None) -> Tensor:
    """Covariances of whole functions, by the covariance of all values of all functions."""
    field, where = predictor(inputs, query), query or inputs.grid
    root = deviations(field)
    n, c, p, _ = root.shape
    size = squared_scales(predictor, inputs[:scaled_over], query=query)
    covariance = (root.flatten(0, 2) @ root.flatten(0, 2).mT).reshape(n, c, p, n, c, p)
    return torch.einsum("acpbcp,c,p->ab", covariance, 1 / size, where.weights / where.volume)


def small_operator() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return pn.operators.FNO(in_channels=1, out_channels=1, modes=(4,), width=3, depth=1)


def real_heads() -> dict[str, tuple[Predictor, Field]]:
    linear = pn.heads.LastLayerLaplace(noise=1e-4).fit(pn.operators.LinearRegression.fitted(PAIRS), PAIRS)
    laplace = pn.heads.Laplace(pn.heads.LowRank(rank=5), noise=1e-2, prior_precision=1.0).fit(small_operator(), BURGERS)
    other = HEAT.sample(6, resolution=64, seed=1, dtype=torch.float64).inputs
    return {
        "last layer": (linear, other),
        "scaled": (scaled_by(3.0, linear), other),
        "kernel": (pn.heads.KernelOperator("linear", output_components=5, groups=1).fit(None, PAIRS), other),
        "low rank": (laplace, BURGERS.inputs[:4]),
    }


HEADS = ("last layer", "scaled", "kernel", "low rank")


@pytest.fixture(scope="module")
def fitted() -> dict[str, tuple[Predictor, Field]]:
    return real_heads()


@pytest.mark.parametrize("kind", [*KINDS, "weighted members"])
@pytest.mark.parametrize("query", [None, FINE, UNEVEN])
def test_inner_products_are_covariances_of_functions(kind: str, query: Grid | None) -> None:
    predictor = FeaturePredictor({**KINDS, "weighted members": weighted_members}[kind], out_channels=2)
    features = posterior_features(predictor, pool(), seed=0, labelled=pool(3, seed=2), query=query)
    both = torch.cat([features.pool, features.labelled])
    inputs = Field(torch.cat([pool().values, pool(3, seed=2).values]), INPUT_GRID)
    expected = dense_gram(predictor, inputs, query=query, scaled_over=12)
    assert features.is_exact
    torch.testing.assert_close(both @ both.mT, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", HEADS)
def test_inner_products_of_real_heads(name: str, fitted: dict[str, tuple[Predictor, Field]]) -> None:
    predictor, inputs = fitted[name]
    sketch = FeatureSketch(exact_entries=2**26)  # the low-rank posterior has as many latent directions as the operator weights
    features = posterior_features(
        predictor, inputs[:4], seed=0, labelled=inputs[4:] if len(inputs) > 4 else None, sketch=sketch
    )
    both = torch.cat([features.pool, features.labelled])
    expected = dense_gram(predictor, inputs, scaled_over=4)
    single = predictor.dtype == torch.float32
    torch.testing.assert_close(both @ both.mT, expected, rtol=2e-4 if single else 1e-8, atol=float(expected.max()) * 1e-6)


@pytest.mark.parametrize("name", HEADS)
def test_real_roots_are_never_formed(
    name: str, fitted: dict[str, tuple[Predictor, Field]], monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, inputs = fitted[name]
    root = predictor(inputs).root
    monkeypatch.setattr(type(root), "dense", lambda _: pytest.fail("formed"))
    sketch = FeatureSketch(latents=8, dimension=64, exact_entries=1)
    features = posterior_features(predictor, inputs, seed=0, sketch=sketch)
    assert features.pool.shape == (len(inputs), 64)
    assert not features.is_exact
    rows = observation_rows(predictor, inputs, seed=0, sketch=sketch)
    assert rows.rows.shape[2] <= 8
    assert torch.isfinite(features.pool).all()


@pytest.mark.parametrize("kind", KINDS)
def test_variances_are_the_diagonal(kind: str) -> None:
    predictor = FeaturePredictor(KINDS[kind], out_channels=2)
    variances = integrated_variances(predictor, pool(), query=UNEVEN)
    torch.testing.assert_close(variances, dense_gram(predictor, pool(), query=UNEVEN).diagonal(), rtol=1e-10, atol=0.0)


def test_runs_of_functions_join(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = FeaturePredictor(feature_root, out_channels=2)
    whole = (
        posterior_features(predictor, pool(), seed=0).pool,
        observation_rows(predictor, pool(), seed=0, targets=pool(5, seed=4)),
    )
    scores = integrated_variances(predictor, pool())
    monkeypatch.setattr(pool_features, "_CHUNK_VALUES", 3 * 32)  # three functions of two channels and 16 points
    torch.testing.assert_close(posterior_features(predictor, pool(), seed=0).pool, whole[0], rtol=1e-12, atol=1e-14)
    parts = observation_rows(predictor, pool(), seed=0, targets=pool(5, seed=4))
    torch.testing.assert_close(parts.rows.mT @ parts.rows, whole[1].rows.mT @ whole[1].rows, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(parts.moment, whole[1].moment, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(integrated_variances(predictor, pool()), scores, rtol=1e-12, atol=0.0)


def test_labelled_functions_may_live_on_another_grid() -> None:
    predictor, labelled = FeaturePredictor(feature_root), pool(3, seed=2)
    expected = posterior_features(predictor, pool(), seed=0, labelled=labelled).labelled
    moved = posterior_features(predictor, pool(), seed=0, labelled=labelled.resample(FINE)).labelled
    torch.testing.assert_close(moved, expected, rtol=1e-10, atol=1e-12)


def test_the_grid_does_not_matter() -> None:
    grams = []
    for points in (64, 128):
        features = posterior_features(FeaturePredictor(feature_root), pool().resample(Grid.uniform((points,))), seed=0).pool
        grams.append(features @ features.mT)
    torch.testing.assert_close(grams[0], grams[1], rtol=1e-9, atol=1e-12)


def test_sketch_is_unbiased_with_the_stated_error() -> None:
    predictor, dimension = FeaturePredictor(feature_root, out_channels=2), 32
    exact = posterior_features(predictor, pool(), seed=0).pool
    pairs = torch.combinations(torch.arange(12))
    truth = (exact[pairs[:, 0]] - exact[pairs[:, 1]]).square().sum(1)
    ratios, sketch = [], FeatureSketch(dimension=dimension, exact_entries=1)
    for seed in range(60):
        features = posterior_features(predictor, pool(), seed=seed, sketch=sketch).pool
        assert features.shape == (12, dimension)
        ratios.append((features[pairs[:, 0]] - features[pairs[:, 1]]).square().sum(1) / truth)
    errors = torch.stack(ratios) - 1.0
    stated = (2 / dimension) ** 0.5
    assert float(errors.mean(0).abs().max()) < 4.5 * stated / 60**0.5
    assert 0.3 * stated < float(errors.square().mean().sqrt()) < 1.1 * stated


@pytest.mark.parametrize("output", [feature_root, members])
def test_fewer_latent_directions_are_right_on_average(output: object) -> None:
    predictor = FeaturePredictor(output, out_channels=2)  # type: ignore[arg-type]
    exact = posterior_features(predictor, pool(), seed=0).pool
    sketch = FeatureSketch(latents=4, dimension=10**6, exact_entries=1)
    grams = []
    for seed in range(80):
        features = posterior_features(predictor, pool(), seed=seed, sketch=sketch)
        assert not features.is_exact
        grams.append(features.pool @ features.pool.mT)
    stacked, truth = torch.stack(grams), exact @ exact.mT
    error = stacked.std(0) / 80**0.5
    assert float(((stacked.mean(0) - truth).abs() / error).max()) < 5.0


def test_neighbouring_seeds_share_no_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every channel of every seed sorts and signs by numbers of its own, and so does the frame of the latent."""
    predictor, sketch = FeaturePredictor(feature_root, out_channels=2), FeatureSketch(dimension=8, latents=3, exact_entries=1)
    made = pool_features._Sketch
    maps: list[pool_features._Sketch] = []
    monkeypatch.setattr(pool_features, "_Sketch", lambda *given, **named: maps.append(made(*given, **named)) or maps[-1])
    for seed in range(3):
        posterior_features(predictor, pool(), seed=seed, sketch=sketch)
    assert len({tuple(one.order.tolist()) for one in maps}) == len(maps) == 6


def test_the_seed_decides_the_sketch() -> None:
    predictor, sketch = FeaturePredictor(feature_root), FeatureSketch(dimension=8, latents=3, exact_entries=1)
    first, again, other = (posterior_features(predictor, pool(), seed=seed, sketch=sketch).pool for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("points", [4, 16])  # fewer values than latent directions, and more
def test_rows_hold_all_that_observing_a_function_says(points: int) -> None:
    predictor = FeaturePredictor(feature_root)
    grid = Grid.uniform((points,))
    observed = observation_rows(predictor, pool(), seed=0, query=grid)
    field = predictor(pool(), grid)
    assert isinstance(field, GaussianField)
    rows = whitened_rows(field, observation_weights(predictor, grid))
    torch.testing.assert_close(observed.rows.mT @ observed.rows, rows.mT @ rows, rtol=1e-10, atol=1e-9)
    assert observed.rows.shape[1] <= min(points, 7)
    assert observed.is_exact


def test_rows_of_singular_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four functions say less than there are latent directions, and one says nothing: no Cholesky factor without a rescue."""
    random = torch.Generator().manual_seed(0)
    sizes = torch.tensor([1.0, 1e8, 1e-12, 0.0])[:, None, None]
    some = torch.randn(4, 3, 7, generator=random, dtype=torch.float64) * sizes
    for functions in (slice(0, 3), slice(0, 4)):
        grams = (some.mT @ some)[functions]
        scale = grams.diagonal(dim1=1, dim2=2).sum(1).clamp_min(1e-300)[:, None, None]
        found = pool_features._factors(grams, 7)
        torch.testing.assert_close((found.mT @ found) / scale, grams / scale, rtol=0.0, atol=1e-13)
    monkeypatch.setattr(torch.linalg, "eigh", lambda _: pytest.fail("not needed where there is a factor"))
    pool_features._factors((some.mT @ some)[:3], 7)


def test_moment_is_the_integrated_variance() -> None:
    predictor, targets = FeaturePredictor(feature_root, out_channels=2), pool(5, seed=4)
    for chosen, inputs in ((None, pool()), (targets, targets)):
        observed = observation_rows(predictor, pool(), seed=0, targets=chosen)
        root = deviations(predictor(inputs))
        size = squared_scales(predictor, pool())
        expected = torch.einsum("ncpk,ncpl,c->kl", root, root, 1 / size) / (INPUT_GRID.size * len(inputs))
        torch.testing.assert_close(observed.moment, expected, rtol=1e-10, atol=1e-14)


def test_beyond_the_limit_the_most_informative_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = FeaturePredictor(feature_root)
    whole = observation_rows(predictor, pool(), seed=0).rows
    monkeypatch.setattr(pool_features, "_ROW_ENTRIES", 2 * 12 * 7)
    observed = observation_rows(predictor, pool(), seed=0)
    kept = observed.rows
    assert kept.shape == (12, 2, 7)
    assert not observed.is_exact
    largest = torch.linalg.svdvals(whole)[:, :2]
    torch.testing.assert_close(torch.linalg.svdvals(kept), largest, rtol=1e-9, atol=1e-9)


def test_members_count_as_the_gaussian_of_their_moments() -> None:
    observed = observation_rows(FeaturePredictor(members), pool(), seed=0)
    field = FeaturePredictor(members)(pool())
    assert isinstance(field, EmpiricalField)
    rows = whitened_rows(field.moment_matched(), observation_weights(FeaturePredictor(members), INPUT_GRID))
    torch.testing.assert_close(observed.rows.mT @ observed.rows, rows.mT @ rows, rtol=1e-9, atol=1e-9)


def test_without_any_variance_there_is_nothing_to_tell() -> None:
    features = posterior_features(FeaturePredictor(certain), pool(), seed=0)
    assert not features.pool.any()
    assert not integrated_variances(FeaturePredictor(certain), pool()).any()
    assert not observation_rows(FeaturePredictor(certain), pool(), seed=0).rows.any()


def shifted(offset: float, *, factor: float = 1.0) -> FeaturePredictor:
    """The second channel has another zero point, and another unit."""
    units = torch.tensor([1.0, factor], dtype=torch.float64)

    def output(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        field = feature_root(features, mean, grid)
        zero = torch.tensor([0.0, offset], dtype=torch.float64)
        return GaussianField(mean * units[:, None] + zero[:, None], field.root.scale(units), latent="weights", grid=grid)

    return FeaturePredictor(output, out_channels=2)


@pytest.mark.parametrize("offset", [273.15, -1e6])
def test_zero_points_do_not_matter(offset: float) -> None:
    first, second = shifted(0.0), shifted(offset, factor=1.8)
    torch.testing.assert_close(integrated_variances(second, pool()), integrated_variances(first, pool()), rtol=1e-9, atol=0.0)
    features = [posterior_features(predictor, pool(), seed=0).pool for predictor in (first, second)]
    torch.testing.assert_close(features[1], features[0], rtol=1e-9, atol=1e-12)
    moments = [observation_rows(predictor, pool(), seed=0).moment for predictor in (first, second)]
    torch.testing.assert_close(moments[1], moments[0], rtol=1e-9, atol=1e-12)


def test_a_tiny_mean_does_not_make_a_score_explode() -> None:
    def tiny(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        return feature_root(features, mean * torch.tensor([1.0, 1e-12], dtype=torch.float64)[:, None], grid)

    assert float(integrated_variances(FeaturePredictor(tiny, out_channels=2), pool()).mean()) <= 2.0


def test_channels_without_mean_count_by_their_spread() -> None:
    def centred(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        return feature_root(features, torch.zeros_like(mean), grid)

    variances = integrated_variances(FeaturePredictor(centred, out_channels=2), pool())
    torch.testing.assert_close(variances.mean(), torch.tensor(2.0, dtype=torch.float64))


def test_a_latent_that_changes_without_reason_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["one", "one", "one", "another"])

    def fickle(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        return GaussianField(mean, feature_root(features, mean, grid).root, latent=next(names), grid=grid)

    monkeypatch.setattr(pool_features, "_CHUNK_VALUES", 4 * 16)
    with pytest.raises(LatentError, match="driven by one latent.*StochasticSelection"):
        posterior_features(FeaturePredictor(fickle), pool(), seed=0)


@pytest.mark.bad_input
def test_other_fields_are_refused() -> None:
    class Other(FieldDistribution):
        grid = INPUT_GRID
        mean = variance = torch.zeros(1, 1, 16)
        base_shape = torch.Size()

        def rsample(self, sample_shape=(), *, seed=None, base_samples=None):
            raise NotImplementedError

        def apply(self, functional):
            raise NotImplementedError

        def scale(self, factors):
            raise NotImplementedError

        def __getitem__(self, index):
            raise NotImplementedError

    with pytest.raises(UnsupportedError, match="Gaussian or empirical fields; got Other"):
        posterior_features(FeaturePredictor(lambda *_: Other()), pool(), seed=0)


@pytest.mark.parametrize("what", ["mean", "root"])
def test_predictions_that_are_not_finite(what: str) -> None:
    def broken(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        matrix = torch.ones(*mean.shape, 2).to(mean)
        (mean if what == "mean" else matrix)[0, 0, 0] = torch.nan
        return GaussianField(mean, DenseRoot(matrix), latent="xi", grid=grid)

    for function in (integrated_variances, posterior_features, observation_rows):
        with pytest.raises(DataError, match="finite predicted means" if what == "mean" else "finite (posterior|predicted)"):
            function(FeaturePredictor(broken), pool(), **({} if function is integrated_variances else {"seed": 0}))


def test_further_functions_fit_the_pool() -> None:
    wide = Field(pool().values.expand(-1, 2, -1), INPUT_GRID)
    with pytest.raises(ShapeError, match="further functions of 1 channels"):
        posterior_features(FeaturePredictor(feature_root), pool(), seed=0, labelled=wide)
    with pytest.raises(ShapeError, match="further functions of 1 channels"):
        observation_rows(FeaturePredictor(feature_root), pool(), seed=0, targets=wide)
    with pytest.raises(DataError, match="at least one target"):
        observation_rows(FeaturePredictor(feature_root), pool(), seed=0, targets=pool()[:0])


@pytest.mark.bad_input
@pytest.mark.parametrize("function", [integrated_variances, posterior_features, observation_rows])
def test_arguments_of_the_wrong_kind(function: object) -> None:
    predictor, seed = FeaturePredictor(feature_root), {} if function is integrated_variances else {"seed": 0}
    with pytest.raises(DataError, match="the pool is empty"):
        function(predictor, pool()[:0], **seed)  # type: ignore[operator]
    with pytest.raises(DataError, match="a Field as pool"):
        function(predictor, pool().values, **seed)  # type: ignore[operator]
    with pytest.raises(DataError, match="a Predictor as predictor; got str"):
        function("head", pool(), **seed)  # type: ignore[operator]
    with pytest.raises(GridError, match="a Grid as query"):
        function(predictor, pool(), query=(16,), **seed)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["dimension", "latents", "exact_entries"])
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"an integer of at least 1 as {name}"):
        FeatureSketch(**{name: 0})
