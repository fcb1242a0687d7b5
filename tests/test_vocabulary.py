"""The words of the field, not a dialect of ours: names that were given up do not come back."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "probneural").rglob("*.py"))
TREES = sorted(path for name in ("probneural", "benchmarks", "examples", "tests") for path in (ROOT / name).rglob("*.py"))

NAMES = {
    "Course": "FitPipeline",
    "Effort": "VarianceEstimation",
    "IndependentLaws": "IndependentDistributions",
    "Law": "InputDistribution, or Constraint",
    "Learned": "LatentPosterior",
    "Learnt": "a name that says what was learned",
    "Ledger": "RunLog",
    "Lesson": "FitResult",
    "Observed": "LatentObservation",
    "Reading": "Observation",
    "Readings": "MatrixFunctional",
    "Shrink": "LowRankUpdate",
    "Stage": "SimulationBatch",
    "effort": "variance_estimation",
    "fulfil": "condition_exactly",
    "is_lasting": "is_shared_across_calls",
    "law": "input_distribution, or constraint",
    "laws": "input_distributions, or constraints",
    "learnt": "learned",
    "reading_noise": "observation_variance",
    "readings": "observations",
    "redraw": "reinitialise",
    "shrink": "transform",
    "wish": "feature",
}
"""Identifiers, and what to write instead; in the package, the benchmarks, the examples and the tests."""

IN_LAYERS = {
    "corrected": ("eigenvalue_correction", ("curvature", "heads")),
    "energy": ("residual_sum_of_squares", ("heads",)),
    "level": ("noise_scale", ("curvature", "heads")),
    "place": ("like, a dtype and device, or index", ("active", "curvature", "heads", "problems")),
    "predict": ("predictor", ("active", "calibration", "curvature", "distributions", "heads", "metrics", "operators")),
    "share": ("mean_weights, or fraction", ("active", "calibration", "curvature", "heads", "metrics", "operators", "problems")),
    "spread": ("prior_std", ("curvature", "heads")),
}
"""The same for names that mean something else in other layers of the package."""

WORDS = {
    "law": "distribution, constraint or equation; conservation laws are called so",
    "laws": "distributions, constraints or equations",
    "learnt": "learned",
    "readings": "observations",
    "shrink": "transform, or a low-rank update",
}
"""Words of docstrings, comments and messages of the package."""


def tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    yield from tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Every identifier with its line, text in f-strings excepted."""
    for token in tokens(path):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def prose(path: Path) -> str:
    return "\n".join(token.string for token in tokens(path) if token.type in (tokenize.STRING, tokenize.COMMENT))


def test_names_of_the_dialect_are_gone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: write {NAMES[name]} for {name}"
        for path in TREES
        for line, name in names(path)
        if name in NAMES
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("word", IN_LAYERS)
def test_names_of_layers(word: str) -> None:
    instead, layers = IN_LAYERS[word]
    paths = [path for path in PACKAGE if path.relative_to(ROOT).parts[1] in layers]
    found = [
        f"{path.relative_to(ROOT)}:{line}: write {instead}" for path in paths for line, name in names(path) if name == word
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("word", WORDS)
def test_words_of_the_dialect_are_gone(word: str) -> None:
    pattern = re.compile(rf"(?<!conservation )\b{word}\b", re.IGNORECASE)
    found = [f"{path.relative_to(ROOT)}: write {WORDS[word]}" for path in PACKAGE if pattern.search(prose(path))]
    assert not found, "\n".join(found)


def test_the_search_sees_names_and_words(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_text('class Law:\n    """A law of inputs, unlike a conservation law."""\n', encoding="utf-8")
    assert (1, "Law") in list(names(path))
    assert "A law of inputs" in prose(path)
