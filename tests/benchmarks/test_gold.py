"""Limits of Monte Carlo errors, as likely to be exceeded as they say, and the row of ensembles."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import norm

from benchmarks import gold
from benchmarks.verdicts import FALSE_ALARMS, largest_z


@pytest.mark.parametrize("count", [1, 16, 2145])
def test_limits_are_exceeded_as_often_as_they_say(count: int) -> None:
    """Of independent errors the chance is known in closed form; Bonferroni's inequality is then almost sharp."""
    families = 10
    none = (1.0 - 2.0 * norm.sf(largest_z(count, families=families))) ** (count * families)
    assert 0.99 * FALSE_ALARMS <= 1.0 - none <= FALSE_ALARMS


def test_converged_members_agree_and_others_are_judged() -> None:
    row = gold.ensemble(small=True, workers=1)
    assert row["verdict"] == "pass"
    assert row["field_sd_ratio"] < gold.AGREEMENT
    assert gold.judged({**row, "sd_ratio_largest": 0.01})["verdict"] == "miss: sd_ratio_largest"
    assert torch.isfinite(gold.posterior().variance).all()
