from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import context
from probneural.randomness import stream


@pytest.mark.parametrize("name", context.FAMILIES)
def test_exact_predictive_distributions_are_calibrated(name: str) -> None:
    """The squared standardised error is 1 for the context of the operator, and not for that of another."""
    family, errors = context.FAMILIES[name], {True: [], False: []}
    for test in range(150):
        f, u = family(test).coefficients(4, stream(test, "test contexts"))
        others = family(10**6 + test).coefficients(4, stream(10**6 + test, "test contexts"))
        for is_own, (inputs, outputs) in ((True, (f, u)), (False, others)):
            exact = context._gaussian(*family.predictive(f[3], inputs[:3], outputs[:3]))
            residual = u[3, context._KEPT] - exact.mean
            errors[is_own].append(float(residual @ torch.linalg.solve(exact.covariance_matrix, residual)) / context.VALUES)
    own, other = (torch.tensor(errors[key]).mean().item() for key in (True, False))
    assert own == pytest.approx(1.0, abs=0.1)
    assert other > 1.2


def test_a_small_run_reports_divergences_of_untrained_operators(tmp_path: Path) -> None:
    written = context.main(mode="small", output=tmp_path, workers=1)
    summary = {row["family"]: row for row in written["sections"]["summary"]}
    for row in summary.values():
        assert row["largest KL"] > 0.2  # two steps of training
        assert row["code length"] > row["exact code length"] + 1.0
        assert row["invariance error"] < 1e-6
    assert not summary["linear"]["met"]
    spread = [row["spread"] for row in written["sections"]["permutations"]]
    assert spread == sorted(spread, reverse=True)
    assert [row["n"] for row in written["sections"]["contexts"]] == [*context.SHOWN] * 3
