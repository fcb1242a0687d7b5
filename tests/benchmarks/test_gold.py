"""Limits of Monte Carlo errors: as likely to be exceeded as they say, and exceeded by samplers that are wrong."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from benchmarks import gold, last_layer_reference
from benchmarks.verdicts import FALSE_ALARMS, largest_z
from probneural.heads import AnchoredEnsemble


@pytest.mark.parametrize("count", [1, 16, 2145])
def test_limits_are_exceeded_as_often_as_they_say(count: int) -> None:
    """Of independent errors the chance is known in closed form; Bonferroni's inequality is then almost sharp."""
    families = 10
    none = (1.0 - 2.0 * norm.sf(largest_z(count, families=families))) ** (count * families)
    assert 0.99 * FALSE_ALARMS <= 1.0 - none <= FALSE_ALARMS


def chains(correlation: float, *, seed: int, dimension: int = 20, count: int = 4, length: int = 1000) -> Tensor:
    """Autoregressions with standard normal marginals, `(count * length, dimension)`, chain after chain."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(length, count, dimension, generator=generator, dtype=torch.float64)
    state, draws = noise[0], []
    for step in noise:
        state = correlation * state + math.sqrt(1.0 - correlation**2) * step
        draws.append(state)
    return torch.stack(draws, dim=1).flatten(0, 1)


@pytest.mark.parametrize("correlation", [-0.6, 0.0, 0.5])
def test_errors_of_second_moments_are_in_units_of_their_own(correlation: float) -> None:
    """z scores of all 210 products have variance 1, also where the draws alternate and know their mean three times as well."""
    draws = chains(correlation, seed=1)
    first, second = torch.triu_indices(20, 20)
    products = draws[:, first] * draws[:, second] - (first == second).double()
    z = last_layer_reference.z_scores(products, 4)
    assert float(z.std()) == pytest.approx(1.0, abs=0.15)  # three standard errors of a standard deviation of 210
    forgetting = (1 + correlation**2) / (1 - correlation**2)  # of products, in closed form
    expected = (draws.shape[0] / forgetting) ** 0.5 * products.mean(0) / (1.0 + (first == second).double()).sqrt()
    torch.testing.assert_close(z, expected, rtol=0.35, atol=0.05)
    errors = last_layer_reference.moment_errors(draws, 4)
    assert errors["second_moment_z"] == float(z.abs().max())
    assert judged(20, errors)["verdict"] == "pass"


def judged(weights: int, found: dict[str, float]) -> dict[str, object]:
    return last_layer_reference.judged({"method": "NUTS", "weights": weights, **found})


@pytest.mark.parametrize(
    ("wrong", "missed"),
    [
        (lambda draws: draws + 0.15, "mean_z"),
        (lambda draws: draws * 0.9, "second_moment_z"),
        (lambda draws: torch.cat([0.6 * draws[:, 1:2] + 0.8 * draws[:, :1], draws[:, 1:]], dim=1), "second_moment_z"),
        (lambda draws: draws * torch.nan, "mean_z, second_moment_z"),
    ],
    ids=["mean", "spread", "correlation", "nan"],
)
def test_samplers_that_are_wrong_miss(wrong: object, missed: str) -> None:
    errors = last_layer_reference.moment_errors(wrong(chains(0.3, seed=2)), 4)  # type: ignore[operator]
    row = judged(20, errors)
    assert row["verdict"] == f"miss: {missed}"
    assert row["mean_z_limit"] == largest_z(20, families=gold.FAMILIES) < row["second_moment_z_limit"]


@pytest.mark.parametrize(("noise", "outcome"), [(1.0, "pass"), (4.0, "miss: mean_z, sd_z")])
def test_anchored_members_are_judged(noise: float, outcome: str) -> None:
    """A hundred members are within the limits; those of a posterior that believes in other noise are not."""
    exact, (module, precision) = gold.posterior(), gold.layer()
    head = AnchoredEnsemble(
        100, prior_precision={"weight": precision}, noise=noise * gold.NOISE**2, effective_observations=float(gold.POINTS)
    )
    rows = gold.compared(head.fit(module, exact.data), exact)
    row = gold.judged("anchored", rows)
    assert row == {"limit": largest_z(gold.MODES, families=gold.FAMILIES), "verdict": outcome}
    assert rows["sd_z"] == pytest.approx(max(rows["sd_ratio_largest"] - 1, 1 - rows["sd_ratio_least"]) * math.sqrt(200.0))
    assert gold.judged("plain, converged", rows)["verdict"] == "miss: sd_ratio_largest"
