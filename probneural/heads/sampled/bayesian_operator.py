"""Posterior of all weights by variational inference."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import nn

from probneural.checks import assign, check_flag, check_instance, check_integer
from probneural.contexts import undisturbed
from probneural.errors import ArgumentError, ConvergenceWarning, warn
from probneural.heads.laplace.laplace import Laplace, LaplacePredictor
from probneural.heads.sampled.variational import NetworkTarget, VariationalInference, variational_posterior
from probneural.heads.training_data import recorded
from probneural.pairs import Dataset
from probneural.randomness import check_seed

_LAPLACE = Laplace(show_progress=False)
_METHOD = VariationalInference()


@dataclass(frozen=True)
class BayesianOperator:
    """The posterior of all weights, not linearised.

    Likelihood, noise variance s_c^2, prior precision tau_j and effective observations m_c are those of `Laplace`,

        -log p(w | y) = sum over functions and c of m_c / (2 s_c^2 |D|) * integral of (y - f(w))^2
                        + 1/2 sum over j of tau_j w_j^2 + constant,

    and the head fits one first, for the hyper-parameters that are not given and for the scales of the weights.

    `VariationalInference("mean_field")` or `("low_rank", rank=10)` is the nearest Gaussian of a family, by Pyro. Predictions
    are linearised at its mean, as those of `Laplace`; `predictor.sampled(members, seed=...)` evaluates operators with drawn
    weights. Independent weights have the standard deviations of each given all others, so they are too small.
    `report["bound"]` is the evidence lower bound, in nats.

    Args:
        method: The family and its settings.
        laplace: The Gaussian approximation, with hyper-parameters given or learned by its evidence; with its `parameters`
            as those that vary. Its evidence decides how wide the posterior is; where the noise is known, give it.
        batch_size: Functions per gradient.
        seed: Random seed.
        show_progress: Whether to show a progress bar.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Kucukelbir et al. (2017), Automatic differentiation variational inference.
    """

    method: VariationalInference = _METHOD
    _: KW_ONLY
    laplace: Laplace = _LAPLACE
    batch_size: int = 20
    seed: int = 0
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_instance(
            self.method, VariationalInference, "method", remedy='give VariationalInference("mean_field")', error=ArgumentError
        )
        check_instance(self.laplace, Laplace, "laplace", remedy='give Laplace("diagonal")', error=ArgumentError)
        assign(
            self,
            batch_size=check_integer(self.batch_size, "batch_size"),
            seed=check_seed(self.seed),
            show_progress=check_flag(self.show_progress, "show_progress"),
        )

    @recorded
    @undisturbed()
    def fit(self, operator: nn.Module, data: Dataset) -> LaplacePredictor:
        """Fit the posterior.

        Args:
            operator: A trained module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed.
            data: Training pairs.

        Returns:
            A predictor of Gaussian fields. A `ConvergenceWarning` is given if the bound still rises after the last step.

        Raises:
            ImportError: If Pyro is not installed.
            UnsupportedError: If the Gaussian approximation cannot be had, or has no factorised covariance.
            EvidenceError: If the evidence determines no noise or prior.
            ArgumentError: If a setting is out of range, or the operator is no module.
            ShapeError: If the operator's outputs do not fit the data's.
            DataError: If the data are not finite pairs.
        """
        target = NetworkTarget.of(operator, data, laplace=self.laplace, batch_size=self.batch_size)
        predictor, converged = variational_posterior(target, self.method, seed=self.seed, show_progress=self.show_progress)
        if not converged:
            bound, family = predictor.report["bound"], self.method.family
            text = f"{family} has not converged (bound {bound:.6g}): give it more steps"
            warn(text, ConvergenceWarning)
        return predictor
