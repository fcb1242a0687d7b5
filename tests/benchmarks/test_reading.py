"""The benchmark of reading runs, and what it reads is what is in memory."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks import reading


def test_it_runs_and_all_stores_hold_the_same(tmp_path: Path) -> None:
    written = reading.main(mode="small", output=tmp_path)
    assert (tmp_path / "reading.json").exists()
    rates = written["sections"]["rates"]
    assert [row["store"] for row in rates] == ["memory", *reading.STORES]
    assert all(row["pairs/s, at random"] > 0 for row in rates)
    values = torch.randn(40, 1, 4, 4).numpy()
    (tmp_path / "stores").mkdir()
    for number, make in enumerate(reading.STORES.values()):
        assert torch.equal(make(tmp_path / "stores" / str(number), values)[:].inputs.values, torch.from_numpy(values))
