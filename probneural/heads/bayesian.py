"""The posterior of the last layer by sampling or variational inference, in Pyro: what closed forms are held against."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from tqdm.auto import tqdm

from probneural.distributions import EmpiricalField, FieldDistribution, Predictor
from probneural.errors import ArgumentError, UnsupportedError
from probneural.fields import Field, FieldPairs
from probneural.grids import Grid
from probneural.heads.last_layer import LastLayerLaplace, LastLayerPredictor, moved_to, statistics
from probneural.heads.readout import Readout
from probneural.heads.residuals import check_some, output_units

METHODS: dict[str, dict[str, Any]] = {
    "nuts": {"samples": 1000, "warmup": 1000, "chains": 4, "coordinates": "principal"},
    "mean_field": {"steps": 20_000},
    "full_rank": {"steps": 20_000},
}
"""Methods, and the settings that each reads with their defaults."""
COORDINATES = ("principal", "weights", "whitened")
"""In what coordinates chains move."""

LARGEST_R_HAT = 1.01
"""Chains agree up to here (Vehtari et al., 2021, section 4)."""
LEAST_SIZE_PER_CHAIN = 100
"""Effective samples per chain that diagnostics need to be trusted themselves (ibid.)."""

_BATCH_ELEMENTS = 2**23
"""Feature values evaluated at once (32 MiB in float32)."""
_DEPTH = 8
"""Trajectories have at most 2^8 steps: longer ones make the first steps of adaptation slow, and are not needed after it."""
_PARTICLES, _WINDOW = 64, 250
"""Draws per step of variational inference, and steps between looks at the bound."""
_RATES = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Learning rates of variational inference, one after the other."""
_GAIN = 0.01
"""Nats that a window has to gain for its learning rate to be kept."""


class ConvergenceWarning(UserWarning):
    """A chain or an optimisation has not reached what it was to reach; the predictor's report says by how much."""


@dataclass(frozen=True, kw_only=True)
class BayesianLastLayer:
    """The posterior of the last layer's weights by Pyro: the reference that closed forms are held against.

    Likelihood, units and prior are those of `LastLayerLaplace`,

        log p(w | y) = -(1/2) sum over c, i of m_c/s_c^2 * 1/|D| * integral of (y_ic - sum over j of w_cj phi_ij)^2
                       -(1/2) sum over c, j of tau_cj (w_cj - mu_cj)^2 + constant

    with mu zero but for the bias, where it is the mean training output. For given noise and prior precision the posterior is
    Gaussian, with the covariance that `LastLayerLaplace` has in closed form; its mean is the minimiser of the expression, and
    not the trained weights, around which `LastLayerLaplace` stays. `report["trained_offset"]` says how far these are apart.

    * `"nuts"`: the No-U-Turn sampler, chains one after the other. Asymptotically exact. Predictions are empirical fields.
    * `"mean_field"`: the Gaussian with independent weights that is nearest in KL(q | p). Its standard deviations are those of
      each weight given all the others, so they are too small where features are correlated. Those of predictions may be too
      small or too large, since correlations are lost, too. Predictions are Gaussian.
    * `"full_rank"`: the nearest of all Gaussians, which is the posterior itself.

    A step costs a product with a matrix of all free weights, whatever the number of functions and points: data enter by
    the Gram matrix of the features and their moments only.

    Chains move in coordinates x of w = w_trained + spread * T x, with the prior's standard deviations as spread; the sampler
    learns what remains in its warm-up. `"principal"`: T rotates to the principal axes of the features' Gram matrix, and a
    diagonal mass matrix is learned. `"weights"`: no rotation, and a dense mass matrix is learned; several times slower. In both
    one unit is the posterior's smallest standard deviation, since Pyro regularises mass matrices towards 1e-3.
    `"whitened"`: T makes the posterior at the evidence's hyper-parameters standard normal; fastest, but what is to be checked
    then guides the sampler (though not its target). Chains start from the trained weights plus twice the conditional standard
    deviations of the coordinates times standard normal numbers.

    Variational inference takes Adam with 64 draws per step. Every 250 steps its parameters are averaged over the later
    half and the bound is computed in closed form. Where it gains less than 0.01 nats, the learning rate falls to the next of
    0.1, 0.03, 0.01, 0.003 and 0.001; after the last, it has converged. Locations are in coordinates whitened by the
    posterior, which changes neither family nor optimum.

    With `infer_hyperparameters`, NUTS draws those of noise variance s_c^2 and prior precision tau_c that are not given, too.
    Standard deviations s_c and tau_c^(-1/2) have half-Cauchy priors: of scale 1 in units of the training outputs' standard
    deviation, and 1 in those over the features' root mean square.

    It cannot see uncertainty in the features, and effective observations are taken as known.

    Args:
        method: One of the three above.
        readout: Name of the last layer; found by itself where it can be.
        noise: Observation variance, in physical units squared: one number or one per channel. By default that of largest
            evidence, as in `LastLayerLaplace`.
        prior_precision: Precision of the weights as in `LastLayerLaplace`; by default that of largest evidence.
        effective_observations: m, dimensionless, one number or one per channel; by default from the training residuals.
        infer_hyperparameters: Whether NUTS draws what of noise and prior precision is None.
        coordinates: Of NUTS; see above. `"principal"` by default.
        samples: Kept draws per chain of NUTS; 1,000 by default.
        warmup: Steps of adaptation per chain of NUTS; 1,000 by default.
        chains: Number of chains of NUTS; 4 by default.
        steps: The most steps of variational inference; 20,000 by default.
        seed: Names all random numbers.
        progress: Whether to show a progress bar.

    Raises:
        UnsupportedError: If there is no such method.
        ArgumentError: If a setting is out of range, or not one of the method's.

    Reference:
        Hoffman & Gelman (2014), The No-U-Turn sampler; Kucukelbir et al. (2017), Automatic differentiation variational
        inference; Vehtari et al. (2021), Rank-normalization, folding, and localization, for what is reported.
    """

    method: str = "nuts"
    readout: str | None = None
    noise: float | Tensor | None = None
    prior_precision: float | Tensor | None = None
    effective_observations: float | Tensor | None = None
    infer_hyperparameters: bool = False
    coordinates: str | None = None
    samples: int | None = None
    warmup: int | None = None
    chains: int | None = None
    steps: int | None = None
    seed: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        """Check the method and its settings."""
        if self.method not in METHODS:
            raise UnsupportedError(
                expected=f"a method among {', '.join(METHODS)}",
                got=repr(self.method),
                remedy="or LastLayerLaplace, in closed form",
            )
        for name in ("coordinates", "samples", "warmup", "chains", "steps"):
            value = getattr(self, name)
            if value is not None and name not in METHODS[self.method]:
                remedy = f"leave {name} out"
                raise ArgumentError(
                    expected=f"settings that method={self.method!r} reads", got=f"{name}={value!r}", remedy=remedy
                )
            least = 4 if name == "samples" else 1  # halves of chains have a variance
            if name != "coordinates" and value is not None and not (_is_integer(value) and value >= least):
                raise ArgumentError(expected=f"{name} as an integer >= {least}", got=repr(value), remedy="leave it out")
        if self.coordinates is not None and self.coordinates not in COORDINATES:
            raise ArgumentError(
                expected=f"coordinates among {', '.join(COORDINATES)}", got=repr(self.coordinates), remedy="leave them out"
            )
        if not _is_integer(self.seed) or not 0 <= self.seed < 2**63:
            raise ArgumentError(expected="a seed from 0 to 2^63 - 1", got=repr(self.seed), remedy="seed=0")
        if self.infer_hyperparameters and (
            self.method != "nuts" or (self.noise is not None and self.prior_precision is not None)
        ):
            raise ArgumentError(
                expected="method='nuts' with noise or prior_precision None, to infer hyper-parameters",
                got=f"method={self.method!r} and what is given",
                remedy="infer_hyperparameters=False",
            )

    def fit(self, operator: nn.Module, data: FieldPairs) -> SampledLastLayerPredictor | VariationalLastLayerPredictor:
        """Fit the posterior.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed.
            data: Training pairs.

        Returns:
            A predictor with its own copy of the operator. Its `converged` is False, and a `ConvergenceWarning` is given, if
            split R-hat exceeds 1.01, if there are fewer than 100 effective samples per chain, in the bulk or in the tails, or
            if a trajectory diverged; or if the bound still rises after the last step.

        Raises:
            ImportError: If Pyro is not installed.
            ReadoutError: If the last layer is not pointwise and affine.
            EvidenceError: If the evidence determines no noise or prior.
            ArgumentError: If a setting is out of range or of a wrong shape, or the prior fixes all weights.
            DataError: If the data are not finite.
        """
        pyro = _pyro()
        settings = {
            name: default if getattr(self, name) is None else getattr(self, name)
            for name, default in METHODS[self.method].items()
        }
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            closed = LastLayerLaplace(
                readout=self.readout,
                noise=self.noise,
                prior_precision=self.prior_precision,
                effective_observations=self.effective_observations,
            ).fit(operator, data)
            target = _Target.of(closed, data)
            if self.method == "nuts":
                predict: SampledLastLayerPredictor | VariationalLastLayerPredictor = self._sampled(
                    pyro, closed, target, **settings
                )
            else:
                predict = self._variational(pyro, closed, target, **settings)
        if not predict.converged:
            found = ", ".join(f"{name} {value:.4g}" for name, value in predict.report.items())
            remedy = "more warmup and samples" if self.method == "nuts" else "more steps"
            warnings.warn(f"{self.method} has not converged ({found}): give it {remedy}", ConvergenceWarning, stacklevel=2)
        return predict

    def _sampled(
        self,
        pyro: ModuleType,
        closed: LastLayerPredictor,
        target: _Target,
        *,
        samples: int,
        warmup: int,
        chains: int,
        coordinates: str,
    ) -> SampledLastLayerPredictor:
        """Run the chains and put their diagnostics together."""
        channels = closed.out_channels
        inferred = (
            self.infer_hyperparameters and self.noise is None,
            self.infer_hyperparameters and self.prior_precision is None,
        )
        transform = target.transform(coordinates)
        precision, slope = target.quadratic(transform)
        size, half = len(slope), 0.5 * precision

        def unpacked(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Whitened weights, and the logarithms of noise and prior over the evidence's; along the last axis."""
            rest = list(x[..., size:].split(channels, dim=-1))
            zeros = x.new_zeros(*x.shape[:-1], channels)
            noise = rest.pop(0) if inferred[0] else zeros
            return x[..., :size] @ transform.mT, noise, rest.pop(0) if inferred[1] else zeros

        def potential(parameters: dict[str, Tensor]) -> Tensor:
            x = parameters["x"]
            if len(x) == size:
                return x @ torch.addmv(-slope, half, x)
            weights, noise, prior = unpacked(x)
            return -target.log_density(weights, noise, prior) - target.log_hyperprior(noise, prior)

        starts = 2.0 * torch.randn(
            chains, size + channels * sum(inferred), generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64
        )
        starts[:, :size] *= precision.diagonal().rsqrt()
        starts[:, size:] *= 0.25  # half of a logarithm: a factor of 1.6
        seeds = torch.randint(2**62, (chains,), generator=torch.Generator().manual_seed(self.seed)).tolist()
        draws, divergences = [], 0
        with tqdm(total=chains * (samples + warmup), desc="NUTS", unit="draw", disable=not self.progress, leave=False) as bar:
            for start, seed in zip(starts, seeds, strict=True):
                torch.default_generator.manual_seed(seed)  # which Pyro draws from
                kernel = pyro.infer.NUTS(potential_fn=potential, full_mass=coordinates == "weights", max_tree_depth=_DEPTH)
                chain = pyro.infer.MCMC(
                    kernel,
                    num_samples=samples,
                    warmup_steps=warmup,
                    initial_params={"x": start},
                    disable_progbar=True,
                    hook_fn=lambda *_: bar.update(),
                )
                chain.run()
                draws.append(chain.get_samples()["x"].detach())
                divergences += len(chain.diagnostics()["divergences"]["chain 0"])
        x, noise, prior = unpacked(torch.stack(draws))
        factors = prior.exp()
        others = [part for part, is_free in zip((noise, prior), inferred, strict=True) if is_free]
        report = {
            **chain_report(torch.cat([x, *others], dim=-1)),
            "divergences": float(divergences),
            "trained_offset": target.offset(x.mean((0, 1))),
        }
        device = closed.device
        return SampledLastLayerPredictor(
            readout=closed.readout,
            deviations=target.physical(x).flatten(0, 1).to(device),
            noise_draws=(closed.noise * noise.exp().to(device)).flatten(0, 1),
            prior_factors=factors.flatten(0, 1),
            prior_precision=closed.prior_precision * factors.mean((0, 1))[:, None],
            effective_observations=closed.effective_observations,
            chains=chains,
            report=report,
            domain=closed.domain,
            in_channels=closed.in_channels,
        )

    def _variational(
        self, pyro: ModuleType, closed: LastLayerPredictor, target: _Target, *, steps: int
    ) -> VariationalLastLayerPredictor:
        """Optimise a Gaussian over weights."""
        torch.default_generator.manual_seed(self.seed)  # which Pyro draws from
        with pyro.get_param_store().scope():
            found = (_mean_field if self.method == "mean_field" else _full_rank)(pyro, target)
            with tqdm(total=steps, desc=self.method, unit="step", disable=not self.progress, leave=False) as bar:
                history, converged = _optimise(pyro, found, target, steps=steps, tick=bar.update)
            location, root = (part.detach() for part in found.moments())
        channels, features = closed.prior_precision.shape
        factor = torch.zeros(channels * features, root.shape[1], dtype=torch.float64)
        factor[target.free] = target.spread[:, None] * root
        posterior = LastLayerPredictor(
            readout=closed.readout,
            factor=factor.unflatten(0, (channels, features))[None].to(closed.device),
            noise=closed.noise,
            prior_precision=closed.prior_precision,
            effective_observations=closed.effective_observations,
            log_evidence=float(history[-1]),
            domain=closed.domain,
            in_channels=closed.in_channels,
            shift=target.physical(location).to(closed.device),
        )
        report = {
            "bound": float(history[-1]),
            "windows": float(len(history)),
            "trained_offset": target.offset(location),
        }
        return VariationalLastLayerPredictor(
            posterior=posterior, method=self.method, history=history, report=report, converged=converged
        )


@dataclass(frozen=True, eq=False)
class _Target:
    """The log density of k free weights' deviations from the trained ones, in units of their prior standard deviations.

    With log noise and prior precision a and b over the evidence's, per channel,

        log p(y, x) = -(1/2) sum over c of [exp(-a_c) (E_c - 2 b_c^T x_c + x_c^T A_c x_c) + N_c log(2 pi s_c^2) + N_c a_c
                                            + exp(b_c) |x_c + z_c|^2 + k_c log(2 pi) - k_c b_c].

    Attributes:
        curvature: A, `(k, k)`, of the likelihood.
        slope: b, `(k,)`.
        centre: z, `(k,)`: the trained weights minus the prior's mean.
        spread: Prior standard deviations, `(k,)`, in physical units.
        free: Where the free weights are among all, `(k,)`, integers.
        members: One where a weight belongs to a channel, `(k, c)`.
        energies: E, `(c,)`.
        observations: N, `(c,)`.
        noise: s^2, `(c,)`, in physical units squared.
        scales: Of the half-Cauchy priors over the evidence's values, `(2, c)`: of noise and of the weights' prior.
    """

    curvature: Float64[Tensor, "k k"]
    slope: Float64[Tensor, " k"]
    centre: Float64[Tensor, " k"]
    spread: Float64[Tensor, " k"]
    free: Tensor
    members: Float64[Tensor, "k c"]
    energies: Float64[Tensor, " c"]
    observations: Float64[Tensor, " c"]
    noise: Float64[Tensor, " c"]
    scales: Float64[Tensor, "2 c"]
    features: int

    @classmethod
    @torch.no_grad()
    def of(cls, closed: LastLayerPredictor, data: FieldPairs) -> _Target:
        """Collect the statistics at the hyper-parameters of the closed form; on the CPU.

        Raises:
            ArgumentError: If the prior fixes all weights.
        """
        pairs = moved_to(data, next(closed.operator.parameters()))
        gram, moments, residuals = (part.cpu() for part in statistics(closed.readout, pairs))
        mean, scale = (part.cpu() for part in output_units(pairs.outputs))
        noise, prior, counts = closed.noise.cpu(), closed.prior_precision.cpu(), closed.effective_observations.cpu()
        channels, features = moments.shape
        precision = counts / noise
        spread = prior.rsqrt().flatten()
        free = torch.nonzero(spread > 0)[:, 0]
        if len(free) == 0:
            raise ArgumentError(
                expected="a prior that leaves some weights free",
                got="infinite prior_precision for all",
                remedy="make it finite",
            )
        spread = spread[free]
        whole = torch.block_diag(*(gram * float(number) for number in precision))[free][:, free]
        centre = closed.readout.weight.cpu().clone()
        if closed.readout.has_bias:
            centre[:, -1] -= mean
        share = pairs.outputs.grid.weights / pairs.outputs.grid.volume
        size = float((gram.diagonal().mean() / len(data)).sqrt())
        prior_scales = scale / size * prior[:, 0].sqrt()
        return cls(
            curvature=spread[:, None] * whole * spread,
            slope=(precision[:, None] * moments).flatten()[free] * spread,
            centre=centre.flatten()[free] / spread,
            spread=spread,
            free=free,
            members=torch.eye(channels, dtype=torch.float64).repeat_interleave(features, 0)[free],
            energies=precision * (residuals.square().flatten(2) @ share).sum(0),
            observations=counts * len(data),
            noise=noise,
            scales=torch.stack([scale / noise.sqrt(), prior_scales]),
            features=features,
        )

    def log_density(
        self, x: Float64[Tensor, "*s k"], noise: Float64[Tensor, "*s c"], prior: Float64[Tensor, "*s c"]
    ) -> Float64[Tensor, "*s"]:
        """Log p(y, x) in nats, of the data in physical units, at logarithms of noise and prior over the evidence's."""
        misfits = self.energies + (x * (x @ self.curvature - 2.0 * self.slope)) @ self.members
        penalties = (x + self.centre).square() @ self.members
        fit = (-noise).exp() * misfits + self.observations * (noise + (2.0 * math.pi * self.noise).log())
        return -0.5 * (fit + prior.exp() * penalties - self.members.sum(0) * (prior - math.log(2.0 * math.pi))).sum(-1)

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
        values, vectors = torch.linalg.eigh(self.curvature)
        return values.clamp_min(0.0), vectors  # a Gram matrix: what is negative is rounding

    @property
    def unit(self) -> float:
        """The smallest standard deviation of the posterior along any direction."""
        return float((1.0 + self.axes[0][-1]).rsqrt())

    def physical(self, x: Float64[Tensor, "*s k"]) -> Float64[Tensor, "*s c f"]:
        """Deviations of all weights from the trained ones, in physical units; zero where the prior fixes them."""
        whole = x.new_zeros(*x.shape[:-1], self.members.shape[1] * self.features)
        whole[..., self.free] = self.spread * x
        return whole.unflatten(-1, (-1, self.features))

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


# Variational inference


@dataclass(frozen=True, eq=False)
class _Family:
    """A variational family.

    Attributes:
        model: The joint density, for Pyro.
        guide: The family, for Pyro; a module.
        moments: Gives location `(k,)` and root `(k, k)` of the whitened weights.
    """

    model: Callable[[], None]
    guide: Any
    moments: Callable[[], tuple[Tensor, Tensor]]


def _model(pyro: ModuleType, target: _Target, transform: Float64[Tensor, "k k"]) -> Callable[[], None]:
    """The joint density of coordinates x, where T x are whitened weights."""
    zero, volume = torch.zeros_like(target.noise), torch.linalg.slogdet(transform)[1]

    def model() -> None:
        flat = pyro.distributions.ImproperUniform(torch.distributions.constraints.real_vector, (), (len(transform),))
        x = pyro.sample("x", flat)
        zeros = zero.expand(*x.shape[:-1], -1)
        pyro.factor("joint", target.log_density(x @ transform.mT, zeros, zeros) + volume)

    return model


def _mean_field(pyro: ModuleType, target: _Target) -> _Family:
    """Independent weights. Not Pyro's `AutoDiagonalNormal`, whose location takes as many steps as features are correlated."""
    transform = target.transform("whitened")
    size = len(transform)
    guide = pyro.nn.PyroModule("guide")
    guide.location = nn.Parameter(torch.zeros(size, dtype=torch.float64))
    guide.log_scale = nn.Parameter(torch.full((size,), math.log(target.unit), dtype=torch.float64))

    def forward() -> None:
        pyro.sample("x", pyro.distributions.Normal(transform @ guide.location, guide.log_scale.exp()).to_event(1))

    guide.forward = forward
    model = _model(pyro, target, torch.eye(size, dtype=torch.float64))
    return _Family(model, guide, lambda: (transform @ guide.location, guide.log_scale.exp().diag()))


def _full_rank(pyro: ModuleType, target: _Target) -> _Family:
    """All Gaussians."""
    from pyro.infer.autoguide import AutoMultivariateNormal, init_to_value

    transform = target.transform("whitened")
    model = _model(pyro, target, transform)
    start = torch.zeros(len(transform), dtype=torch.float64)
    guide = AutoMultivariateNormal(model, init_loc_fn=init_to_value(values={"x": start}))
    guide()  # which makes its parameters

    def moments() -> tuple[Tensor, Tensor]:
        found = guide.get_posterior()
        return transform @ found.loc, transform @ found.scale_tril

    return _Family(model, guide, moments)


def _optimise(
    pyro: ModuleType, family: _Family, target: _Target, *, steps: int, tick: Callable[[], object]
) -> tuple[Float64[Tensor, " w"], bool]:
    """Run stochastic variational inference; return the bound after every window, and whether it has converged."""
    from pyro.infer import SVI, Trace_ELBO

    history: list[float] = []
    parameters = list(family.guide.parameters())
    left = steps
    for rate in _RATES:
        loss = Trace_ELBO(num_particles=_PARTICLES, vectorize_particles=True, max_plate_nesting=0)
        step = SVI(family.model, family.guide, pyro.optim.Adam({"lr": rate}), loss=loss).step
        gained = math.inf
        while gained >= _GAIN:
            if left == 0:
                return torch.tensor(history, dtype=torch.float64), False
            length = min(_WINDOW, left)
            sums, count = [torch.zeros_like(parameter) for parameter in parameters], 0
            for number in range(length):
                step()
                tick()
                if number >= length // 2:
                    count += 1
                    for total, parameter in zip(sums, parameters, strict=True):
                        total += parameter.detach()
            left -= length
            with torch.no_grad():
                for total, parameter in zip(sums, parameters, strict=True):
                    parameter.copy_(total / count)
                history.append(target.bound(*family.moments()))
            gained = history[-1] - history[-2] if len(history) > 1 else math.inf
    return torch.tensor(history, dtype=torch.float64), True


# What chains say


def chain_report(draws: Float[Tensor, "m n k"]) -> dict[str, float]:
    """Convergence of m chains of n draws of k parameters: the extremes over parameters.

    Args:
        draws: Kept draws, chains first, in any units.

    Returns:
        `r_hat_max` and `_min`: the larger one of rank-normalised split R-hat of the draws and of their distances from the
        median; 1 where chains agree. `bulk_size_min` and `_max`: effective sample size of the rank-normalised draws.
        `tail_size_min` and `_max`: the smaller one of those for the 5 % and the 95 % quantile.

    Reference:
        Vehtari et al. (2021), equations 3.1 to 3.14 and section 4.

    Examples:
        >>> draws = torch.randn(4, 500, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> round(chain_report(draws)["r_hat_max"], 2)
        1.0
    """
    draws = draws.to(torch.float64)
    folded = (draws - draws.flatten(0, 1).median(0).values).abs()
    ranked = _rank_normalised(_split(draws))
    r_hat = torch.maximum(split_r_hat(ranked), split_r_hat(_rank_normalised(_split(folded))))
    quantiles = draws.flatten(0, 1).quantile(torch.tensor([0.05, 0.95], dtype=torch.float64), dim=0)
    tails = torch.stack([effective_size(_split((draws <= quantile).to(torch.float64))) for quantile in quantiles]).amin(0)
    found = {"r_hat": r_hat, "bulk_size": effective_size(ranked), "tail_size": tails}
    return {f"{name}_{end}": float(getattr(values, end)()) for name, values in found.items() for end in ("min", "max")}


def _split(draws: Float64[Tensor, "m n k"]) -> Float64[Tensor, "m2 h k"]:
    """Halves of chains as chains; of an odd number of draws the middle one is left out."""
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]])


def _rank_normalised(draws: Float64[Tensor, "m n k"]) -> Float64[Tensor, "m n k"]:
    """Normal scores of the ranks among all draws of a parameter; ties share the average rank."""
    from scipy.stats import rankdata  # takes long to import

    flat = draws.flatten(0, 1)
    ranks = torch.from_numpy(rankdata(flat.numpy(), axis=0))
    return torch.special.ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(draws.shape)


def split_r_hat(chains: Float64[Tensor, "m n k"]) -> Float64[Tensor, " k"]:
    """Square root of the pooled over the within-chain variance; NaN where nothing varies."""
    within = chains.var(1).mean(0)
    return ((chains.shape[1] - 1) / chains.shape[1] + chains.mean(1).var(0) / within).sqrt()


def effective_size(chains: Float64[Tensor, "m n k"]) -> Float64[Tensor, " k"]:
    """Independent draws that would know the mean as well, by Geyer's initial monotone sequence; at most S log10 S of S.

    NaN where nothing varies.
    """
    count, length, _ = chains.shape
    centred = chains - chains.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * length, dim=1)
    covariances = torch.fft.irfft(spectrum.abs().square(), n=2 * length, dim=1)[:, :length].mean(0) / length
    within = chains.var(1).mean(0)
    pooled = within * (length - 1) / length + chains.mean(1).var(0)
    correlations = 1.0 - (within - covariances * length / (length - 1)) / pooled
    correlations[0] = 1.0
    pairs = correlations[: length // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    positive = (pairs > 0).to(torch.float64).cumprod(0)
    monotone = torch.cummin(torch.where(positive > 0, pairs, torch.inf), 0).values
    time = -1.0 + 2.0 * torch.where(positive > 0, monotone, 0.0).sum(0)
    total = count * length
    return total / time.clamp_min(1.0 / math.log10(total))


# Predictors


class SampledLastLayerPredictor(Predictor):
    """What `BayesianLastLayer` fits with NUTS: the last layer's weights as draws.

    A prediction holds every draw at every point, in the operator's dtype; where that is too much, see `thinned`.

    Attributes:
        readout: The predictor's own copy of the operator, split into features and last layer.
        deviations: Draws of the weights minus the trained ones, `(s, c, f)`, chain by chain, in physical units; float64.
        noise_draws: Draws of the observation variance, `(s, c)`, in physical units squared; all equal where it is not inferred.
        noise: Their mean, `(c,)`.
        prior_factors: Draws of the prior precision over that of largest evidence, `(s, c)`; ones where it is not inferred.
        prior_precision: Of each weight, `(c, f)`, per physical unit squared; the mean of the draws where it is inferred.
        effective_observations: Independent observations per field and channel, `(c,)`, dimensionless.
        chains: How many.
        report: `r_hat_max` and other extremes over weights, see `chain_report`; `divergences`, the number of trajectories that
            diverged; `trained_offset`, how far the trained weights are from the mean, in standard deviations per direction.
    """

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
        self.readout = readout
        self.deviations = deviations
        self.noise_draws = noise_draws
        self.noise = noise_draws.mean(0)
        self.prior_factors = prior_factors
        self.prior_precision = prior_precision
        self.effective_observations = effective_observations
        self.chains = chains
        self.report = dict(report)
        self.domain = domain
        self.in_channels = in_channels
        self.out_channels = deviations.shape[1]

    @property
    def converged(self) -> bool:
        """Whether R-hat, sample sizes and divergences of the chains are as they should be."""
        sizes = min(self.report["bulk_size_min"], self.report["tail_size_min"])
        agrees = self.report["r_hat_max"] <= LARGEST_R_HAT
        return agrees and sizes >= LEAST_SIZE_PER_CHAIN * self.chains and self.report["divergences"] == 0

    @property
    def dtype(self) -> torch.dtype:
        """The operator's dtype."""
        example = next(self.readout.operator.parameters())
        return example.real.dtype if example.is_complex() else example.dtype

    @property
    def device(self) -> torch.device:
        """The operator's device."""
        return next(self.readout.operator.parameters()).device

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
        if not _is_integer(draws) or not 1 <= draws <= total:
            raise ArgumentError(expected=f"1 to {total} draws", got=repr(draws), remedy="fit with more samples")
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
        )

    def _predict(self, inputs: Field, query: Grid | None) -> EmpiricalField:
        check_some(inputs)
        where = inputs.grid if query is None else query
        step = max(1, _BATCH_ELEMENTS // (where.size * self.deviations.shape[2]))
        parts = []
        for start in range(0, len(inputs), step):
            values, features = self.readout.evaluate(inputs[start : start + step], query)
            moved = torch.einsum("npf,scf->sncp", features, self.deviations.to(features))
            parts.append(values + moved.unflatten(-1, where.shape))
        return EmpiricalField(torch.cat(parts, dim=1), grid=where)


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
        self.posterior = posterior
        self.method = method
        self.history = history
        self.report = dict(report)
        self.converged = converged
        self.noise = posterior.noise
        self.domain = posterior.domain
        self.in_channels = posterior.in_channels
        self.out_channels = posterior.out_channels

    @property
    def dtype(self) -> torch.dtype:
        """The operator's dtype."""
        return self.posterior.dtype

    @property
    def device(self) -> torch.device:
        """The operator's device."""
        return self.posterior.device

    @property
    def weight_covariance(self) -> Float64[Tensor, "k k"]:
        """Covariance of all weights, channel-major, in physical units squared; float64."""
        return self.posterior.weight_covariance

    def _predict(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        return self.posterior(inputs, query)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _pyro() -> ModuleType:
    """Pyro, which is imported when it is needed and here only.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import pyro
        import pyro.infer.autoguide
    except ModuleNotFoundError as error:
        raise ImportError(f"BayesianLastLayer needs {error.name}: pip install 'probneural[pyro]'") from error
    module: ModuleType = pyro
    return module
