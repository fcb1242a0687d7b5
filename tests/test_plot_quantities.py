"""Figures of quantities of interest hold the intervals, means and dots that they should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probneural import plots
from probneural.distributions import DenseRoot, FieldDistribution, GaussianField
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.functionals import integral, maximum, sensors, stack
from probneural.grids import Grid
from tests.helpers import normal

LINE = Grid.uniform(8)
PROBE = stack([integral(LINE), sensors(LINE, [[0.25]]).named("gauge"), 2.0 * integral(LINE)])


def image(*, n: int = 20, c: int = 2) -> FieldDistribution:
    root = DenseRoot(normal(n, c, 8, 3, seed=1))
    return GaussianField(normal(n, c, 8), root, latent="xi", grid=LINE).apply(PROBE)


def truth_for(u: FieldDistribution) -> torch.Tensor:
    return u.mean + 1.5 * u.std * normal(*u.mean.shape, seed=4)


def dots(panel: Axes, label: str) -> Any:
    found = [line.get_xydata() for line in panel.lines if line.get_label() == label]
    return found[0] if found else np.zeros((0, 2))


def bars(panel: Axes) -> Any:
    """Ends of the intervals, `(count, 2 ends, 2 coordinates)`."""
    (drawn,) = panel.collections
    return np.stack(drawn.get_segments())


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].texts]


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_of_many_functions(noise: float) -> None:
    u = image()
    truth = truth_for(u)
    figure = plots.quantity(u, truth, channel=1, level=0.8, noise=noise, unit="K")
    assert len(figure.axes) == 6
    for number, name in enumerate(["integral", "gauge", "2"]):
        values = truth[:, 1, number]
        places = values.argsort()
        lower, upper = (end[places, 1, number].numpy() for end in u.interval(0.8, noise=noise))
        mean, values = u.mean[places, 1, number].numpy(), values[places].numpy()
        inside = (lower <= values) & (values <= upper)
        assert 0 < inside.sum() < 20
        above, below = figure.axes[number], figure.axes[3 + number]
        assert above.get_title() == f"{name}\n{inside.sum()} of 20 inside"
        word = "data" if noise else "truth"
        for panel, centre in ((above, 0.0 * mean), (below, mean)):
            np.testing.assert_allclose(bars(panel)[:, :, 1], np.stack([lower - centre, upper - centre], -1))
            np.testing.assert_allclose(dots(panel, "mean")[:, 1], mean - centre)
            for label, chosen in ((word, inside), (f"{word} outside", ~inside)):
                expected = np.stack([np.arange(20)[chosen], (values - centre)[chosen]], -1)
                np.testing.assert_allclose(dots(panel, label), expected)
        assert below.get_xlabel() == f"functions, sorted by {word}"
    assert figure.axes[0].get_ylabel() == "value (K)"
    assert words(figure) == ["80 % interval", "mean", word, f"{word} outside"]


def test_intervals_end_at_zero_if_ten_true_values_are_not_negative() -> None:
    u = image()
    truth = truth_for(u)
    truth[:, 0, 1] = truth[:, 0, 1].abs()
    figure = plots.quantity(u, truth)
    assert [bars(panel)[:, 0, 1].min() == 0.0 for panel in figure.axes[:3]] == [False, True, False]
    assert words(figure)[0] == "90 % interval, cut at 0"


def test_without_truth_functions_are_sorted_by_their_means() -> None:
    u = image()
    figure = plots.quantity(u)
    np.testing.assert_allclose(dots(figure.axes[0], "mean")[:, 1], u.mean[:, 0, 0].sort().values.numpy())
    assert figure.axes[0].get_title() == "integral"
    assert words(figure) == ["90 % interval", "mean"]


def test_of_one_function_quantities_are_listed() -> None:
    u, labels = image()[3], ["a", "b", "c"]
    truth = truth_for(u)
    figure = plots.quantity(u, truth, labels=labels)
    left, right = figure.axes
    assert [tick.get_text() for tick in left.get_yticklabels()] == labels
    lower, upper = u.interval(0.9)
    np.testing.assert_allclose(bars(left)[:, :, 0], torch.stack([lower[0, 0], upper[0, 0]], -1).numpy())
    np.testing.assert_allclose(np.concatenate([dots(right, "mean")[:, 0]]), np.zeros(3))
    drawn = np.concatenate([dots(left, "truth"), dots(left, "truth outside")])
    np.testing.assert_allclose(drawn[drawn[:, 1].argsort()][:, 0], truth[0, 0].numpy())


def test_maxima_and_figures_that_render() -> None:
    u = GaussianField(normal(70, 1, 8), DenseRoot(normal(70, 1, 8, 2)), latent="xi", grid=LINE)
    peaks = u.apply_by_draws(maximum(LINE), draws=20)
    for figure in (plots.quantity(peaks), plots.quantity(image(), truth_for(image())), plots.quantity(image()[0])):
        assert plots.png(figure, dpi=40.0)[:4] == b"\x89PNG"
    assert plots.quantity(peaks).axes[0].get_title() == "maximum"


@pytest.mark.bad_input
class TestBadInput:
    def test_no_functions(self) -> None:
        with pytest.raises(DataError, match="1 or more samples"):
            plots.quantity(image()[:0])

    def test_truth(self) -> None:
        u = image()
        for truth in (torch.zeros(20, 3), torch.zeros(20, 1, 3)):
            with pytest.raises(ShapeError, match="truth of shape"):
                plots.quantity(u, truth)
        with pytest.raises(DataError, match="finite true values"):
            plots.quantity(u, torch.full((20, 2, 3), torch.nan))

    def test_too_many_panels(self) -> None:
        many = stack([integral(LINE)] * 13)
        u = GaussianField(normal(2, 1, 8), DenseRoot(normal(2, 1, 8, 2)), latent="xi", grid=LINE).apply(many)
        with pytest.raises(ArgumentError, match="an integer from 1 to 12 as count of quantities"):
            plots.quantity(u)
        assert len(plots.quantity(u[0]).axes) == 2
