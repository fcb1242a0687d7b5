"""What the figures of the report draw."""

from __future__ import annotations

import numpy as np
import pytest

import probneural as pn
from benchmarks import method_figures
from benchmarks.method_figures import COST, HONESTY, ONE, SIDE_BY_SIDE, Sketch
from probneural.metrics.reliability import LEVELS

NAMES = ("FNO, last-layer Laplace", "kernel operator, Gaussian process")


def sketch(name: str, *, dimension: int = 1, error: float = 0.1) -> Sketch:
    grid = pn.Grid.uniform((8,) * dimension)
    truth = np.linspace(-1.0, 1.0, grid.size).reshape(grid.shape)
    sd = np.full(grid.shape, 2.0 * error)
    return Sketch(name, grid, truth, truth + error, sd, np.array(LEVELS), sd.ravel()[:4], sd.ravel()[:4])


FIELDS = [f"{ONE}: {NAMES[1]}", SIDE_BY_SIDE]


@pytest.mark.parametrize(("dimension", "captions"), [(1, FIELDS), (2, FIELDS), (3, [])])
def test_every_figure_that_a_dimension_allows(dimension: int, captions: list[str]) -> None:
    sketches = [sketch(name, dimension=dimension) for name in NAMES]
    figures = method_figures.drawn(sketches, best=NAMES[1], cost={NAMES[0]: (1.0, 0.1)})
    assert list(figures) == [*captions, HONESTY, COST]
    assert all(image.startswith(b"\x89PNG") for image in figures.values())
    assert method_figures.drawn([], best=None, cost={}) == {}
