"""Mixtures of predictors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.checks import check_count, check_instance, check_least, check_sequence, described
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import Latent
from probneural.distributions.mixture import LazyMixtureField, MixtureField, checked_weights
from probneural.distributions.predictors.base import Predictor, check_domain, description
from probneural.distributions.roots.modulated import DiagonalRoot
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.errors import ArgumentError, DataError, GridError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs.provenance import joined_record
from probneural.registry import stored

_SAME_NOISE = 1e-6
"""Relative difference below which two noise variances are equal: rounding of float32, and half of it in nats per value."""


@stored(on_cpu=("weights", "calibrated_on"))
class MixturePredictor(Predictor):
    """Predict the mixture of m predictors' fields; the weight of a predictor is the probability that it is correct.

    Empirical fields are replaced by the Gaussian field of their mean and covariance. The noise is the smallest of the
    predictors' noise variances; the excess of another predictor is a white noise discrepancy of its component. So the
    density of an observation is the weighted sum of the predictors' densities, each with its noise. Draws and forecasts
    omit white noise, including this excess; `rsample` of a field includes it. Predictors of weight 0 are stored, not evaluated.

    Args:
        predictors: m predictors of one problem, for inputs of one domain, on one device; operators, heads, dtypes and
            calibrations may differ.
        weights: `(m,)`, not negative, dimensionless, normalised here; equal by default.
        calibrated_on: Row keys of the pairs that the weights were fitted on, `(n,)`.

    Attributes:
        predictors: The same.
        weights: The same, `(m,)`, float64, with the sum 1: the probability of each predictor.
        calibrated_on: Row keys of those pairs, and of those that the predictors themselves were calibrated on.

    Raises:
        DataError: If a predictor is invalid, the list is empty, or weights are negative, not finite or all zero.
        ShapeError: If channels differ, or there is not one weight for each predictor.
        GridError: If domains differ.
        UnsupportedError: If they compute on different devices.
    """

    def __init__(
        self,
        predictors: Sequence[Predictor],
        weights: Float64[Tensor, " m"] | None = None,
        *,
        calibrated_on: Int64[Tensor, " n"] | None = None,
    ) -> None:
        self.predictors = checked_predictors(predictors)
        first = max(self.predictors, key=lambda predictor: torch.finfo(predictor.dtype).bits)
        self.weights = checked_weights(weights, len(self.predictors)).cpu()
        self._active = [index for index, weight in enumerate(self.weights.tolist()) if weight > 0.0]
        noises = torch.stack([predictor.noise.detach().to(first.noise) for predictor in self.predictors])
        noise = noises[self._active].amin(0)
        residual = self.weights @ torch.stack([predictor.residual_variance for predictor in self.predictors])
        traits = replace(
            first.traits, noise=noise, trained_on=joined_record(predictor.trained_on for predictor in self.predictors)
        )
        super().__init__(replace(traits, discrepancy_variance=tuple((residual - noise.cpu()).clamp_min(0.0).tolist())))
        used = [] if calibrated_on is None else [calibrated_on]
        if any(not isinstance(keys, Tensor) or keys.dtype != torch.int64 for keys in used):
            got = described(calibrated_on)
            raise ArgumentError(expected="row keys in int64 as calibrated_on", got=got, remedy="leave them out")
        self.calibrated_on = torch.cat([*used, *(predictor.calibrated_on.to("cpu") for predictor in self.predictors)]).unique()
        excess = noises - noise
        self._excess = torch.where(excess > _SAME_NOISE * noises, excess, torch.zeros_like(excess))
        active = [self.predictors[index] for index in self._active]
        counts = [
            predictor.effective_observations.detach().cpu()
            for predictor in active
            if predictor.effective_observations is not None
        ]
        if len(counts) == len(active):
            self.effective_observations = self.weights[self._active] @ torch.stack(counts).to(self.weights)

    def with_predictors(self, predictors: Sequence[Predictor]) -> MixturePredictor:
        """Return the mixture of other predictors with the same weights and the same calibration records."""
        return MixturePredictor(predictors, self.weights, calibrated_on=self.calibrated_on)

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        together = cache(lambda number: self._components(number, sets))

        def component(which: int, number: int, rows: Tensor | None) -> GaussianField | MixtureField:
            if rows is None:
                return together(number)[which]
            inputs, query = sets[which]
            where = None if query is None else query.select(rows)
            return self._components(number, [(inputs[rows.to(inputs.values.device)], where)])[0]

        return [
            LazyMixtureField(
                partial(component, which),
                self.weights[self._active],
                samples=len(inputs),
                grid=inputs.grid if query is None else query,
                source=self._key,
            )
            for which, (inputs, query) in enumerate(sets)
        ]

    def _components(self, number: int, sets: Sequence[tuple[Field, Grid | None]]) -> list[GaussianField | MixtureField]:
        """The fields of one of the predictors with any weight, as components."""
        index = self._active[number]
        predictor = self.predictors[index]
        fields = predictor._predict([(inputs.to(predictor.dtype), query) for inputs, query in sets])
        return [as_component(self, index, u) for u in fields]

    def _description(self) -> str:
        """The predictors and their weights."""
        parts = (
            f"{weight:.3g} x {description(predictor)}"
            for weight, predictor in zip(self.weights.tolist(), self.predictors, strict=True)
        )
        return f"MixturePredictor({', '.join(parts)})"


def checked_predictors(predictors: Sequence[Predictor]) -> tuple[Predictor, ...]:
    """Return predictors that can answer the same question.

    Raises:
        DataError: If a predictor is invalid, or the list is empty.
        ShapeError: If channels differ.
        GridError: If domains differ.
        UnsupportedError: If they compute on different devices.
    """
    remedy = "give a list of predictors of heads or calibrators"
    checked = check_sequence(predictors, "predictors", remedy=remedy, error=DataError)
    check_least(len(checked), 1, "predictors", remedy=remedy)
    for predictor in checked:
        check_instance(predictor, Predictor, "predictor", remedy=remedy)
    first = checked[0]
    for number, predictor in enumerate(checked[1:], 1):
        remedy = "fit all on data of the same problem"
        check_count(predictor.in_channels, first.in_channels, f"input channels of predictor {number}", remedy=remedy)
        check_count(predictor.out_channels, first.out_channels, f"output channels of predictor {number}", remedy=remedy)
        try:
            check_domain(predictor.domain, first.domain)
        except GridError as error:
            raise GridError(
                expected=f"predictors of one domain, {first.domain!r}",
                got=f"number {number} of {predictor.domain!r}",
                remedy="fit all on data of the same problem; only the resolution may differ",
            ) from error
        if predictor.device != first.device:
            raise UnsupportedError(
                expected=f"predictors on one device, {first.device}",
                got=f"number {number} on {predictor.device}",
                remedy="load them with pn.load(path, device=...)",
            )
    return tuple(checked)


def as_component(mixture: MixturePredictor, index: int, u: FieldDistribution) -> GaussianField | MixtureField:
    """The field of one predictor of a mixture as a component, with the noise that it has beyond the least."""
    return _component(u, mixture._excess[index], owner=mixture.predictors[index])


def _component(u: FieldDistribution, excess: Float64[Tensor, " c"], *, owner: Predictor) -> GaussianField | MixtureField:
    """The prediction of one predictor, the owner, as a component.

    Raises:
        UnsupportedError: If it is neither Gaussian nor empirical nor a mixture.
    """
    if isinstance(u, MixtureField):
        return MixtureField([_component(field, excess, owner=owner) for field in u.components], u.weights)
    if isinstance(u, EmpiricalField):
        matched = u.moment_matched()  # its latent has one number per member, the same members in every call
        latent = Latent(id=owner._identity, rank=matched.latent.rank, source=owner._key)
        u = GaussianField(matched.mean, matched.root, latent=latent, grid=u.grid)
    u = check_instance(u, GaussianField, "field", remedy="wrap its samples as an EmpiricalField", error=UnsupportedError)
    if not bool((excess > 0).any()):
        return u
    white = DiagonalRoot(excess.sqrt().to(u.mean)[:, None].expand(u.root.shape[:3]))
    discrepancy = white if u.discrepancy is None else SideBySideRoot(u.discrepancy, white)
    return GaussianField(u.mean, u.root, latent=u.latent, grid=u.grid, discrepancy=discrepancy)
