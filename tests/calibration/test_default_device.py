"""Another default device, such as a GPU's, changes nothing: "meta" holds no numbers, so what lands there is an error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.calibration import (
    Novelty,
    NoveltyScale,
    ScaleMixture,
    SimultaneousBand,
    Stacking,
    VarianceScale,
)
from tests.calibration.synthetic import Synthetic, pairs

DATA, OTHER = pairs(60), pairs(60, seed=5)
HEAD, WIDER = Synthetic(), Synthetic(sd=2.0)


def numbers(scores: Mapping[str, object]) -> Tensor:
    """What is a number among them."""
    return torch.tensor([score for score in scores.values() if isinstance(score, float)], device="cpu")


USES: dict[str, Callable[[], Tensor]] = {
    "scale": lambda: VarianceScale().fit(HEAD, DATA)(OTHER.inputs).variance,
    "random scale": lambda: ScaleMixture().fit(HEAD, DATA)(OTHER.inputs).variance,
    "novelty": lambda: Novelty().fit(HEAD, DATA)(OTHER.inputs),
    "widening": lambda: NoveltyScale().fit(HEAD, DATA, shifted=OTHER)(OTHER.inputs).variance,
    "stack": lambda: Stacking().fit([HEAD, WIDER], DATA)(OTHER.inputs).variance,
    "band": lambda: SimultaneousBand().fit(HEAD, DATA)(OTHER.inputs).half_width,
    "scores": lambda: numbers(pn.metrics.score(HEAD(DATA.inputs), DATA.outputs, noise=HEAD.noise).to_dict()),
}


@pytest.mark.parametrize("use", USES)
def test_the_default_device_changes_nothing(use: str) -> None:
    expected = USES[use]()
    with torch.device("meta"):
        found = USES[use]()
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_the_package_can_be_imported_under_another_one() -> None:
    program = "import torch; torch.set_default_device('meta'); import probneural"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0
