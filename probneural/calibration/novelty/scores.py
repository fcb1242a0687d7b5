"""Novelty scores of inputs, from descriptions of the inputs and of the head's prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.calibration.predictions import CHUNK_VALUES, FOLDS, number_of
from probneural.calibration.variance.stationary_process import Waves
from probneural.distributions.base import FieldDistribution
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.predictors.base import Predictor
from probneural.distributions.roots.base import FeatureRoot
from probneural.distributions.roots.lazy import LazyFeatureRoot
from probneural.fields import Field
from probneural.grids import Grid, resample
from probneural.grids.resampling import background, rasterised
from probneural.linear_algebra.principal_components import eigenpairs, singular_values
from probneural.registry import stored

KEPT_VARIANCE = 0.99
"""Fraction of the variance that leading components hold, if there are enough samples."""
_KEPT_OF_CHANNEL = 0.9999
"""The same for one channel: these scores only detect unusual samples; no variance is extrapolated from them."""
_FUNCTIONS_PER_COMPONENT = 4
"""Least number of samples per component."""
_LEAST_POWER = 1e-4
"""Power of a band, relative to the mean total of its channel, below which bands count as equal."""
_MOST_OF_VARYING = 0.01
"""Upper limit of the same, relative to the mean of all bands but the constant: an offset, as of kelvin, must not hide them."""
_LOG_STD = 0.1
"""Standard deviation of a band's log power that counts as none: a tenth of the power."""
_RIDGE = 1e-4
"""The same for pooled features, as a fraction of their mean variance."""
_ROUNDING = 1e-12
"""Variance, as a fraction of the total, that counts as none."""
LEAST_SCORE = 1e-6
"""Smaller scores count as equal: those of rounding, above all."""
_POINTS = 4096
"""Largest number of points of the grid on which inputs are described."""
_MARGIN = 0.125
"""Margin of the uniform grid around meshes, in units of their extent: new meshes may reach further."""
_BANDS_PER_OCTAVE = 2.0
"""Bands of wave numbers from four half periods on; below, each wave number is a band."""
_NARROW = 4.0
"""Wave number, in half periods or periods, from which bands are wider than one."""


@stored(on_cpu=("center", "directions", "variances"))
@dataclass(frozen=True, eq=False, kw_only=True)
class LeadingComponents:
    """Principal components of inputs: the score distance within them, and the residual.

    Args:
        center: Mean of the samples, `(d,)`; all quantities are dimensionless.
        directions: Orthonormal, `(r, d)`.
        variances: Along the directions, `(r,)`.
        total: Variance in all directions, the unit of residuals; the mean square if there is none.
    """

    center: Float64[Tensor, " d"]
    directions: Float64[Tensor, "r d"]
    variances: Float64[Tensor, " r"]
    total: float

    @classmethod
    def fit(cls, values: Float64[Tensor, "n d"], *, fraction: float = KEPT_VARIANCE) -> LeadingComponents:
        """Fit components that hold a fraction of the variance, at most a quarter as many as there are samples."""
        center = values.mean(0)
        _, singular, directions = singular_values(values - center)
        variances = singular.square() / max(1, len(values) - 1)
        total, size = float(variances.sum()), float(values.square().sum(1).mean())
        if total <= _ROUNDING * size:  # all samples are equal
            variances, total = torch.zeros_like(variances), size
        count = int((variances.cumsum(0) < fraction * total).sum()) + 1
        rank = min(count, max(1, len(values) // _FUNCTIONS_PER_COMPONENT), int((variances > _ROUNDING * total).sum()))
        return cls(center=center, directions=directions[:rank], variances=variances[:rank], total=total if total > 0 else 1.0)

    def __call__(self, values: Float64[Tensor, "n d"]) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
        """Return squared distances within the components, in their variances, and of the residual, in the total variance."""
        centered = values - self.center
        along = centered @ self.directions.mT
        beyond = (centered - along @ self.directions).square().sum(1)
        return (along.square() / self.variances).sum(1), beyond / self.total


@stored(on_cpu=("center", "whitening"))
@dataclass(frozen=True, eq=False, kw_only=True)
class MahalanobisDistance:
    """|W (x - m)|², with W^T W the inverse of a covariance.

    Args:
        center: Mean m, `(d,)`.
        whitening: W, `(d, d)`.
    """

    center: Float64[Tensor, " d"]
    whitening: Float64[Tensor, "d d"]

    @classmethod
    def fit(cls, rows: Float64[Tensor, "n d"], *, ridge: float) -> MahalanobisDistance:
        """Fit mean and covariance of n rows: correlations shrink by d/(n + d), and `ridge` is added to variances."""
        count, size = rows.shape
        centered = rows - rows.mean(0)
        covariance = centered.mT @ centered / max(1, count - 1)
        fraction = size / (count + size)
        covariance = (1.0 - fraction) * covariance + torch.diag(fraction * covariance.diagonal() + ridge)
        values, vectors = eigenpairs(covariance)
        tiny = torch.finfo(torch.float64).tiny
        return cls(center=rows.mean(0), whitening=vectors.mT / values.clamp_min(tiny).sqrt()[:, None])

    def __call__(self, rows: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """Squared distances of rows, dimensionless."""
        return ((rows - self.center) @ self.whitening.mT).square().sum(1)


@stored(on_cpu=("units", "components", "least_power", "spectrum"))
@dataclass(frozen=True, eq=False, kw_only=True)
class InputScores:
    """Scores that depend on the input alone, or on some of its channels.

    Args:
        units: Standard deviation of each channel, the unit of its components; the root mean square of a constant channel,
            `(c, 1)`, in physical units.
        components: Principal components of the inputs.
        least_power: Added to the power of each band before logarithms are taken, `(c, 1)`, in physical units squared.
        spectrum: Mahalanobis distance of logarithms of band powers.
    """

    units: Float64[Tensor, "c 1"]
    components: LeadingComponents
    least_power: Float64[Tensor, "c 1"]
    spectrum: MahalanobisDistance

    @classmethod
    def fit(
        cls, values: Float64[Tensor, "n d"], powers: Float64[Tensor, "n c b"], *, fraction: float = KEPT_VARIANCE
    ) -> InputScores:
        """Fit on values and powers of n samples, see `Descriptions`; components hold a fraction of the variance."""
        channels = values.unflatten(1, (powers.shape[1], -1))
        variance = (channels - channels.mean(0)).square().sum(2).mean(0)
        square = channels.square().sum(2).mean(0)
        size = torch.where(variance > _ROUNDING * square, variance, square)
        units = torch.where(size > 0, size, 1.0).sqrt()[:, None]
        total, varying = (part.sum(2, keepdim=True).mean(0) for part in (powers, powers[..., 1:]))
        most = torch.where(varying > _ROUNDING * total, _MOST_OF_VARYING * varying, torch.inf)
        least = (_LEAST_POWER * total).minimum(most).clamp_min(torch.finfo(torch.float64).tiny)
        return cls(
            units=units,
            components=LeadingComponents.fit((channels / units).flatten(1), fraction=fraction),
            least_power=least,
            spectrum=MahalanobisDistance.fit((powers + least).log().flatten(1), ridge=_LOG_STD**2),
        )

    def __call__(self, values: Float64[Tensor, "n d"], powers: Float64[Tensor, "n c b"]) -> dict[str, Float64[Tensor, " n"]]:
        """Scores by name, `(n,)`, dimensionless."""
        channels = values.unflatten(1, (len(self.units), -1))
        within, beyond = self.components((channels / self.units).flatten(1))
        spectrum = self.spectrum((powers + self.least_power).log().flatten(1))
        return {"components": within, "residual": beyond, "spectrum": spectrum}


@stored(on_cpu=("inputs", "channels", "features", "variance"))
@dataclass(frozen=True, eq=False, kw_only=True)
class FittedScores:
    """Fitted scores of descriptions, larger for more unusual samples.

    Args:
        inputs: Scores of all channels together.
        channels: Scores of each channel; empty for a single channel.
        features: Distance of pooled features; None if the head has none.
        variance: Mean predictive variance of the head, `(c',)`, in physical units squared.
    """

    inputs: InputScores
    channels: tuple[InputScores, ...]
    features: MahalanobisDistance | None
    variance: Float64[Tensor, " c2"]

    @classmethod
    def fit(cls, described: Descriptions, *, stated: Descriptions | None = None) -> FittedScores:
        """Fit all scores on complete descriptions.

        Args:
            described: Descriptions of the fitting samples.
            stated: Descriptions whose mean variance is the unit of the variance score; by default `described`.
        """
        variance = (described if stated is None else stated).variance
        if described.values is None or described.powers is None or variance is None:
            raise ValueError("scores are fitted on complete descriptions")
        ridge = 0.0 if described.features is None else _RIDGE * float(described.features.var(0, correction=0).mean())
        mean = variance.mean(0)
        return cls(
            inputs=InputScores.fit(described.values, described.powers),
            channels=tuple(
                InputScores.fit(*parts, fraction=_KEPT_OF_CHANNEL) for parts in _by_channel(described.values, described.powers)
            ),
            features=None if described.features is None else MahalanobisDistance.fit(described.features, ridge=ridge),
            variance=torch.where(mean > 0, mean, torch.ones_like(mean)),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the scores of complete descriptions."""
        of_inputs = ("components", "residual", "spectrum")
        by_channel = [f"{name}, channel {number}" for number in range(len(self.channels)) for name in of_inputs]
        return (*of_inputs, *by_channel, *([] if self.features is None else ["features"]), "variance")

    def __call__(self, described: Descriptions) -> dict[str, Float64[Tensor, " n"]]:
        """Return scores by name, `(n,)`, dimensionless, as far as the description has their parts."""
        scores: dict[str, Tensor] = {}
        if described.values is not None and described.powers is not None:
            scores |= self.inputs(described.values, described.powers)
            parts = _by_channel(described.values, described.powers)
            for number, (channel, part) in enumerate(zip(self.channels, parts, strict=True)):
                scores |= {f"{name}, channel {number}": score for name, score in channel(*part).items()}
        if described.features is not None and self.features is not None:
            scores["features"] = self.features(described.features)
        if described.variance is not None:
            scores["variance"] = (described.variance / self.variance).mean(1)
        return {name: score.clamp_min(LEAST_SCORE) for name, score in scores.items()}


def standards(scores: Mapping[str, Float64[Tensor, " n"]]) -> dict[str, tuple[float, float]]:
    """Return mean and upper semideviation of each score's logarithm over samples that it was not fitted on.

    The latter is the root mean square of the excess over the mean.
    """
    return {name: _upper_moments(log_score(score)) for name, score in scores.items()}


def cross_fitted_standards(described: Descriptions, *, groups: Int64[Tensor, " n"]) -> dict[str, tuple[float, float]]:
    """Return the same by cross-validation in five folds.

    Groups stay together if there are five or more.
    """
    part = (groups if number_of(groups) >= FOLDS else torch.arange(len(groups))) % FOLDS
    by_name: dict[str, list[Tensor]] = {}
    for fold in range(FOLDS):
        for name, score in FittedScores.fit(described[part != fold])(described[part == fold]).items():
            by_name.setdefault(name, []).append(score)
    return standards({name: torch.cat(scores) for name, scores in by_name.items()})


def combined(scores: Mapping[str, Float64[Tensor, " n"]], units: Mapping[str, tuple[float, float]]) -> Float64[Tensor, " n"]:
    """Return log sum exp of standardised log scores."""
    return torch.stack([(log_score(scores[name]) - mean) / std for name, (mean, std) in units.items()]).logsumexp(0)


def log_score(score: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """Return the logarithm of a non-negative score."""
    return score.clamp_min(torch.finfo(torch.float64).tiny).log()


def _by_channel(values: Float64[Tensor, "n d"], powers: Float64[Tensor, "n c b"]) -> list[tuple[Tensor, Tensor]]:
    """Return values and powers of each channel; nothing for a single channel."""
    count = powers.shape[1]
    return list(zip(values.chunk(count, 1), powers.split(1, 1), strict=True)) if count > 1 else []


def _upper_moments(values: Tensor) -> tuple[float, float]:
    mean = values.mean()
    above = values[values > mean] - mean
    spread = float(above.square().mean().sqrt()) if len(above) else 0.0
    return float(mean), spread if spread > 1e-6 else 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Descriptions:
    """Descriptions of n inputs, float64 on the CPU; parts that were not requested are None.

    Args:
        values: Values on the grid of the description times square roots of the quadrature weights, so that Euclidean
            distances are L2 distances, `(n, c p)`, in physical units.
        powers: Mean squares in bands of wave numbers, `(n, c, b)`, in physical units squared; the last band has the power that
            the grid of the description does not resolve.
        features: Averages and standard deviations over the domain of features before the read-out, `(n, 2f)`, dimensionless.
        variance: The head's own variance, averaged over the domain, `(n, c')`, in physical units squared.
    """

    values: Float64[Tensor, "n d"] | None = None
    powers: Float64[Tensor, "n c b"] | None = None
    features: Float64[Tensor, "n f"] | None = None
    variance: Float64[Tensor, "n c2"] | None = None

    def __getitem__(self, rows: slice | Tensor) -> Descriptions:
        """Select samples."""
        parts = {name: value if value is None else value[rows] for name, value in vars(self).items()}
        return Descriptions(**parts)

    @classmethod
    def cat(cls, parts: Sequence[Descriptions]) -> Descriptions:
        """Concatenate descriptions."""
        columns = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
        return cls(**{name: None if values[0] is None else torch.cat(values) for name, values in columns.items()})


class Describer:
    """Describes inputs on any grid in the same way.

    Inputs are interpolated to the grid of the description, and predictions are evaluated on the grid of the calibration
    outputs. So a function has one description on every grid that resolves it.

    Args:
        inputs: Grid of the calibration inputs; for one mesh per sample, a uniform grid around all of them.
        outputs: Grid of the calibration outputs; None for one mesh per sample.
    """

    def __init__(self, inputs: Grid, outputs: Grid | None) -> None:
        self.grid = described_on(inputs)
        self.outputs = outputs
        self.step = max(1, CHUNK_VALUES // max(inputs.size, 0 if outputs is None else outputs.size))
        self._waves = Waves(self.grid)
        self._band = bands_of(self._waves.frequencies, all_periodic=all(inputs.periodic) and inputs.is_uniform)

    @property
    def bands(self) -> int:
        """Number of bands, including that of unresolved power."""
        return int(self._band.max()) + 2

    def __call__(self, predictor: Predictor, inputs: Field, *, asks_head: bool = True) -> Descriptions:
        """Describe n samples in batches.

        Args:
            predictor: The uncalibrated predictor of the head.
            inputs: `(n, c, *grid)`.
            asks_head: Whether to describe the head's features and variance too.
        """
        starts = range(0, max(1, len(inputs)), self.step)
        parts = [inputs[start : start + self.step] for start in starts]
        described = []
        for part in parts:
            of_head = self._of_head(predictor, part) if asks_head else {}  # checks the inputs
            described.append(Descriptions(**of_head, **self._of_inputs(part)))
        return Descriptions.cat(described)

    def _of_inputs(self, inputs: Field) -> dict[str, Tensor]:
        values, grid = inputs.values.to("cpu", torch.float64), inputs.grid.unmasked  # as the operator sees them
        if self.outputs is None:
            resampled = rasterised(values, grid, self.grid)
            values, grid = resampled, self.grid
        else:
            resampled = resample(values, grid, self.grid)
        flat = resampled.flatten(2)
        power = self._waves.coefficients(flat).square()
        pooled = torch.zeros(*power.shape[:2], self.bands, dtype=torch.float64)
        pooled = pooled.index_add(2, self._band, power)
        if grid != self.grid and self.grid.is_uniform:
            beyond = _missed(values, grid, resampled, self.grid)
            if not all(self.grid.periodic):
                # Local polynomials have interpolation errors near walls: subtract those of half as many points.
                shape = (axis.size if axis.periodic else (axis.size + 1) // 2 for axis in self.grid.axes)
                half = self.grid.resized(tuple(shape))
                beyond = (beyond - _missed(resampled, self.grid, resample(resampled, self.grid, half), half)).clamp_min(0.0)
            pooled = torch.cat([pooled[..., :-1], beyond[..., None]], -1)
        return {"values": (flat * self.grid.mean_weights.sqrt()).flatten(1), "powers": pooled}

    def _of_head(self, predictor: Predictor, inputs: Field) -> dict[str, Tensor | None]:
        u = predictor(inputs, None if self.outputs is None or inputs.grid == self.outputs else self.outputs)
        variance = u.grid.mean(u.variance.to("cpu", torch.float64).flatten(2))
        return {"features": pooled_features(u), "variance": variance}


def _missed(
    values: Float64[Tensor, "n c *grid"], grid: Grid, coarse: Float64[Tensor, "n c *coarse"], coarse_grid: Grid
) -> Float64[Tensor, "n c"]:
    """Return the mean square of values minus the interpolant from a coarser grid."""
    return grid.mean((values - resample(coarse, coarse_grid, grid)).flatten(2).square())


def pooled_features(u: FieldDistribution) -> Float64[Tensor, "n f"] | None:
    """Return averages and standard deviations over the domain of a last layer's features; None if the head has none."""
    if not isinstance(u, GaussianField) or not isinstance(u.root, FeatureRoot | LazyFeatureRoot):
        return None
    pooled = []
    for root in [u.root] if isinstance(u.root, FeatureRoot) else u.root.parts():
        features = root.features.to("cpu", torch.float64).mT
        average = u.grid.mean(features)
        std = u.grid.mean((features - average[..., None]).square()).sqrt()
        pooled.append(torch.cat([average, std], 1))
    return torch.cat(pooled)


def bands_of(frequencies: Int64[Tensor, "k d"], *, all_periodic: bool) -> Int64[Tensor, " k"]:
    """Return the band of each Fourier mode, by its wave number; in periods if all axes are periodic, else in half periods.

    Examples:
        >>> bands_of(torch.tensor([[0], [1], [2], [3], [4], [5], [6]]), all_periodic=False).tolist()
        [0, 1, 2, 3, 4, 5, 5]
    """
    size = frequencies.to(torch.float64).square().sum(1).sqrt() / (2.0 if all_periodic else 1.0)
    octaves = (size.clamp_min(_NARROW) / _NARROW).log2()
    band = torch.where(size < _NARROW, size.round(), _NARROW + (_BANDS_PER_OCTAVE * octaves + 0.5).floor())
    return band.unique(return_inverse=True)[1]


def described_on(grid: Grid) -> Grid:
    """Return the grid of descriptions: the grid itself, or a coarser one of its domain where it is large.

    Scattered points stay. For one mesh per sample it is a uniform grid around all of them.
    """
    if grid.has_points_per_sample:
        return background(grid, size=min(grid.size, _POINTS // 2), margin=_MARGIN)
    if grid.size <= _POINTS or not grid.is_uniform:
        return grid
    factor = (_POINTS / grid.size) ** (1.0 / grid.dimension)
    return grid.resized(tuple(max(3, int(size * factor)) for size in grid.shape))
