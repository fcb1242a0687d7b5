"""Several predictors brought to one Gaussian field, with weights that vary along each function."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.calibration.decomposition import gaussian_of
from probneural.calibration.local_scale import interpolated
from probneural.calibration.local_weights import LocalWeights
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import digest
from probneural.distributions.mixture_predictor import MixturePredictor
from probneural.distributions.pooling import pooled
from probneural.distributions.predictor import DrawsWithField, JointDraws, Predictor
from probneural.errors import ArgumentError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.randomness import stream, stream_seed


class StackedPredictor(Predictor):
    """Predicts u = m + Σ_k √w_k (u_k - m_k) + Σ_k √w_k (m_k - m) ζ_k, with m = Σ_k w_k m_k and weights w(x; u) of each point.

    The predictors' deviations u_k - m_k from their means m_k and the standard normal numbers ζ_k are independent. Mean and
    variance of every value are those of the mixture of the predictors, with the weights of that point. The field is Gaussian,
    and draws are as smooth as predictors and weights are: no draw changes from one predictor to another at some point. Without
    local weights it is the mixture's `moment_matched()`.

    Args:
        inner: The mixture of the predictors, with their mean weights over the domain and over calibration functions.
        local: The weights at each point, or None where they are those of the mixture everywhere.

    Attributes:
        inner: The same.
        local: The same.
        calibrated_on: Row keys of the pairs that weights were fitted on, and of those that predictors were.

    Raises:
        ShapeError: If local weights are of other numbers of predictors or channels.
        ArgumentError: If a predictor has no weight in the mixture, but local ones.
    """

    def __init__(self, inner: MixturePredictor, *, local: LocalWeights | None = None) -> None:
        super().__init__(inner.traits)
        if local is not None:
            expected, found = (inner.out_channels, len(inner.predictors)), tuple(local.coefficients.shape[:2])
            if found != expected:
                raise ShapeError(
                    expected=f"local weights of {expected[0]} channels and {expected[1]} predictors",
                    got=str(found),
                    remedy="fit them with LocalStacking",
                )
            if not bool((inner.weights > 0).all()):
                raise ArgumentError(
                    expected="mean weights > 0 where there are local ones",
                    got=str(inner.weights.tolist()),
                    remedy="fit them with LocalStacking",
                )
        self.inner = inner
        self.local = local
        self.calibrated_on = inner.calibrated_on

    @property
    def shares(self) -> Float64[Tensor, " m"]:
        """Mean weight of each predictor over the domain, the channels and the calibration functions, `(m,)`, with the sum 1."""
        return self.inner.weights

    @property
    def residual_variance(self) -> Float64[Tensor, " c"]:
        """Variance by which one value departs from a predictor's shared operator, on average, `(c,)`, on the CPU."""
        return self.inner.residual_variance

    def weights_at(self, inputs: Field, query: Grid | None = None) -> Float64[Tensor, "m n c *grid"]:
        """The weight of each predictor at each point of its predictions, `(m, n, c, *grid)`, with the sum 1 over predictors.

        Args:
            inputs: Input functions, as those that are predicted for.
            query: Where to evaluate; the inputs' own grid by default.
        """
        given = self._checked(inputs, query)
        with undisturbed():
            parts = self._parts_at(given, query)
        mean = parts.components[0].mean
        weights = parts.weights.expand(-1, *mean.shape[:2], parts.grid.size).unflatten(-1, parts.grid.shape)
        without = weights.new_zeros(len(self.inner.predictors), *mean.shape)
        return without.index_copy(0, torch.tensor(self.inner._active, device=weights.device), weights)

    @property
    def _predictors(self) -> list[Predictor]:
        """Those with any weight."""
        return [self.inner.predictors[index] for index in self.inner._active]

    def _predict(self, inputs: Field, query: Grid | None) -> GaussianField:
        return self._pooled(self._parts_at(inputs, query))

    def _predict_together(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        each = zip(*(one._together(sets) for one in self._predictors), strict=True)
        return [
            self._pooled(self._parts(inputs, query, predicted)) for (inputs, query), predicted in zip(sets, each, strict=True)
        ]

    def _parts(self, inputs: Field, query: Grid | None, predicted: Sequence[FieldDistribution]) -> _Parts:
        """What the predictors with any weight predicted, and the weights there."""
        components = [gaussian_of(one) for one in self.inner._components(predicted)]
        if self.local is None:
            return _Parts(components, self.inner.weights[self.inner._active].reshape(-1, 1, 1, 1).to(components[0].mean.device))
        grid = components[0].grid
        if self.local.covers(grid):
            return _Parts(components, self.local.weights(self._linear(self.local, components)))
        there = self.inner._components([one(inputs, self.local.grid) for one in self._predictors])
        known = self._linear(self.local, [gaussian_of(one) for one in there])
        return _Parts(components, self.local.weights(interpolated(known, source=self.local.grid, target=grid)))

    def _linear(self, local: LocalWeights, components: Sequence[GaussianField]) -> Float64[Tensor, "m n c p"]:
        grid = components[0].grid
        noise = self.noise.detach().to(components[0].mean).reshape(-1, *(1,) * len(grid.shape))
        means, variances = [one.mean for one in components], [one.variance + noise for one in components]
        return local.linear(means, variances, grid=grid)

    def _pooled(self, parts: _Parts) -> GaussianField:
        latents = [one.latent for one in parts.components]
        content = (self.inner.weights,) if self.local is None else (self.local.coefficients, self.local.reference)
        return pooled(
            parts.components,
            parts.weights,
            name=f"stacked-{digest(*content, self.calibrated_on)}({','.join(latent.id for latent in latents)})",
            is_shared_across_calls=all(latent.is_shared_across_calls for latent in latents),
        )

    def _seeds(self, seed: int) -> list[int]:
        """Seeds of the predictors' draws behind the draw of this seed: with one for all, they would not be independent."""
        return [stream_seed(seed, "stacked draws", self._level, index) for index in self.inner._active]

    def _numbers(self, seed: int) -> Float64[Tensor, " m"]:
        """The numbers ζ of the draw of this seed, on the CPU."""
        generator = stream(seed, "stacked predictors", self._level)
        return torch.randn(len(self.inner._active), generator=generator, dtype=torch.float64, device="cpu")

    def _draw(self, inputs: Field, query: Grid | None, seed: int) -> Float[Tensor, "n c *grid"]:
        """The predictors' draws, each with its own seed, at the weights: the same function at all inputs, on all grids.

        Noise that one predictor states beyond another is left out: it is another one on every grid.
        """
        pairs = zip(self._predictors, self._seeds(seed), strict=True)
        drawn = [one.draw(own)(inputs.values.to(one.dtype), grid=inputs.grid, query=query) for one, own in pairs]
        return self._combined(self._parts_at(inputs, query), [one[None] for one in drawn], [seed])[0]

    def _draw_shared(self, inputs: Field, query: Grid | None, seed: int) -> Float[Tensor, "n c *grid"]:
        pairs = zip(self._predictors, self._seeds(seed), strict=True)
        drawn = [one._draw_shared(inputs.to(one.dtype), query, own) for one, own in pairs]
        return self._combined(self._parts_at(inputs, query), [one[None] for one in drawn], [seed])[0]

    def _parts_at(self, inputs: Field, query: Grid | None) -> _Parts:
        return self._parts(inputs, query, [one(inputs, query) for one in self._predictors])

    def _joint_draws(self, seeds: Sequence[int]) -> JointDraws:
        draws = self._draws_with_field(seeds)

        def evaluated(values: Tensor, grid: Grid) -> Tensor:
            return draws(values, grid)[0]

        return evaluated

    def _draws_with_field(self, seeds: Sequence[int]) -> DrawsWithField:
        own = zip(*(self._seeds(seed) for seed in seeds), strict=True)
        draws = [one._draws_with_field(each) for one, each in zip(self._predictors, own, strict=True)]

        def evaluated(values: Tensor, grid: Grid) -> tuple[Tensor, GaussianField]:
            found = [draw(values.to(one.dtype), grid) for one, draw in zip(self._predictors, draws, strict=True)]
            parts = self._parts(Field(values.flatten(0, 1), grid), None, [u for _, u in found])
            return self._combined(parts, [drawn for drawn, _ in found], seeds), self._pooled(parts)

        return evaluated

    def _combined(
        self, parts: _Parts, drawn: Sequence[Float[Tensor, "s n c *grid"]], seeds: Sequence[int]
    ) -> Float[Tensor, "s n c *grid"]:
        """One function for each seed from the predictors' draws; the components are those of all s n functions."""
        functions = len(parts.components[0]) // len(seeds)
        numbers = torch.stack([self._numbers(seed) for seed in seeds], -1).repeat_interleave(functions, -1)
        means = [field.mean.flatten(2) for field in parts.components]
        mean = functools.reduce(torch.add, (weight.to(each) * each for weight, each in zip(parts.weights, means, strict=True)))
        total = mean
        for root, each, one, number in zip(parts.weights.sqrt(), means, drawn, numbers, strict=True):
            between = number.to(each)[:, None, None] * (each - mean)
            total = total + root.to(each) * (one.flatten(0, 1).flatten(2).to(each) - each + between)
        return total.reshape(len(seeds), functions, mean.shape[1], *parts.grid.shape).to(self.dtype)

    def _description(self) -> str:
        """The predictors and their mean weights."""
        kind = "constant" if self.local is None else "local"
        return f"StackedPredictor({self.inner._description()}, {kind} weights)"


class _Parts(NamedTuple):
    """What predictors predicted, and their weights.

    Attributes:
        components: One Gaussian field for each of m predictors.
        weights: `(m, n, c, p)`, or `(m, 1, 1, 1)` where they are the same everywhere.
    """

    components: list[GaussianField]
    weights: Float64[Tensor, "m _n _c _p"]

    @property
    def grid(self) -> Grid:
        """Where they live."""
        return self.components[0].grid
