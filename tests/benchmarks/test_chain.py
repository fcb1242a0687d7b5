from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import chain


def test_a_small_run_has_all_stages_in_units_of_an_epoch(tmp_path: Path) -> None:
    written = chain.main(mode="small", output=tmp_path)
    stages, (share,) = written["sections"]["stages"], written["sections"]["shares"]
    assert [row["stage"] for row in stages] == ["train", "head", "calibrate", "predict", "draw", "score", "acquisition"]
    assert stages[4]["output MB"] == pytest.approx(4e-6 * chain.DRAWS * chain.HELD_OUT * 64)
    epoch = stages[0]["seconds"] / chain.EPOCHS
    later = [row for row in stages if row["stage"] in chain.STAGES]
    assert share["epochs"] == pytest.approx(sum(row["seconds"] for row in later) / epoch)
    assert share["largest"] == max(later, key=lambda row: row["seconds"])["stage"]
    assert share["met"] == (share["share"] <= 0.25)
