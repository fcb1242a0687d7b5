"""Simultaneous bands with a finite-sample coverage guarantee for whole functions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from probneural.calibration.chunks import domain_average, fingerprints, moments
from probneural.calibration.conformal import (
    FLOOR,
    Modulation,
    check_modulation,
    conformal_scores,
    local_scale,
)
from probneural.checks import assign, check_finite, check_real
from probneural.contexts import undisturbed
from probneural.distributions.base import check_values
from probneural.distributions.predictor import Predictor
from probneural.errors import CalibrationError, GridError
from probneural.fields import Field, check_field
from probneural.grids import Grid
from probneural.pairs import Dataset


@dataclass(frozen=True)
class SimultaneousBand:
    """A band mean ± q scale(x) that contains a whole new function with probability at least `level`, by split conformal.

    q is the ⌈(n + 1) level⌉-th smallest of the n calibration scores sup |y - mean| / scale. If calibration and new pairs are
    exchangeable, then for any predictor, right or wrong,

        level <= P(y inside everywhere) < level + 1/(n + 1)

    (the upper bound without ties). The probability is over calibration set and new pair together; given one calibration set,
    coverage varies around it like a Beta variable with standard deviation √(level (1 - level)/n). The guarantee holds for the
    grid it was calibrated on: on a finer one the supremum has more points to fail at. The band is for what was
    calibrated on, so noisy calibration outputs give a band for noisy observations.

    Args:
        level: Nominal coverage, between 0 and 1.
        modulation: "std": scale(x) is the predictive standard deviation (field and noise), so the band is wide where the
            predictor is uncertain. "constant": one width everywhere; with several channels, in proportion to the roots of the
            predictor's residual variance.
        floor: Least local scale, as a fraction of the scale's root mean square over the domain of the same function and
            channel, from 0 to 1; keeps points without predictive variance from deciding the width of the whole band.

    Raises:
        ArgumentError: If an argument lies outside these values.

    Reference:
        Diquigiovanni, Fontana and Vantini (2022), Conformal prediction bands for multivariate functional data, section 2, with
        the predictive standard deviation as modulation function; Lei et al. (2018), Distribution-free predictive inference
        for regression, section 2.2 and 5.2 (split conformal, local weights); Vovk, Gammerman and Shafer (2005).
    """

    level: float = 0.9
    _: KW_ONLY
    modulation: Modulation = "std"
    floor: float = FLOOR

    def __post_init__(self) -> None:
        """Validate."""
        assign(self, level=check_real(self.level, "level", above=0.0, below=1.0))
        check_modulation(self.modulation, self.floor)

    @undisturbed()
    def fit(self, predictor: Predictor, calibration: Dataset) -> Band:
        """Find the band's quantile on fields that training has not used.

        The fields must be the band's own: scales that were fitted on them make their scores smaller than those of new fields.
        With three channels and nine fields a band at .9 then covers .83.

        Args:
            predictor: What any head or calibrator returned.
            calibration: Held-out pairs that scales were not fitted on either; outputs may live on another grid than inputs.

        Raises:
            CalibrationError: If there are too few fields for the level (9 at .9, 19 at .95, 99 at .99), too many of them
                have errors but no predictive variance, or the predictor's variances were scaled on some of them.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.
        """
        scores = conformal_scores(predictor, calibration, modulation=self.modulation, floor=self.floor)
        if len(predictor.calibrated_on):
            check_unused(fingerprints(calibration), predictor.calibrated_on)
        return Band(predictor, quantile=scores.quantile(self.level), method=self)


@dataclass(frozen=True, eq=False, repr=False)
class Band:
    """A calibrated band, from [`SimultaneousBand`][probneural.calibration.bands.SimultaneousBand]; call it on inputs.

    Args:
        predictor: The predictor it belongs to.
        quantile: Half width in units of the local scale: dimensionless, or physical for a constant band of one channel.
        method: Level, modulation and floor it was calibrated with.
    """

    predictor: Predictor
    _: KW_ONLY
    quantile: float
    method: SimultaneousBand

    @property
    def level(self) -> float:
        """Nominal coverage."""
        return self.method.level

    def __call__(self, inputs: Field, query: Grid | None = None) -> BandField:
        """Return the bands of n input functions.

        Args:
            inputs: Input functions, `(n, in_channels, *grid)`.
            query: Where to evaluate; the inputs' own grid by default.

        Raises:
            DataError: If the inputs or predictions are not finite.
            ShapeError: If the number of channels is not the predictor's.
        """
        u = self.predictor(inputs, query)
        predicted = moments(u, self.predictor.noise)
        scale = local_scale(
            predicted.variance, self.predictor, grid=u.grid, modulation=self.method.modulation, floor=self.method.floor
        )
        return BandField(mean=predicted.mean, half_width=self.quantile * scale, grid=u.grid)

    def coverage(self, pairs: Dataset) -> float:
        """The fraction of functions that lie wholly inside their bands, a few functions at a time; dimensionless.

        Raises:
            CalibrationError: If there are no pairs.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.
        """
        scores = conformal_scores(self.predictor, pairs, modulation=self.method.modulation, floor=self.method.floor)
        return float((scores.values <= self.quantile).to(torch.float64).mean())

    def __repr__(self) -> str:
        """The quantile and how it was found."""
        return f"Band(quantile={self.quantile:.4g}, {self.method!r})"


@dataclass(frozen=True, eq=False, repr=False)
class BandField:
    """Bands around n functions.

    Args:
        mean: Centre of the bands, `(n, c, *grid)`, in physical units.
        half_width: Half their width, `(n, c, *grid)`, in physical units.
        grid: Where they live.

    Raises:
        ShapeError: If the shapes do not fit together.
    """

    mean: Float64[Tensor, "n c *grid"]
    half_width: Float64[Tensor, "n c *grid"]
    _: KW_ONLY
    grid: Grid

    def __post_init__(self) -> None:
        """Check that the shapes fit together."""
        check_values(self.mean, (*self.mean.shape[:2], *self.grid.shape), "mean")
        check_values(self.half_width, tuple(self.mean.shape), "half width")

    @property
    def lower(self) -> Float64[Tensor, "n c *grid"]:
        """Lower edge, `(n, c, *grid)`, in physical units."""
        return self.mean - self.half_width

    @property
    def upper(self) -> Float64[Tensor, "n c *grid"]:
        """Upper edge, `(n, c, *grid)`, in physical units."""
        return self.mean + self.half_width

    def contains(self, truth: Field) -> Bool[Tensor, " n"]:
        """Which functions lie inside at every point and in every channel, edges included.

        Raises:
            GridError: If the grids differ.
            ShapeError: If the shapes differ; nothing is broadcast.
            DataError: If a value is not finite.
        """
        if check_field(truth, "truth").grid != self.grid:
            raise GridError(
                expected=f"functions on the band's grid {self.grid!r}", got=repr(truth.grid), remedy="pass query=truth.grid"
            )
        check_values(truth.values, tuple(self.mean.shape), "truth")
        check_finite(truth.values, "true values")
        distance = (truth.values.detach().to(self.mean) - self.mean).abs()
        return (distance <= self.half_width).flatten(1).all(-1)

    def width(self) -> Float64[Tensor, "n c"]:
        """Width averaged over the domain by quadrature, `(n, c)`, in physical units."""
        return 2.0 * domain_average(self.half_width, self.grid)

    def __len__(self) -> int:
        """Number of functions n."""
        return self.mean.shape[0]

    def __repr__(self) -> str:
        """A short description."""
        return f"BandField({len(self)} x {self.mean.shape[1]} on {self.grid!r})"


def check_unused(rows: Int64[Tensor, " n"], used: Int64[Tensor, " m"]) -> None:
    """Raise a CalibrationError if variances were scaled on some of these functions, given by fingerprints."""
    found = int(torch.isin(rows, used.to(rows)).sum())
    if found:
        raise CalibrationError(
            expected="calibration fields that the predictor's variances were not scaled on",
            got=f"{found} of {len(rows)} that they were",
            remedy="split them: scaling, conformal = calibration.split(len(calibration) // 2, seed=0)",
        )
