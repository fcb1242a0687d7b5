"""Finding one tone in a noisy mixture of four: a sequence problem whose posterior is known exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_integer, check_positive, check_real
from probneural.distributions import FeatureRoot, GaussianField, Latent
from probneural.distributions.latent import digest
from probneural.errors import ArgumentError, ResolutionError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems.base import Problem
from probneural.problems.input_distributions import InputDistribution
from probneural.problems.random_fields import CORNER_TAIL

_FREQUENCIES = (1.0, 3.0, 5.0, 7.0)
_SAMPLES = 200
_AMPLITUDES = 2 * len(_FREQUENCIES)
_AMPLITUDE_VARIANCE = 0.5


@dataclass(frozen=True)
class StandardNormals(InputDistribution):
    """Independent standard normal coefficients.

    Args:
        count: How many.
        points: Points on the one axis of the functions they describe.

    Raises:
        ArgumentError: If either is less than 1.
    """

    count: int
    points: int

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_integer(self.count, "count")
        check_integer(self.points, "points")

    @property
    def dimension(self) -> int:
        """1."""
        return 1

    @property
    def minimum_resolution(self) -> int:
        """The number of points."""
        return self.points

    @property
    def size(self) -> int:
        """Number of coefficients."""
        return self.count

    def quantiles(self, probabilities: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Leading coefficients Φ⁻¹(ε + (1 − 2ε) s_i) with ε = 10⁻³, the other ones zero; see the base class."""
        scores = torch.special.ndtri(CORNER_TAIL + (1.0 - 2.0 * CORNER_TAIL) * probabilities)
        return torch.cat([scores, scores.new_zeros(len(scores), self.count - scores.shape[1])], dim=1)

    def _coefficients(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        return torch.randn(n, self.count, dtype=torch.float64, generator=generator)


@dataclass(frozen=True)
class SignalSeparation(Problem):
    """A noisy mixture of tones of 1, 3, 5 and 7 Hz to one of the tones, over 2 s sampled at 100 Hz: 200 samples.

    With amplitudes drawn once per sequence and noise drawn once per sample,

        y_i = Σ_f [a_f cos 2πf t_i + b_f sin 2πf t_i] + σ ε_i,   a_f, b_f ~ N(0, 1/2),   ε_i ~ N(0, 1),   t_i = i/100 s.

    `sample` pairs the mixture y with the clean target tone, which y does not determine. What a model can know is the
    posterior of the tone given y, which is Gaussian: `solve` is its mean, `posterior` all of it, and `causal_posterior` what
    is known at each time from the samples up to it. Its variance is the least mean squared error of any method: over whole
    sequences 1/(2 + 100/σ²), .0098 at σ = 1, everywhere; for a causal one .417, .385, .037, .0195, .0098 after 1, 10, 50,
    100 and 200 samples (root mean squares .645, .62, .192, .139, .099).

    The noise belongs to samples, not to a function of time: on another grid it would be another draw with other information.
    So the one grid is that of the 200 samples, and any other is refused. It is periodic, since all tones return after 2 s.
    Times are in seconds, frequencies in hertz, signals dimensionless.

    Failure modes: the amplitudes persist, so a model has to look at whole sequences (or carry a state from sample to sample);
    if they were drawn anew for each sample, the mixture would carry no information beyond its own value.

    Args:
        noise: Variance σ² of the noise on each sample, dimensionless.
        target: Frequency of the tone wanted, in hertz.
        design_dim: Coordinates of the design space: the amplitudes (a₁, b₁, a₃, b₃, ...) first, then the noise.

    Raises:
        ArgumentError: If the noise is not positive, or the target is none of the frequencies.

    Reference:
        Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, section 2.1 (Bayesian linear regression).

    Examples:
        >>> problem = SignalSeparation()
        >>> pairs = problem.sample(2, resolution=200, seed=0)
        >>> round(problem.posterior(pairs.inputs[:1]).variance.max().item(), 4)
        0.0098
    """

    lengths: ClassVar[float] = 2.0
    is_linear: ClassVar[bool] = True

    noise: float = 1.0
    _: KW_ONLY
    target: float = 3.0
    design_dim: int = _AMPLITUDES

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_positive(self.noise, "noise")
        if check_real(self.target, "target") not in _FREQUENCIES:
            raise ArgumentError(
                expected=f"a target among {_FREQUENCIES} Hz", got=repr(self.target), remedy="choose one of the tones"
            )
        check_integer(self.design_dim, "design_dim", most=self.input_distribution.size)

    @property
    def name(self) -> str:
        """Name with the target and the variance of the noise."""
        return f"Signal separation, {self.target:g} Hz, noise {self.noise:g}"

    @property
    def input_distribution(self) -> StandardNormals:
        """Amplitudes and noise in units of their standard deviations."""
        return StandardNormals(_AMPLITUDES + _SAMPLES, _SAMPLES)

    def shifts(self) -> dict[str, Problem]:
        """`"noise"`: four times the variance of the noise, of which the best predictor would know."""
        return {"noise": replace(self, noise=4.0 * self.noise)}

    def posterior(self, mixtures: Field) -> GaussianField:
        """The exact distribution of the target tone given whole mixtures.

        Each sequence has amplitudes of its own, two latent coordinates for each, so the joint distribution over n sequences is
        of rank 2n and block-diagonal; the factor that says so has 4n² entries.

        Args:
            mixtures: `(n, 1, 200)`, as in `solve`.

        Returns:
            The posterior on the mixtures' grid, in their dtype.

        Raises:
            GridError: If the grid is not that of the samples.
            ShapeError: If there is not one channel, or there are no fields.
            DataError: If a value is not finite.
        """
        self._check_field(mixtures, "mixtures")
        mean = self.solve(mixtures).values
        count, tones = len(mixtures), self._tones(mixtures.grid)
        target = self._target_rows
        covariance = torch.linalg.inv(self._precision(tones.mT @ tones))[target, target]
        blocks = torch.zeros(count, 1, 2, count, 2, dtype=torch.float64)
        blocks[torch.arange(count), 0, :, torch.arange(count)] = torch.linalg.cholesky(covariance)
        features = tones[:, target].expand(count, -1, -1)
        root = FeatureRoot(features.to(mean), blocks.flatten(3).to(mean.device))
        latent = Latent(
            id=f"{self.name}-{digest(mixtures.values)}", rank=2 * count, is_shared_across_calls=False, source=self.name
        )
        return GaussianField(mean, root, latent=latent, grid=mixtures.grid)

    def causal_posterior(self, mixtures: Field) -> tuple[Field, Field]:
        """Mean and variance of the target tone at each time, given the samples up to that time.

        Each time has data of its own, so there is no joint distribution to return. No causal model can have a smaller
        mean squared error than this variance.

        Args:
            mixtures: `(n, 1, 200)`, as in `solve`.

        Returns:
            Mean and variance, `(n, 1, 200)` each, in the mixtures' dtype; the variance is that of the signal, squared units.

        Raises:
            GridError: If the grid is not that of the samples.
            ShapeError: If there is not one channel, or there are no fields.
            DataError: If a value is not finite.
        """
        self._check_field(mixtures, "mixtures")
        tones = self._tones(mixtures.grid)
        covariances = torch.linalg.inv(self._precision((tones[:, :, None] * tones[:, None, :]).cumsum(0)))
        target = self._target_rows
        # The target at t_i from the scores of all amplitudes.
        readers = torch.einsum("if,ifg->ig", tones[:, target], covariances[:, target])
        gains = torch.tril(readers @ tones.mT) / self.noise
        variance = torch.einsum("ig,ig->i", readers[:, target], tones[:, target])
        mean = mixtures.values.double() @ gains.mT.to(mixtures.device)
        spread = variance.to(mixtures.values).expand_as(mixtures.values).clone()
        return Field(mean.to(mixtures.dtype), mixtures.grid), Field(spread, mixtures.grid)

    @property
    def _target_rows(self) -> slice:
        """Where the target's two amplitudes are among the eight."""
        first = 2 * _FREQUENCIES.index(self.target)
        return slice(first, first + 2)

    def _tones(self, grid: Grid) -> Tensor:
        """Cosine and sine of each frequency at the samples, `(200, 8)`."""
        turns = torch.remainder(grid.axes[0].coordinates[:, None] * torch.tensor(_FREQUENCIES, dtype=torch.float64), 1.0)
        angle = 2.0 * math.pi * turns
        return torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(1)

    def _precision(self, gram: Tensor) -> Tensor:
        """Posterior precision of the amplitudes, `(..., 8, 8)`, from the tones' Gram matrix."""
        return gram / self.noise + torch.eye(_AMPLITUDES, dtype=torch.float64) / _AMPLITUDE_VARIANCE

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        amplitudes, noise = coefficients.split([_AMPLITUDES, _SAMPLES], dim=1)
        clean = math.sqrt(_AMPLITUDE_VARIANCE) * amplitudes @ self._tones(grid).mT.to(coefficients)
        return (clean + math.sqrt(self.noise) * noise)[:, None]

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        target = self._target_rows
        tone = coefficients[:, target] @ self._tones(grid)[:, target].mT.to(coefficients)
        return math.sqrt(_AMPLITUDE_VARIANCE) * tone[:, None]

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        tones = self._tones(grid)
        gains = torch.linalg.solve(self._precision(tones.mT @ tones), tones.mT / self.noise)
        target = self._target_rows
        return values @ (tones[:, target] @ gains[target]).mT.to(values)

    def _check_resolution(self, sizes: Sequence[int]) -> None:
        # What lies less than 1 away is no integer, and is refused where the grid is made.
        if any(abs(size - _SAMPLES) >= 1 for size in sizes):
            raise ResolutionError(
                expected=f"exactly {_SAMPLES} points per axis, the samples that the noise belongs to",
                got=str(tuple(sizes)),
                remedy=f"use resolution={_SAMPLES}; noise on other samples is another problem",
            )

    def _check_grid(self, grid: Grid) -> None:
        super()._check_grid(grid)
        self._check_resolution(grid.shape)
