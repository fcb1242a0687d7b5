"""The interface of all distributions over fields."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from torch import Tensor

from probneural import checks
from probneural.arrays.meshes import write_meshes
from probneural.arrays.reading import to_array
from probneural.contexts import Undisturbed
from probneural.distributions.intervals import Interval, check_probabilities, gaussian_quantiles, tails
from probneural.distributions.latent import draw_stream
from probneural.distributions.roots.base import root_sum_of_squares, square_root, square_units
from probneural.errors import ArgumentError, DataError, UnsupportedError
from probneural.fields import row_number
from probneural.functionals import Functional
from probneural.grids import Grid
from probneural.pairs import Rows
from probneural.pairs.provenance import Provenance

if TYPE_CHECKING:
    import xarray

Distribution = TypeVar("Distribution", bound="FieldDistribution")
_NAMES = ("mean", "std", "lower", "upper")


class FieldDistribution(Undisturbed, ABC):
    """A distribution over n samples with c channels on a grid; abstract.

    Heads produce it; scores, bands, plots and acquisition functions consume it. Observation noise is not part of it.

    Attributes:
        grid: Grid of the samples.
        labels: Names of the numbers that a functional gave, for figures and tables; None if they have none.
        provenance: Training and calibration records of the predictor; None without a predictor.
        source: Name of the predictor, which keys the random numbers of draws without a latent; None without a predictor.
    """

    grid: Grid
    labels: tuple[str, ...] | None = None
    provenance: Provenance | None = None
    source: str | None = None
    _push_draws: ClassVar[Callable[..., FieldDistribution]]
    """Implementation of `apply_by_draws`; set by the module `empirical`, which imports this one."""

    if not TYPE_CHECKING:
        __getattr__ = checks.missing_attribute

    @property
    @abstractmethod
    def mean(self) -> Float[Tensor, "n c *grid"]:
        """The mean, `(n, c, *grid.shape)`, in physical units."""

    @property
    @abstractmethod
    def variance(self) -> Float[Tensor, "n c *grid"]:
        """The pointwise variance, `(n, c, *grid.shape)`, in physical units squared; zero is legal."""

    @property
    @abstractmethod
    def base_shape(self) -> torch.Size:
        """Shape of the base sample of one coherent draw of all n samples."""

    @abstractmethod
    def rsample(
        self, sample_shape: torch.Size | Sequence[int] = (), *, seed: int | None = None, base_samples: Tensor | None = None
    ) -> Float[Tensor, "*s n c *grid"]:
        """Draw coherent samples: in one draw all n samples come from the same operator.

        Args:
            sample_shape: Shape of the draws.
            seed: Makes the draws repeatable, a non-negative integer; without one they are fresh, and the global generator is
                left alone.
            base_samples: The randomness itself, `(*sample_shape, *base_shape)`; excludes `seed`.

        Returns:
            `(*sample_shape, n, c, *grid.shape)`, differentiable in the inputs of the prediction.
        """

    def draw(self, seeds: Sequence[int], *, each: bool = False) -> Float[Tensor, "..."]:
        """Evaluate coherent draws by seed: a seed names one operator, at all inputs, on all grids and in all calls.

        White noise of a discrepancy is left out, which differs from grid to grid; `rsample` has it. The rest of a discrepancy
        has one latent vector per draw, so neighbouring inputs have neighbouring outputs.

        Args:
            seeds: Non-negative integers: one for each draw, or with `each` one for each of the n samples.
            each: Whether sample i is evaluated only in the draw of seed i.

        Returns:
            `(s, n, c, *grid.shape)`, or `(n, c, *grid.shape)` with `each`; differentiable in the inputs of the prediction.

        Raises:
            ArgumentError: If a seed is not a non-negative integer.
            ShapeError: If with `each` there is not one seed for each sample.
            UnsupportedError: If the class defines no draws.
        """
        raise UnsupportedError(
            expected="a Gaussian or empirical field, or a mixture", got=type(self).__name__, remedy="define draw(seeds)"
        )

    @abstractmethod
    def apply(self, functional: Functional) -> FieldDistribution:
        """Push forward through a linear functional: the distribution of its values, on a grid of m numbered points.

        Raises:
            GridError: If the functional has another grid.
        """

    def apply_by_draws(self, function: Callable[[Tensor], Tensor], *, draws: int = 1024, seed: int = 0) -> FieldDistribution:
        """Push forward through any function, linear or not, by draws: the empirical distribution of its values.

        Its quantiles and intervals are those of the draws: at 1024 draws and level 0.9, coverage has a standard error of about
        0.01. Draws are of the field, without measurement noise. Members of an empirical field are all taken, once and with
        their weights; then `draws` and `seed` do not matter. What is linear goes through `apply`, which is exact.

        Args:
            function: Maps values `(s, n, c, *grid.shape)` to `(s, n, c', m)`, as
                [`maximum`][probneural.functionals.maximum] does, or `lambda values: values.flatten(3).std(-1, keepdim=True)`.
            draws: Number of draws.
            seed: Makes them repeatable, a non-negative integer.

        Returns:
            The distribution of its values, on a grid of m numbered points.

        Raises:
            ArgumentError: If the function is not callable, the number of draws is 0, or the seed is invalid.
            GridError: If the function has another grid.
            ShapeError: If its result is not `(s, n, c', m)`.
            DataError: If it returns no tensor, or values that are not finite.
        """
        return self._push_draws(function, draws=draws, seed=seed)

    @abstractmethod
    def scale(self, factors: Float[Tensor, "..."]) -> FieldDistribution:
        """Multiply the deviation from the mean by positive factors; the mean stays.

        Args:
            factors: One per channel `(c,)`, or one per value `(n, c, *grid)`; dimensionless.

        Raises:
            ShapeError: If they have another shape.
            ArgumentError: If one is not positive and finite.
            DataError: If they are not real numbers.
        """

    @abstractmethod
    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> FieldDistribution:
        """Select samples; one integer selects one sample and keeps its batch axis."""

    def marginal(self, index: int) -> FieldDistribution:
        """The marginal distribution of one sample; its randomness need not be shared with the other samples."""
        return self[row_number(index, len(self))]

    @property
    def is_uncalibrated(self) -> bool:
        """Whether a predictor that nobody calibrated predicted it."""
        return self.provenance is not None and not self.provenance.is_calibrated

    @property
    def standard_deviation(self) -> Float[Tensor, "n c *grid"]:
        """The pointwise standard deviation, `(n, c, *grid.shape)`, in physical units."""
        return square_root(self.variance)

    @property
    def std(self) -> Float[Tensor, "n c *grid"]:
        """Short for `standard_deviation`: `(n, c, *grid.shape)`, in physical units, without measurement noise."""
        return self.standard_deviation

    def quantile(
        self, q: float | Sequence[float] | Tensor, *, noise: float | Float[Tensor, "..."] = 0.0
    ) -> Float64[Tensor, "*k n c *grid"]:
        """Quantiles of every value of the field: the value is below them with probability q.

        It is mean + z(q) √(variance + noise), the quantile of the Gaussian with the same mean and variance; empirical
        fields of 100 effective members or more use empirical quantiles.

        Args:
            q: A probability between 0 and 1, dimensionless, or several of them, `(k,)`.
            noise: Variance of the noise of the measurement that is predicted, in the values' units squared: a number, one per
                channel `(c,)`, or one per value `(n, c, *grid)`. Leave it out for the quantity itself. The noise of a
                functional's number is that of this number, not that of the points it was computed from.

        Returns:
            `(n, c, *grid)`, or `(k, n, c, *grid)` of several; in physical units, float64.

        Raises:
            ArgumentError: If q is not between 0 and 1, or the noise is negative, not finite, or of another shape.
        """
        probabilities, std = check_probabilities(q), observed_std(self, noise)
        quantiles = gaussian_quantiles(self.mean, std, probabilities.reshape(-1))
        return quantiles if probabilities.ndim else quantiles[0]

    def interval(self, level: float = 0.9, *, noise: float | Float[Tensor, "..."] = 0.0) -> Interval:
        """The central interval of every value, with equal probabilities below and above it.

        Each value lies in its interval with probability `level`; all values of a sample jointly, with a smaller one
        (see [`SimultaneousBand`][probneural.calibration.SimultaneousBand]). Intervals are as accurate as the distribution:
        calibrate the predictor first, on samples that were not used for training.

        Args:
            level: Probability inside, between 0 and 1; dimensionless.
            noise: Variance of the noise of the measurement that is predicted, as in `quantile`.

        Returns:
            The pair (lower, upper) of tensors `(n, c, *grid)`, in physical units, float64; it also has `width` and
            `contains(values)`.

        Raises:
            ArgumentError: If the level is not between 0 and 1, or the noise is negative, not finite, or of another shape.

        Examples:
            >>> from probneural.distributions import DenseRoot, GaussianField
            >>> root = DenseRoot(torch.full((1, 1, 4, 1), 2.0))
            >>> u = GaussianField(torch.zeros(1, 1, 4), root, latent="xi", grid=Grid.uniform((4,)))
            >>> lower, upper = u.interval(0.95)
            >>> round(upper[0, 0, 0].item(), 4)
            3.9199
        """
        lower, upper = self.quantile(tails(checks.check_real(level, "level", above=0.0, below=1.0)), noise=noise)
        return Interval(lower, upper)

    def to_numpy(self, level: float = 0.9, *, noise: float | Float[Tensor, "..."] = 0.0) -> dict[str, NDArray[Any]]:
        """A table of the values and their intervals, as NumPy arrays by name.

        Args:
            level: Probability inside the intervals, between 0 and 1; dimensionless.
            noise: Variance of the noise of the measurement that is predicted, as in `quantile`.

        Returns:
            `mean`, `std`, `lower` and `upper`, `(n, c, *grid)`, in physical units, float64; `std` is without noise. Where a
            functional named its numbers, also `quantity`, `(m,)`.

        Raises:
            ArgumentError: If the level is not between 0 and 1, or the noise is negative, not finite, or of another shape.
        """
        lower, upper = self.interval(level, noise=noise)
        parts = {"mean": self.mean, "std": self.std, "lower": lower, "upper": upper}
        table: dict[str, NDArray[Any]] = {name: part.detach().cpu().double().numpy() for name, part in parts.items()}
        return table if self.labels is None else {"quantity": np.array(self.labels), **table}

    def to_xarray(self, level: float = 0.9, *, noise: float | Float[Tensor, "..."] = 0.0) -> xarray.Dataset:
        """The same table as a Dataset with the variables `mean`, `std`, `lower` and `upper`; needs the extra `xarray`.

        Args:
            level: Probability inside the intervals, between 0 and 1; dimensionless.
            noise: Variance of the noise of the measurement that is predicted, as in `quantile`.

        Returns:
            Dimensions are `sample`, `channel`, and `x0`, `x1`, ... with the grid's coordinates; `quantity`, with names or
            numbers, for a functional's numbers; `point` for scattered points, with coordinates `x0`, `x1`, ... The level is an
            attribute; `.to_dataframe()` makes a table of pandas of it.

        Raises:
            ArgumentError: If the level is not between 0 and 1, or the noise is negative, not finite, or of another shape.
        """
        return to_dataset(self, self.to_numpy(level, noise=noise), level=level)

    @torch.no_grad()
    def to_meshio(self, path: str | os.PathLike[str], *, draws: int = 4, seed: int = 0) -> None:
        """Write mean, standard deviation and draws as point data of meshes that ParaView reads; needs the extra `mesh`.

        Args:
            path: A file .vtu or .vtk; of several samples, with `{}` in place of their number: `"cases/{}.vtu"`.
            draws: Number of draws, `draw_0`, `draw_1`, ...; in one of them, all samples are from one operator.
            seed: Names the draws.

        Raises:
            GridError: If the grid is uniform.
            ArgumentError: If the path has another ending, or lacks `{}` for several samples.
            FileError: If a file cannot be written.
        """
        samples = self.rsample((checks.check_integer(draws, "draws", least=0),), seed=seed)
        names = {f"draw_{number}": draw for number, draw in enumerate(samples)}
        write_meshes(path, self.grid, {"mean": self.mean, "standard_deviation": self.standard_deviation, **names})

    @property
    def _discrepancy_variance(self) -> Float[Tensor, "n c *grid"]:
        """Pointwise variance of the discrepancies of the samples, the part of the variance that they do not share."""
        return torch.zeros_like(self.mean)

    def __len__(self) -> int:
        """Number of samples n."""
        return self.mean.shape[0]

    def __repr__(self) -> str:
        """A short description."""
        count, channels = self.mean.shape[:2]
        return f"{type(self).__name__}({count} x {channels} on {self.grid!r}, base_shape={tuple(self.base_shape)})"


def inherit(made: Distribution, other: FieldDistribution) -> Distribution:
    """Give a distribution, just made, the labels and the provenance of another one over the same samples."""
    made.labels, made.provenance, made.source = other.labels, other.provenance, other.source
    return made


def inherit_rows(made: Distribution, other: FieldDistribution, rows: Rows) -> Distribution:
    """Give a distribution, just made of some samples of another one, its labels and their provenance."""
    made.labels, made.source = other.labels, other.source
    made.provenance = None if other.provenance is None else other.provenance.of_rows(rows)
    return made


def inherit_image(made: Distribution, other: FieldDistribution, labels: tuple[str, ...] | None) -> Distribution:
    """Give a distribution, just made of a functional's values, their names and the predictor's provenance."""
    made.labels, made.source = labels, other.source
    made.provenance = None if other.provenance is None else other.provenance.of_image()
    return made


def observed_std(u: FieldDistribution, noise: float | Tensor) -> Float64[Tensor, "n c *grid"]:
    """Standard deviation of a measurement with noise, in float64; neither part is squared."""
    std = u.standard_deviation.to(torch.float64)
    return root_sum_of_squares(std, noise_variance(noise, tuple(std.shape), std).sqrt())


def normal_base_samples(
    sample_shape: torch.Size | Sequence[int],
    base_shape: torch.Size,
    *,
    seed: int | None,
    base_samples: Tensor | None,
    name: str,
) -> Float[Tensor, "..."]:
    """Return standard normal base samples `(*sample_shape, *base_shape)`: those given, or new ones in float64 on the CPU.

    New ones depend on the seed and the name of the latent.

    Raises:
        ArgumentError: If both a seed and base samples are given.
        ShapeError: If they have another shape.
        DataError: If they are not real numbers, or not finite.
    """
    shape = (*sample_shape, *base_shape)
    if base_samples is None:
        return torch.randn(shape, generator=draw_stream(seed, name), dtype=torch.float64, device="cpu")
    if seed is not None:
        raise ArgumentError(expected="a seed or base samples", got="both", remedy="drop one")
    base_samples = checks.real_tensor(base_samples, "base samples")
    check_values(base_samples, shape, "base samples")
    checks.check_finite(base_samples, "base samples")
    return base_samples


def index_grid(size: int) -> Grid:
    """Return the grid of m numbers: points 0 to m - 1 with unit weights."""
    numbers = torch.arange(size, dtype=torch.float64, device="cpu")
    return Grid.scattered(numbers[:, None], torch.ones_like(numbers))


def check_values(values: Tensor, shape: tuple[int, ...], name: str) -> None:
    """Raise a ShapeError unless the tensor has exactly this shape (no broadcasting), a DataError if it is not a tensor."""
    checks.check_instance(values, Tensor, name, remedy="give a tensor")
    checks.check_shape(values, name, *shape, remedy="shapes are not broadcast")


def check_factors(factors: object, channels: int, name: str = "factors") -> Tensor:
    """Return positive finite factors, one per channel; lists and arrays will do.

    Raises:
        DataError: If they are not real numbers.
        ShapeError: If there is another number of them.
        ArgumentError: If one is not positive and finite.
    """
    numbers = checks.real_tensor(factors, name)
    check_values(numbers, (channels,), name)
    if not bool((torch.isfinite(numbers) & (numbers > 0)).all()):
        raise ArgumentError(expected=f"positive finite {name}", got=str(numbers.tolist())[:200], remedy="they scale deviations")
    return numbers


def check_deviation_factors(factors: object, shape: tuple[int, ...]) -> Tensor:
    """Return the factors of deviations of a shape (n, c, *grid) in `scale`: one per channel, or one per value.

    Raises:
        DataError: If they are not real numbers.
        ShapeError: If they are neither.
        ArgumentError: If one is not positive and finite.
    """
    numbers = checks.real_tensor(factors, "factors")
    if numbers.ndim <= 1:
        return check_factors(numbers, shape[1])
    check_values(numbers, shape, "factors")
    check_factors(numbers.flatten(), numbers.numel())
    return numbers


def spread_over(factors: Tensor, like: Float[Tensor, "n c *grid"]) -> Tensor:
    """Factors per channel or per value, of the dtype and on the device of values that they broadcast to."""
    return factors.to(like).reshape(-1, *(1,) * (like.ndim - 2)) if factors.ndim == 1 else factors.to(like)


def noise_variance(noise: float | Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Expand an observation variance to `shape = (n, c, ...)`.

    Args:
        noise: Noise variance: a number, one per channel `(c,)`, or one per value, in physical units squared.
        shape: Shape of the observations; the second axis is channels.
        like: Tensor with the dtype and device of the result.

    Raises:
        ArgumentError: If a variance is negative, not finite, beyond the dtype, or has a shape that fits none of the three.
    """
    variance = checks.check_variances(noise, "noise", like=like)
    remedy = "pass predict.noise, or one number"
    checks.check_shape_among(variance, "noise", (), (shape[1],), shape, remedy=remedy, error=ArgumentError)
    return (variance.reshape(-1, *(1,) * (len(shape) - 2)) if variance.ndim == 1 else variance).expand(shape)


def sample_size(sample_shape: torch.Size | Sequence[int]) -> int:
    """Number of draws in a sample shape.

    Raises:
        ArgumentError: If it is not a sequence of numbers >= 0.
    """
    try:
        return math.prod(
            checks.check_integer(count, "draws", least=0) for count in checks.check_sequence(sample_shape, "shape", remedy="")
        )
    except ArgumentError as error:
        raise ArgumentError(
            expected="a shape of draws, numbers >= 0", got=repr(sample_shape), remedy="write (8,) for eight draws"
        ) from error


def held_variance(variance: Float[Tensor, "n c *grid"], u: FieldDistribution) -> Float[Tensor, "n c *grid"]:
    """Return variances of a field, or raise a DataError if they underflow although a channel's deviations are not zero.

    Deviations count as zero to rounding of the mean. Those of one function may be lost beside those of another: they are zero
    to rounding of what the channel has.
    """
    if bool((square_units(variance) == 1.0).all()):
        return variance

    def largest(values: Tensor) -> Tensor:
        return values.detach().abs().movedim(1, 0).flatten(1).amax(1)

    deviation, limits = largest(u.standard_deviation), torch.finfo(variance.dtype)
    lost = square_units(largest(variance)[None, :, None])[0] != 1.0
    lost &= deviation > torch.finfo(u.mean.dtype).eps * largest(u.mean)
    if bool(lost.any()):
        raise DataError(
            expected=f"variances that {variance.dtype} holds, from {limits.tiny / limits.eps:.0e} to {limits.max:.0e}",
            got=f"the square of {float(deviation[lost][0]):.1e}",
            remedy="read standard_deviation, rescale the data, or work in float64",
        )
    return variance


def to_dataset(u: FieldDistribution, table: Mapping[str, NDArray[Any]], *, level: float) -> xarray.Dataset:
    """A Dataset of the arrays of `FieldDistribution.to_numpy`."""
    checks.optional("xarray", "to_xarray", extra="xarray")
    import xarray

    if u.grid.is_uniform:
        space = [f"x{number}" for number in range(u.grid.dimension)]
        options: dict[str, Any] = {"sample": "sample", "channel": "channel", "space": space}
        return xarray.Dataset(
            {name: to_array(torch.from_numpy(table[name]), u.grid, **options) for name in _NAMES}, attrs={"level": level}
        )
    coordinates: dict[str, Any]
    if u.grid == index_grid(u.grid.size):  # values of a functional
        last = "quantity"
        coordinates = {last: table.get(last, range(u.grid.size))}
    else:
        last = "point"
        coordinates = {f"x{number}": (last, along.numpy()) for number, along in enumerate(u.grid.points.T)}
    arrays = {name: (("sample", "channel", last), table[name]) for name in _NAMES}
    return xarray.Dataset(arrays, coords=coordinates, attrs={"level": level})
