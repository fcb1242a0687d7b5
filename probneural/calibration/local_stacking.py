"""Weights of predictors that vary along a function, by the log score of single values on held-out fields."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from probneural.calibration.chunks import CalibrationPredictions, check_pairs, untrained_keys
from probneural.calibration.held_out import FOLDS, group_means, group_numbers, is_gain, mean_size, number_of
from probneural.calibration.local_scale import Reader, wave_numbers
from probneural.calibration.local_weights import LocalWeights, number_of_features
from probneural.calibration.stacked_predictor import StackedPredictor
from probneural.calibration.stacking import stacking_weights
from probneural.calibration.variance_profile import are_rounding
from probneural.contexts import undisturbed
from probneural.distributions.mixture_predictor import MixturePredictor, checked_predictors
from probneural.distributions.predictor import Predictor
from probneural.errors import ArgumentError, CalibrationError
from probneural.grids import Grid, check_unmasked
from probneural.linear_algebra.densities import LOG_TWO_PI
from probneural.pairs import Dataset
from probneural.randomness import stream

_WIDTH = 0.08
"""Standard deviation of the local averages behind the features, in lengths of the domain."""
_VALUES = 2**14
"""Values that the weights are fitted to, about: points are chosen at random, the same in every function."""
_RIDGES = (30.0, 3.0, 0.3, 0.03)
"""Penalties that are compared, in functions, or in groups of them."""
_LEAST = 2 * FOLDS
"""Functions below which weights do not vary."""
_STEPS = 60
"""Of the quasi-Newton method, at most."""
_TOLERANCE = 1e-7
"""Largest derivative at which it ends, and change of the objective, in nats times functions."""
_FIRST_WEIGHT = 0.01
"""Least weight that the search starts from: where a predictor has none, the score hardly changes with its coefficients."""
_LEAST_WEIGHT = 1e-12
"""Of a predictor whose best constant weight is zero, where weights vary."""


@dataclass(frozen=True)
class LocalStacking:
    """Average the predictions of different predictors, with weights that vary along each function.

    One predictor is right where a solution is smooth, another at its front. On calibration functions with predictive densities
    p_ik of single values, the weights

        w_ck(x; u) = softmax over k of (a_ck + sum over j of b_ckj phi_cj(x; u))

    maximise the average of log Σ_k w_k p_ik over functions and, by quadrature, the domain, less a quadratic penalty on b. The
    features phi are those of [`LocalWeights`][probneural.calibration.LocalWeights]: position, the slope and the size of what is
    predicted, and what each predictor states about itself. The penalty, and whether position matters, are what scores
    best on functions held out in turn. Where that gains less than two standard errors over constant weights, a channel has
    the constant ones, as of `Stacking("marginal")`; the objective is not concave, and the search starts there.

    The result is Gaussian: its mean and variance are those of the mixture with the weights of each point; see
    [`StackedPredictor`][probneural.calibration.StackedPredictor]. A pool of calibrated predictors is too wide, and covariances
    along a function are not fitted here: `VarianceScale().fit(stacked, calibration)` sees to both.

    Reference:
        Yao, Pirš, Vehtari and Gelman (2022), Bayesian hierarchical stacking: some models are (somewhere) useful.
        Deviations: a penalty chosen on held-out functions in place of a hierarchical prior, densities of held-out functions
        in place of leave-one-out densities, and the Gaussian field of the pool's moments in place of the pool. Jacobs et al.
        (1991), Adaptive mixtures of local experts, for the gate.
    """

    @undisturbed()
    @torch.no_grad()
    def fit(
        self, predictors: Sequence[Predictor], calibration: Dataset, *, allow_training_data: bool = False
    ) -> StackedPredictor:
        """Find the weights on fields that training has not used.

        Args:
            predictors: What heads and calibrators returned, of any operators. Scale them first: raw variances are far off, and
                weights would go by that. One that is not Gaussian counts as the Gaussian field of its mean and covariance.
            calibration: Held-out pairs, if possible not those that the predictors were scaled on; outputs may live on another
                grid than inputs. With fewer than ten, or ten trajectories, or on scattered points, weights are constant.
            allow_training_data: Whether pairs that trained a predictor give a warning instead of an error.

        Returns:
            A predictor of Gaussian fields; its `shares` are the mean weights over the domain and these functions.

        Raises:
            DataError: If one is no predictor, there are none, or a value is not finite.
            ShapeError: If channels differ.
            GridError: If domains differ.
            CalibrationError: If there are no fields, no density is positive, or pairs trained a predictor.
            ArgumentError: If a predictor states no variance at a value, and others do or it is wrong.
        """
        known = checked_predictors(predictors)
        for one in known:
            check_pairs(one, calibration)
        if len(calibration) < 1:
            raise CalibrationError(
                expected="at least one calibration field", got="none", remedy="hold out some training fields"
            )
        keys = untrained_keys(MixturePredictor(known), calibration, allow_training_data=allow_training_data)
        check_unmasked(calibration.outputs.grid, "weights that vary along functions")
        members = _Members([CalibrationPredictions(one, calibration) for one in known])
        grid, used = calibration.outputs.grid, keys.flatten()
        logs = torch.cat([chunk.log_densities() for chunk in members])
        counts = grid.mean_weights.repeat(logs.shape[0] * logs.shape[1])
        constant = stacking_weights(logs.flatten(0, 2), counts / counts.sum())
        local = None
        groups = group_numbers(calibration)
        if len(known) > 1 and number_of(groups) >= _LEAST and grid.is_uniform:
            local = _fit_local_weights(members, logs, constant=constant, groups=groups, grid=grid)
        if local is None:
            return StackedPredictor(MixturePredictor(known, constant, calibrated_on=used))
        mean = torch.zeros_like(constant)
        for chunk in members:
            found = local.weights(local.linear(chunk.means, chunk.variances, grid=grid))
            mean += (found @ grid.mean_weights).mean(2).sum(1) / len(calibration)
        shares = mean.clamp_min(_LEAST_WEIGHT)
        stacked = StackedPredictor(MixturePredictor(known, shares, calibrated_on=used), local=local)
        return stacked._with_discrepancy(calibration)


class _Chunk(NamedTuple):
    """What m predictors predict of some calibration functions, in float64 on the CPU.

    Attributes:
        means: Of each predictor, in physical units.
        variances: Predictive variances, the noise included, in physical units squared.
        truth: What was observed.
        settled: Where all are certain and right, up to rounding.
    """

    means: list[Float64[Tensor, "n c *grid"]]
    variances: list[Float64[Tensor, "n c *grid"]]
    truth: Float64[Tensor, "n c *grid"]
    settled: Bool[Tensor, "n c *grid"]

    def check(self) -> None:
        """Raise an ArgumentError where one predictor states no variance, and others do or it is wrong."""
        certain = torch.stack([variance <= 0 for variance in self.variances]).any(0)
        if bool((certain & ~self.settled).any()):
            raise ArgumentError(
                expected="a positive predictive variance at every value, but where all predictors are certain and right",
                got="zero",
                remedy="leave out the predictor that states no variance, or fit it with noise > 0",
            )

    def log_densities(self) -> Float64[Tensor, "n c p m"]:
        """Of every value by itself, in nats; zero where all predictors are certain and right, as at a wall."""
        columns = []
        for mean, variance in zip(self.means, self.variances, strict=True):
            known = torch.where(self.settled, 1.0, variance)
            densities = -0.5 * (LOG_TWO_PI + known.log() + (self.truth - mean).square() / known)
            columns.append(torch.where(self.settled, 0.0, densities))
        return torch.stack(columns, -1).flatten(2, -2)


class _Members:
    """Goes through the calibration functions, some at a time, as often as one likes."""

    def __init__(self, predicted: Sequence[CalibrationPredictions]) -> None:
        self.predicted = predicted

    def __iter__(self) -> Iterator[_Chunk]:
        for pairs in zip(*self.predicted, strict=True):
            moments = [stated for stated, _ in pairs]
            means, variances = [one.mean.cpu() for one in moments], [one.variance.cpu() for one in moments]
            dtype = self.predicted[0].pairs.outputs.dtype
            settled = torch.stack([are_rounding(stated, truth, dtype=dtype).cpu() for stated, truth in pairs]).all(0)
            chunk = _Chunk(means, variances, pairs[0][1].cpu(), settled)
            chunk.check()
            yield chunk


def _fit_local_weights(
    members: _Members,
    logs: Float64[Tensor, "n c p m"],
    *,
    constant: Float64[Tensor, " m"],
    groups: Int64[Tensor, " n"],
    grid: Grid,
) -> LocalWeights | None:
    """Fit each channel's weights, or None if none gains over the constant ones."""
    count = len(logs)
    blank, reader = _blank(members, constant, count=count, grid=grid), Reader.of(grid, grid, width=_WIDTH)
    wanted = max(1, min(grid.size, _VALUES // count))
    points = torch.randperm(grid.size, generator=stream(0, "local weight points"))[:wanted].sort().values
    parts = []
    for chunk in members:
        columns = blank.features(chunk.means, chunk.variances, reader=reader)
        parts.append(torch.stack([column[..., points] for column in columns], -1))
    features, weights = torch.cat(parts), grid.mean_weights[points]
    flat = features.movedim(1, 0).flatten(1, 2)
    center, spread = flat.mean(1), flat.std(1, correction=0)
    spread = torch.where(spread > 1e-6, spread, torch.ones_like(spread))
    design = (features - center[:, None]) / spread[:, None]
    coefficients, gains = blank.coefficients.clone(), False
    candidates = [mean_size(groups) * penalty for penalty in _penalties(design.shape[3], grid)]
    for channel in range(design.shape[1]):
        gate = _Gate(design=design[:, channel], logs=logs[:, channel, points], weights=weights / weights.sum())
        penalty = gate.choose(candidates, groups=groups)
        if penalty is not None:
            coefficients[channel], gains = gate.maximiser(penalty, start=coefficients[channel]), True
    bounds = design.movedim(1, 0).flatten(1, 2)
    standards = torch.stack([center, spread, bounds.amin(1), bounds.amax(1)])
    return replace(blank, standards=standards, coefficients=coefficients) if gains else None


def _blank(members: _Members, constant: Float64[Tensor, " m"], *, count: int, grid: Grid) -> LocalWeights:
    """Weights that are constant, and know the units of what they read."""
    channels = members.predicted[0].pairs.outputs.channels
    features = number_of_features(len(constant), grid)
    zeros = torch.zeros(channels, features, dtype=torch.float64)
    coefficients = torch.zeros(channels, len(constant), features + 1, dtype=torch.float64)
    coefficients[:, :, 0] = constant.clamp_min(_LEAST_WEIGHT).log()
    blank = LocalWeights(
        grid=grid,
        width=_WIDTH,
        reference=constant,
        slopes=torch.zeros(channels, grid.dimension, dtype=torch.float64),
        amplitudes=zeros[:, 0],
        standards=torch.stack([zeros, zeros + 1.0, zeros - math.inf, zeros + math.inf]),
        coefficients=coefficients,
    )
    reader, slopes, amplitudes = Reader.of(grid, grid, width=_WIDTH), blank.slopes.clone(), blank.amplitudes.clone()
    for chunk in members:
        read, _ = blank.read(chunk.means, chunk.variances, reader=reader)
        slopes += (read.slopes @ read.mean_weights).sum(0) / count
        amplitudes += (read.sizes @ read.mean_weights).sum(0) / count
    return replace(blank, slopes=slopes.sqrt(), amplitudes=amplitudes.sqrt())


def _penalties(width: int, grid: Grid) -> list[Float64[Tensor, " k"]]:
    """Penalties of so many features: the same for all, with the waves and without them."""
    is_wave = torch.arange(width) >= width - len(wave_numbers(grid))
    pairs = itertools.product((is_wave, torch.zeros_like(is_wave)), _RIDGES)
    return [torch.where(left_out, math.inf, ridge).double() for left_out, ridge in pairs]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Gate:
    """The log score of one channel's pool as a function of the coefficients of its weights.

    Attributes:
        design: Standardised features, `(n, q, k)`.
        logs: Log densities of the values under the predictors, `(n, q, m)`.
        weights: Of the q points, sum 1.
    """

    design: Float64[Tensor, "n q k"]
    logs: Float64[Tensor, "n q m"]
    weights: Float64[Tensor, " q"]

    def choose(
        self, candidates: Sequence[Float64[Tensor, " k"]], *, groups: Int64[Tensor, " n"]
    ) -> Float64[Tensor, " k"] | None:
        """The penalties under which held-out functions score best, or None if they gain too little over constant weights."""
        scores = torch.zeros(len(candidates) + 1, len(self.design), dtype=torch.float64)
        part = groups % FOLDS
        for fold in range(FOLDS):
            fitted, held = self._select(part != fold), self._select(part == fold)
            start = fitted.constant()
            scores[0, part == fold], found = held.values(start), start
            for index, penalty in enumerate(candidates, 1):
                found = fitted.maximiser(penalty, start=found)
                scores[index, part == fold] = held.values(found)
        best = int(scores[1:].mean(1).argmax())
        gain = scores[1 + best] - scores[0]
        return candidates[best] if is_gain(group_means(gain, groups)) else None

    def constant(self) -> Float64[Tensor, "m k1"]:
        """Coefficients of the best constant weights."""
        counts = self.weights.repeat(len(self.design)) / len(self.design)
        found = stacking_weights(self.logs.flatten(0, 1), counts)
        coefficients = torch.zeros(len(found), self.design.shape[2] + 1, dtype=torch.float64)
        coefficients[:, 0] = found.clamp_min(_LEAST_WEIGHT).log()
        return coefficients

    def maximiser(self, penalty: Float64[Tensor, " k"], *, start: Float64[Tensor, "m k1"]) -> Float64[Tensor, "m k1"]:
        """Coefficients that maximise the penalised sum over functions, near `start`: a quasi-Newton method.

        Args:
            penalty: Of each feature's coefficients; where it is infinite they are 0.
            start: Coefficients to begin with.
        """
        free = penalty.isfinite()
        columns = torch.cat([torch.ones(1, dtype=torch.bool), free])
        features = self.design.flatten(0, 1)[:, free]
        rows = torch.cat([torch.ones(len(features), 1, dtype=torch.float64), features], 1)
        logs, counts = self.logs.flatten(0, 1), self.weights.repeat(len(self.design))[:, None]
        ridge = torch.cat([torch.zeros(1, dtype=torch.float64), penalty[free]])
        found = start[:, columns].clone()
        found[:, 0] = torch.log_softmax(found[:, 0], 0).clamp_min(math.log(_FIRST_WEIGHT))
        optimizer = torch.optim.LBFGS(
            [found],
            max_iter=_STEPS,
            tolerance_grad=_TOLERANCE,
            tolerance_change=_TOLERANCE,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def objective() -> Tensor:
            prior = torch.log_softmax(rows @ found.mT, 1)
            joint = prior + logs
            total = torch.logsumexp(joint, 1, keepdim=True)
            found.grad = -((counts * ((joint - total).exp() - prior.exp())).mT @ rows) + ridge * found
            return -(counts * total).sum() + 0.5 * (ridge * found.square()).sum()

        optimizer.step(objective)
        coefficients = torch.zeros_like(start)
        coefficients[:, columns] = found
        return coefficients

    def values(self, coefficients: Float64[Tensor, "m k1"]) -> Float64[Tensor, " n"]:
        """Mean log score over the points of each function, without the penalty."""
        prior = torch.log_softmax(coefficients[:, 0] + self.design @ coefficients[:, 1:].mT, -1)
        return torch.logsumexp(prior + self.logs, -1) @ self.weights

    def _select(self, index: Bool[Tensor, " n"]) -> _Gate:
        return replace(self, design=self.design[index], logs=self.logs[index])
