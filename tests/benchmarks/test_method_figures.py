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


def test_methods_stand_side_by_side_on_shared_scales() -> None:
    sketches = [sketch(NAMES[0], error=0.1), sketch(NAMES[1], error=0.001)]
    above, below = np.array(method_figures.side_by_side(sketches).axes).reshape(2, 2)
    for panel, under, one in zip(above, below, sketches, strict=True):
        lines = {line.get_label(): np.asarray(line.get_ydata()) for line in (*panel.lines, *under.lines)}
        assert np.array_equal(lines["mean"], one.mean)
        assert np.array_equal(lines["truth"], one.truth)
        assert np.allclose(lines["|truth - mean|"], np.abs(one.truth - one.mean))
        assert np.array_equal(lines["stated sd"], one.sd)
        low, high = under.get_ylim()
        assert low < 0.001 < 0.2 < high  # whatever the best and the worst method state can be seen
    assert [panel.get_title() for panel in above] == [name.replace(", ", "\n") for name in NAMES]


def test_maps_of_errors_stand_beside_stated_deviations() -> None:
    sketches = [sketch(NAMES[0], dimension=2, error=0.1), sketch(NAMES[1], dimension=2, error=0.001)]
    figure = method_figures.side_by_side(sketches)
    images = [np.asarray(panel.images[0].get_array()) for panel in figure.axes if panel.images]
    first, *means, error, other_error, sd, other_sd = images
    assert np.array_equal(first, sketches[0].truth.T)
    assert [np.array_equal(mean, one.mean.T) for mean, one in zip(means, sketches, strict=True)] == [True, True]
    for drawn, expected in ((error, 0.1), (other_error, 0.001), (sd, 0.2), (other_sd, 0.002)):
        assert np.allclose(drawn, expected)


def test_an_exact_method_can_be_drawn() -> None:
    """A linear problem solved by linear regression: no error, and nothing stated."""
    for dimension in (1, 2):
        assert SIDE_BY_SIDE in method_figures.drawn([sketch(NAMES[0], dimension=dimension, error=0.0)], best=NAMES[0], cost={})
