"""Stochastic weight averaging, Gaussian: the posterior that the tail of a training draws."""

from __future__ import annotations

import copy
import math
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from probneural.checks import assign, check_callable, check_flag, check_instance, check_integer, check_module, check_real
from probneural.contexts import undisturbed
from probneural.curvature import ParameterVector
from probneural.curvature.jacobian_root import VarianceEstimation
from probneural.curvature.weights import LowRankPlusDiagonalWeights
from probneural.errors import ArgumentError
from probneural.heads.ensembles.members import TrainFunction, training_trajectory, with_state
from probneural.heads.laplace.laplace import TRAJECTORY, LaplacePredictor
from probneural.heads.residuals import NOISE_FLOOR
from probneural.heads.training_data import recorded, training_data
from probneural.heads.weight_posterior import Hyperparameters
from probneural.heads.weight_problem import WeightProblem, prepare
from probneural.pairs import Dataset
from probneural.randomness import check_seed

_VARIANCE_ESTIMATION = VarianceEstimation()


@dataclass(frozen=True)
class SWAG:
    """Weights that training wanders through, as a Gaussian: their mean, and a covariance of low rank plus a diagonal.

    From the trained operator, the training function is called K times in a row, each time on the weights that the last call
    left, and the weights after each call are a snapshot w_k. With their mean and deviations d_k = w_k - mean,

        covariance = f diag(Σ_k d_k²) / (K - 1) + (1 - f) Σ_k d_k d_k^T / (K - 1).

    Around a minimum, SGD of a constant learning rate wanders as its gradient noise and the curvature let it; that is a
    posterior only for one learning rate, so calibrate. It is cheap: one training, and K short ones. They see one minimum.

    The predictor's mean is the operator at the mean weights, not the one that was given. It is linearised as that of
    `Laplace`; `predictor.sampled(members, seed=...)` evaluates operators with drawn weights. Buffers are those of the last
    snapshot: running statistics of batch norm are not averaged.

    Args:
        snapshots: K.
        train: Called as `train(operator, data, seed=seed)`, trains in place, from the weights that it finds. A short one at a
            constant learning rate: `functools.partial(pn.fit, epochs=1, optimization=...)`. An optimiser's moments begin
            anew with each call.
        diagonal_fraction: f, from 0 to 1, dimensionless.
        variance_estimation: When marginal variances are exact, and how well they are estimated otherwise.
        seed: Random seed of the calls.
        show_progress: Whether to show a progress bar over the snapshots.

    Raises:
        ArgumentError: If a setting is out of range, or `train` is no function.

    Reference:
        Maddox, Garipov, Izmailov, Vetrov and Wilson (2019), A simple baseline for Bayesian uncertainty in deep learning,
        section 3. Deviations: deviations from the final mean in place of the running one, all snapshots in the low-rank part,
        and K - 1 in both denominators.
    """

    snapshots: int = 20
    _: KW_ONLY
    train: TrainFunction
    diagonal_fraction: float = 0.5
    variance_estimation: VarianceEstimation = _VARIANCE_ESTIMATION
    seed: int = 0
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_callable(self.train, "train", remedy="pass train=functools.partial(pn.fit, epochs=1)")
        check_instance(
            self.variance_estimation,
            VarianceEstimation,
            "variance_estimation",
            remedy="give a VarianceEstimation(...)",
            error=ArgumentError,
        )
        assign(
            self,
            snapshots=check_integer(self.snapshots, "snapshots", least=2),
            diagonal_fraction=check_real(self.diagonal_fraction, "diagonal_fraction", least=0.0, most=1.0),
            seed=check_seed(self.seed),
            show_progress=check_flag(self.show_progress, "show_progress"),
        )

    @recorded
    @undisturbed()
    def fit(self, operator: nn.Module, data: Dataset) -> LaplacePredictor:
        """Go on training, and take the moments of the weights.

        Args:
            operator: A trained module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed.
            data: Training pairs.

        Returns:
            A predictor of Gaussian fields, with `.sampled(members, seed=...)`.

        Raises:
            TrainingError: If a call fails, or leaves the weights as they were.
            ArgumentError: If the operator is no module.
            ShapeError: If the operator's outputs do not fit the data's.
            DataError: If the data are not finite pairs.
        """
        module = copy.deepcopy(check_module(operator, "operator"))
        layout = ParameterVector.of(module)
        given = training_data(data, module, is_shared=False)
        states = training_trajectory(
            module, given, self.train, calls=self.snapshots, seed=self.seed, show_progress=self.show_progress
        )
        vectors = torch.stack([layout.flatten(state).to(torch.float64) for state in states])
        mean = vectors.mean(0)
        centre = states[-1] | layout.unflatten(mean.to(layout.flatten(states[-1])))
        problem = prepare(
            with_state(module, centre),
            data,
            parameters=None,
            noise=None,
            prior_precision=None,
            effective_observations=None,
        )
        return self._predictor(problem, vectors - mean)

    def _predictor(self, problem: WeightProblem, deviations: Float64[Tensor, "s P"]) -> LaplacePredictor:
        """Covariance of the snapshots, and the noise that the mean weights leave."""
        freedom, columns = len(deviations) - 1, deviations.mT.contiguous()
        fraction = self.diagonal_fraction
        variance = deviations.square().sum(0) / freedom
        residual = problem.squared_residuals / problem.data.functions
        units = problem.data.output_units()[1].square()
        return LaplacePredictor(
            operator=problem.operator,
            layout=problem.layout,
            weights=LowRankPlusDiagonalWeights((fraction * variance).sqrt(), math.sqrt((1.0 - fraction) / freedom) * columns),
            structure=TRAJECTORY,
            hyperparameters=Hyperparameters(
                noise=torch.maximum(residual, NOISE_FLOOR * units),
                prior_precision=torch.zeros(problem.layout.size, dtype=torch.float64),
                effective_observations=problem.effective_observations,
                log_evidence=math.nan,
                log_evidence_error=math.nan,
            ),
            report={"snapshots": float(self.snapshots)},
            domain=problem.data.inputs.grid,
            in_channels=problem.data.inputs.channels,
            variance_estimation=self.variance_estimation,
        )
