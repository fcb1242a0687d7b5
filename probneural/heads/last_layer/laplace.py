"""Last-layer Laplace: the posterior of the last layer with exact covariance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from probneural.checks import check_module
from probneural.contexts import without_gradients
from probneural.distributions import FeatureRoot, FieldDistribution, GaussianField, Latent, Predictor, PredictorTraits
from probneural.distributions.latent import digest
from probneural.distributions.predictors.base import with_records
from probneural.distributions.roots.lazy import HELD_ELEMENTS, LazyFeatureRoot
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads.last_layer.readout import VERIFIED, Readout, find_readout
from probneural.heads.training_data import (
    ResidualSums,
    TrainingData,
    check_some,
    given_noise,
    given_per_channel,
    given_precision,
    recorded,
    residuals_from,
    training_data,
)
from probneural.heads.weight_posterior import weight_posterior
from probneural.linear_algebra.conditioning import posterior_root
from probneural.pairs import Dataset
from probneural.pairs.provenance import record_of
from probneural.registry import stored
from probneural.settings import Settings

_BATCH_ELEMENTS = 2**23
"""Number of feature values per evaluation (32 MiB in float32)."""


@dataclass(frozen=True)
class LastLayerLaplace(Settings):
    """The Gaussian posterior of a pointwise affine last layer: exact covariance, given the features, at the trained weights.

    u_c(x) = sum over j of w_cj phi_j(x), plus a term independent of the weights, such as the state if the operator predicts
    its increment. With m_c effective observations per field, noise variance s_c^2 and prior precision
    tau_c, the weights of channel c have covariance (m_c G / s_c^2 + tau_c)^-1 around the trained ones, where
    G = sum over i of 1/|D| * integral of phi_i phi_i^T. The predictive mean is the operator's output. Noise and prior
    maximise the evidence, in units of the training outputs' scale, unless given. Uncertainty of the features is not
    represented.

    By default training residuals are treated as noise. With `moves_mean` the mean weights are those of Bayesian linear
    regression on the features, with a prior centred at zero (the bias at the mean training output): the exact posterior of
    the last layer at this noise and prior. With little noise and more features than data the mean interpolates the data.

    Args:
        readout: Name of the last layer; detected by default.
        noise: Observation variance, in physical units squared: one number or one per channel.
        prior_precision: Precision of the weights, per physical unit squared of the output: one number, one per feature
            `(f,)`, or one per channel and feature `(c, f)`, the bias last (its prior is centred at the mean
            training output minus the offset a of the read-out); infinity fixes a weight.
        effective_observations: m, dimensionless, one number or one per channel; by default from the training residuals.
        moves_mean: Move the mean weights from the trained ones to the regression's. Noise and prior precision, unless given,
            are still estimated at the trained weights.

    Reference:
        Kristiadi, Hein & Hennig (2020), Being Bayesian, even just a bit, fixes overconfidence in ReLU networks. Deviations:
        quadrature instead of sums over points, effective observations, several outputs, any module.
    """

    readout: str | None = None
    _: KW_ONLY
    noise: float | Tensor | None = None
    prior_precision: float | Tensor | None = None
    effective_observations: float | Tensor | None = None
    moves_mean: bool = False

    @recorded
    @without_gradients()
    def fit(self, operator: nn.Module, data: Dataset) -> LastLayerPredictor:
        """Fit the posterior in two passes over the data, in chunks; memory does not grow with the number of samples.

        With torch.distributed, every rank calls it with the same data and reads a part of them.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed.
            data: Training pairs.

        Returns:
            A predictor with a copy of the operator.

        Raises:
            ReadoutError: If the last layer is not pointwise and affine.
            EvidenceError: If the evidence determines no noise or prior.
            ArgumentError: If a setting is out of range or has a wrong shape.
            DataError: If the data are not finite.
        """
        pairs = training_data(data, check_module(operator, "operator"))
        split = find_readout(operator, pairs.evenly_spread(VERIFIED).inputs, self.readout, query=pairs.query)
        return self._solve(split, pairs, pairs.output_units()[1])

    def _solve(self, split: Readout, data: TrainingData, scale: Tensor) -> LastLayerPredictor:
        gram, moments, residuals = statistics(split, data, unit=scale)
        channels, features = split.weight.shape
        device = gram.device
        observations = given_per_channel(self.effective_observations, channels, name="effective_observations")
        if observations is None:
            observations = residuals.effective_observations()
        noises = given_noise(self.noise, channels, dtype=data.inputs.dtype)
        priors = self._priors(channels, features)
        squares = residuals.squares
        centre = centred_weights(split, gram, moments) / scale[:, None]
        free = [split.parameters_of(channel).to(device) for channel in range(channels)]
        factor = torch.zeros(1, channels, features, sum(map(len, free)), dtype=torch.float64, device=device)
        noise, prior, evidence = torch.empty_like(scale), torch.full_like(centre, math.inf), 0.0
        shift = torch.zeros_like(centre) if self.moves_mean else None
        for channel, columns in enumerate(_columns(split)):
            unit, count, own = float(scale[channel]), float(observations[channel]), free[channel]
            posterior = weight_posterior(
                gram[own][:, own] * count,
                centre[channel, own],
                observations=count * data.functions,
                residual_sum_of_squares=count * float(squares[channel]),
                noise=None if noises is None else float(noises[channel]) / unit**2,
                prior=None if priors is None else priors[channel].to(device)[own] * unit**2,
            )
            root = posterior.root.dense()
            factor[0, channel, own, columns] = unit * root
            if shift is not None:  # one Newton step from the trained weights to the minimum of a quadratic
                pull = torch.where(posterior.prior_precision.isfinite(), posterior.prior_precision * centre[channel, own], 0.0)
                gradient = count / posterior.noise * moments[channel, own] / unit - pull
                step = root @ (root.mT @ gradient)
                shift[channel, own] = unit * step
                evidence += 0.5 * float(gradient @ step)
            noise[channel] = posterior.noise * unit**2
            prior[channel, own] = posterior.prior_precision / unit**2
            evidence += posterior.log_evidence - count * data.functions * float(scale[channel].log())
        return LastLayerPredictor(
            readout=split,
            factor=factor,
            noise=noise,
            prior_precision=prior.cpu() if priors is None else torch.where(prior.cpu().isinf(), math.inf, priors.cpu()),
            effective_observations=observations,
            log_evidence=evidence,
            domain=data.inputs.grid,
            in_channels=data.inputs.channels,
            shift=shift,
        )

    def _priors(self, channels: int, features: int) -> Float64[Tensor, "c f"] | None:
        if self.prior_precision is None:
            return None
        shapes = ((features,), (channels, features))
        prior = given_precision(self.prior_precision, shapes, remedy="the bias, if there is one, comes last")
        return prior.expand(channels, features)


def _columns(split: Readout) -> Iterator[slice]:
    """Number of columns of the factor of each channel's weights: the number of its parameters."""
    stop = 0
    for channel in range(len(split.weight)):
        start, stop = stop, stop + len(split.parameters_of(channel))
        yield slice(start, stop)


@torch.no_grad()
def statistics(
    split: Readout, data: TrainingData, *, unit: Float64[Tensor, " c"] | None = None
) -> tuple[Float64[Tensor, "f f"], Float64[Tensor, "c f"], ResidualSums]:
    """Gram matrix of the features, their products with the residuals, both by quadrature, and residual sums; float64.

    Sums over all ranks. Squares of residuals are in the given units.
    """
    channels, features = split.weight.shape
    gram = torch.zeros(features, features, dtype=torch.float64, device=data.outputs.device)
    moments = torch.zeros(channels, features, dtype=torch.float64, device=data.outputs.device)
    sums: ResidualSums | None = None
    for batch in data.batches(max(1, _BATCH_ELEMENTS // (data.grid.size * features))):
        values, rows = split.evaluate(batch.inputs, data.query)
        residuals = residuals_from(values, batch.outputs.values)
        sums = ResidualSums(data, channels=channels, unit=unit) if sums is None else sums
        grid = batch.outputs.grid
        sums.add(residuals, grid=grid)
        flat, weights = rows.to(torch.float64), grid.sample_weights.to(data.outputs.device)
        weights = weights[:, 0, :, None] if grid.is_batch else weights[:, None]
        gram += ((flat * weights).flatten(0, 1)).mT @ flat.flatten(0, 1)
        moments += torch.einsum("npf,ncp->cf", flat * weights, residuals.flatten(2))
    assert sums is not None  # there is at least one pair
    sums.finish()
    return data.summed(gram), data.summed(moments), sums


def centred_weights(split: Readout, gram: Float64[Tensor, "f f"], moments: Float64[Tensor, "c f"]) -> Float64[Tensor, "c f"]:
    """The trained weights minus the prior's mean, `(c, f)`, in physical units.

    The prior's mean is zero, except for the constant's weight: the mean training output minus the offset a of the
    read-out, or its regression on the constant if that varies in space.
    """
    weight = split.weight.to(gram).clone()
    if split.has_bias:
        weight[:, -1] -= (moments[:, -1] + weight @ gram[:, -1]) / gram[-1, -1]
    return weight


@stored(on_cpu=("prior_precision", "effective_observations"))
class LastLayerPredictor(Predictor):
    """Predictor of `LastLayerLaplace`.

    Attributes:
        readout: The predictor's copy of the operator, split into features and last layer.
        factor: Root of the weights' covariance, `(1, c, f, k)`, in physical units.
        prior_precision: Precision of each weight, `(c, f)`, per physical unit squared of the output; infinite for weights
            that are not parameters, such as those of one channel for another channel's features.
        effective_observations: Independent observations per field and channel, `(c,)`, dimensionless.
        log_evidence: Log evidence of the training outputs in physical units, in nats.
        shift: Mean weights minus trained weights after `moves_mean` and updates, `(c, f)`, in physical units, or None.
        latent: Latent vector of the weights.
    """

    effective_observations: Float64[Tensor, " c"]  # known to this head

    def __init__(
        self,
        *,
        readout: Readout,
        factor: Float64[Tensor, "1 c f k"],
        noise: Float64[Tensor, " c"],
        prior_precision: Float64[Tensor, "c f"],
        effective_observations: Float64[Tensor, " c"],
        log_evidence: float,
        domain: Grid,
        in_channels: int,
        shift: Float64[Tensor, "c f"] | None = None,
    ) -> None:
        like = next(readout.operator.parameters())
        super().__init__(PredictorTraits(in_channels=in_channels, noise=noise, domain=domain, like=like))
        self.readout = readout
        self.factor = factor
        self.prior_precision = prior_precision
        self.effective_observations = effective_observations
        self.log_evidence = log_evidence
        self.shift = shift
        moved = () if shift is None else (shift,)
        self.latent = Latent(id=f"last-layer-{digest(readout.weight, factor, *moved)}", rank=factor.shape[3])

    @property
    def operator(self) -> nn.Module:
        """The predictor's copy of the operator."""
        return self.readout.operator

    @property
    def weight_covariance(self) -> Float64[Tensor, "k k"]:
        """Covariance of all weights, channel-major, in physical units squared; float64."""
        rows = self.factor[0].flatten(0, 1)
        return rows @ rows.mT

    @torch.no_grad()
    def update(self, data: Dataset) -> LastLayerPredictor:
        """Condition on more pairs in closed form, at the same noise, prior and effective observations: equal to refitting.

        The prior's mean is fixed, too: for the constant's weight, the mean of the first training outputs. Refitting would
        include the new outputs in that mean. On a grid with fewer points than effective observations, each point is one
        observation. The mean weights move from the trained ones to the regression on all data.

        Args:
            data: New pairs, on the grids of the training pairs or other ones.

        Returns:
            A new predictor with a new latent.

        Raises:
            DataError: If the data are not finite pairs.
            ShapeError: If they do not fit the operator.
        """
        pairs = training_data(data, self.operator)
        gram, moments, residuals = statistics(self.readout, pairs)
        squares = residuals.squares
        features = moments.shape[1]
        shift = torch.zeros_like(moments) if self.shift is None else self.shift.to(moments)
        factor, moved, gain = self.factor.clone(), shift.clone(), 0.0
        for channel, columns in enumerate(_columns(self.readout)):
            observations = min(float(self.effective_observations[channel]), float(pairs.grid.size))
            count, noise = observations * pairs.functions, float(self.noise[channel])
            precision = observations / noise
            old = self.factor[0, channel, :, columns]
            rounding = features * torch.finfo(torch.float64).eps * precision * float(gram.norm() * old.norm().square())
            new, log_determinant = posterior_root(old, precision * old.mT @ gram @ old, rounding=rounding)
            gradient = precision * (moments[channel] - gram @ shift[channel])
            step = new @ (new.mT @ gradient)
            residual_sum_of_squares = float(
                squares[channel] - 2.0 * moments[channel] @ shift[channel] + shift[channel] @ gram @ shift[channel]
            )
            explained = precision * residual_sum_of_squares - float(gradient @ step)
            gain -= 0.5 * (count * math.log(2.0 * math.pi * noise) + float(log_determinant) + explained)
            factor[0, channel, :, columns] = new
            moved[channel] = shift[channel] + step
        predictor = LastLayerPredictor(
            readout=self.readout,
            factor=factor,
            noise=self.noise,
            prior_precision=self.prior_precision,
            effective_observations=self.effective_observations,
            log_evidence=self.log_evidence + gain,
            domain=self.domain,
            in_channels=self.in_channels,
            shift=moved,
        )
        return with_records(predictor, self.trained_on, record_of(data))

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        check_some(inputs)
        where = inputs.grid if query is None else query
        size = where.size, self.factor.shape[2]
        step = max(1, _BATCH_ELEMENTS // (size[0] * size[1]))
        is_held = len(inputs) * size[0] * size[1] <= HELD_ELEMENTS
        means, features = [], []
        for start in range(0, len(inputs), step):
            part = slice(start, start + step)
            values, rows = self.readout.evaluate(inputs[part], None if query is None else query.select(part))
            if self.shift is not None:
                moved = torch.einsum("npf,cf->ncp", rows, self.shift.to(rows))
                values = values + moved.unflatten(-1, where.shape)
            means.append(values)
            if is_held:
                features.append(rows)
        mean = torch.cat(means)
        root = (
            FeatureRoot(torch.cat(features), self.factor)
            if is_held
            else LazyFeatureRoot(
                lambda indices: self.readout.evaluate(inputs[indices], None if query is None else query.select(indices))[1],
                torch.arange(len(inputs)),
                size,
                self.factor,
                mean,
            )
        )
        return GaussianField(mean, root, latent=self.latent, grid=where)
