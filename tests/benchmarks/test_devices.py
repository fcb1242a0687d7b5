"""The benchmark of devices: every stage is timed on both, and the file says which device it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import devices
from tests.helpers import accelerator


@pytest.mark.slow
def test_every_stage_and_answer_has_a_row(tmp_path: Path) -> None:
    """On the CPU beside itself: there the answers are the same to the last bit."""
    written = devices.main(mode="small", output=tmp_path, device="cpu")
    assert (tmp_path / "devices.json").exists()
    stages = [row["stage"] for row in written["sections"]["stages"]]
    assert stages[0] == "training"
    assert len(stages) == len(set(stages)) == 10
    here, there = written["sections"]["answers"]
    assert here["error"] == there["error"]
    assert there["difference of deviations"] == there["difference of draws"] == 0.0


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="there is no CUDA here"):
        devices.check("cuda")


@pytest.mark.gpu
@pytest.mark.slow
def test_another_device(tmp_path: Path) -> None:
    written = devices.main(mode="small", output=tmp_path, device=accelerator())
    assert written["machine"]["accelerator"]
    assert (tmp_path / f"devices-{accelerator()}.json").exists()
    here, there = written["sections"]["answers"]
    assert (here["device"], there["device"]) == ("cpu", accelerator())
    assert there["difference of draws"] < 1e-6
    assert (there["difference of draws"] > 0.0) == (accelerator() == "cuda")  # the simulated GPU computes as the CPU does
