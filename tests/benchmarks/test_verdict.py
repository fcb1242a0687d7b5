"""The terminal's summary, the verdict in words, the matrix and the formulas: all made from the numbers."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from benchmarks import report
from benchmarks.report.headlines import best, headlines
from benchmarks.report.matrix import matrix
from benchmarks.report.verdict import verdict


def run(problem: str, method: str, error: float, joint: float | None, whole: float, *, functions: int = 200) -> dict[str, Any]:
    operator, _, head = method.partition(", ")
    scores = {"relative_l2": error, "joint_nll": joint, "simultaneous_coverage": whole, "level": 0.9}
    evaluation = {"on": "in distribution", "scores": scores | {"whole_functions": functions}}
    return {"problem": problem, "operator": operator, "head": head, "evaluations": [evaluation]}


NETWORK, KERNEL = "FNO, ensemble of 4", "kernel operator, Gaussian process"
TWO = {
    "runs": [
        run("Heat", NETWORK, 0.02, -3.0, 0.91),
        run("Heat", KERNEL, 0.01, -2.0, 0.70),
        run("Wave", NETWORK, 0.1, -1.0, 0.86),
        run("Wave", KERNEL, 0.4, None, 1.0),
        {"problem": "Wave", "operator": "DeepONet", "head": "last-layer Laplace", "evaluations": []},
    ]
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def changed(**numbers: float) -> dict[str, Any]:
    """The same results, with other numbers for the network on Wave."""
    results: dict[str, Any] = json.loads(json.dumps(TWO))
    results["runs"][2]["evaluations"][0]["scores"] |= numbers
    return results


def test_the_best_of_each_score() -> None:
    heat = headlines(TWO)["Heat"]
    assert (best(heat, "error"), best(heat, "joint_nll"), best(heat, "whole")) == (KERNEL, NETWORK, NETWORK)
    assert best({}, "error") is None


def test_honesty_is_within_chance_of_the_level() -> None:
    wave = headlines({"runs": [run("Wave", NETWORK, 1.0, 0.0, 0.86), run("Wave", KERNEL, 1.0, 0.0, 0.86, functions=1000)]})[
        "Wave"
    ]
    assert wave[NETWORK].chance == pytest.approx(2 * (0.9 * 0.1 / 200) ** 0.5)
    assert wave[NETWORK].is_honest  # .04 away, chance .042
    assert not wave[KERNEL].is_honest  # chance .019


def test_the_verdict_follows_the_numbers() -> None:
    error, joint, network, honest = verdict(TWO)
    assert error == "Kernel operator (Gaussian process) has the lowest error on 1 of 2 problems; FNO (ensemble of 4) on 1."
    assert joint == "FNO (ensemble of 4) has the best joint density on 2 of 2 problems."
    assert network == "Methods that train no network have the lowest error on Heat."
    assert "in 2 of 4 cases: most often with FNO (ensemble of 4), on 2 of 2, least with kernel operator" in honest
    assert honest.endswith("of the 2 misses, 1 is over-confident.")
    error, _, network, _ = verdict(changed(relative_l2=0.5))
    assert error == "Kernel operator (Gaussian process) has the lowest error on 2 of 2 problems."
    assert network == "Methods that train no network have the lowest error on every problem."
    assert "in 1 of 4 cases" in verdict(changed(simultaneous_coverage=0.5))[3]


def test_the_matrix_prints_every_number_it_colours() -> None:
    text = matrix(TWO)
    cells = re.findall(r'<span class="cell ([\w-]+)"[^>]*>(.*?)</span>', text)
    assert [(kind, re.sub("<.*?>", "", content).strip()) for kind, content in cells] == [
        ("e1", "0.0200 ×2"),
        ("ok", "0.910 ✓"),
        ("e0", "0.0100 best"),
        ("narrower", "0.700 ▼▼"),
        ("e0", "0.100 best"),
        ("ok", "0.860 ✓"),
        ("e2", "0.400 ×4"),
        ("wide-band", "1.00 ▲"),
    ]
    assert "0.860 of 200 fields inside" in text
    assert matrix({"runs": []}) == ""


def test_the_summary_fits_a_terminal_and_marks_the_best() -> None:
    lines = report.terminal_summary(TWO, stream=io.StringIO()).splitlines()
    assert len(lines) + 2 <= 25
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in "".join(lines)
    errors = [re.findall(r"[\d.]+\*?", line.partition("error")[2]) for line in lines if re.search("(Heat|Wave) +error", line)]
    assert errors == [["0.0200", "0.0100*"], ["0.100*", "0.400"]]
    wholes = [line.split()[1:] for line in lines if line.split()[:1] == ["whole"]]
    assert wholes == [["0.910*", "0.700"], ["0.860*", "1.00"]]
    coloured = report.terminal_summary(TWO, stream=Terminal())
    assert "\x1b[1;32m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines() == lines
