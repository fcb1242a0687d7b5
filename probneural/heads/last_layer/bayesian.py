"""The posterior of the last layer by sampling or variational inference, in Pyro: what closed forms are held against."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from tqdm.auto import tqdm

from probneural.checks import assign, check_choice, check_flag, check_integer
from probneural.contexts import GLOBAL_GENERATORS, undisturbed
from probneural.errors import ArgumentError, ConvergenceWarning, UnsupportedError, warn
from probneural.heads.inference import chain_report, optimise, pyro_module
from probneural.heads.last_layer.laplace import LastLayerLaplace, LastLayerPredictor
from probneural.heads.last_layer.predictors import (
    FAMILIES,
    SampledLastLayerPredictor,
    VariationalLastLayerPredictor,
)
from probneural.heads.last_layer.target import Target
from probneural.heads.training_data import recorded
from probneural.pairs import Dataset
from probneural.randomness import check_seed, seeded, stream

LOW_RANK = "low_rank"
"""The family that is for all weights alone."""
_COORDINATES = ("principal", "weights", "whitened")
"""In what coordinates chains move."""


_DEPTH = 8
"""Trajectories have at most 2^8 steps: longer ones make the first steps of adaptation slow, and are not needed after it."""
_PARTICLES = 64
"""Draws per step of variational inference."""
_GAIN = 0.01
"""Nats that a window has to gain for its learning rate to be kept."""


@dataclass(frozen=True, kw_only=True)
class NUTS:
    """The No-U-Turn sampler: chains one after the other.

    Chains move in coordinates x of w = w_trained + prior_std * T x, prior_std the prior's standard deviations; the sampler
    learns what remains in its warm-up. `"principal"`: T rotates to the principal axes of the features' Gram matrix, and a
    diagonal mass matrix is learned. `"weights"`: no rotation, and a dense mass matrix is learned; several times slower. In both
    one unit is the posterior's smallest standard deviation, since Pyro regularises mass matrices towards 1e-3.
    `"whitened"`: T makes the posterior at the evidence's hyper-parameters standard normal; fastest, but what is to be checked
    then guides the sampler (though not its target). Chains start from the trained weights plus twice the conditional standard
    deviations of the coordinates times standard normal numbers.

    With `infer_hyperparameters`, those of noise variance s_c^2 and prior precision tau_c that are not given are drawn, too.
    Standard deviations s_c and tau_c^(-1/2) have half-Cauchy priors: of scale 1 in units of the training outputs' standard
    deviation, and 1 in those over the features' root mean square.

    Args:
        samples: Kept draws per chain, at least 4.
        warmup: Steps of adaptation per chain.
        chains: Number of chains.
        coordinates: See above.
        infer_hyperparameters: Whether to draw what of noise and prior precision is not given.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Hoffman & Gelman (2014), The No-U-Turn sampler.
    """

    samples: int = 1000
    warmup: int = 1000
    chains: int = 4
    coordinates: str = "principal"
    infer_hyperparameters: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, least in (("samples", 4), ("warmup", 1), ("chains", 1)):  # halves of chains have a variance
            assign(self, **{name: check_integer(getattr(self, name), name, least=least)})
        check_choice(self.coordinates, _COORDINATES, "coordinates")
        assign(self, infer_hyperparameters=check_flag(self.infer_hyperparameters, "infer_hyperparameters"))


@dataclass(frozen=True)
class VariationalInference:
    """The Gaussian of a family that is nearest to the posterior in KL(q | p).

    The optimiser is Adam. Every 250 steps its parameters are averaged over the later half. Where the bound gains too little,
    the learning rate falls to the next of 0.1, 0.03, 0.01, 0.003 and 0.001; after the last, it has converged.

    In `BayesianLastLayer` there are 64 draws per step, and the bound is computed in closed form: too little is less than 0.01
    nats. Locations are in coordinates whitened by the posterior, which changes neither family nor optimum. In
    `BayesianOperator` there are two draws per step, each on a batch of functions, in units of the standard deviations of its
    Gaussian approximation, and rates are divided by the root of the largest curvature in those units. The bound is the mean
    over half a window: too little is less than twice its standard error.

    Args:
        family: `"mean_field"`, independent weights; `"full_rank"`, all Gaussians, for the last layer alone; or `"low_rank"`,
            independent weights plus some directions, for all weights alone.
        steps: The most steps.
        rank: Directions of `"low_rank"`.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Kucukelbir et al. (2017), Automatic differentiation variational inference; Ong, Nott and Smith (2018), Gaussian
        variational approximation with a factor covariance structure, for `"low_rank"`.
    """

    family: str = "full_rank"
    _: KW_ONLY
    steps: int = 20_000
    rank: int = 10

    def __post_init__(self) -> None:
        """Check the settings."""
        check_choice(self.family, (*FAMILIES, LOW_RANK), "family")
        assign(self, steps=check_integer(self.steps, "steps"), rank=check_integer(self.rank, "rank"))


@dataclass(frozen=True, kw_only=True)
class BayesianLastLayer:
    """The posterior of the last layer's weights by Pyro: the reference that closed forms are held against.

    Likelihood, units and prior are those of `LastLayerLaplace`,

        log p(w | y) = -(1/2) sum over c, i of m_c/s_c^2 * 1/|D| * integral of (y_ic - sum over j of w_cj phi_ij)^2
                       -(1/2) sum over c, j of tau_cj (w_cj - mu_cj)^2 + constant

    with mu zero but for the bias, where it is the mean training output. For given noise and prior precision the posterior is
    Gaussian, with the covariance that `LastLayerLaplace` has in closed form; its mean is the minimiser of the expression, and
    not the trained weights, around which `LastLayerLaplace` stays. `report["trained_offset"]` says how far these are apart.

    * `NUTS()` or `"nuts"`: the No-U-Turn sampler. Asymptotically exact. Predictions are empirical fields.
    * `VariationalInference("mean_field")` or `"mean_field"`: the Gaussian with independent weights that is nearest in KL(q |
      p). Its standard deviations are those of each weight given all the others, so they are too small where features are
      correlated. Those of predictions may be too small or too large, since correlations are lost, too. Predictions are
      Gaussian.
    * `VariationalInference("full_rank")` or `"full_rank"`: the nearest of all Gaussians, which is the posterior itself.

    A step costs a product with a matrix of all free weights, whatever the number of functions and points: data enter by
    the Gram matrix of the features and their moments only.

    It cannot see uncertainty in the features, and effective observations are taken as known.

    Args:
        method: One of the three above: an object with its settings, or its name for the default ones.
        readout: Name of the last layer; found by itself where it can be.
        noise: Observation variance, in physical units squared: one number or one per channel. By default that of largest
            evidence, as in `LastLayerLaplace`.
        prior_precision: Precision of the weights as in `LastLayerLaplace`; by default that of largest evidence.
        effective_observations: m, dimensionless, one number or one per channel; by default from the training residuals.
        seed: Random seed of everything drawn.
        show_progress: Whether to show a progress bar.

    Raises:
        UnsupportedError: If there is no such method.
        ArgumentError: If a setting is out of range, or all hyper-parameters are given that are to be inferred.

    Reference:
        Hoffman & Gelman (2014), The No-U-Turn sampler; Kucukelbir et al. (2017), Automatic differentiation variational
        inference; Vehtari et al. (2021), Rank-normalization, folding, and localization, for what is reported.
    """

    method: str | NUTS | VariationalInference = "nuts"
    readout: str | None = None
    noise: float | Tensor | None = None
    prior_precision: float | Tensor | None = None
    effective_observations: float | Tensor | None = None
    seed: int = 0
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        if not isinstance(self.method, NUTS | VariationalInference):
            remedy = "or LastLayerLaplace, in closed form"
            check_choice(self.method, ("nuts", *FAMILIES), "method", remedy=remedy, error=UnsupportedError)
        assign(self, seed=check_seed(self.seed), show_progress=check_flag(self.show_progress, "show_progress"))
        method = self._method
        if isinstance(method, VariationalInference) and method.family == LOW_RANK:
            remedy = "VariationalInference('full_rank') is cheap for a last layer"
            check_choice(method.family, FAMILIES, "family", remedy=remedy, error=UnsupportedError)
        if (
            isinstance(method, NUTS)
            and method.infer_hyperparameters
            and not (self.noise is None or self.prior_precision is None)
        ):
            raise ArgumentError(
                expected="noise or prior_precision None, to infer hyper-parameters",
                got="both",
                remedy="leave one out, or infer_hyperparameters",
            )

    @property
    def _method(self) -> NUTS | VariationalInference:
        if isinstance(self.method, str):
            return NUTS() if self.method == "nuts" else VariationalInference(self.method)
        return self.method

    @recorded
    @undisturbed()
    @torch.enable_grad()
    def fit(self, operator: nn.Module, data: Dataset) -> SampledLastLayerPredictor | VariationalLastLayerPredictor:
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
        pyro = pyro_module("BayesianLastLayer")
        method = self._method
        with torch.inference_mode(False), torch.enable_grad(), GLOBAL_GENERATORS:  # Pyro's handlers are global too
            closed = LastLayerLaplace(
                readout=self.readout,
                noise=self.noise,
                prior_precision=self.prior_precision,
                effective_observations=self.effective_observations,
            ).fit(operator, data)
            target = Target.of(closed, data)
            predictor: SampledLastLayerPredictor | VariationalLastLayerPredictor = (
                self._sampled(pyro, method, closed, target)
                if isinstance(method, NUTS)
                else self._variational(pyro, method, closed, target)
            )
        if not predictor.converged:
            report = ", ".join(f"{name} {value:.4g}" for name, value in predictor.report.items())
            name, remedy = ("nuts", "more warmup and samples") if isinstance(method, NUTS) else (method.family, "more steps")
            warn(f"{name} has not converged ({report}): give it {remedy}", ConvergenceWarning)
        return predictor

    def _sampled(self, pyro: ModuleType, method: NUTS, closed: LastLayerPredictor, target: Target) -> SampledLastLayerPredictor:
        """Run the chains and put their diagnostics together."""
        channels = closed.out_channels
        samples, warmup, chains = method.samples, method.warmup, method.chains
        inferred = tuple(method.infer_hyperparameters and given is None for given in (self.noise, self.prior_precision))
        transform = target.transform(method.coordinates)
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

        free = size + channels * sum(inferred)
        starts = 2.0 * torch.randn(chains, free, generator=stream(self.seed, "chain starts"), dtype=torch.float64)
        starts[:, :size] *= precision.diagonal().rsqrt()
        starts[:, size:] *= 0.25  # half of a logarithm: a factor of 1.6
        draws, divergences = [], 0
        with tqdm(
            total=chains * (samples + warmup), desc="NUTS", unit="draw", disable=not self.show_progress, leave=False
        ) as bar:
            for number, start in enumerate(starts):
                kernel = pyro.infer.NUTS(
                    potential_fn=potential, full_mass=method.coordinates == "weights", max_tree_depth=_DEPTH
                )
                chain = pyro.infer.MCMC(
                    kernel,
                    num_samples=samples,
                    warmup_steps=warmup,
                    initial_params={"x": start},
                    disable_progbar=True,
                    hook_fn=lambda *_: bar.update(),
                )
                with seeded(self.seed, "chain", number):  # Pyro draws from torch's global generator
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
            deviations=target.weights.physical(x).flatten(0, 1).to(device),
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
        self, pyro: ModuleType, method: VariationalInference, closed: LastLayerPredictor, target: Target
    ) -> VariationalLastLayerPredictor:
        """Optimise a Gaussian over weights."""
        with seeded(self.seed, "variational"), pyro.get_param_store().scope():  # Pyro draws from torch's global generator
            family = (_mean_field if method.family == "mean_field" else _full_rank)(pyro, target)
            with tqdm(total=method.steps, desc=method.family, unit="step", disable=not self.show_progress, leave=False) as bar:
                history, converged = _optimised(pyro, family, target, steps=method.steps, tick=bar.update)
            location, root = (part.detach() for part in family.moments())
        channels, features = closed.prior_precision.shape
        factor = torch.zeros(channels * features, root.shape[1], dtype=torch.float64)
        factor[target.weights.index] = target.weights.prior_std[:, None] * root
        posterior = LastLayerPredictor(
            readout=closed.readout,
            factor=factor.unflatten(0, (channels, features))[None].to(closed.device),
            noise=closed.noise,
            prior_precision=closed.prior_precision,
            effective_observations=closed.effective_observations,
            log_evidence=float(history[-1]),
            domain=closed.domain,
            in_channels=closed.in_channels,
            shift=target.weights.physical(location).to(closed.device),
        )
        report = {
            "bound": float(history[-1]),
            "windows": float(len(history)),
            "trained_offset": target.offset(location),
        }
        return VariationalLastLayerPredictor(
            posterior=posterior, method=method.family, history=history, report=report, converged=converged
        )


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


def _model(pyro: ModuleType, target: Target, transform: Float64[Tensor, "k k"]) -> Callable[[], None]:
    """The joint density of coordinates x, where T x are whitened weights."""
    zero, volume = torch.zeros_like(target.noise), torch.linalg.slogdet(transform)[1]

    def model() -> None:
        flat = pyro.distributions.ImproperUniform(torch.distributions.constraints.real_vector, (), (len(transform),))
        x = pyro.sample("x", flat)
        zeros = zero.expand(*x.shape[:-1], -1)
        pyro.factor("joint", target.log_density(x @ transform.mT, zeros, zeros) + volume)

    return model


def _mean_field(pyro: ModuleType, target: Target) -> _Family:
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


def _full_rank(pyro: ModuleType, target: Target) -> _Family:
    """All Gaussians."""
    from pyro.infer.autoguide import AutoMultivariateNormal, init_to_value

    transform = target.transform("whitened")
    model = _model(pyro, target, transform)
    start = torch.zeros(len(transform), dtype=torch.float64)
    guide = AutoMultivariateNormal(model, init_loc_fn=init_to_value(values={"x": start}))
    guide()  # which makes its parameters

    def moments() -> tuple[Tensor, Tensor]:
        gaussian = guide.get_posterior()
        return transform @ gaussian.loc, transform @ gaussian.scale_tril

    return _Family(model, guide, moments)


def _optimised(
    pyro: ModuleType, family: _Family, target: Target, *, steps: int, tick: Callable[[], object]
) -> tuple[Float64[Tensor, " w"], bool]:
    """Run stochastic variational inference; return the bound after every window, and whether it has converged."""
    return optimise(
        pyro,
        family.model,
        family.guide,
        loss=pyro.infer.Trace_ELBO(num_particles=_PARTICLES, vectorize_particles=True, max_plate_nesting=0),
        steps=steps,
        tick=tick,
        bound=lambda _: (target.bound(*family.moments()), _GAIN),
    )
