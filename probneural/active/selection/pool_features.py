"""Posterior features of the samples of a pool, a few samples at a time.

Two views of u(a) = mean(a) + L(a) xi. In function space, features whose inner products are the posterior covariances of whole
functions. In latent space, rows that say what observing a function would teach about xi.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.active.information.observation import observation_weights
from probneural.checks import assign, check_finite, check_instance, check_integer
from probneural.contexts import undisturbed
from probneural.distributions import EmpiricalField, FieldDistribution, GaussianField, Predictor
from probneural.errors import ArgumentError, DataError, LatentError, ShapeError, UnsupportedError
from probneural.fields import Field, check_field
from probneural.grids import Grid, check_grid
from probneural.linear_algebra.principal_components import eigenpairs
from probneural.randomness import check_seed, stream

_CHUNK_VALUES = 2**16
"""Output values predicted at once; heads keep up to some hundred numbers for each."""
_CHUNK_COLUMNS = 2**21
"""Entries of roots held at once, in float64 (16 MiB, and a few times that while they are formed)."""
_FRAME_ENTRIES = 2**25
"""Entries of a frame of latent vectors (256 MiB): latents longer than 2^18 get fewer than 128 of them."""
_ROW_ENTRIES = 2**25
"""Entries of the latent rows of a pool (256 MiB)."""
_ROUNDING = torch.finfo(torch.float64).eps
"""Of products, as a fraction of a Gram matrix's trace and for each of its rows."""
_NEGLIGIBLE = 1e-9
"""Information about a function, in nats, that may be left out."""


@dataclass(frozen=True, kw_only=True)
class FeatureSketch:
    """How posterior features are made small enough to keep.

    They are exact while `n * c * p * k`, or `n * c * p` members, is at most `exact_entries`. Beyond it, latents of more than
    `latents` dimensions are replaced by so many random orthonormal directions, scaled to keep covariances unbiased, and the
    values are added up with random signs in `dimension` random groups (a count sketch with groups of equal size). Squared
    distances then have a relative standard error of at most sqrt(2 / dimension), 6 % by default, and where directions were
    left out another sqrt(2 / (latents * r)), with r the participation ratio of the posterior over the functions.

    Args:
        dimension: Length of sketched features.
        latents: Latent directions that are followed, members of an ensemble included.
        exact_entries: Largest number of entries of exact features for the whole pool, 8 bytes each.

    Raises:
        ArgumentError: If a number is not positive.

    Reference:
        Charikar, Chen and Farach-Colton (2002), Finding frequent items in data streams. Deviation: groups of equal size.
    """

    dimension: int = 512
    latents: int = 128
    exact_entries: int = 2**24

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("dimension", "latents", "exact_entries"):
            assign(self, **{name: check_integer(getattr(self, name), name)})


def check_sketch(sketch: object) -> FeatureSketch:
    """Return a sketch, or raise an ArgumentError."""
    return check_instance(sketch, FeatureSketch, "sketch", remedy="FeatureSketch(dimension=512)", error=ArgumentError)


DEFAULT_SKETCH = FeatureSketch()
"""The limits that selectors have by default."""


@dataclass(frozen=True, eq=False)
class PoolFeatures:
    """Features phi whose inner products are the posterior's covariances of whole functions.

    phi(a) . phi(a') = sum over c of (1/|D|) integral Cov(u_c(a, x), u_c(a', x)) dx / scale_c², with the scales of
    [`integrated_variances`][probneural.active.selection.pool_features.integrated_variances].

    Args:
        pool: `(n, d)`, dimensionless, on the CPU.
        labelled: `(m, d)`, the same of functions whose outputs are known.
        is_exact: Whether nothing was sketched.
    """

    pool: Float64[Tensor, "n d"]
    labelled: Float64[Tensor, "m d"]
    _: KW_ONLY
    is_exact: bool


@dataclass(frozen=True, eq=False)
class PoolRows:
    """What observing each function of a pool would teach about the latent, xi ~ N(0, I_k).

    Args:
        rows: `(n, r, k)`, with rows^T rows = sum over c, p of w_cp L_cp L_cp^T; dimensionless, on the CPU.
        moment: `(k, k)`, the average over target functions of L^T L, averaged over the domain and summed over channels in
            units of their variation over the pool: the integrated variance is tr(moment Cov(xi)).
        is_exact: Whether all latent directions were followed and no informative row was left out.
    """

    rows: Float64[Tensor, "n r k"]
    moment: Float64[Tensor, "k k"]
    _: KW_ONLY
    is_exact: bool


@dataclass(frozen=True, eq=False)
class _Run:
    """Means `(n, c, p)` and root columns `(n, c, p, s)` of a run of functions, float64 on the CPU."""

    index: slice
    mean: Tensor
    columns: Tensor


@undisturbed()
def integrated_variances(predictor: Predictor, pool: Field, *, query: Grid | None = None) -> Float64[Tensor, " n"]:
    """Variance of each predicted function, averaged over the domain and summed over channels in units of their variation.

    sum over c of (1/|D|) integral Var u_c(a, x) dx / scale_c², with scale_c² the channel's variance over the pool and the
    domain: the mean square deviation of the predicted means from their average, and the average posterior variance. Neither
    unit nor zero point of a channel matters, and no channel adds more than one to the pool's average. A channel that is
    constant and certain adds nothing.

    Args:
        predictor: Any predictor.
        pool: Input functions.
        query: Where predictions are evaluated; the pool's grid by default.

    Returns:
        `(n,)`, dimensionless, on the CPU.

    Raises:
        DataError: If `predictor` is no predictor, the pool empty or no Field, or a mean or a variance not finite.
        GridError: If `query` is no grid.
    """
    _check_arguments(predictor, pool, query)
    where = pool.grid if query is None else query
    mean_weights = where.mean_weights
    step = max(1, _CHUNK_VALUES // (predictor.out_channels * where.size))
    variances = torch.empty(len(pool), predictor.out_channels, dtype=torch.float64)  # filled in place: see `_Stream`
    moments = _Moments(len(pool), predictor.out_channels)
    for start in range(0, len(pool), step):
        index = slice(start, start + step)
        field = predictor(Field(pool.values[index].detach(), pool.grid), query)
        variances[index] = _checked(field.variance.flatten(2), "predicted variances") @ mean_weights
        moments.add(index, _checked(field.mean.flatten(2), "predicted means"), mean_weights)
    return (variances / moments.squared_scales(variances)).sum(1)


@undisturbed()
def posterior_features(
    predictor: Predictor,
    pool: Field,
    *,
    seed: int,
    labelled: Field | None = None,
    query: Grid | None = None,
    sketch: FeatureSketch = DEFAULT_SKETCH,
) -> PoolFeatures:
    """Features of the functions of a pool, and of labelled ones, in function space.

    The pool is streamed: beside the features, at most some hundred MiB are held, and what the predictor needs for a part of
    the pool. A predictor whose latent belongs to one call (a Gaussian process on principal coefficients) is asked for all
    functions in one call, and needs a matrix of their number squared.

    Args:
        predictor: A predictor of Gaussian or empirical fields.
        pool: Input functions.
        seed: Of the sketch.
        labelled: Further input functions; they are moved to the pool's grid.
        query: Where predictions are evaluated; the pool's grid by default. A coarser grid costs less.
        sketch: Limits.

    Raises:
        DataError: If `predictor` is no predictor, the pool empty or no Field, or a prediction not finite.
        GridError: If `query` is no grid.
        ShapeError: If labelled functions do not have the pool's channels.
        LatentError: If two calls of the predictor do not share their latent, though it is said to last.
        UnsupportedError: If the field is neither Gaussian nor empirical.
    """
    check_sketch(sketch)
    seed = check_seed(seed)
    _check_arguments(predictor, pool, query)
    inputs = pool if labelled is None else _joined(pool, labelled)
    where = pool.grid if query is None else query
    runs = _Stream(predictor, inputs, query, seed=seed, limits=sketch)
    mean_weights = where.mean_weights.sqrt()[:, None]
    exact = len(inputs) * predictor.out_channels * where.size * runs.rank <= sketch.exact_entries
    maps = [
        None if exact else _Sketch(where.size * runs.rank, sketch.dimension, generator=stream(seed, "feature sketch", channel))
        for channel in range(predictor.out_channels)
    ]
    length = where.size * runs.rank if exact else min(sketch.dimension, where.size * runs.rank)
    features = torch.empty(len(inputs), predictor.out_channels, length, dtype=torch.float64)
    variances = torch.empty(len(inputs), predictor.out_channels, dtype=torch.float64)
    means = _Moments(len(inputs), predictor.out_channels)
    for run in runs:
        for channel, one in enumerate(maps):
            weighted = (run.columns[:, channel] * mean_weights).flatten(1)
            features[run.index, channel] = weighted if one is None else one(weighted)
            variances[run.index, channel] = weighted.square().sum(1)
        means.add(run.index, run.mean, mean_weights[:, 0].square())
    count = len(pool)
    scaled = features.div_(means.squared_scales(variances[:count]).sqrt()[:, None])
    flat = scaled.flatten(1) if exact else scaled.sum(1)
    return PoolFeatures(flat[:count], flat[count:], is_exact=exact and runs.is_exact)


@undisturbed()
def observation_rows(
    predictor: Predictor,
    pool: Field,
    *,
    seed: int,
    targets: Field | None = None,
    query: Grid | None = None,
    noise: float | Float[Tensor, " c"] | None = None,
    sketch: FeatureSketch = DEFAULT_SKETCH,
) -> PoolRows:
    """Rows of the functions of a pool in latent space, and the moment of target functions.

    The many values of a function are replaced by the few directions in which they inform the latent, an orthogonal change of
    its data that keeps all information. Beyond 2^25 entries for the pool (4,000 functions, k = 128 and 65 directions each)
    the least informative directions are left out.

    Args:
        predictor: A predictor of Gaussian fields; an empirical field counts as the Gaussian of its moments.
        pool: Input functions.
        seed: Of the sketch.
        targets: Input functions at which the posterior is to become narrow; the pool by default.
        query: Where functions are observed; the pool's grid by default.
        noise: Observation variance, one or one per channel, in physical units squared; the predictor's by default.
        sketch: `latents` and `exact_entries` are used.

    Raises:
        ArgumentError: If the noise is not positive.
        DataError: If `predictor` is no predictor, the pool empty or no Field, a prediction not finite, or there is no target.
        GridError: If `query` is no grid.
        ShapeError: If the targets do not have the pool's channels, or there is not one noise per channel.
        LatentError: If two calls of the predictor do not share their latent, though it is said to last.
        UnsupportedError: If the field is neither Gaussian nor empirical.
    """
    _check_arguments(predictor, pool, query)
    where = pool.grid if query is None else query
    check_sketch(sketch)
    seed = check_seed(seed)
    if targets is not None and not len(check_field(targets, "targets")):
        raise DataError(expected="at least one target function", got="none", remedy="leave targets out for the pool")
    precision = observation_weights(predictor, where, noise=noise).sum(1)
    mean_weights = where.mean_weights.sqrt()[:, None]
    inputs, count = pool if targets is None else _joined(pool, targets), len(pool)
    runs = _Stream(predictor, inputs, query, seed=seed, limits=sketch)
    informative = min(runs.rank, predictor.out_channels * where.size)
    most = min(informative, max(1, _ROW_ENTRIES // (count * runs.rank)))
    rows = torch.empty(count, most, runs.rank, dtype=torch.float64)
    variances = torch.empty(len(inputs), predictor.out_channels, dtype=torch.float64)
    means = _Moments(len(inputs), predictor.out_channels)
    moments = torch.zeros(predictor.out_channels, runs.rank, runs.rank, dtype=torch.float64)
    for run in runs:
        observed = max(0, min(len(run.mean), count - run.index.start))
        weighted = run.columns * mean_weights
        first_target = 0 if targets is None else observed
        if runs.rank <= informative:  # then Gram matrices say all that is asked of a function
            grams = weighted.mT @ weighted
            moments += grams[first_target:].sum(0)
            variances[run.index] = grams.diagonal(dim1=-2, dim2=-1).sum(-1)
            few = _factors(torch.einsum("nckl,c->nkl", grams[:observed], precision), most)
        else:
            aims = weighted[first_target:].transpose(0, 1).flatten(1, 2)
            moments += aims.mT @ aims
            variances[run.index] = weighted.square().sum((2, 3))
            whitened = (weighted[:observed] * precision.sqrt()[:, None, None]).flatten(1, 2)
            few = eigenpairs(whitened @ whitened.mT)[1].flip(2)[:, :, :most].mT @ whitened
        rows[run.index.start : run.index.start + observed] = few
        means.add(run.index, run.mean, mean_weights[:, 0].square())
    squared_scales = means.squared_scales(variances[:count])
    moment = (moments / squared_scales[:, None, None]).sum(0) / (count if targets is None else len(targets))
    return PoolRows(rows[:, : _needed(rows)], moment, is_exact=runs.is_exact and most >= informative)


class _Stream:
    """Means and root columns of all functions, in a common frame of the latent, a few functions at a time.

    What is read off a run goes into a tensor made beforehand: a list of small tensors, each allocated among large ones that are
    freed at once, leaves the heap so broken that memory grows by gigabytes.

    Attributes:
        rank: Columns s.
        is_exact: Whether the columns are the whole root.
    """

    def __init__(self, predictor: Predictor, inputs: Field, query: Grid | None, *, seed: int, limits: FeatureSketch) -> None:
        self.predictor, self.inputs, self.query = predictor, Field(inputs.values.detach(), inputs.grid), query
        first = predictor(self.inputs[:1], query)
        lasts = not isinstance(first, GaussianField) or first.latent.is_shared_across_calls
        self._joint = None if lasts else predictor(self.inputs, query)
        self._latent = latent = _randomness(first if self._joint is None else self._joint)
        values = math.prod(first.mean.shape[1:])
        directions = latent[1]
        most = min(limits.latents, max(1, _FRAME_ENTRIES // directions))
        self.is_exact = directions <= most or len(inputs) * values * directions <= limits.exact_entries
        self.rank = directions if self.is_exact else most
        self._frame = _frame(directions, self.rank, seed=seed)
        self._step = max(1, min(_CHUNK_VALUES // values, _CHUNK_COLUMNS // (values * self.rank)))

    def __iter__(self) -> Iterator[_Run]:
        """Run through the functions in their order."""
        for start in range(0, len(self.inputs), self._step):
            index = slice(start, start + self._step)
            field = self.predictor(self.inputs[index], self.query) if self._joint is None else self._joint[index]
            if _randomness(field) != self._latent:
                raise LatentError(
                    expected=f"predictions driven by one latent, {self._latent}",
                    got=str(_randomness(field)),
                    remedy="choose by StochasticSelection, or from fewer functions at a time",
                )
            columns = self._columns(field)
            mean = _checked(field.mean.flatten(2), "predicted means")
            yield _Run(index, mean, _checked(columns.flatten(3).permute(1, 2, 3, 0), "posterior roots"))

    def _columns(self, field: FieldDistribution) -> Tensor:
        """`(s, n, c, ...)`."""
        if isinstance(field, GaussianField):
            return field.root.product(self._frame.to(field.root.device))
        assert isinstance(field, EmpiricalField)
        members = field.weights.sqrt().to(field.samples)
        deviations = (field.samples - field.mean) * members.reshape(-1, *(1,) * field.mean.ndim)
        return torch.tensordot(self._frame.to(deviations), deviations, dims=1) if not self.is_exact else deviations


class _Sketch:
    """Adds coordinates with random signs, in random groups of equal size."""

    def __init__(self, length: int, dimension: int, *, generator: torch.Generator) -> None:
        self.dimension = min(length, dimension)
        self.order = torch.randperm(length, generator=generator)
        self.signs = 2.0 * torch.randint(2, (length,), generator=generator).to(torch.float64) - 1.0

    def __call__(self, values: Float64[Tensor, "n f"]) -> Float64[Tensor, "n d"]:
        mixed = (values * self.signs)[:, self.order]
        return torch.nn.functional.pad(mixed, (0, -mixed.shape[1] % self.dimension)).unflatten(1, (-1, self.dimension)).sum(1)


def _randomness(field: FieldDistribution) -> tuple[str, int]:
    """Name and dimension of what drives a field; the members of an ensemble are the same in every call."""
    if isinstance(field, GaussianField):
        return field.latent.id, field.latent.rank
    if isinstance(field, EmpiricalField):
        return "members", field.samples.shape[0]
    raise UnsupportedError(
        expected="a predictor of Gaussian or empirical fields",
        got=type(field).__name__,
        remedy="draw samples and wrap them in an EmpiricalField",
    )


def _frame(directions: int, count: int, *, seed: int) -> Float64[Tensor, "s k"]:
    """The unit vectors, or `count` random orthonormal ones of length sqrt(k / s), so that covariances are right on average."""
    if count == directions:
        return torch.eye(directions, dtype=torch.float64)
    vectors = torch.randn(directions, count, generator=stream(seed, "latent frame"), dtype=torch.float64)
    return torch.linalg.qr(vectors).Q.mT * math.sqrt(directions / count)


def _factors(grams: Float64[Tensor, "n k k"], most: int) -> Float64[Tensor, "n r k"]:
    """Rows of these Gram matrices, roughly the largest first, and exactly so where some are left out.

    Where none is, Cholesky factors will do, for a tenth of the cost of eigenvectors. Directions that are large for all
    functions come first. What is added to the diagonal is as much as Gram matrices are known to.
    """
    rank = grams.shape[1]
    if most == rank:
        order = grams.diagonal(dim1=1, dim2=2).sum(0).argsort(descending=True)
        places = (order[:, None] * rank + order).flatten()
        sorted_grams = grams.flatten(1).index_select(1, places).unflatten(1, (rank, rank))
        sizes = sorted_grams.diagonal(dim1=1, dim2=2)
        sizes.add_(_ROUNDING * rank * sizes.sum(1, keepdim=True))
        lower, failed = torch.linalg.cholesky_ex(sorted_grams)
        if not bool(failed.any()):
            return lower.mT.index_select(2, order.argsort())
    values, vectors = eigenpairs(grams)
    return (vectors.mT * values.sqrt()[..., None]).flip(1)[:, :most]


def _needed(rows: Float64[Tensor, "n r k"]) -> int:
    """How many rows tell all but `_NEGLIGIBLE` nats of what any function tells; at least one."""
    left_out = torch.linalg.vector_norm(rows, dim=2).square().flip(1).cumsum(1).flip(1).amax(0) / 2
    return max(1, int((left_out > _NEGLIGIBLE).sum()))


def _joined(pool: Field, others: Field) -> Field:
    """Both, on the pool's grid."""
    if check_field(others, "further functions").channels != pool.channels:
        raise ShapeError(
            expected=f"further functions of {pool.channels} channels, as in the pool",
            got=str(others.channels),
            remedy="use one layout for both",
        )
    moved = others if others.grid == pool.grid else others.resample(pool.grid)
    return Field(torch.cat([pool.values.detach(), moved.values.detach().to(pool.values)]), pool.grid)


def _checked(values: Tensor, name: str) -> Float64[Tensor, "..."]:
    """Detached, in float64 on the CPU, and finite."""
    numbers = values.detach().to("cpu", torch.float64)
    check_finite(numbers, name)
    return numbers


def _check_arguments(predictor: Predictor, pool: Field, query: Grid | None) -> None:
    """Check the kinds of what all views of a pool take."""
    check_instance(predictor, Predictor, "predictor", remedy="fit a head, or calibrate one")
    check_field(pool, "pool")
    if not len(pool):
        raise DataError(expected="functions to choose from", got="nothing: the pool is empty", remedy="draw a pool")
    if query is not None:
        check_grid(query, "query")


class _Moments:
    """How predicted means vary, function by function, so that a large offset of a channel cancels before it is squared."""

    def __init__(self, count: int, channels: int) -> None:
        self.averages = torch.empty(count, channels, dtype=torch.float64)
        self.spreads = torch.empty_like(self.averages)

    def add(self, index: slice, mean: Float64[Tensor, "n c p"], mean_weights: Float64[Tensor, " p"]) -> None:
        """Note the means of a run of functions; the weights of the points sum to one."""
        self.averages[index] = mean @ mean_weights
        self.spreads[index] = (mean - self.averages[index][..., None]).square() @ mean_weights

    def squared_scales(self, variances: Float64[Tensor, "n c"]) -> Float64[Tensor, " c"]:
        """Variance of each channel over the n functions of the pool and the domain; one where that is zero."""
        count = len(variances)
        between = self.averages[:count].var(0, correction=0)
        total = between + self.spreads[:count].mean(0) + variances.mean(0)
        return torch.where(total > 0, total, torch.ones_like(total))
