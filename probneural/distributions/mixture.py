"""Mixtures of Gaussian fields."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.checks import check_finite, check_flag, check_instance, check_sequence, real_tensor
from probneural.distributions.base import (
    FieldDistribution,
    check_deviation_factors,
    check_values,
    held_variance,
    inherit,
    inherit_image,
    inherit_rows,
    normal_base_samples,
    observed_std,
    sample_size,
    spread_over,
)
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField, around, of_functions
from probneural.distributions.intervals import check_probabilities, mixture_quantiles
from probneural.distributions.latent import Latent, checked_seeds, digest, draw_keys
from probneural.distributions.roots.base import DenseRoot, Root, root_sum_of_squares, square_root
from probneural.distributions.roots.modulated import weigh
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.errors import ArgumentError, ConstraintError, DataError, ShapeError, UnsupportedError
from probneural.fields import row_number, select_rows
from probneural.functionals import Functional
from probneural.functionals.base import check_functional
from probneural.grids import Grid
from probneural.grids.grid import check_same_grid
from probneural.randomness import stream

_LARGEST_EXPONENT = 700.0
"""Up to where float64 holds exponentials; only components without weight get there."""


class MixtureField(FieldDistribution):
    """p(u) = Σ_k w_k N(u; m_k, C_k): each drawn field comes from one component.

    All quantities are exact: mean and variance (within and between components), joint densities of samples by a sum
    over components, distribution functions and quantiles of every value by root search, functionals component by component.

    With one weight per component, a draw takes all n functions from the same component: it is one operator. With one per
    component and function, a draw's functions share one uniform number, which each compares with its own weights.

    Args:
        components: m Gaussian fields of the same samples on one grid; mixtures are expanded into their components.
        weights: `(m,)`, or `(m, n)` if they depend on the sample; not negative, dimensionless, normalised internally; equal by
            default.

    Raises:
        DataError: If a component is no Gaussian field or mixture, there are none, or weights are negative, not finite, or all
            zero.
        GridError: If the grids of components differ.
        ShapeError: If components or weights do not fit together.

    Reference:
        Gneiting and Ranjan (2013), Combining predictive distributions, theorem 3.1 (a linear pool of calibrated components
        is too wide).

    Examples:
        >>> from probneural.distributions.roots.base import DenseRoot
        >>> from probneural.grids import Grid
        >>> settings = {"latent": "xi", "grid": Grid.uniform((1,))}
        >>> root = DenseRoot(torch.ones(1, 1, 1, 1))
        >>> field = MixtureField([GaussianField(torch.full((1, 1, 1), x), root, **settings) for x in (-2.0, 2.0)])
        >>> field.mean.item(), field.variance.item()
        (0.0, 5.0)
    """

    def __init__(
        self, components: Sequence[GaussianField | MixtureField], weights: Float[Tensor, "m *n"] | None = None
    ) -> None:
        fields = list(check_sequence(components, "components", remedy="give a list of Gaussian fields", error=DataError))
        if not fields:
            raise DataError(expected="at least one component", got="none", remedy="give a list of Gaussian fields")
        for field in fields:
            if not isinstance(field, MixtureField):
                check_instance(field, GaussianField, "component", remedy="of an ensemble's field: field.moment_matched()")
        self.grid = fields[0].grid
        shape = tuple(fields[0].mean.shape)
        for field in fields:
            check_same_grid(field.grid, self.grid, "components", remedy="predict all with one query")
            check_values(field.mean, shape, "mean of a component")
        mass = checked_weights(weights, len(fields), shape[0])
        self._components, self.weights = _flattened(fields, mass)

    @property
    def components(self) -> tuple[GaussianField, ...]:
        """The m Gaussian fields."""
        return self._components

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.components[0])

    @property
    def pointwise_weights(self) -> Float64[Tensor, "m n *ones"]:
        """Weights that broadcast against the components' values, `(m, n, 1, ...)`."""
        mass = self.weights if self.weights.ndim == 2 else self.weights[:, None].expand(-1, len(self))
        return mass.reshape(*mass.shape, *(1,) * (1 + len(self.grid.shape)))

    def _mixed(self, parts: Sequence[Tensor]) -> Tensor:
        """The weighted sum of one tensor `(n, c, *grid)` per component, infinite ones of no weight left out."""
        terms = []
        for mass, part in zip(self.pointwise_weights, parts, strict=True):
            weight = mass.to(part)
            terms.append(weight * torch.where((weight > 0) | part.isfinite(), part, torch.zeros_like(part)))
        return functools.reduce(torch.add, terms)

    def _held(self) -> list[bool]:
        """Mask of components with non-zero weight or with a gradient of their weight; the others are not evaluated."""
        if not len(self) or (self.weights.requires_grad and torch.is_grad_enabled()):
            return [True] * len(self.weights)
        return (self.weights.reshape(len(self.weights), -1) > 0).any(1).tolist()

    def _component_means(self) -> list[Float[Tensor, "n c *grid"]]:
        """Means of all components; override it if they are available without evaluating the components."""
        return [field.mean for field in self.components]

    def _component_variances(self) -> list[Float[Tensor, "n c *grid"]]:
        """Variances of all components, zeros for those without weight; override where they have their work in common."""
        pairs = zip(self._held(), self.components, strict=True)
        return [field.variance if held else torch.zeros_like(field.mean) for held, field in pairs]

    def _component_deviations(self, noise: float | Tensor) -> list[Float64[Tensor, "n c *grid"]]:
        """Standard deviations of measurements of all components; override likewise."""
        return [observed_std(field, noise) for field in self.components]

    @property
    def mean(self) -> Float[Tensor, "n c *grid"]:
        """The weighted mean, `(n, c, *grid.shape)`, in physical units."""
        return self._mixed([field.mean for field in self.components])

    @property
    def variance(self) -> Float[Tensor, "n c *grid"]:
        """Σ w_k (v_k + (m_k - mean)²), `(n, c, *grid.shape)`, in physical units squared.

        Raises:
            DataError: If the mean's dtype does not hold it; it holds the standard deviation.
        """
        mean = self.mean
        spread = [(field.mean - mean).square() for field in self.components]
        variance = self._mixed([first + second for first, second in zip(self._component_variances(), spread, strict=True)])
        return held_variance(variance, self)

    @property
    def standard_deviation(self) -> Float[Tensor, "n c *grid"]:
        """The pointwise standard deviation, `(n, c, *grid.shape)`, in physical units, however small or large."""
        mean = self.mean
        sizes = [root_sum_of_squares(field.standard_deviation, field.mean - mean) for field in self.components]
        weighty = [
            torch.where(mass.to(mean.device) > 0, size.detach(), torch.zeros_like(mean))
            for mass, size in zip(self.pointwise_weights, sizes, strict=True)
        ]
        unit = functools.reduce(torch.maximum, weighty)
        unit = torch.where(unit > 0, unit, torch.ones_like(unit))
        return square_root(self._mixed([(size / unit).square() for size in sizes])) * unit

    @property
    def _discrepancy_variance(self) -> Float[Tensor, "n c *grid"]:
        return self._mixed([field._discrepancy_variance for field in self.components])

    @property
    def base_shape(self) -> torch.Size:
        """`(1 + k_1 + ... + k_m,)`: a number that selects the component, then the latent vectors of the components."""
        return torch.Size([1 + sum(field.base_shape[0] for field in self.components)])

    def rsample(
        self, sample_shape: torch.Size | Sequence[int] = (), *, seed: int | None = None, base_samples: Tensor | None = None
    ) -> Float[Tensor, "*s n c *grid"]:
        """Draw samples; see the base class. Base samples are standard normal, `(*sample_shape, *base_shape)`.

        A draw is differentiable through the component that it came from; the choice is not.
        """
        mean = self.mean
        numbers, chosen = self._chosen(sample_shape, seed=seed, base_samples=base_samples)
        drawn = mean.new_zeros(len(numbers), *mean.shape)
        ends = itertools.accumulate((field.base_shape[0] for field in self.components), initial=1)
        for index, (field, start) in enumerate(zip(self.components, ends, strict=False)):
            rows = torch.nonzero((chosen == index).any(1)).flatten()
            if not len(rows):
                continue
            stop = start + field.base_shape[0]
            draws = field.rsample((len(rows),), base_samples=numbers[rows.to(numbers.device), start:stop])
            is_own = (chosen[rows] == index).reshape(len(rows), len(self), *(1,) * (mean.ndim - 1)).to(mean.device)
            rows = rows.to(mean.device)
            drawn = drawn.index_copy(0, rows, torch.where(is_own, draws.to(drawn), drawn[rows]))
        return drawn.reshape(*sample_shape, *mean.shape)

    def draw(self, seeds: Sequence[int], *, each: bool = False) -> Float[Tensor, "..."]:
        """Evaluate the draw of one component for each seed; see the base class."""
        checked = checked_seeds(seeds, each=each, samples=len(self))
        return self._draw_at(uniform_numbers(checked, self.source or self._latent_name), checked, each=each)

    def _chosen(
        self, sample_shape: torch.Size | Sequence[int], *, seed: int | None, base_samples: Tensor | None
    ) -> tuple[Float[Tensor, "s _"], Int64[Tensor, "s n"]]:
        """Base samples of s draws, and the component of each function in each draw."""
        count = sample_size(sample_shape)
        numbers = normal_base_samples(
            sample_shape, self.base_shape, seed=seed, base_samples=base_samples, name=self._latent_name
        ).reshape(count, *self.base_shape)
        uniform = torch.special.ndtr(numbers[:, 0].detach().to("cpu", torch.float64))
        return numbers, choose(self.weights.detach().cpu(), uniform, len(self))

    @property
    def _latent_name(self) -> str:
        """Name of the random stream of the latents."""
        return ",".join(field.latent.key for field in self.components)

    def _draw_at(self, uniform: Float64[Tensor, " s"], seeds: Sequence[int], *, each: bool) -> Float[Tensor, "..."]:
        """Draws with components selected by uniform numbers."""
        numbers = torch.arange(len(seeds), device="cpu")
        chosen = choose(self.weights.detach().cpu(), uniform, len(self))
        chosen = chosen[numbers, numbers] if each else chosen
        drawn = self.mean.new_zeros(*chosen.shape, *self.mean.shape[1:])
        for index in chosen.unique().tolist():
            is_chosen = chosen == index
            rows = torch.nonzero(is_chosen if each else is_chosen.any(1)).flatten()
            field = self.components[index][rows] if each else self.components[index]
            part = field.draw([seeds[row] for row in rows.tolist()], each=each).to(drawn)
            values = drawn.new_zeros(drawn.shape).index_copy(0, rows.to(part.device), part)
            is_chosen = is_chosen.reshape(*chosen.shape, *(1,) * (drawn.ndim - chosen.ndim)).to(part.device)
            drawn = torch.where(is_chosen, values, drawn)
        return drawn

    def cdf(
        self, values: Float[Tensor, "n c *grid"], *, noise: float | Float[Tensor, "..."] = 0.0
    ) -> Float64[Tensor, "n c *grid"]:
        """The marginal distribution function of every value, Σ w_k Φ((y - m_k) / √(v_k + noise)).

        Where a component has no variance and y is its mean, the middle of the jump is taken.

        Args:
            values: Arguments of the distribution function, `(n, c, *grid)`, in physical units.
            noise: Variance of the noise of the measurement that is predicted, as in `quantile`.

        Returns:
            Probabilities, `(n, c, *grid)`, float64.

        Raises:
            ShapeError: If the values have another shape; nothing is broadcast.
            DataError: If a value is not finite.
            ArgumentError: If the noise is negative, not finite, or of another shape.
        """
        checked = real_tensor(values, "values")
        check_values(checked, tuple(self.mean.shape), "values")
        check_finite(checked, "values")
        checked = checked.to(self.mean.device, torch.float64)
        parts = []
        for middle, std in zip(self._component_means(), self._component_deviations(noise), strict=True):
            gap, width = checked - middle.to(checked), std.to(checked)
            varies = width > 0
            smooth = torch.special.ndtr(gap / torch.where(varies, width, torch.ones_like(width)))
            parts.append(torch.where(varies, smooth, 0.5 * (1.0 + gap.detach().sign())))  # a step has no derivative
        return self._mixed(parts)

    def quantile(
        self, q: float | Sequence[float] | Tensor, *, noise: float | Float[Tensor, "..."] = 0.0
    ) -> Float64[Tensor, "*k n c *grid"]:
        """Quantiles of every value; see the base class. They are the mixture's own, by bisection, with first derivatives."""
        probabilities = check_probabilities(q)
        quantiles = mixture_quantiles(
            torch.stack([mean.to(torch.float64) for mean in self._component_means()]),
            torch.stack(self._component_deviations(noise)),
            self.pointwise_weights,
            probabilities.reshape(-1),
        )
        return quantiles if probabilities.ndim else quantiles[0]

    def log_prob(
        self, values: Float[Tensor, "n c *grid"], *, noise: float | Tensor = 0.0, joint: bool = True
    ) -> Float[Tensor, "..."]:
        """Log density of observed samples, log Σ w_k N(y; m_k, C_k + noise), in nats.

        Args:
            values: Observations at every grid point, `(n, c, *grid.shape)`.
            noise: Variance of independent observation noise at each point, in physical units squared.
            joint: Joint density of all values of a sample, or the density of each value.

        Returns:
            `(n,)` if joint, else `(n, c, *grid.shape)`; float64.

        Raises:
            ArgumentError: If a component has no density because some direction has no variance at all.
        """
        joint = check_flag(joint, "joint")
        held = self._held()  # the others may have no density
        densities = torch.stack(self._log_densities(values, held, noise=noise, joint=joint))
        mass = self.pointwise_weights[held].to(densities)
        terms, largest = weighted_exponentials(mass.flatten(1) if joint else mass, densities)
        return terms.sum(0).log() + largest

    def _log_densities(
        self, values: Float[Tensor, "n c *grid"], held: list[bool], *, noise: float | Tensor, joint: bool
    ) -> list[Tensor]:
        """Log densities of the components in use; override it where they share work."""
        return [field.log_prob(values, noise=noise, joint=joint) for field in itertools.compress(self.components, held)]

    def apply(self, functional: Functional) -> MixtureField:
        """Push every component forward, exactly."""
        check_functional(functional, grid=self.grid)
        return inherit_image(self._changed(lambda field: field.apply(functional), self.weights), self, functional.labels)

    def constrain(self, functional: Functional, values: Float[Tensor, "n c m"]) -> MixtureField:
        """Impose an exact linear constraint on every sample, in every component; see `GaussianField.constrain`.

        Bayes' rule updates the weights, sample by sample: w_k N(y; A m_k, A C_k A^T), normalised. A component under which a
        sample's values are improbable gets a small weight for that sample.

        Args:
            functional: A, of size m, on this distribution's grid.
            values: Values of A u, `(n, c, m)`; tensors, lists or arrays.

        Returns:
            A mixture with weights of each function, `(k, n)`.

        Raises:
            ConstraintError: If a component has no freedom left to meet the constraint, or one number of it follows from others.
            DataError: If a value is not finite.
        """
        constrained = [field.constrain(functional, values) for field in self.components]
        return inherit(MixtureField(constrained, self._given(functional, values)), self)

    def _given(self, functional: Functional, values: Float[Tensor, "n c m"]) -> Float64[Tensor, "m n"]:
        """Posterior weights of components given A u, per sample."""
        images = self.apply(functional).components
        try:
            evidence = torch.stack([field.log_prob(real_tensor(values, "values").view_as(field.mean)) for field in images])
        except ArgumentError as error:
            raise ConstraintError(
                expected="constraints of which none follows from the others",
                got=error.got,
                remedy="state each once: components are weighed by the density of all",
            ) from error
        terms, _ = weighted_exponentials(self.pointwise_weights.flatten(1).to(evidence), evidence)
        return terms / terms.sum(0)

    def scale(self, factors: Float[Tensor, "..."]) -> MixtureField:
        """Multiply the deviation from the mixture's mean by factors: the components' deviations and distances scale."""
        mean = self.mean
        checked = check_deviation_factors(factors, tuple(mean.shape))
        spread = spread_over(checked, mean)
        moved = [around(field.scale(checked), mean + spread * (field.mean - mean)) for field in self.components]
        scaled = MixtureField(moved, self.weights)
        scaled.labels = self.labels
        return scaled

    def moment_matched(self) -> GaussianField:
        """Return the Gaussian field of the same mean and covariance.

        Its latent holds those of all components, and a number per component for what they disagree about.
        """
        latents = [field.latent for field in self.components]
        matched = pooled(
            self.components,
            self.weights,
            name=f"mixture-{digest(self.weights)}({','.join(latent.id for latent in latents)})",
            is_shared_across_calls=self.weights.ndim == 1 and all(latent.is_shared_across_calls for latent in latents),
        )
        return inherit(matched, self)

    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> MixtureField:
        """Select samples of every component."""
        rows = select_rows(index, len(self))
        weights = self.weights if self.weights.ndim == 1 else self.weights[:, rows]
        return inherit_rows(self._changed(lambda field: field[rows], weights), self, rows)

    def marginal(self, index: int) -> MixtureField:
        """The marginal of one sample, with new latents if that makes roots smaller."""
        index = row_number(index, len(self))
        weights = self.weights if self.weights.ndim == 1 else self.weights[:, index : index + 1]
        return inherit_rows(self._changed(lambda field: field.marginal(index), weights), self, index)

    def _changed(self, change: Callable[[GaussianField], GaussianField], weights: Float64[Tensor, "m *n"]) -> MixtureField:
        """The mixture of the changed components."""
        return MixtureField([change(field) for field in self.components], weights)


class LazyMixtureField(MixtureField):
    """A mixture with lazily evaluated components; a draw evaluates its component only.

    Args:
        component: Evaluates component k of all samples, or of the samples in `rows`.
        weights: `(m,)`, dimensionless, with the sum 1.
        samples: Number of samples n.
        grid: Grid of the components.
        source: Name of the predictor.
    """

    def __init__(
        self,
        component: Callable[[int, Tensor | None], GaussianField | MixtureField],
        weights: Float64[Tensor, " m"],
        *,
        samples: int,
        grid: Grid,
        source: str,
    ) -> None:
        self._evaluate, self._samples, self._mass = component, samples, weights
        self.grid, self.source = grid, source

    @cached_property
    def _mixture(self) -> MixtureField:
        return MixtureField([self._evaluate(index, None) for index in range(len(self._mass))], self._mass)

    @property
    def components(self) -> tuple[GaussianField, ...]:
        """The Gaussian fields, those of mixtures among the components included."""
        return self._mixture.components

    @property
    def weights(self) -> Float64[Tensor, " k"]:  # type: ignore[override]
        """Weights of the Gaussian fields, `(k,)`, dimensionless."""
        return self._mixture.weights

    def __len__(self) -> int:
        """Number of samples n."""
        return self._samples

    def _draw_at(self, uniform: Float64[Tensor, " s"], seeds: Sequence[int], *, each: bool) -> Float[Tensor, "..."]:
        chosen = choose(self._mass, uniform, 1)[:, 0]
        draws: dict[int, Tensor] = {}
        for index in chosen.unique().tolist():
            rows = torch.nonzero(chosen == index).flatten()
            component = self._evaluate(index, rows if each else None)
            chosen_seeds = [seeds[row] for row in rows.tolist()]
            if isinstance(component, MixtureField):  # the number is uniform in the interval of the component, too
                nested = ((uniform[rows] - self._mass[:index].sum()) / self._mass[index]).clamp(0.0, 1.0)
                values = component._draw_at(nested, chosen_seeds, each=each)
            else:
                values = component.draw(chosen_seeds, each=each)
            draws |= dict(zip(rows.tolist(), values, strict=True))
        return torch.stack([draws[row] for row in range(len(seeds))]) if draws else self.mean[:0]


def checked_weights(weights: Tensor | None, count: int, functions: int | None = None) -> Float64[Tensor, "m *n"]:
    """Return weights of `count` components that sum to 1, in float64; lists and arrays will do.

    Args:
        weights: `(m,)`, or `(m, n)`; None for equal ones.
        count: Number of components m.
        functions: Number n of samples, or None if weights cannot depend on the sample.

    Raises:
        ShapeError: If they have another shape.
        DataError: If they are negative, not finite, or all zero.
    """
    if weights is None:
        return torch.full((count,), 1.0 / count, dtype=torch.float64, device="cpu")
    mass = real_tensor(weights, "weights").to(torch.float64)
    if tuple(mass.shape) not in {(count,), (count, functions)}:
        alternative = "" if functions is None else f", or ({count}, {functions}) for one per sample"
        raise ShapeError(
            expected=f"weights ({count},), one per component{alternative}", got=str(tuple(mass.shape)), remedy="leave them out"
        )
    if not bool((torch.isfinite(mass) & (mass >= 0)).all() and (mass.sum(0) > 0).all()):
        raise DataError(expected="finite weights >= 0 that are not all zero", got=str(mass.tolist()), remedy="check them")
    if not bool(mass.sum(0).isfinite().all()):
        mass = mass / mass.detach().amax(0)
    total = mass.sum(0)
    rounding = 4.0 * torch.finfo(torch.float64).eps
    normalised = mass / total
    # Normalised weights keep their bits, and have the derivatives of a quotient.
    unchanged = normalised + (mass - normalised).detach()
    return torch.where((total - 1.0).abs() <= rounding, unchanged, normalised)


def weighted_exponentials(
    mass: Float64[Tensor, "m *ones"], logs: Float64[Tensor, "m *values"]
) -> tuple[Float64[Tensor, "m *values"], Float64[Tensor, "*values"]]:
    """w_k exp(log p_k - c), and c, the largest log p_k with any weight.

    A logarithm of weights would have no derivative where one is 0.
    """
    held = mass > 0
    largest = torch.where(held, logs.detach(), -math.inf).amax(0)
    largest = torch.where(largest.isfinite(), largest, 0.0)
    return mass * (logs - largest).clamp_max(_LARGEST_EXPONENT).exp(), largest


def choose(weights: Float64[Tensor, "m *n"], uniform: Float64[Tensor, " s"], functions: int) -> Tensor:
    """The component of each draw and function, `(s, n)`: where its uniform number falls among the cumulative weights."""
    cumulative = (weights if weights.ndim == 2 else weights[:, None]).cumsum(0)[:-1]
    chosen = (uniform[:, None, None] >= cumulative.mT[None]).sum(-1)
    held = torch.nonzero((weights.reshape(len(weights), -1) > 0).any(1)).flatten()
    return chosen.clamp_max(int(held[-1]) if len(held) else 0).expand(-1, functions)


def uniform_numbers(seeds: Sequence[int], name: str) -> Float64[Tensor, " s"]:
    """The uniform number of each seed that chooses the component of a mixture of this name, on the CPU."""
    keys = draw_keys(name)
    numbers = {
        seed: float(torch.rand((), generator=stream(seed, "mixture component", *keys), dtype=torch.float64, device="cpu"))
        for seed in dict.fromkeys(seeds)
    }
    return torch.tensor([numbers[seed] for seed in seeds], dtype=torch.float64, device="cpu")


def _flattened(
    components: Sequence[GaussianField | MixtureField], mass: Float64[Tensor, "m *given"]
) -> tuple[tuple[GaussianField, ...], Float64[Tensor, "k *n"]]:
    """Components of components, with products of weights."""
    if not any(isinstance(field, MixtureField) for field in components):
        return tuple(field for field in components if isinstance(field, GaussianField)), mass
    is_shared = mass.ndim == 1 and all(field.weights.ndim == 1 for field in components if isinstance(field, MixtureField))
    fields: list[GaussianField] = []
    parts: list[Tensor] = []
    for field, weight in zip(components, mass, strict=True):
        inner = field.components if isinstance(field, MixtureField) else (field,)
        inner_weights = field.weights.to(weight) if isinstance(field, MixtureField) else weight.new_ones(1)
        fields += inner
        if is_shared:
            parts.append(weight * inner_weights)
        else:
            parts.append(
                weight.expand(len(components[0])) * (inner_weights if inner_weights.ndim == 2 else inner_weights[:, None])
            )
    return tuple(fields), torch.cat(parts)


def pooled(
    components: Sequence[GaussianField], weights: Float64[Tensor, "m *rest"], *, name: str, is_shared_across_calls: bool
) -> GaussianField:
    """The Gaussian field u = m + Σ_k √w_k (u_k - m_k) + Σ_k √w_k (m_k - m) ζ_k, with m = Σ_k w_k m_k.

    The deviations u_k - m_k and the standard normal numbers ζ_k are independent. So mean and variance of every value are those
    of the mixture Σ_k w_k N(m_k, v_k), and with weights that are the same at all points, so are all covariances of one
    function. Weights may depend on the point: where they vary smoothly, so do draws, which no choice of a component would do.

    Args:
        components: m fields of the same functions on one grid, with means m_k and variances v_k, in physical units.
        weights: w: `(m,)`, `(m, n)` or `(m, n, c, p)`, not negative, with the sum 1 over the components, dimensionless.
        name: Name of the components' latents and the numbers ζ together, in this order.
        is_shared_across_calls: Whether later calls have the same ones.
    """
    mass = weights if weights.ndim == 4 else weights.reshape(len(weights), -1, 1, 1)
    shape = components[0].grid.shape
    means = [field.mean.flatten(2) for field in components]
    # m = Σ_k w_k m_k; the root is [√w_1 R_1, ..., √w_m R_m, √w_1 (m_1 - m), ..., √w_m (m_m - m)].
    mean = functools.reduce(torch.add, (weight.to(part) * part for weight, part in zip(mass, means, strict=True)))
    roots = mass.sqrt()
    parts = [_times(field.root, root) for field, root in zip(components, roots, strict=True)]
    parts.append(DenseRoot(torch.stack([(part - mean) * root.to(mean) for part, root in zip(means, roots, strict=True)], -1)))
    discrepancies = [
        _times(field.discrepancy, root) for field, root in zip(components, roots, strict=True) if field.discrepancy is not None
    ]
    joined = functools.reduce(SideBySideRoot, parts)
    field = GaussianField(
        mean.unflatten(-1, shape),
        joined,
        latent=Latent(
            id=name,
            rank=joined.shape[3],
            is_shared_across_calls=is_shared_across_calls,
            source=",".join(field.latent.key for field in components),
        ),
        grid=components[0].grid,
        discrepancy=functools.reduce(SideBySideRoot, discrepancies) if discrepancies else None,
    )
    selected = components[0]._functions
    is_one_selection = all(torch.equal(selected.rows, field_k._functions.rows) for field_k in components)
    return of_functions(field, selected.anew()) if is_one_selection else field


def gaussian_of(u: FieldDistribution) -> GaussianField:
    """Return a field itself if it is Gaussian, else the Gaussian field of its mean and covariance.

    Raises:
        UnsupportedError: If it is no Gaussian or empirical field, and no mixture.
    """
    matched = u.moment_matched() if isinstance(u, EmpiricalField | MixtureField) else u
    return check_instance(matched, GaussianField, "field", remedy="use EmpiricalField(samples)", error=UnsupportedError)


def _times(root: Root, factors: Float[Tensor, "n c p"]) -> Root:
    """A root times factors of its rows, or one factor of all."""
    if factors.numel() == 1:
        return root.scale(factors.flatten().expand(root.shape[1]))
    return weigh(root, factors.expand(root.shape[:3]).to(root.like))
