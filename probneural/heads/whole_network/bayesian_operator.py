"""The posterior of all weights by chains or variational inference: what Gaussian approximations are held against."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import nn
from tqdm.auto import tqdm

from probneural.checks import assign, check_choice, check_flag, check_instance, check_integer, described
from probneural.contexts import undisturbed
from probneural.errors import ArgumentError, ConvergenceWarning, UnsupportedError
from probneural.heads.chain_diagnostics import chain_report
from probneural.heads.laplace.laplace import Laplace, LaplacePredictor
from probneural.heads.last_layer.bayesian import LOW_RANK, VariationalInference
from probneural.heads.training_data import recorded
from probneural.heads.weight_samples import WeightSampledPredictor
from probneural.heads.whole_network.chains import SGHMC, StochasticGradientMCMC
from probneural.heads.whole_network.target import NetworkTarget
from probneural.heads.whole_network.variational import variational_posterior
from probneural.notices import warn
from probneural.pairs import Dataset
from probneural.randomness import check_seed

_LAPLACE = Laplace(show_progress=False)
_METHOD = SGHMC()
_R_HAT, _TEMPERATURE = 1.05, 0.2
"""Largest split R-hat of outputs, and deviation of the temperature from 1, of chains that are taken for converged."""


@dataclass(frozen=True)
class BayesianOperator:
    """The posterior of all weights, not linearised.

    Likelihood, noise variance s_c^2, prior precision tau_j and effective observations m_c are those of `Laplace`,

        -log p(w | y) = sum over functions and c of m_c / (2 s_c^2 |D|) * integral of (y - f(w))^2
                        + 1/2 sum over j of tau_j w_j^2 + constant,

    and the head fits one first: it takes from it what is not given, and the scales that chains move in.

    * `SGHMC()`: stochastic gradient Hamiltonian Monte Carlo.
    * `SGLD()`: stochastic gradient Langevin dynamics.
    * `VariationalInference("mean_field")` or `("low_rank", rank=10)`: the nearest Gaussian of a family, by Pyro. Predictions
      are linearised at its mean, as those of `Laplace`; `predictor.sampled(members, seed=...)` evaluates operators with drawn
      weights. Independent weights have the standard deviations of each given all others, so they are too small.
      `report["bound"]` is the evidence lower bound, in nats.

    Chains do not mix over all that a posterior of many weights is: they stay in the valley that the trained weights lie in,
    and directions that data hardly determine take longer than any chain is. `report` says how far they came. `r_hat_max` is
    the largest split R-hat of outputs for training functions, over halves of chains, with sizes of effective samples; all
    chains start at the trained weights, so it does not see what none of them has found.
    `temperature` is the mean of (w - trained)^T dU/dw per weight: 1 where a chain is at rest, more where steps or
    batches are too coarse, and less where it has not arrived. `epochs` is what it cost, in gradients of all data.

    Args:
        method: How: an object with its settings.
        laplace: The Gaussian approximation, with hyper-parameters given or learned by its evidence; with its `parameters`
            as those that vary. Its evidence decides how wide the posterior is; where the noise is known, give it.
        batch_size: Functions per gradient.
        seed: Random seed.
        show_progress: Whether to show a progress bar.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Welling and Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics; Chen, Fox and Guestrin (2014),
        Stochastic gradient Hamiltonian Monte Carlo; Wenzel et al. (2020), How good is the Bayes posterior in deep neural
        networks really?, for temperatures as diagnostics.
    """

    method: StochasticGradientMCMC | VariationalInference = _METHOD
    _: KW_ONLY
    laplace: Laplace = _LAPLACE
    batch_size: int = 20
    seed: int = 0
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        if not isinstance(self.method, StochasticGradientMCMC | VariationalInference):
            raise ArgumentError(
                expected="a method with its settings",
                got=described(self.method),
                remedy='give SGHMC(), SGLD() or VariationalInference("mean_field")',
            )
        if isinstance(self.method, VariationalInference):
            remedy = 'Laplace("full") has all of a Gaussian'
            check_choice(self.method.family, ("mean_field", LOW_RANK), "family", remedy=remedy, error=UnsupportedError)
        check_instance(self.laplace, Laplace, "laplace", remedy='give Laplace("diagonal")', error=ArgumentError)
        assign(
            self,
            batch_size=check_integer(self.batch_size, "batch_size"),
            seed=check_seed(self.seed),
            show_progress=check_flag(self.show_progress, "show_progress"),
        )

    @recorded
    @undisturbed()
    def fit(self, operator: nn.Module, data: Dataset) -> WeightSampledPredictor | LaplacePredictor:
        """Fit the posterior.

        Args:
            operator: A trained module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed.
            data: Training pairs.

        Returns:
            Of chains, a predictor of empirical fields, one sample per member; of variational inference, of Gaussian fields.
            A `ConvergenceWarning` is given if split R-hat of outputs exceeds 1.05, or the temperature is not within 0.2 of 1;
            or if the bound still rises after the last step.

        Raises:
            ImportError: If variational inference is asked for, and Pyro is not installed.
            TrainingError: If a chain leaves the numbers.
            UnsupportedError: If the Gaussian approximation cannot be had, or has no factorised covariance.
            EvidenceError: If the evidence determines no noise or prior.
            ArgumentError: If a setting is out of range, or the operator is no module.
            ShapeError: If the operator's outputs do not fit the data's.
            DataError: If the data are not finite pairs.
        """
        target = NetworkTarget.of(operator, data, laplace=self.laplace, batch_size=self.batch_size)
        if isinstance(self.method, StochasticGradientMCMC):
            return self._sampled(self.method, target)
        predictor, converged = variational_posterior(target, self.method, seed=self.seed, show_progress=self.show_progress)
        if not converged:
            bound, family = predictor.report["bound"], self.method.family
            text = f"{family} has not converged (bound {bound:.6g}): give it more steps"
            warn(text, ConvergenceWarning)
        return predictor

    def _sampled(self, method: StochasticGradientMCMC, target: NetworkTarget) -> WeightSampledPredictor:
        """Run the chains, and put their diagnostics together."""
        total, hidden = method.chains * method.steps, not self.show_progress
        with tqdm(total=total, desc=type(method).__name__, unit="step", disable=hidden, leave=False) as bar:
            traces = [method.run(target, number=number, seed=self.seed, tick=bar.update) for number in range(method.chains)]
        problem, size = target.problem, target.problem.data.functions
        report = {
            **chain_report(torch.stack([trace.probes for trace in traces])),
            "temperature": float(torch.cat([trace.virials for trace in traces]).mean()) / max(1, target.moving),
            "step": min(trace.step for trace in traces),
            "largest_curvature": max(trace.curvature for trace in traces),
            "largest_gradient_noise": max(trace.gradient_noise for trace in traces),
            "epochs": total * target.batch_size / size,
        }
        if not (report["r_hat_max"] <= _R_HAT and abs(report["temperature"] - 1.0) <= _TEMPERATURE):
            shown = ", ".join(f"{name} {report[name]:.4g}" for name in ("r_hat_max", "bulk_size_min", "temperature"))
            remedy = "longer chains, or a smaller step_size"
            warn(f"{type(method).__name__} has not converged ({shown}): give it {remedy}", ConvergenceWarning)
        return WeightSampledPredictor(
            operator=problem.operator,
            layout=problem.layout,
            vectors=torch.cat([trace.vectors for trace in traces]).to(problem.vector),
            noise=target.laplace.noise,
            domain=problem.data.inputs.grid,
            in_channels=problem.data.inputs.channels,
            effective_observations=target.laplace.effective_observations,
            report=report,
        )
