"""The Gaussian of a family that is nearest to the posterior of all weights, by stochastic variational inference in Pyro."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor
from tqdm.auto import tqdm

from probneural.contexts import GLOBAL_GENERATORS
from probneural.curvature.jacobian_root import VarianceEstimation
from probneural.curvature.weights import DiagonalWeights, LowRankPlusDiagonalWeights, WeightRoot
from probneural.heads.ensembles.members import with_state
from probneural.heads.inference import optimise, pyro_module
from probneural.heads.laplace.laplace import VARIATIONAL, LaplacePredictor
from probneural.heads.last_layer.bayesian import LOW_RANK, VariationalInference
from probneural.heads.sampled.target import NetworkTarget
from probneural.randomness import seeded, stream

_PARTICLES = 2
"""Draws per step."""
_SCALE = 0.1
"""First standard deviations, in units of those of the Gaussian approximation."""
_DRAWS, _AT_ONCE = 64, 8
"""Draws of the Gaussian approximation whose mean squares are the units, and how many at once."""


def variational_posterior(
    target: NetworkTarget, method: VariationalInference, *, seed: int, show_progress: bool
) -> tuple[LaplacePredictor, bool]:
    """Optimise a Gaussian over weights; return the predictor, and whether it has converged.

    Raises:
        ImportError: If Pyro is not installed.
    """
    pyro = pyro_module("BayesianOperator(VariationalInference(...))")
    coordinates = _Coordinates(target)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        GLOBAL_GENERATORS,  # Pyro's handlers are global too
        seeded(seed, "network variational"),
        pyro.get_param_store().scope(),
        tqdm(total=method.steps, desc=method.family, unit="step", disable=not show_progress, leave=False) as bar,
    ):
        guide = _guide(pyro, coordinates.model(pyro, seed), method, coordinates.centre)
        history, converged = optimise(
            pyro,
            guide.model,
            guide,
            loss=pyro.infer.Trace_ELBO(num_particles=_PARTICLES),
            steps=method.steps,
            rate=target.largest_curvature() ** -0.5,
            tick=bar.update,
            bound=_noisy_bound,
        )
        gaussian = guide.get_posterior()
        is_low_rank = method.family == LOW_RANK
        std = gaussian.cov_diag.sqrt() if is_low_rank else gaussian.base_dist.scale
        columns = gaussian.cov_factor.detach() if is_low_rank else None
        location, std = gaussian.mean.detach(), std.detach()
    report = {"bound": float(history[-1]), "windows": float(len(history))}
    return _predictor(target, coordinates, location=location, std=std, columns=columns, report=report), converged


class _Coordinates:
    """The weights that move, in units of their standard deviations under the Gaussian approximation: w = trained + D x."""

    def __init__(self, target: NetworkTarget) -> None:
        self.target = target
        self.free = torch.nonzero(target.prior_precision > 0)[:, 0]
        generator, root = stream(0, "weight units"), target.root
        total = torch.zeros_like(target.centre)
        for _ in range(_DRAWS // _AT_ONCE):
            drawn = torch.randn(_AT_ONCE, root.rank, generator=generator, dtype=torch.float64, device="cpu")
            total += root.product(drawn.to(target.centre)).to(torch.float64).square().sum(0)
        self.units = (total / _DRAWS).sqrt()[self.free]
        self.centre = torch.zeros_like(self.units)

    def physical(self, values: Float64[Tensor, " f *k"]) -> Float64[Tensor, "P *k"]:
        """Values of the weights that move in physical units, among zeros of all others."""
        units = self.units.reshape(-1, *(1,) * (values.ndim - 1))
        whole = values.new_zeros(len(self.target.centre), *values.shape[1:])
        return whole.index_copy(0, self.free, units * values)

    @property
    def constant(self) -> float:
        """Log density of data and x at U = 0, in nats."""
        problem, target = self.target.problem, self.target
        observations = problem.effective_observations.to(problem.variance_unit) * problem.data.functions
        likelihood = -0.5 * (observations * (2.0 * math.pi * problem.variance_unit).log()).sum()
        prior = 0.5 * (target.prior_precision[self.free] / (2.0 * math.pi)).log().sum()
        return float(likelihood + prior + self.units.log().sum())

    def model(self, pyro: Any, seed: int) -> Callable[[], None]:
        """The joint density of x and the data, each call on the next batch."""
        rows, constant = self.target.batches(seed, 0), self.constant

        def model() -> None:
            flat = pyro.distributions.ImproperUniform(torch.distributions.constraints.real_vector, (), (len(self.units),))
            x = pyro.sample("x", flat)
            potential = self.target.potential(self.target.centre + self.physical(x), next(rows))
            pyro.factor("joint", constant - potential)

        return model


def _guide(pyro: Any, model: Callable[[], None], method: VariationalInference, start: Float64[Tensor, " f"]) -> Any:
    """Pyro's family, which starts at the trained weights."""
    from pyro.infer.autoguide import AutoDiagonalNormal, AutoLowRankMultivariateNormal, init_to_value

    settings = {"init_loc_fn": init_to_value(values={"x": start}), "init_scale": _SCALE}
    guide: Any = (
        AutoLowRankMultivariateNormal(model, rank=method.rank, **settings)
        if method.family == LOW_RANK
        else AutoDiagonalNormal(model, **settings)
    )
    guide()  # which makes its parameters
    return guide


def _noisy_bound(losses: Sequence[float]) -> tuple[float, float]:
    """Mean over the later half of a window, and twice the standard error of the difference of two."""
    later = losses[len(losses) // 2 :]
    error = statistics.stdev(later) / len(later) ** 0.5 if len(later) > 1 else math.inf
    return -statistics.fmean(later), 2.0 * math.sqrt(2.0) * error


def _predictor(
    target: NetworkTarget,
    coordinates: _Coordinates,
    *,
    location: Float64[Tensor, " f"],
    std: Float64[Tensor, " f"],
    columns: Float64[Tensor, "f r"] | None,
    report: dict[str, float],
) -> LaplacePredictor:
    """Weights of that Gaussian around its mean, linearised there."""
    problem, diagonal = target.problem, DiagonalWeights(coordinates.physical(std))
    root: WeightRoot = diagonal
    if columns is not None:
        root = LowRankPlusDiagonalWeights(diagonal.std, coordinates.physical(columns))
    centre = problem.layout.unflatten((target.centre + coordinates.physical(location)).to(problem.vector))
    state = {**dict(problem.operator.named_parameters()), **dict(problem.operator.named_buffers()), **centre}
    return LaplacePredictor(
        operator=with_state(problem.operator, state),
        layout=problem.layout,
        weights=root,
        structure=VARIATIONAL,
        hyperparameters=replace(target.laplace.hyperparameters, log_evidence=math.nan, log_evidence_error=math.nan),
        report=report,
        domain=problem.data.inputs.grid,
        in_channels=problem.data.inputs.channels,
        variance_estimation=VarianceEstimation(),
    )
