"""The density that samplers and variational families see: that of the last layer's weights, without the fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.errors import ArgumentError
from probneural.heads.last_layer.laplace import LastLayerPredictor, centred_weights, statistics
from probneural.heads.training_data import training_data
from probneural.linear_algebra.principal_components import canonical, eigenpairs
from probneural.pairs import Dataset


@dataclass(frozen=True, eq=False)
class FreeWeights:
    """Which of a last layer's weights vary, and by how much.

    Attributes:
        index: Where the k free weights are among all, `(k,)`, integers.
        prior_std: Their prior standard deviations, `(k,)`, in physical units.
        channels: One where a weight belongs to a channel, `(k, c)`.
        features: Number of weights of a channel.
    """

    index: Int64[Tensor, " k"]
    prior_std: Float64[Tensor, " k"]
    channels: Float64[Tensor, "k c"]
    features: int

    def physical(self, x: Float64[Tensor, "*s k"]) -> Float64[Tensor, "*s c f"]:
        """Deviations of all weights from the trained ones, in physical units; zero where the prior fixes them."""
        whole = x.new_zeros(*x.shape[:-1], self.channels.shape[1] * self.features)
        whole[..., self.index] = self.prior_std * x
        return whole.unflatten(-1, (-1, self.features))


@dataclass(frozen=True, eq=False)
class Target:
    """The log density of k free weights' deviations from the trained ones, in units of their prior standard deviations.

    With log noise and prior precision a and b over the evidence's, per channel,

        log p(y, x) = -(1/2) sum over c of [exp(-a_c) (E_c - 2 b_c^T x_c + x_c^T A_c x_c) + N_c log(2 pi s_c^2) + N_c a_c
                                            + exp(b_c) |x_c + z_c|^2 + k_c log(2 pi) - k_c b_c].

    Attributes:
        curvature: A, `(k, k)`, of the likelihood.
        slope: b, `(k,)`.
        centre: z, `(k,)`: the trained weights minus the prior's mean.
        weights: Which weights are free.
        energies: E, `(c,)`.
        observations: N, `(c,)`.
        noise: s^2, `(c,)`, in physical units squared.
        scales: Of the half-Cauchy priors over the evidence's values, `(2, c)`: of noise and of the weights' prior.
    """

    curvature: Float64[Tensor, "k k"]
    slope: Float64[Tensor, " k"]
    centre: Float64[Tensor, " k"]
    weights: FreeWeights
    energies: Float64[Tensor, " c"]
    observations: Float64[Tensor, " c"]
    noise: Float64[Tensor, " c"]
    scales: Float64[Tensor, "2 c"]

    @classmethod
    @torch.no_grad()
    def of(cls, closed: LastLayerPredictor, data: Dataset) -> Target:
        """Collect the statistics at the hyper-parameters of the closed form; on the CPU.

        Raises:
            ArgumentError: If the prior fixes all weights.
        """
        pairs = training_data(data, closed.operator)
        scale = pairs.output_units()[1].cpu()
        gram, moments, residuals = statistics(closed.readout, pairs)
        gram, moments = gram.cpu(), moments.cpu()
        noise, prior, effective_observations = (
            closed.noise.cpu(),
            closed.prior_precision.cpu(),
            closed.effective_observations.cpu(),
        )
        channels, features = moments.shape
        precision = effective_observations / noise
        prior_std = prior.rsqrt().flatten()
        free = torch.nonzero(prior_std > 0)[:, 0]
        if len(free) == 0:
            raise ArgumentError(
                expected="a prior that leaves some weights free",
                got="infinite prior_precision for all",
                remedy="make it finite",
            )
        prior_std = prior_std[free]
        whole = torch.block_diag(*(gram * float(number) for number in precision))[free][:, free]
        centre = centred_weights(closed.readout, gram, moments)
        size = float((gram.diagonal().mean() / pairs.functions).sqrt())
        prior_scales = scale / size * prior.amin(1).sqrt()
        return cls(
            curvature=prior_std[:, None] * whole * prior_std,
            slope=(precision[:, None] * moments).flatten()[free] * prior_std,
            centre=centre.flatten()[free] / prior_std,
            weights=FreeWeights(
                index=free,
                prior_std=prior_std,
                channels=torch.eye(channels, dtype=torch.float64).repeat_interleave(features, 0)[free],
                features=features,
            ),
            energies=precision * residuals.squares.cpu(),
            observations=effective_observations * pairs.functions,
            noise=noise,
            scales=torch.stack([scale / noise.sqrt(), prior_scales]),
        )

    def log_density(
        self, x: Float64[Tensor, "*s k"], noise: Float64[Tensor, "*s c"], prior: Float64[Tensor, "*s c"]
    ) -> Float64[Tensor, "*s"]:
        """Log p(y, x) in nats, of the data in physical units, at logarithms of noise and prior over the evidence's."""
        misfits = self.energies + (x * (x @ self.curvature - 2.0 * self.slope)) @ self.weights.channels
        penalties = (x + self.centre).square() @ self.weights.channels
        fit = (-noise).exp() * misfits + self.observations * (noise + (2.0 * math.pi * self.noise).log())
        return -0.5 * (fit + prior.exp() * penalties - self.weights.channels.sum(0) * (prior - math.log(2.0 * math.pi))).sum(-1)

    def log_hyperprior(self, noise: Float64[Tensor, "*s c"], prior: Float64[Tensor, "*s c"]) -> Float64[Tensor, "*s"]:
        """Of log noise and log prior precision, with half-Cauchy standard deviations; up to a constant."""
        squares = torch.stack([noise, -prior], -2)
        return (0.5 * squares - torch.nn.functional.softplus(squares - 2.0 * self.scales.log())).sum((-1, -2))

    def quadratic(self, transform: Float64[Tensor, "k k"]) -> tuple[Float64[Tensor, "k k"], Float64[Tensor, " k"]]:
        """Precision P and slope b of the density -(1/2) x^T P x + b^T x of coordinates, at the evidence's hyper-parameters."""
        precision = self.curvature + torch.eye(len(self.slope), dtype=torch.float64)
        return transform.mT @ precision @ transform, transform.mT @ (self.slope - self.centre)

    def transform(self, coordinates: str) -> Float64[Tensor, "k k"]:
        """From coordinates to whitened weights; see `BayesianLastLayer`."""
        values, vectors = self.axes
        if coordinates == "whitened":
            return vectors * (1.0 + values).rsqrt()
        identity = torch.eye(len(values), dtype=torch.float64)
        return (vectors if coordinates == "principal" else identity) * self.unit

    @cached_property
    def axes(self) -> tuple[Float64[Tensor, " k"], Float64[Tensor, "k k"]]:
        """Eigenvalues and eigenvectors of the likelihood's curvature."""
        return canonical(*eigenpairs(self.curvature))

    @property
    def unit(self) -> float:
        """The smallest standard deviation of the posterior along any direction."""
        return float((1.0 + self.axes[0][-1]).rsqrt())

    def offset(self, x: Float64[Tensor, " k"]) -> float:
        """Distance of the trained weights from a mean x, per direction, in standard deviations of the posterior."""
        precision, _ = self.quadratic(torch.eye(len(x), dtype=torch.float64))
        return math.sqrt(float(x @ precision @ x) / len(x))

    def bound(self, location: Float64[Tensor, " k"], root: Float64[Tensor, "k k"]) -> float:
        """Evidence lower bound of N(location, R R^T), in nats."""
        precision, _ = self.quadratic(torch.eye(len(location), dtype=torch.float64))
        zero = torch.zeros_like(self.noise)
        entropy = torch.linalg.slogdet(root)[1] + 0.5 * len(location) * math.log(2.0 * math.pi * math.e)
        return float(self.log_density(location, zero, zero) - 0.5 * (root * (precision @ root)).sum() + entropy)
