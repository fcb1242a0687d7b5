"""The whole road from files, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import large_data


@pytest.mark.slow
def test_files_and_memory_give_the_same_bits_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    told = large_data.main(mode="small", output=tmp_path / "told")
    both = told["sections"]["from files and from memory"]
    assert [row["same bits"] for row in both] == [True, True, None, True]
    assert [row["stage"] for row in told["sections"]["larger than memory"]] == [row["stage"] for row in both]
    assert not list(tmp_path.glob("probneural-*"))
