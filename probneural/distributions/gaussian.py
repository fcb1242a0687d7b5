"""Gaussian fields: a mean plus a lazy root times a named latent vector."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural import checks
from probneural.contexts import undisturbed
from probneural.distributions.base import (
    FieldDistribution,
    check_deviation_factors,
    check_values,
    held_variance,
    index_grid,
    inherit,
    inherit_image,
    inherit_rows,
    noise_variance,
    normal_base_samples,
    sample_size,
)
from probneural.distributions.constraints import ROW_ROUNDING, Constraint, Residual, checked, find_mode
from probneural.distributions.intervals import SharedModes, log_density_of_function, log_density_of_values
from probneural.distributions.latent import Latent, Seeds, SelectedFunctions, checked_seeds, digest
from probneural.distributions.roots.base import Root
from probneural.distributions.roots.modulated import weigh
from probneural.distributions.roots.sums import CorrectedRoot, SideBySideRoot
from probneural.errors import ArgumentError, ConstraintError, LatentError, ShapeError
from probneural.fields import row_number, select_rows
from probneural.functionals import Functional
from probneural.functionals.base import check_functional
from probneural.grids import Grid, check_grid
from probneural.linear_algebra.conditioning import (
    LatentUpdate,
    LowRankUpdate,
    Rounding,
    condition_exactly,
    condition_noisily,
    discrepancy_gain,
)
from probneural.linear_algebra.densities import LOG_TWO_PI

if TYPE_CHECKING:
    from linear_operator import LinearOperator

_ROUNDING = 8.0
"""Rounding errors of a functional's values, in units of the dtype's precision times their scale."""


class GaussianField(FieldDistribution):
    """u_i = mean_i + root_i xi + discrepancy_i zeta_i: a Gaussian distribution over n samples.

    The shared vector xi ~ N(0, I_k) represents the uncertain operator and makes the samples coherent. The per-sample
    vectors zeta_i ~ N(0, I_r) represent model discrepancy, which no weights of the operator can express. Data on one
    sample inform the others through xi only.

    Args:
        mean: `(n, c, *grid.shape)`, in physical units.
        root: A root of shape `(n, c, p, k)`, in physical units.
        latent: The name of xi, or a latent; its rank is k.
        grid: Grid of the samples, with p points.
        discrepancy: A root of shape `(n, c, p, r)`, in physical units, or None.

    Raises:
        ShapeError: If mean, roots, latent and grid do not fit together.

    Reference:
        Kennedy and O'Hagan (2001), Bayesian calibration of computer models, section 4.1 (model discrepancy).

    Examples:
        >>> from probneural.distributions.roots.base import DenseRoot
        >>> grid = Grid.uniform((4,))
        >>> field = GaussianField(torch.zeros(1, 1, 4), DenseRoot(torch.full((1, 1, 4, 1), 2.0)), latent="xi", grid=grid)
        >>> field.variance[0, 0].tolist()
        [4.0, 4.0, 4.0, 4.0]
    """

    def __init__(
        self, mean: Float[Tensor, "..."], root: Root, *, latent: Latent | str, grid: Grid, discrepancy: Root | None = None
    ) -> None:
        checks.check_floating(mean, "mean")
        for part, name in ((root, "root"), (discrepancy, "discrepancy")):
            if part is not None or name == "root":
                checks.check_instance(part, Root, name, remedy="wrap the tensor: DenseRoot(matrix)")
        named = Latent(id=latent, rank=root.shape[3]) if isinstance(latent, str) else _check_latent(latent)
        check_grid(grid)
        inputs, channels, points, rank = root.shape
        if tuple(mean.shape) != (inputs, channels, *grid.shape) or points != grid.size or named.rank != rank:
            raise ShapeError(
                expected=f"mean (n, c, *{grid.shape}), root (n, c, {grid.size}, k) and a latent of rank k",
                got=f"mean {tuple(mean.shape)}, root {root.shape}, rank {named.rank}",
                remedy="evaluate mean and root at the same inputs on the same grid",
            )
        self._mean = mean
        self.root = root
        self.latent = named
        self.grid = grid
        self.discrepancy = discrepancy
        self._each: Root = root if discrepancy is None else SideBySideRoot(root, discrepancy)
        self._functions = SelectedFunctions(object(), torch.arange(inputs, device="cpu"))

    @property
    def mean(self) -> Float[Tensor, "n c *grid"]:
        """The mean, `(n, c, *grid.shape)`, in physical units."""
        return self._mean

    @property
    def variance(self) -> Float[Tensor, "n c *grid"]:
        """The pointwise variance, `(n, c, *grid.shape)`, in physical units squared, never clamped.

        Raises:
            DataError: If the mean's dtype does not hold it; it holds the standard deviation.
        """
        with undisturbed():
            variance = self._each.row_squares().unflatten(-1, self.grid.shape).to(self._mean)
        return held_variance(variance, self)

    @property
    def standard_deviation(self) -> Float[Tensor, "n c *grid"]:
        """The pointwise standard deviation, `(n, c, *grid.shape)`, in physical units, however small or large."""
        with undisturbed():
            return self._each.row_norms().unflatten(-1, self.grid.shape).to(self._mean)

    @property
    def _discrepancy_variance(self) -> Float[Tensor, "n c *grid"]:
        if self.discrepancy is None:
            return super()._discrepancy_variance
        return self.discrepancy.row_squares().unflatten(-1, self.grid.shape)

    @property
    def base_shape(self) -> torch.Size:
        """`(k + n r,)`: the shared latent vector, then the discrepancy vectors of the distinct samples."""
        discrepancy_rank = 0 if self.discrepancy is None else self._functions.number * self.discrepancy.shape[3]
        return torch.Size([self.latent.rank + discrepancy_rank])

    @property
    def covariance(self) -> LinearOperator:
        """The covariance of each function, a lazy `LinearOperator` of shape `(n, c * p, c * p)`, channels first."""
        from linear_operator.operators import RootLinearOperator  # costs a second to import, and few need it

        return RootLinearOperator(self._each.dense().flatten(1, 2))

    def rsample(
        self, sample_shape: torch.Size | Sequence[int] = (), *, seed: int | None = None, base_samples: Tensor | None = None
    ) -> Float[Tensor, "*s n c *grid"]:
        """Draw samples; see the base class. Base samples are standard normal, `(*sample_shape, *base_shape)`."""
        count = sample_size(sample_shape)
        numbers = normal_base_samples(sample_shape, self.base_shape, seed=seed, base_samples=base_samples, name=self.latent.key)
        latents = numbers.to(self.root.device).reshape(count, *self.base_shape)
        deviations = self.root.product(latents[:, : self.latent.rank])
        if self.discrepancy is not None and len(self):
            own_rank = self.discrepancy.shape[3]
            discrepancy_latents = latents[:, self.latent.rank :].unflatten(1, (self._functions.number, own_rank))
            places = self._functions.places.to(latents.device)
            if 0 < count <= len(self):
                for row, numbers in enumerate(discrepancy_latents):
                    deviations[row] += self.discrepancy.product_each(numbers[places]).to(deviations)
            else:
                for row, place in enumerate(places.tolist()):
                    root = self.discrepancy.select(slice(row, row + 1))
                    deviations[:, row] += root.product(discrepancy_latents[:, place])[:, 0].to(deviations)
        return self._mean + deviations.reshape(*sample_shape, *self._mean.shape).to(self._mean)

    def draw(self, seeds: Sequence[int], *, each: bool = False) -> Float[Tensor, "..."]:
        """Evaluate coherent draws, mean + root xi(seed) + discrepancy zeta(seed); see the base class."""
        checked = checked_seeds(seeds, each=each, samples=len(self))
        deviations = self.root.draw(Seeds(checked, self.latent.key), each=each)
        smooth = None if self.discrepancy is None else self.discrepancy.without_white()[0]
        if smooth is not None:
            drawn = smooth.draw(Seeds(checked, self.latent.key, of_discrepancy=True), each=each)
            deviations = deviations + drawn.to(deviations)
        return self._mean + deviations.unflatten(-1, self.grid.shape).to(self._mean)

    def apply(self, functional: Functional) -> GaussianField:
        """Push forward exactly: mean and root of `functional(u)`, driven by the same latent."""
        check_functional(functional, grid=self.grid)
        image = GaussianField(
            functional(self._mean.to(torch.float64)).to(self._mean),
            self.root.push(functional),
            latent=self.latent,
            grid=index_grid(functional.size),
            discrepancy=None if self.discrepancy is None else self.discrepancy.push(functional),
        )
        return of_functions(inherit_image(image, self, functional.labels), self._functions)

    def scale(self, factors: Float[Tensor, "..."]) -> GaussianField:
        """Multiply the deviation by factors; the result has a new latent."""
        factors = check_deviation_factors(factors, self.root.shape[:2] + self.grid.shape)
        per_channel = factors.ndim == 1
        name = ",".join(f"{float(factor):.12g}" for factor in factors) if per_channel else digest(factors)

        def scaled(root: Root) -> Root:
            return root.scale(factors) if per_channel else weigh(root, factors.flatten(2))

        field = GaussianField(
            self._mean,
            scaled(self.root),
            latent=self.latent.renamed(f"scaled:{name}"),
            grid=self.grid,
            discrepancy=None if self.discrepancy is None else scaled(self.discrepancy),
        )
        field.labels = self.labels
        return of_functions(field, self._functions.anew())

    def constrain(self, functional: Functional, values: Float[Tensor, "n c m"]) -> GaussianField:
        """Impose an exact linear constraint on every sample: u -> u + K (values - A u), with the gain K of the sample's prior.

        This is Matheron's rule function by function: mean and draws satisfy the constraint, and no function learns from
        another's. The latent stays the same, so constrained draws are the projections of the unconstrained ones.

        Args:
            functional: A, of size m, on this distribution's grid.
            values: Values of A u, `(n, c, m)`; tensors, lists or arrays.

        Raises:
            ConstraintError: If the distribution has no freedom left to meet the constraint.
            DataError: If a value is not finite.
        """
        root, values, residual = self._observed(functional, values)
        matrix, rounding = root.dense().to(torch.float64).flatten(1, 2), self._rounding(functional, values).flatten(1)
        update = condition_exactly(matrix, residual.flatten(1), rounding=rounding, dtype=self._precision)
        moved = self._each.product_each(update.shift).unflatten(-1, self.grid.shape)
        return self._composed(self._mean + moved.to(self._mean), update.transform)

    def constrain_residual(
        self, residual: Residual, *, noise: float | Tensor = 0.0, iterations: int = 50, tolerance: float = 1e-10
    ) -> GaussianField:
        """Impose a nonlinear constraint residual(u) = 0 on every sample, by damped Newton steps; see also `constrain`.

        The mean becomes the most probable function under the prior that obeys the constraint:
        u = mean + root xi with the smallest |xi|^2 / 2, or with the smallest |xi|^2 / 2 + sum of residual^2 / (2 noise).
        The deviation is the prior's, given the constraint linearised about that mean (the Laplace approximation). So draws obey
        the linearised constraint exactly, and the constraint itself up to the square of their distance from the mean. To bring
        a draw onto the constraint, project it: `GaussianField(draw, u.root, latent=u.latent,
        grid=u.grid).constrain_residual(residual).mean`, with u this field. The latent stays the same.

        Args:
            residual: The residual: `(n, c, *grid)` in the mean's dtype to `(n, m)`, sample by sample, built from
                differentiable torch operations that `torch.func` can transform. A value per function may be captured.
            noise: Variance of the residuals about zero, in their units squared: a number, one per residual `(m,)`,
                or `(n, m)`; 0 makes the constraint exact.
            iterations: Newton steps to take at most; linear constraints take one. Where a constraint is far from linear over
                the distance moved, they may find a local maximum of the density only, or nothing.
            tolerance: Exact constraints are met within this fraction of the residual's prior standard deviation, and within
                rounding.

        Returns:
            The constrained field, differentiable in mean and root, once, by the implicit function theorem.

        Raises:
            ConstraintError: If the steps do not converge, or a linearised constraint cannot be met, as where its derivative is
                zero.
            ArgumentError: If the residual mixes samples; if noise is negative, or zero for some residuals only; if iterations
                or tolerance are not positive.
            ShapeError: If the residual is not `(n, m)`.
            DataError: If the residual or its derivative is not finite about the mean.

        References:
            Bell and Cathey, 1993; Nocedal and Wright, 2006, section 18.5 (merit function).

        Examples:
            >>> from probneural.distributions.roots.base import DenseRoot
            >>> root = DenseRoot(torch.eye(2, dtype=torch.float64).reshape(1, 1, 2, 2))
            >>> field = GaussianField(torch.ones(1, 1, 2).double(), root, latent="xi", grid=Grid.uniform((2,)))
            >>> moved = field.constrain_residual(lambda u: u.square().sum((1, 2))[:, None] - 8.0)
            >>> [round(value, 8) for value in moved.mean.flatten().tolist()]
            [2.0, 2.0]
        """
        checks.check_callable(residual, "residual", remedy="give a function of values (n, c, *grid) that returns (n, m)")
        iterations, tolerance = checks.check_integer(iterations, "iterations"), checks.check_positive(tolerance, "tolerance")
        numbers = checked(residual(self._mean.detach()), len(self)).to(torch.float64)
        constraint = Constraint(
            self._mean,
            self._each,
            residual,
            noise=self._observation_noise(noise, numbers),
            magnitude=self._each.magnitude().detach(),
            precision=_ROUNDING * torch.finfo(self._precision).eps,
            dtype=self._precision,
        )
        constraint.check_independence()
        mode = find_mode(constraint, iterations=iterations, tolerance=tolerance)
        return self._composed(self._mean + mode.deviation.to(self._mean), mode.transform)

    def condition(
        self, functional: Functional, values: Float[Tensor, "n c m"], *, noise: float | Tensor = 0.0
    ) -> GaussianField:
        """Bayes' rule on the latent: all n samples are observed jointly, and each observation informs all of them.

        The result's `latent` transfers the posterior to any other field of the same predictor through
        [`under`][probneural.distributions.gaussian.GaussianField.under], and reports chi^2 per observation.

        Args:
            functional: A, of size m, on this distribution's grid.
            values: The observations of A u, `(n, c, m)`; lists and arrays will do.
            noise: Noise variance, in the values' units squared: a number, one per channel, or one per value; 0 is exact.

        Raises:
            ConstraintError: If there are more exact observations than the rank of the latent, or they contradict; if a function
                with a discrepancy was selected twice.
            ArgumentError: If noise is negative, or zero for some values only.
            DataError: If a value is not finite.
        """
        observed, values, residual = self._observed(functional, values)
        variance = self._observation_noise(noise, residual)
        rounding = self._rounding(functional, values).flatten(1)
        update = self._latent_update(observed, residual.flatten(1), variance, rounding)
        if self.discrepancy is not None and len(self) and isinstance(observed, SideBySideRoot):
            return self._with_discrepancy(observed, update, residual.flatten(1), variance, rounding)
        return self.under(self.latent.conditioned(update.shift, update.transform, chi2=float(update.chi2.detach())))

    @staticmethod
    def _observation_noise(noise: float | Tensor, residual: Tensor) -> Tensor | None:
        """Noise variances of a functional's values, `(n, c * m)`, or None if they are exact."""
        variance = noise_variance(noise, tuple(residual.shape), residual).flatten(1)
        if not bool((variance > 0).any()):
            return None
        if not bool((variance > 0).all()):
            raise ArgumentError(
                expected="noise that is positive everywhere, or zero everywhere",
                got="a mixture",
                remedy="take the exact observations or residuals first, then the others",
            )
        return variance

    def _latent_update(self, observed: Root, residual: Tensor, noise: Tensor | None, rounding: Rounding) -> LatentUpdate:
        """Bayes' rule on xi.

        With A_i root_i = F_i, A_i discrepancy_i = B_i and N_i = B_i B_i^T + noise, it is informed by r_i = F_i xi + N(0, N_i).

        Args:
            observed: Root of the functional's values, concatenated with the discrepancy's if there is one.
            residual: r, `(n, c * m)`.
            noise: `(n, c * m)`, or None.
            rounding: Rounding errors of residuals and rows, each `(n, c * m)`.
        """
        if self.discrepancy is not None and isinstance(observed, SideBySideRoot) and not len(residual):
            observed = observed.first
        elif self.discrepancy is not None and isinstance(observed, SideBySideRoot):
            self._functions.check_distinct()
            shared = observed.first.dense().to(torch.float64).flatten(1, 2)
            _, whitened = self._gain(observed, noise)
            rows = whitened @ torch.cat([shared, residual[..., None]], dim=-1)
            update = condition_noisily(
                rows[..., :-1].flatten(0, 1), rows[..., -1].flatten(), torch.ones_like(residual).flatten()
            )
            _check_update(update)
            return update
        matrix, flat = observed.dense().to(torch.float64).flatten(0, 2), residual.flatten()
        if noise is not None:
            update = condition_noisily(matrix, flat, noise.flatten())
        else:
            count, remedy = flat.shape[0], "give noise > 0; or use constrain for one constraint per sample"
            name = "number of exact observations, up to the rank of the latent"
            checks.check_integer(count, name, least=0, most=self.latent.rank, remedy=remedy, error=ConstraintError)
            update = condition_exactly(matrix, flat, rounding=rounding.flatten(), dtype=self._precision)
        _check_update(update)
        return update

    def _gain(self, observed: SideBySideRoot, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """G_i = B_i^T N_i^-1, and the whitening matrix of N_i."""
        return discrepancy_gain(observed.second.dense().to(torch.float64).flatten(1, 2), noise, dtype=self._precision)

    def _with_discrepancy(
        self, observed: SideBySideRoot, update: LatentUpdate, residual: Tensor, noise: Tensor | None, rounding: Rounding
    ) -> GaussianField:
        """Posterior of every zeta_i given the observations and xi.

        zeta_i = G_i (r_i - F_i xi) + S_i zeta_i'. So the mean moves by discrepancy_i G_i r_i, and the root of xi becomes
        root_i - discrepancy_i G_i F_i: draws of the same xi at other samples remain draws of one operator.
        """
        shared = observed.first.dense().to(torch.float64).flatten(1, 2)
        rows = observed.second.dense().to(torch.float64).flatten(1, 2)
        gain, _ = self._gain(observed, noise)
        remaining = residual - shared @ update.shift
        gains = (
            condition_exactly(rows, remaining, rounding=rounding, dtype=self._precision)
            if noise is None
            else condition_noisily(rows, remaining, noise)
        )
        assert self.discrepancy is not None
        columns = [self.discrepancy.product_each(gain[:, :, index]) for index in range(gain.shape[2])]
        updated = update.transform.product(shared.flatten(0, 1)).view_as(shared)
        corrected = CorrectedRoot.of(self.root.compose(update.transform), -torch.stack(columns, -1), updated)
        moved = self.root.product(update.shift[None])[0] + self.discrepancy.product_each(gains.shift)
        field = GaussianField(
            self._mean + moved.unflatten(-1, self.grid.shape).to(self._mean),
            corrected,
            latent=self.latent.conditioned(update.shift, update.transform, chi2=float(update.chi2.detach())),
            grid=self.grid,
            discrepancy=self.discrepancy.compose(gains.transform),
        )
        return inherit(field, self)

    def under(self, latent: Latent) -> GaussianField:
        """Return this field given the data in `latent` that this field's latent does not include.

        Raises:
            LatentError: If `latent` was not conditioned from this field's.
        """
        shift, transforms = _check_latent(latent).relative_to(self.latent)
        if shift is None:
            return self
        moved = self.root.product(shift[None])[0].unflatten(-1, self.grid.shape)
        root = functools.reduce(lambda root, transform: root.compose(transform), transforms, self.root)
        mean = self._mean + moved.to(self._mean)
        field = GaussianField(mean, root, latent=latent, grid=self.grid, discrepancy=self.discrepancy)
        return of_functions(inherit(field, self), self._functions.anew())

    def log_prob(
        self, values: Float[Tensor, "n c *grid"], *, noise: float | Tensor = 0.0, joint: bool = True
    ) -> Float[Tensor, "..."]:
        """Log density of observed samples, in nats.

        Args:
            values: Observations at every grid point, `(n, c, *grid.shape)`.
            noise: Variance of independent observation noise at each point, in physical units squared.
            joint: Joint density of all values of a sample, or the density of each value.

        Returns:
            `(n,)` if joint, else `(n, c, *grid.shape)`; float64.

        Raises:
            ArgumentError: If the density does not exist because some direction has no variance at all.
        """
        joint, residual = checks.check_flag(joint, "joint"), checked_residual(self, values)
        variance = noise_variance(noise, tuple(residual.shape), residual)
        if not joint:
            return log_density_of_values(residual, std=self.standard_deviation.to(residual), noise=variance)
        return joint_log_densities(self, residual[None], noise=variance)[0]

    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> GaussianField:
        """Select samples; they stay coherent with the others through the latent."""
        rows = select_rows(index, len(self))
        discrepancy = None if self.discrepancy is None else self.discrepancy.select(rows)
        root = self.root.select(rows)
        grid = self.grid.select(rows)
        field = GaussianField(self._mean[rows], root, latent=self.latent, grid=grid, discrepancy=discrepancy)
        return of_functions(inherit_rows(field, self, rows), self._functions.select(rows))

    def marginal(self, index: int) -> GaussianField:
        """The marginal of one sample, with a new latent if that makes its root smaller."""
        index = row_number(index, len(self))
        root = self.root.marginal(index)
        rank = root.shape[3]
        latent = self.latent
        if rank != latent.rank:
            number = int(self._functions.rows[index])  # index in the original prediction
            content = digest(self._mean[index], root.product(self._mean.new_ones(1, rank)))  # variances may cost much more
            name = f"{latent.id}|marginal-{number}-{content}"
            latent = Latent(id=name, rank=rank, is_shared_across_calls=latent.is_shared_across_calls, source=latent.key)
        discrepancy = None if self.discrepancy is None else self.discrepancy.marginal(index)
        mean = self._mean[index : index + 1]
        grid = self.grid.select(slice(index, index + 1))
        alone = GaussianField(mean, root, latent=latent, grid=grid, discrepancy=discrepancy)
        alone = inherit_rows(alone, self, index)
        if discrepancy is None or self.discrepancy is None or discrepancy.shape[3] != self.discrepancy.shape[3]:
            return alone
        return of_functions(alone, self._functions.select(slice(index, index + 1)))

    def _observed(self, functional: Functional, values: Tensor) -> tuple[Root, Tensor, Tensor]:
        """Root of a functional's values including discrepancy, the observed values, and their residual in float64."""
        check_functional(functional, grid=self.grid)
        root, values = self._each.push(functional), checks.real_tensor(values, "values")
        check_values(values, root.shape[:3], "the functional's values")
        checks.check_finite(values, "values of the functional")
        mean = functional(self._mean.to(torch.float64))
        return root, values, values.to(mean) - mean

    @property
    def _precision(self) -> torch.dtype:
        """The coarser dtype of mean and root."""
        return torch.float32 if torch.float32 in (self._mean.dtype, self.root.dtype) else torch.float64

    def _rounding(self, functional: Functional, values: Tensor) -> Rounding:
        """Rounding errors of the functional's values and of the rows of its root, `(n, c, m)`, float64.

        The error of the samples' values, propagated by the functional, which sums p of them in float64.
        """
        with torch.no_grad():
            spread = self._each.magnitude().to(torch.float64)
            largest = spread + self._mean.flatten(2).abs().amax(-1).to(spread)
        norms, sums = (functional.row_norms(order=order).to(spread.device) for order in (2, 1))
        unit = _ROUNDING * torch.finfo(self._precision).eps
        summed = torch.finfo(torch.float64).eps * math.sqrt(self.grid.size) * largest[..., None] * sums
        residuals = unit * (largest[..., None] * norms + values.to(spread).abs()) + summed
        return Rounding(residuals, ROW_ROUNDING * unit * spread[..., None] * norms)

    def _composed(self, mean: Tensor, transform: LowRankUpdate) -> GaussianField:
        """The field with another mean, after a map of every sample's latent vectors that preserves the latent's name."""
        root = self._each.compose(transform)
        if self.discrepancy is not None and isinstance(root, SideBySideRoot):
            shared, discrepancy = root.first, root.second
        else:  # the root may be a concatenation of two
            shared, discrepancy = root, None
        field = GaussianField(mean, shared, latent=self.latent, grid=self.grid, discrepancy=discrepancy)
        return of_functions(inherit(field, self), self._functions.anew())


def of_functions(field: GaussianField, functions: SelectedFunctions) -> GaussianField:
    """Give a field, just made, the identities of its samples."""
    field._functions = functions
    return field


def around(u: GaussianField, mean: Float[Tensor, "n c *grid"]) -> GaussianField:
    """The deviations of a field around another mean."""
    field = GaussianField(mean, u.root, latent=u.latent, grid=u.grid, discrepancy=u.discrepancy)
    return of_functions(inherit(field, u), u._functions.anew())


def _is_padded(grid: Grid) -> bool:
    return grid.has_points_per_sample and grid.is_masked


def checked_residual(u: GaussianField, values: Float[Tensor, "n c *grid"]) -> Float64[Tensor, "n c *grid"]:
    """Observed values minus the mean, in float64; raises for another shape or values that are not finite."""
    values = checks.real_tensor(values, "values")
    check_values(values, tuple(u.mean.shape), "values")
    checks.check_finite(values, "values")
    return values.to(u.mean.device, torch.float64) - u.mean.to(torch.float64)


def joint_log_densities(
    u: GaussianField, residuals: Float64[Tensor, "m n c *grid"], *, noise: Float64[Tensor, "n c *grid"]
) -> Float64[Tensor, "m n"]:
    """Joint log densities of m residuals of each sample, in nats, for variances of observation noise."""
    each = u.root if u.discrepancy is None else SideBySideRoot(u.root, u.discrepancy)
    densities, modes = residuals.new_empty(residuals.shape[:2]), SharedModes()
    precision = torch.float32 if torch.float32 in (u.mean.dtype, u.root.dtype) else torch.float64
    for index in range(len(u)):  # one sample at a time: c * p * k entries in float64, or a Gram matrix
        root, white = each.marginal(index).without_white()
        variance = noise[index].flatten() + white.flatten().to(noise)
        distances, padding = residuals[:, index].flatten(1), 0.0
        if _is_padded(u.grid):  # padding takes part as standard normal values that are 0
            counted = u.grid.observed[index].to(torch.float64)
            root = None if root is None else weigh(root, counted.to(root.like).expand(root.shape[:3]))
            everywhere = counted.expand(u.mean.shape[1], -1).flatten().to(variance)
            variance, distances = torch.where(everywhere > 0, variance, 1.0), distances * everywhere
            padding = 0.5 * LOG_TWO_PI * float((everywhere == 0).sum())
        density = modes.log_densities(root, distances, noise=variance)
        if density is None:
            parts = [log_density_of_function(root, distance, noise=variance, dtype=precision) for distance in distances]
            density = torch.stack(parts)
        densities[:, index] = density + padding
    return densities


def value_counts(u: GaussianField) -> Float64[Tensor, " n"]:
    """Number of values of each sample in its joint density: all but the padding."""
    points = u.grid.observed.sum(-1) if _is_padded(u.grid) else torch.full((len(u),), u.grid.size)
    return u.mean.shape[1] * points.to(torch.float64)


def _check_update(update: LatentUpdate) -> None:
    """Raise a ConstraintError unless the posterior is finite."""
    if not bool(torch.isfinite(update.shift).all() and torch.isfinite(update.chi2).all()):
        raise ConstraintError(
            expected="observations whose squared distance from the mean, in standard deviations, is finite in float64",
            got="a larger one",
            remedy="check the observations and their noise, which is a variance",
        )


def _check_latent(latent: object) -> Latent:
    """Return a latent, or raise a LatentError."""
    return checks.check_instance(
        latent, Latent, "latent", remedy="take that of a conditioned field: field.latent", error=LatentError
    )
