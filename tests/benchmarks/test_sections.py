"""Benchmarks made of tables: provenance, headings, and what must work everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import calibration, sections, support


def test_parts_are_written_with_their_provenance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"first": lambda: [{"a": 1.0}, {"a": 2.0, "b": "x"}], "second": lambda: [{"c": None}]}
    results = sections.write("sample", parts, mode="small", output=tmp_path, notes=["a note"], peers=["torch", "no-such-thing"])
    written = json.loads((tmp_path / "sample.json").read_text())
    assert written["sections"]["first"] == [{"a": 1.0, "b": None}, {"a": 2.0, "b": "x"}]  # one set of headings per table
    assert written["command"] == "python -m benchmarks sample --small"
    assert {"machine", "commit", "created", "wall_seconds"} <= set(written)
    assert "torch" in results["versions"]
    assert "no-such-thing" not in results["versions"]
    assert "first" in capsys.readouterr().out


@pytest.mark.slow
def test_every_method_of_ours_works_on_every_network() -> None:
    rows = {row["method"]: row for row in support.run()}
    ours = [row for method, row in rows.items() if method.startswith("probneural")]
    assert len(ours) == 7
    for row in ours:
        assert {outcome for heading, outcome in row.items() if heading != "method"} == {"yes"}, row


def test_gains_are_paired_by_seed() -> None:
    scores = {"nll": 0.0, "joint_nll": None, "rank_within": 0.1, "rank_within_attainable": None, "gap, error": None}
    rows = [
        {"problem": "p", "head": "h", "seed": seed, "scale": scale} | scores | {"nll": seed - (scale == "local") * (1.0 + seed)}
        for seed in range(3)
        for scale in ("one", "local")
    ]
    gain, other = calibration.gains(rows)
    assert (other["to"], other["seeds"], other["nll"]) == ("mixed", 0, None)
    assert gain["nll"] == -2.0
    assert gain["nll, error"] == pytest.approx(1 / 3**0.5)
    assert gain["joint_nll"] is None
    first, second = calibration.averaged(rows)
    assert (first["scale"], first["nll"], second["nll"]) == ("one", 1.0, -1.0)
