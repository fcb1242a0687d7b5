"""Predictors of `BayesianLastLayer`: from draws of the last layer's weights, and from Gaussians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_integer
from probneural.distributions import EmpiricalField, FieldDistribution, Predictor, PredictorTraits
from probneural.distributions.empirical import LazyEmpiricalField, drawn_members
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads.last_layer.laplace import LastLayerPredictor
from probneural.heads.last_layer.readout import Readout
from probneural.heads.residuals import check_some
from probneural.registry import stored

_LARGEST_R_HAT = 1.01
"""Chains agree up to here (Vehtari et al., 2021, section 4)."""
_LEAST_SIZE_PER_CHAIN = 100
"""Effective samples per chain that diagnostics need to be trusted themselves (ibid.)."""

FAMILIES = ("mean_field", "full_rank")
"""Families of variational posteriors."""

_BATCH_ELEMENTS = 2**23
"""Feature values evaluated at once (32 MiB in float32)."""


@stored(on_cpu=("prior_factors", "prior_precision", "effective_observations"))
class SampledLastLayerPredictor(Predictor):
    """What `BayesianLastLayer` fits with NUTS: the last layer's weights as draws.

    A prediction holds every draw at every point, in the operator's dtype; where that is too much, see `thinned`.

    Attributes:
        readout: The predictor's own copy of the operator, split into features and last layer.
        deviations: Draws of the weights minus the trained ones, `(s, c, f)`, chain by chain, in physical units; float64.
        noise_draws: Draws of the observation variance, `(s, c)`, in physical units squared; all equal where it is not inferred.
            `noise` is their mean.
        prior_factors: Draws of the prior precision over that of largest evidence, `(s, c)`; ones where it is not inferred.
        prior_precision: Of each weight, `(c, f)`, per physical unit squared; the mean of the draws where it is inferred.
        effective_observations: Independent observations per field and channel, `(c,)`, dimensionless.
        chains: How many.
        report: `r_hat_max` and other extremes over weights, see `chain_report`; `divergences`, the number of trajectories that
            diverged; `trained_offset`, how far the trained weights are from the mean, in standard deviations per direction.
    """

    effective_observations: Float64[Tensor, " c"]  # known to this head

    def __init__(
        self,
        *,
        readout: Readout,
        deviations: Float64[Tensor, "s c f"],
        noise_draws: Float64[Tensor, "s c"],
        prior_factors: Float64[Tensor, "s c"],
        prior_precision: Float64[Tensor, "c f"],
        effective_observations: Float64[Tensor, " c"],
        chains: int,
        report: Mapping[str, float],
        domain: Grid,
        in_channels: int,
    ) -> None:
        like = next(readout.operator.parameters())
        super().__init__(PredictorTraits(in_channels=in_channels, noise=noise_draws.mean(0), domain=domain, like=like))
        self.readout = readout
        self.deviations = deviations
        self.noise_draws = noise_draws
        self.prior_factors = prior_factors
        self.prior_precision = prior_precision
        self.effective_observations = effective_observations
        self.chains = chains
        self.report = dict(report)

    @property
    def converged(self) -> bool:
        """Whether R-hat, sample sizes and divergences of the chains are as they should be."""
        sizes = min(self.report["bulk_size_min"], self.report["tail_size_min"])
        agrees = self.report["r_hat_max"] <= _LARGEST_R_HAT
        return agrees and sizes >= _LEAST_SIZE_PER_CHAIN * self.chains and self.report["divergences"] == 0

    @property
    def weight_covariance(self) -> Float64[Tensor, "k k"]:
        """Covariance of the draws of all weights, channel-major, in physical units squared; float64."""
        return torch.cov(self.deviations.flatten(1).mT, correction=0).reshape(2 * [self.deviations[0].numel()])

    def thinned(self, draws: int) -> SampledLastLayerPredictor:
        """Return the predictor that keeps only some draws, evenly spaced over all chains.

        Args:
            draws: How many to keep.

        Raises:
            ArgumentError: If there are fewer.
        """
        total = len(self.deviations)
        draws = check_integer(draws, "draws", most=total)
        kept = torch.arange(draws) * total // draws
        return SampledLastLayerPredictor(
            readout=self.readout,
            deviations=self.deviations[kept],
            noise_draws=self.noise_draws[kept],
            prior_factors=self.prior_factors[kept],
            prior_precision=self.prior_precision,
            effective_observations=self.effective_observations,
            chains=self.chains,
            report=self.report,
            domain=self.domain,
            in_channels=self.in_channels,
        )._with_records(self.trained_on)

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> EmpiricalField:
        check_some(inputs)
        where = inputs.grid if query is None else query
        return LazyEmpiricalField(
            lambda: self._values(inputs, query, self.deviations),
            draw=lambda seeds, each: self._draws(inputs, query, seeds, each=each),
            size=(len(self.deviations), len(inputs)),
            grid=where,
            like=self.deviations,
            source=self._key,
        )

    def _draws(self, inputs: Field, query: Grid | None, seeds: tuple[int, ...], *, each: bool) -> Float[Tensor, "..."]:
        members = drawn_members(torch.ones(len(self.deviations)), seeds, name=self._key)
        return self._values(inputs, query, self.deviations[members], each=each)

    def _values(
        self, inputs: Field, query: Grid | None, deviations: Float64[Tensor, "s c f"], *, each: bool = False
    ) -> Float[Tensor, "..."]:
        """The operator's values plus features times deviations of the weights, in parts of bounded memory."""
        where = inputs.grid if query is None else query
        step = max(1, _BATCH_ELEMENTS // (where.size * deviations.shape[2]))
        parts = []
        for start in range(0, len(inputs), step):
            values, features = self.readout.evaluate(inputs[start : start + step], query)
            weights = (deviations[start : start + step] if each else deviations).to(features)
            change = torch.einsum("npf,ncf->ncp" if each else "npf,scf->sncp", features, weights)
            parts.append(values + change.unflatten(-1, where.shape))
        return torch.cat(parts, dim=0 if each else 1)


@stored(on_cpu=("history",))
class VariationalLastLayerPredictor(Predictor):
    """What `BayesianLastLayer` fits by variational inference: Gaussian weights.

    Attributes:
        posterior: The weights, as a last-layer predictor whose `log_evidence` is the bound.
        method: `"mean_field"` or `"full_rank"`.
        history: Evidence lower bound after every 250 steps, `(w,)`, in nats, of the training outputs in physical units.
        report: `bound`, the last of these; `windows`, their number; `trained_offset`, how far the trained weights are from the
            mean, in standard deviations of the posterior per direction.
        converged: Whether the bound has stopped rising at the smallest learning rate.
    """

    def __init__(
        self,
        *,
        posterior: LastLayerPredictor,
        method: str,
        history: Float64[Tensor, " w"],
        report: Mapping[str, float],
        converged: bool,
    ) -> None:
        if method not in FAMILIES:
            raise ArgumentError(expected=f"one of {', '.join(FAMILIES)}", got=repr(method), remedy="name the family")
        super().__init__(posterior.traits)
        self.posterior = posterior
        self.effective_observations = posterior.effective_observations
        self.method = method
        self.history = history
        self.report = dict(report)
        self.converged = converged

    @property
    def weight_covariance(self) -> Float64[Tensor, "k k"]:
        """Covariance of all weights, channel-major, in physical units squared; float64."""
        return self.posterior.weight_covariance

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return self.posterior._predict(sets)
