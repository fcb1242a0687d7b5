"""Benchmarks made of tables: provenance, headings, and what must work everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import calibration, sections, support, tables
from benchmarks.__main__ import parser


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


def test_repetitions_are_said_in_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = parser().parse_args(["heads", "--seeds", "5"]).seeds
    chosen = {"problem": "Darcy", "operator": None, "functions": 25}
    written = sections.write("heads", {}, mode="default", output=tmp_path, chosen=chosen, seeds=asked)
    assert written["command"] == 'python -m benchmarks heads --problem "Darcy" --functions 25 --seeds 5'
    assert (tmp_path / "heads-darcy-25-functions.json").exists()
    assert parser().parse_args(["novelty"]).seeds is None
    with pytest.raises(SystemExit):
        parser().parse_args(["heads", "--seeds", "0"])
    assert "invalid positive value: '0'" in capsys.readouterr().err


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


def test_a_table_of_a_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections.write("sample", {"part one": lambda: [{"a": 0.5}]}, mode="default", output=tmp_path)
    results = json.loads((tmp_path / "sample.json").read_text()) | {"commit": "0123456789ab"}
    (tmp_path / "sample.json").write_text(json.dumps(results))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    text = tables.rendered("<!-- table: sample/part one -->\nstale\n<!-- end -->")
    assert "stale" not in text
    assert "0.500" in text
    assert "`python -m benchmarks sample`" in text
