"""The report: sentences that follow from the numbers, in a page that needs nothing else."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from probneural import runs
from probneural.metrics.reliability import LEVELS
from probneural.runs.reporting import Report, verdict
from probneural.runs.scoring import TestScores
from probneural.training.callbacks import History
from tests.runs.files import cheap, written

HISTORY = History(train=(0.5, 0.1), validation=(0.5, 0.12), seconds=(1.0, 1.0))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("run")
    return runs.report(cheap(written(folder)), folder / "out", show_progress=False)


def covering(others: dict[float, float]) -> tuple[float, ...]:
    """Nominal coverages at the levels .05 to .95, but for some."""
    return tuple(others.get(level, level) for level in LEVELS)


def changed(report: Report, **values: Any) -> TestScores:
    """Scores on 100 samples whose intervals are calibrated, but for these values."""
    values = {"level_coverages": LEVELS, "coverage": 0.9} | values
    own = {name: value for name, value in values.items() if name in vars(report.scores)}
    inner = {name: value for name, value in values.items() if name not in own}
    return dataclasses.replace(report.scores, scores=dataclasses.replace(report.scores.scores, functions=100, **inner), **own)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"relative_l2": 0.02, "baseline": 0.5}, "relative error is 2 %; always predicting the mean training output has 50 %"),
        ({"relative_l2": 0.6, "baseline": 0.5}, "no better than always predicting"),
        ({"relative_l2": 0.3, "baseline": 0.5}, "hardly useful"),
        ({"coverage": 0.85}, "hold 85.0 % of the true values: the error bars are honest at all levels, as far as 100"),
        ({"coverage": 0.8}, "too narrow."),
        ({"coverage": 0.99}, "wider than they need to be."),
        (
            {"level_coverages": covering({0.5: 0.825, 0.45: 0.7})},
            "hold 90.0 % of the true values, and 50 % intervals of single values hold 82.5 %: the error bars are wider than "
            "they need to be at that level.",
        ),
        (
            {"level_coverages": covering({0.95: 0.85})},
            "95 % intervals of single values hold 85.0 %: the error bars are too narrow",
        ),
        ({"level_coverages": covering({0.5: 0.63})}, "honest at all levels"),
        ({"level_coverages": ()}, "honest at all levels"),
        (
            {"band_coverage": 0.9, "band_pairs": 1000},
            "90 of 100 functions, 90.0 % where 90 % were promised: the promise is kept",
        ),
        ({"band_coverage": 0.75, "band_pairs": 1000}, "too few for chance"),
        ({"band_coverage": 0.75, "band_pairs": 9}, "within chance"),
    ],
)
def test_the_verdict_follows_from_the_numbers(report: Report, values: dict[str, float], words: str) -> None:
    assert words in " ".join(verdict(changed(report, **values), HISTORY))


def test_a_gap_between_losses_asks_for_more_pairs(report: Report) -> None:
    gap = dataclasses.replace(HISTORY, validation=(0.5, 0.3))
    assert "3.0 times that on training pairs: more pairs" in " ".join(verdict(report.scores, gap))
    assert "more pairs would help" not in " ".join(verdict(report.scores, HISTORY))


def test_the_report_says_what_early_stopping_chose(report: Report) -> None:
    """And compares the losses of that epoch: after it, they part."""
    stopped = History(train=(0.5, 0.2, 0.1), validation=(0.5, 0.3, 0.4), seconds=(1.0,) * 3, restored=2)
    said = " ".join(verdict(report.scores, stopped))
    assert "Of 3 epochs, early stopping chose the weights of epoch 2, whose loss on the validation pairs was the least." in said
    assert "more pairs would help" not in said
    assert "4.0 times that on training pairs" in " ".join(verdict(report.scores, dataclasses.replace(stopped, restored=None)))
    assert "early stopping" not in " ".join(report.verdict)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else(report: Report) -> None:
    text = report.path.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    sources = [attributes["src"] for _, attributes in tags.seen if "src" in attributes]
    assert len(sources) == 5  # losses, calibration, three test functions
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert all(attributes["alt"] for tag, attributes in tags.seen if tag == "img")
    assert not [tag for tag, attributes in tags.seen if tag in ("script", "link") or "href" in attributes]
    assert not re.search(r"url\(|@import", text)
    for sentence in report.verdict:
        assert sentence in text
    assert f"{report.scores.scores.rmse:.4g}" in text
    assert "modes = [4]" in text


def test_names_are_escaped(tmp_path: Path) -> None:
    import xarray

    path = tmp_path / "odd.nc"
    with xarray.open_dataset(written(tmp_path)) as dataset:
        dataset.rename(u="u<b>&").to_netcdf(path, engine="h5netcdf")
    text = runs.report(cheap(path, outputs=("u<b>&",)), tmp_path / "run", show_progress=False).path.read_text()
    assert "u&lt;b&gt;&amp;" in text
    assert "<b>" not in text
