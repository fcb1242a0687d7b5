"""Stacking: weights of a mixture of predictors by the log score on held-out fields."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.calibration.predictions import check_pairs, distributions, untrained_keys
from probneural.contexts import without_gradients
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.mixture import MixtureField, gaussian_of, pooled
from probneural.distributions.predictors.base import Predictor
from probneural.distributions.predictors.mixture import MixturePredictor, as_component, checked_predictors
from probneural.errors import CalibrationError
from probneural.grids import check_unmasked
from probneural.pairs import Dataset, evenly_spread_rows
from probneural.settings import Settings

_GAP = 1e-7
"""Nats per observation by which the weights may miss the best log score."""
_STEPS = 10_000
"""Steps until that has to be reached: they converge linearly."""
_NEWTON_STEPS = 100
_HELD_SUM = 1e4
"""Weight of the row of the constraint that weights sum to one, relative to rows of order one."""
_HALVINGS = 60
"""Of a line search: float64 cannot tell more."""
_VALUES = 2**15
"""Values of the functions that decide, about; predictions of these are kept."""


@dataclass(frozen=True)
class Stacking(Settings):
    """Average the predictions of different predictors, with weights that maximise the log score of their mixture.

    On calibration functions y_i with predictive densities p_ik, the weights maximise Σ_i log Σ_k w_k p_ik over the simplex.
    That is concave, and the optimum is found to within 1e-7 nats. No single predictor has a better score on these functions. A
    predictor that adds nothing gets the weight 0. Weights are no probabilities of models: two equal ones share theirs.

    The result is a linear pool, and a pool of calibrated predictors is too wide: its mean is better than theirs, its density is
    not. `VarianceScale().fit(stacked, calibration)` takes mean and covariance of the pool, and scales them. That Gaussian field
    may have a smaller density than its best part: a few functions on which another predictor is far better give that one a
    small weight, and with it some of its variance to all functions. `"gaussian"` leaves out predictors that do such harm.

    Args:
        score: `"joint"`: the densities of whole functions. They differ by many nats, so each function is all but assigned to
            one predictor. `"gaussian"`: as `"joint"`, and then predictors are left out as long as the Gaussian field with the
            pool's mean and covariance, for whole functions, gains by it; no single predictor's field is better. Up to 2^15
            values decide.

    Raises:
        ArgumentError: If there is no such score.

    Reference:
        Yao, Vehtari, Simpson and Gelman (2018), Using stacking to average Bayesian predictive distributions, equation 4.
        Deviation: densities of held-out functions in place of leave-one-out densities.
    """

    score: Literal["joint", "gaussian"] = "joint"

    @without_gradients()
    def fit(
        self, predictors: Sequence[Predictor], calibration: Dataset, *, allow_training_data: bool = False
    ) -> MixturePredictor:
        """Find the weights on fields that training has not used.

        Args:
            predictors: What heads and calibrators returned, of any operators. Scale them first: raw variances are far off, and
                weights would go by that.
            calibration: Held-out pairs, if possible not those that the predictors were scaled on; outputs may live on another
                grid than inputs.
            allow_training_data: Whether pairs that trained a predictor give a warning instead of an error.

        Returns:
            The mixture, with the `weights` of the predictors in their order.

        Raises:
            DataError: If one is not a predictor, there are none, or a value is not finite.
            ShapeError: If channels differ.
            GridError: If domains differ.
            CalibrationError: If there are no fields, no density is positive, or pairs trained a predictor.
            ArgumentError: If a predictor has no density because some direction has no variance at all.
        """
        checked = checked_predictors(predictors)
        for predictor in checked:
            check_pairs(predictor, calibration, least=1)
        check_unmasked(calibration.outputs.grid, "densities of whole functions")
        keys = untrained_keys(MixturePredictor(checked), calibration, allow_training_data=allow_training_data)
        columns = [torch.cat(list(_log_densities(predictor, calibration))) for predictor in checked]
        counts = torch.ones(len(calibration), dtype=torch.float64)
        weights = stacking_weights(torch.stack(columns, -1), counts / counts.sum())
        mixture = MixturePredictor(checked, weights, calibrated_on=keys.flatten())
        if self.score == "gaussian":
            weights = selected_weights(mixture, calibration)
        return MixturePredictor(checked, weights, calibrated_on=mixture.calibrated_on)


def _log_densities(predictor: Predictor, pairs: Dataset) -> Iterator[Float64[Tensor, " b"]]:
    """Joint log densities of single samples, in chunks."""
    for u, truth, _ in distributions(predictor, pairs):
        field = u if isinstance(u, MixtureField) else gaussian_of(u)
        yield field.log_prob(truth, noise=predictor.noise, joint=True).flatten().cpu()


def stacking_weights(log_densities: Float64[Tensor, "n m"], counts: Float64[Tensor, " n"]) -> Float64[Tensor, " m"]:
    """The point w of the simplex that maximises Σ_i counts_i log Σ_k w_k exp(log_densities_ik).

    Newton steps come first: each maximises the quadratic model over the simplex, and goes as far towards that point as helps.
    They converge where components are nearly equal, which most steps along gradients do not. Where rounding stops them, weight
    moves from the component whose derivative is least to the one where it is largest (pairwise Frank-Wolfe). The largest
    derivative minus one bounds what the optimum has more.

    Args:
        log_densities: Log densities of n observations under m components, in nats; -inf is allowed.
        counts: Weights of the observations, not negative, with sum 1.

    Raises:
        CalibrationError: If an observation that counts has no density under any component, or the steps do not converge.

    Reference:
        Kim, Carbonetto, Stephens and Anitescu (2020), A fast algorithm for maximum likelihood estimation of mixture proportions
        using sequential quadratic programming. Deviation: non-negative least squares for the quadratic programs.

    Examples:
        >>> densities = torch.tensor([[-0.1, -3.0], [-3.0, -0.1]], dtype=torch.float64)
        >>> stacking_weights(densities, torch.full((2,), 0.5, dtype=torch.float64)).tolist()
        [0.5, 0.5]
    """
    held = counts > 0
    logs, counts = log_densities[held], counts[held]
    if not bool(torch.isfinite(logs.amax(1)).all()):
        raise CalibrationError(
            expected="a finite log density of every calibration function under one of the predictors",
            got=f"none for {int((~torch.isfinite(logs.amax(1))).sum())}",
            remedy="scale the predictors first, or drop those functions",
        )
    best = int((counts @ logs.clamp_min(-1e300)).argmax())
    densities = (logs - logs.amax(1, keepdim=True)).exp()
    weights = torch.full((logs.shape[1],), 1.0 / logs.shape[1], dtype=torch.float64, device=logs.device)
    weights = _newton(densities, counts, weights)
    for _ in range(_STEPS):
        mixed = densities @ weights
        slope = (counts / mixed) @ densities
        if float(slope.max()) - 1.0 <= _GAP:
            break
        up = int(slope.argmax())
        down = int(torch.where(weights > 0, slope, torch.inf).argmin())
        moved = _line_search(mixed, densities[:, up] - densities[:, down], counts, most=float(weights[down]))
        weights[up] += moved
        weights[down] = 0.0 if moved == float(weights[down]) else weights[down] - moved
        weights = weights / weights.sum()
    else:
        raise CalibrationError(
            expected=f"weights within {_GAP} nats of the best after {_STEPS} steps",
            got=f"{float(slope.max()) - 1.0:.1e}",
            remedy="leave out predictors that are nearly equal",
        )
    alone = torch.zeros_like(weights)
    alone[best] = 1.0
    scores = [float(counts @ torch.logsumexp(logs + candidate.log(), 1)) for candidate in (weights, alone)]
    return weights if scores[0] >= scores[1] else alone


def _newton(
    densities: Float64[Tensor, "n m"], counts: Float64[Tensor, " n"], weights: Float64[Tensor, " m"]
) -> Float64[Tensor, " m"]:
    """Steps to the maximum of the quadratic model over the simplex, until the gap is small or they no longer help.

    With A = diag(counts^½ / (D w)) D, the model is |A v - 2 counts^½|² / 2 up to a constant where v sums to one: non-negative
    least squares, with one more row that holds the sum.
    """
    import scipy.optimize

    for _ in range(_NEWTON_STEPS):
        mixed = densities @ weights
        if float(((counts / mixed) @ densities).max()) - 1.0 <= _GAP:
            break
        rows = torch.cat([densities * (counts.sqrt() / mixed)[:, None], 2.0 * counts.sqrt()[:, None]], 1)
        small = torch.linalg.qr(rows, mode="r").R.numpy(force=True)  # the same least squares in as many rows as columns
        summed = np.vstack([small, np.full((1, small.shape[1]), _HELD_SUM)])
        try:
            solution, _ = scipy.optimize.nnls(summed[:, :-1], summed[:, -1])
        except RuntimeError:  # too many changes of what is zero
            break
        aim = torch.from_numpy(solution).to(weights)
        change = aim / aim.sum() - weights
        moved = _line_search(mixed, densities @ change, counts, most=1.0)
        if moved == 0.0:
            break
        weights = (weights + moved * change).clamp_min(0.0)
        weights = weights / weights.sum()
    return weights


def _line_search(mixed: Tensor, change: Tensor, counts: Tensor, *, most: float) -> float:
    """Where Σ counts log(mixed + t change) is largest for t from 0 to `most`: its derivative falls, so by bisection."""

    def derivative(step: float) -> float:
        return float((counts * change / (mixed + step * change)).sum())

    if derivative(most) >= 0:
        return most
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if derivative(middle) > 0 else (low, middle)
    return low


def selected_weights(mixture: MixturePredictor, calibration: Dataset) -> Float64[Tensor, " m"]:
    """The mixture's weights, without predictors that its Gaussian field is more likely without.

    Predictors are left out one after another: the one whose absence makes the joint density of the calibration functions
    largest, as long as that grows. A single predictor that is more likely than what is left then gets all weight, even one
    without any in the mixture. So the field is at least as likely as those of the whole mixture and of each predictor.

    Args:
        mixture: Mixture of m predictors.
        calibration: Functions that predictors are compared on: of many, some evenly spread ones.
    """
    values = calibration.outputs.channels * calibration.outputs.grid.size
    subset = calibration.subset(evenly_spread_rows(len(calibration), max(1, _VALUES // values)))
    everyone = MixturePredictor(mixture.predictors)
    chunks = list(_components(everyone, subset))

    @functools.cache
    def density(selection: tuple[int, ...]) -> float:
        """Mean joint log density under the Gaussian field of the predictors of these numbers, in nats."""
        weights = mixture.weights[list(selection)] if len(selection) > 1 else mixture.weights.new_ones(1)
        total = 0.0
        for components, truth in chunks:
            parts = [components[number] for number in selection]
            shares = (weights / weights.sum()).to(parts[0].mean.device)
            field = pooled(parts, shares, name="pool", is_shared_across_calls=False)
            total += float(field.log_prob(truth, noise=everyone.noise, joint=True).sum())
        return total / len(subset)

    selection = tuple(mixture.weights.nonzero().flatten().tolist())
    while len(selection) > 1:
        reduced = max((tuple(member for member in selection if member != number) for number in selection), key=density)
        if density(reduced) <= density(selection):
            break
        selection = reduced
    selection = max(selection, *((number,) for number in range(len(mixture.predictors))), key=density)
    weights = torch.zeros_like(mixture.weights)
    weights[list(selection)] = mixture.weights[list(selection)] if len(selection) > 1 else 1.0
    return weights / weights.sum()


def _components(
    mixture: MixturePredictor, pairs: Dataset
) -> Iterator[tuple[list[GaussianField], Float64[Tensor, "n c *grid"]]]:
    """Gaussian predictions of each predictor, and the truth, in chunks of samples."""
    for predicted in zip(*(distributions(predictor, pairs) for predictor in mixture.predictors), strict=True):
        components = (as_component(mixture, index, u) for index, (u, *_) in enumerate(predicted))
        yield [gaussian_of(component) for component in components], predicted[0][1]
