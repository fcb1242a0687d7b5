"""The last layer by sampling and variational inference, against its posterior by dense algebra."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import probneural as pn
from benchmarks import gold, verdicts
from probneural.errors import ConvergenceWarning
from probneural.heads.inference import effective_size
from probneural.heads.last_layer.laplace import LastLayerPredictor
from probneural.heads.last_layer.predictors import SampledLastLayerPredictor

NOTE = (
    "The last layer's weights given noise and prior precision: 4 chains of 1,000 draws after 1,000 steps of adaptation, and "
    "variational inference until it converges. mean z and second moment z: largest difference from the exact moments, over d "
    "weights that the exact posterior makes standard normal and over their d (d + 1) / 2 products, in Monte Carlo standard "
    "errors by the effective sample size of what is averaged, weights or products. mean error: largest difference "
    "of the predicted mean, in exact standard deviations. sd ratio: of predicted standard deviations to the exact ones, at "
    "all points of new functions. Limits of full rank: on the mean error and on how far an sd ratio is from 1. trained offset: "
    "of the trained weights from the posterior mean, in standard deviations per direction."
)
VARIATIONAL = {"mean_error": 0.1, "sd_error": 0.05}
"""How far stochastic optimisation may end from the posterior that a full-rank family contains: in exact standard deviations."""


@dataclass(frozen=True)
class Setting:
    """An operator with data, hyper-parameters, and new inputs."""

    name: str
    operator: nn.Module
    train: pn.FieldPairs
    inputs: pn.Field
    given: dict[str, Any]

    def exact(self, predictor: LastLayerPredictor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of the weights' deviations from the trained ones, one channel, by dense algebra."""
        with torch.no_grad():
            values, features = predictor.readout.evaluate(self.train.inputs)
        share = self.train.outputs.grid.mean_weights
        rows = (features.double() * share.sqrt()[:, None]).flatten(0, 1)
        residuals = ((self.train.outputs.values.double() - values.double())[:, 0] * share.sqrt()).flatten()
        level = float(predictor.effective_observations / predictor.noise)
        prior = predictor.prior_precision[0]
        centre = predictor.readout.weight[0].clone()
        if predictor.readout.has_bias:
            centre[-1] -= float((self.train.outputs.values.double()[:, 0] @ share).mean())
        covariance = torch.linalg.inv(level * rows.mT @ rows + prior.diag())
        return covariance @ (level * rows.mT @ residuals - prior * centre), covariance


def rows(small: bool) -> list[dict[str, Any]]:
    """One row per setting and method."""
    return [row for setting in settings(small=small) for row in compared(setting, small=small)]


def settings(*, small: bool) -> Iterator[Setting]:
    """A trained operator at hyper-parameters of largest evidence, and gold 1 with its features frozen."""
    problem = pn.problems.Burgers(viscosity=0.1)
    train = problem.sample(20 if small else 200, resolution=128, seed=0)
    operator = pn.operators.FNO(
        in_channels=1, out_channels=1, modes=(16,), width=8 if small else 32, depth=4, projection=8 if small else 64, seed=0
    )
    pn.fit(operator, train, epochs=2 if small else 30, seed=0, show_progress=False)
    found = pn.heads.LastLayerLaplace().fit(operator, train)
    given = {
        "noise": found.noise,
        "prior_precision": found.prior_precision,
        "effective_observations": found.effective_observations,
    }
    yield Setting("Burgers, trained FNO", operator, train, problem.sample(32, resolution=128, seed=2).inputs, given)
    posterior = gold.posterior()
    given = {
        "noise": gold.NOISE**2,
        "prior_precision": 1.0 / gold.PRIOR.square(),
        "effective_observations": float(gold.POINTS),
    }
    inputs = pn.Field(gold.waves(gold.inputs(32, seed=9)).sum(1)[:, None], gold.GRID)
    yield Setting("gold 1, frozen features", FrozenWaves().to(torch.float64), posterior.data, inputs, given)


class FrozenWaves(nn.Module):
    """The waves of gold 1 as features without parameters, under a read-out without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv1d(gold.MODES, 1, 1, bias=False)
        nn.init.zeros_(self.last.weight)

    def forward(self, values: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(values[:, 0], norm="forward")[:, 1 : gold.MODES + 1]
        result: Tensor = self.last(gold.waves(spectrum).to(values))
        return result


def compared(setting: Setting, *, small: bool) -> Iterator[dict[str, Any]]:
    """Every method on one setting."""
    closed = pn.heads.LastLayerLaplace(**setting.given).fit(setting.operator, setting.train)
    mean, covariance = setting.exact(closed)
    deviation = closed(setting.inputs).standard_deviation
    with torch.no_grad():
        values, features = closed.readout.evaluate(setting.inputs)
    expected = values.double() + torch.einsum("npf,f->np", features.double(), mean).reshape(values.shape)
    chains = {"samples": 100, "warmup": 100, "chains": 2} if small else {}
    methods = {
        "NUTS": pn.heads.NUTS(**chains),
        "NUTS, whitened": pn.heads.NUTS(coordinates="whitened", **chains),
        "full rank": "full_rank",
        "mean field": "mean_field",
    }
    for name, method in methods.items():
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the table says so
            predictor = pn.heads.BayesianLastLayer(method=method, **setting.given, seed=0).fit(setting.operator, setting.train)
        seconds = time.perf_counter() - start
        field = predictor(setting.inputs)
        ratio = field.standard_deviation / deviation
        row = {
            "setting": setting.name,
            "method": name,
            "weights": len(mean),
            "converged": predictor.converged,
            **diagnostics(predictor, mean, covariance),
            "mean_error": float(((field.mean - expected) / deviation).abs().max()),
            "sd_ratio_least": float(ratio.min()),
            "sd_ratio_mean": float(ratio.mean()),
            "sd_ratio_largest": float(ratio.max()),
            "trained_offset": predictor.report["trained_offset"],
        }
        yield row | judged(row) | {"seconds": seconds}


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """The limits of a row, which follow from its number of weights, and the verdict; nothing for a mean field."""
    if row["method"] == "mean field":
        return {}
    if row["method"] == "full rank":
        sd_error = max(1.0 - row["sd_ratio_least"], row["sd_ratio_largest"] - 1.0)
        return {"verdict": verdicts.verdict(row | {"sd_error": sd_error}, VARIATIONAL)}
    count = row["weights"]
    limits = {
        "mean_z": verdicts.largest_z(count, families=gold.FAMILIES),
        "second_moment_z": verdicts.largest_z(count * (count + 1) // 2, families=gold.FAMILIES),
    }
    return {f"{name}_limit": limit for name, limit in limits.items()} | {"verdict": verdicts.verdict(row, limits)}


def diagnostics(predictor: Any, mean: Tensor, covariance: Tensor) -> dict[str, Any]:
    """What chains report, and their moments against the exact ones; nothing of variational inference."""
    if not isinstance(predictor, SampledLastLayerPredictor):
        return {}
    report = predictor.report
    root = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(root, (predictor.deviations[:, 0] - mean).mT, upper=False).mT
    return {
        "r_hat_max": report["r_hat_max"],
        "bulk_size_least": report["bulk_size_min"],
        "tail_size_least": report["tail_size_min"],
        "divergences": int(report["divergences"]),
        **moment_errors(white, predictor.chains),
    }


def moment_errors(white: Tensor, chains: int) -> dict[str, float]:
    """Errors of the first two moments of draws `(s, d)`, chain after chain, that should be standard normal.

    A standard error takes the effective sample size of what is averaged: products of chains whose draws alternate about the
    mean forget more slowly than the draws do.
    """
    first, second = torch.triu_indices(white.shape[1], white.shape[1])
    products = white[:, first] * white[:, second] - (first == second).to(white)
    return {"mean_z": largest_z(white, chains), "second_moment_z": largest_z(products, chains)}


def largest_z(draws: Tensor, chains: int) -> float:
    """The largest of the means, which should be zero, in their Monte Carlo standard errors."""
    return float(z_scores(draws, chains).abs().max())


def z_scores(draws: Tensor, chains: int) -> Tensor:
    """Means of draws `(s, k)`, chain after chain, in their Monte Carlo standard errors, `(k,)`."""
    return draws.mean(0) / (draws.std(0) / effective_size(draws.unflatten(0, (2 * chains, -1))).sqrt())
