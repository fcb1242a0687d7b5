from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from probneural import plots
from probneural.active.loop.evaluations import Evaluations
from probneural.active.loop.history import LearningHistory, Round, RoundErrors, RoundSeconds, SimulationCounts
from probneural.calibration.bands.conformal import BandField
from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField
from probneural.errors import ArgumentError, DataError, GridError, ProbneuralError, ShapeError
from probneural.fields import Field
from probneural.functionals import integral
from probneural.grids import Grid
from probneural.metrics import calibration_error, compare, coverage
from probneural.metrics.spread import spread_skill_curve
from probneural.pairs import FieldPairs
from probneural.training.callbacks import History
from tests.helpers import normal

LINE = Grid.uniform((12,), lengths=3.0, origin=1.0)
PLANE = Grid.uniform((6, 9), lengths=(1.0, 2.0), periodic=(True, False))
SCATTERED_LINE = Grid.scattered([[0.9], [0.1], [0.5]], [1.0, 1.0, 1.0])
SCATTERED_PLANE = Grid.scattered(
    torch.rand(15, 2, generator=torch.Generator().manual_seed(0)), torch.ones(15, dtype=torch.float64)
)
SPACE = Grid.uniform((3, 4, 5))
HISTORY = History(
    train=tuple(0.8**epoch for epoch in range(10)), validation=tuple(0.9**epoch for epoch in range(10)), seconds=(1.0,) * 10
)


def gaussian(grid: Grid, *, n: int = 4, c: int = 2, dtype: torch.dtype = torch.float64) -> GaussianField:
    mean, root = normal(n, c, *grid.shape, seed=0), normal(n, c, grid.size, 3, seed=1)
    return GaussianField(mean.to(dtype), DenseRoot(root.to(dtype)), latent="plot", grid=grid)


def empirical(grid: Grid, *, n: int = 4, c: int = 2) -> EmpiricalField:
    return EmpiricalField(normal(5, n, c, *grid.shape, seed=2), grid=grid)


def truth_for(u: FieldDistribution) -> Field:
    return Field(normal(*u.mean.shape, seed=9), u.grid)


def bands_for(grid: Grid, *, n: int = 4, c: int = 2) -> BandField:
    return BandField(normal(n, c, *grid.shape, seed=0), normal(n, c, *grid.shape, seed=1).abs(), grid=grid)


def two(grid: Grid) -> dict[str, FieldDistribution]:
    return {"first": gaussian(grid), "second": empirical(grid)}


def curve(axes: Axes, label: str) -> Any:
    (found,) = [line for line in axes.lines if line.get_label() == label]
    return found


def shade_heights(axes: Axes) -> Any:
    """Of the one shade that was filled between two curves, at each of its abscissas."""
    (shade,) = axes.collections
    x, y = shade.get_paths()[0].vertices.T
    return np.array([np.ptp(y[x == place]) for place in np.unique(x)])


def rendered(figure: Figure) -> bytes:
    """Also lays the figure out, which is where warnings would arise."""
    return plots.png(figure, dpi=40.0)


def loop(*errors: float | None) -> LearningHistory:
    """A loop that doubles its labels from 16 and ends with these errors."""
    counts = SimulationCounts(simulated=0, reused=0, failed=0)
    seconds = RoundSeconds(select=1.0, simulate=1.0, train=1.0, fit=1.0)
    measured = [
        RoundErrors()
        if error is None
        else RoundErrors(mean=error, quantile_95=2 * error, quantile_99=3 * error, stated=error / 2)
        for error in errors
    ]
    return LearningHistory(
        tuple(
            Round(
                number=number,
                labels=16 * 2**number,
                chosen=(),
                simulations=counts,
                loss=None,
                errors=entry,
                seconds=seconds,
            )
            for number, entry in enumerate(measured)
        )
    )


MAKERS: list[Callable[[], Figure]] = [
    lambda: plots.field(gaussian(LINE), truth_for(gaussian(LINE)), noise=0.1),
    lambda: plots.field(gaussian(PLANE), truth_for(gaussian(PLANE))),
    lambda: plots.field(gaussian(SCATTERED_PLANE), truth_for(gaussian(SCATTERED_PLANE))),
    lambda: plots.calibration(gaussian(PLANE), truth_for(gaussian(PLANE)), noise=0.1),
    lambda: plots.training(HISTORY),
    lambda: plots.band(bands_for(LINE), truth_for(gaussian(LINE))),
    lambda: plots.band(bands_for(PLANE), truth_for(gaussian(PLANE))),
    lambda: plots.spread_skill(two(PLANE), truth_for(gaussian(PLANE)), unit="K"),
    lambda: plots.quantity(gaussian(LINE).apply(integral(LINE)), integral(LINE)(truth_for(gaussian(LINE)).values), noise=0.1),
    lambda: plots.active_learning(loop(0.2, 0.1, 0.05)),
    lambda: plots.active_learning({"random": loop(0.2, 0.1), "chosen": loop(*(0.5**n for n in range(10)))}),
]


@pytest.mark.parametrize("make", [gaussian, empirical])
def test_curves_are_truth_mean_interval_and_draws(make: Callable[..., FieldDistribution]) -> None:
    u = make(LINE)
    truth, noise = truth_for(u), torch.tensor([0.2, 0.7], dtype=torch.float64)
    figure = plots.field(u, truth, index=2, channel=1, noise=noise, level=0.8, label="u (K)", axes=["x (m)"])
    above, below = figure.axes
    assert (above.get_ylabel(), below.get_xlabel()) == ("u (K)", "x (m)")
    x, mean = LINE.points[:, 0].numpy(), u.mean[2, 1].numpy()
    np.testing.assert_allclose(curve(above, "truth").get_xydata(), np.stack([x, truth.values[2, 1].numpy()], -1))
    np.testing.assert_allclose(curve(above, "mean").get_ydata(), mean)
    np.testing.assert_allclose(curve(below, "truth").get_ydata(), truth.values[2, 1].numpy() - mean)
    draws = [line.get_ydata() for line in above.lines if line.get_color() == curve(above, "draws").get_color()]
    np.testing.assert_allclose(np.stack(draws), u.rsample(torch.Size([3]), seed=0)[:, 2, 1].numpy())
    half = stats.norm.ppf(0.9) * (u.variance[2, 1] + 0.7).sqrt().numpy()
    for axes, centre in ((above, mean), (below, 0.0 * mean)):
        (shade,) = axes.collections
        assert shade.get_label() == "80 % interval with noise"
        vertices = shade.get_paths()[0].vertices
        for edge in (centre - half, centre + half):
            distance = np.abs(vertices[None] - np.stack([x, edge], -1)[:, None]).sum(-1).min(1)
            np.testing.assert_allclose(distance, 0.0, atol=1e-12)
    assert [text.get_text() for text in figure.legends[0].texts] == ["80 % interval with noise", "draws", "mean", "truth"]


def test_scattered_points_on_a_line_are_joined_in_order() -> None:
    above = plots.field(gaussian(SCATTERED_LINE)).axes[0]
    mean = gaussian(SCATTERED_LINE).mean[0, 0]
    np.testing.assert_allclose(curve(above, "mean").get_xydata().T, [[0.1, 0.5, 0.9], mean[[1, 2, 0]].tolist()])
    assert len(above.lines) == 4


def test_maps_share_their_colour_scales() -> None:
    u = gaussian(PLANE)
    truth = truth_for(u)
    figure = plots.field(u, truth, index=-1, channel=1, label="T (K)", axes=("x (m)", "t (s)"))
    maps = {axes.get_title(): axes for axes in figure.axes if axes.images}
    assert list(maps) == ["truth", "mean", "one draw", "|truth - mean|", "sd"]
    mean, true = u.mean[-1, 1], truth.values[-1, 1]
    draw = u.rsample(torch.Size([3]), seed=0)[0, -1, 1]
    expected = [true, mean, draw, (true - mean).abs(), u.standard_deviation[-1, 1]]
    for axes, values in zip(maps.values(), expected, strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), values.mT.numpy())
        assert axes.get_xlabel() == "x (m)"
        # Cells are centred on the points: a periodic axis of 6 cells, and one of 9 points with both ends.
        np.testing.assert_allclose(axes.images[0].get_extent(), (-1 / 12, 11 / 12, -1 / 8, 2 + 1 / 8))
    limits = [axes.images[0].get_clim() for axes in maps.values()]
    shown = torch.stack([true, mean, draw])
    assert set(limits[:3]) == {(float(shown.min()), float(shown.max()))}
    assert limits[3] == limits[4] == (0.0, float(max(expected[3].max(), expected[4].max())))
    assert maps["truth"].get_ylabel() == maps["|truth - mean|"].get_ylabel() == "t (s)"
    bars = [bar for axes in maps.values() for bar in axes.child_axes]
    assert [bar.get_ylabel() for bar in bars] == ["T (K)", "T (K)"]


@pytest.mark.parametrize("latitude_first", [True, False])
def test_maps_of_the_sphere_are_upright(latitude_first: bool) -> None:
    grid = Grid.latlon([-60.0, -20.0, 20.0, 60.0], [0.0, 90.0, 180.0, 270.0], latitude_first=latitude_first)
    u = EmpiricalField(normal(5, 2, 1, 4, 4), grid=grid)
    values = u.mean[0, 0] if latitude_first else u.mean[0, 0].mT  # latitudes by longitudes
    mean = next(axes for axes in plots.field(u).axes if axes.get_title() == "mean")
    np.testing.assert_allclose(mean.images[0].get_array(), values)
    assert (mean.images[0].origin, mean.images[0].get_extent()) == ("lower", [-45.0, 315.0, -80.0, 80.0])
    assert (mean.get_xlabel(), mean.get_ylabel()) == ("longitude (degrees)", "latitude (degrees)")
    names = ("lat", "lon") if latitude_first else ("lon", "lat")
    figure = plots.band(
        BandField(u.mean, torch.ones_like(u.mean), grid=grid), Field(u.mean + 2 * (u.mean > 0), grid), axes=names
    )
    (marked,) = [axes for axes in figure.axes if axes.lines]
    outside = grid.points[(u.mean[0, 0] > 0).flatten()]
    np.testing.assert_allclose(marked.lines[0].get_xydata(), outside.flip(1) if latitude_first else outside)
    assert (marked.get_xlabel(), marked.get_ylabel()) == ("lon", "lat")


def test_shades_end_at_zero_if_ten_true_samples_are_not_negative() -> None:
    u, bands = gaussian(LINE, n=12), bands_for(LINE, n=12)
    positive = Field(truth_for(u).values.abs(), LINE)
    negative = Field(positive.values - (torch.arange(12) == 11).double()[:, None, None] * 100.0, LINE)
    for truth, suffix in ((positive, ", cut at 0"), (negative, "")):
        for figure, name in ((plots.field(u, truth), "90 % interval"), (plots.band(bands, truth), "band")):
            (shade,) = figure.axes[0].collections
            assert shade.get_label() == name + suffix
            assert (shade.get_paths()[0].vertices[:, 1].min() == 0.0) == bool(suffix)
    assert plots.field(u[:9], positive[:9]).axes[0].collections[0].get_label() == "90 % interval"


@pytest.mark.parametrize(
    ("options", "titles"),
    [({}, ["mean", "one draw", "sd"]), ({"noise": 0.5}, ["mean", "one draw", "sd with noise"])],
)
def test_maps_without_truth(options: dict[str, Any], titles: list[str]) -> None:
    figure = plots.field(gaussian(PLANE), **options)
    assert [axes.get_title() for axes in figure.axes if axes.images] == titles


FLAT_GRIDS = [LINE, PLANE, Grid.uniform((1, 4)), Grid.uniform((1,)), Grid.uniform((4, 64), lengths=(1.0, 50.0))]


@pytest.mark.parametrize("grid", FLAT_GRIDS, ids=lambda grid: "x".join(map(str, grid.shape)))
def test_flat_certain_fields_are_drawn_flat(grid: Grid) -> None:
    """Colour scales and intervals of no extent; laying it out would warn."""
    flat = torch.full((1, 1, *grid.shape), 2.0)
    u = GaussianField(flat, DenseRoot(torch.zeros(1, 1, grid.size, 1)), latent="none", grid=grid)
    figure = plots.field(u, Field(flat, grid))
    assert rendered(figure).startswith(b"\x89PNG")
    if grid.dimension == 1:
        above, below = figure.axes
        for axes, value in ((above, 2.0), (below, 0.0)):
            np.testing.assert_array_equal(curve(axes, "truth").get_ydata(), np.full(grid.size, value))
            vertices = axes.collections[0].get_paths()[0].vertices
            np.testing.assert_array_equal(vertices[:, 1], np.full(len(vertices), value))
            assert axes.get_ylim()[0] < value < axes.get_ylim()[1]
        return
    maps = {axes.get_title(): axes.images[0] for axes in figure.axes if axes.images}
    for title, image in maps.items():
        value = 0.0 if title in ("|truth - mean|", "sd") else 2.0
        np.testing.assert_array_equal(image.get_array(), np.full(grid.shape[::-1], value))
    assert len(maps) == 5


def test_scattered_points_in_a_plane_are_dots() -> None:
    figure = plots.field(gaussian(SCATTERED_PLANE))
    dots = [axes.collections[0] for axes in figure.axes if axes.get_title()]
    assert len(dots) == 3
    np.testing.assert_allclose(dots[0].get_offsets(), SCATTERED_PLANE.points)


def test_reliability_and_transform_are_those_of_the_scores() -> None:
    u = gaussian(PLANE)
    comparison = compare(u, truth_for(u), noise=0.3)
    left, right = plots.calibration(u, truth_for(u), noise=0.3).axes
    levels, observed = curve(left, "observed").get_xydata().T
    np.testing.assert_allclose(observed, [coverage(comparison, level=level).mean() for level in levels])
    assert np.abs(observed - levels).mean() == pytest.approx(calibration_error(comparison).mean().item(), abs=0.05)
    assert left.get_title() == f"calibration error {calibration_error(comparison).mean().item():.2g}"
    heights = [bar.get_height() for bar in right.patches]
    assert len(heights) == 20
    assert np.mean(heights) == pytest.approx(1.0)


def test_a_calibrated_field_lies_on_the_diagonal() -> None:
    root = normal(300, 1, 12, 3, seed=1)
    drawn = DenseRoot(root).product_each(normal(300, 3, seed=2))
    u = GaussianField(torch.zeros(300, 1, 12, dtype=torch.float64), DenseRoot(root), latent="plot", grid=LINE)
    left, right = plots.calibration(u, Field(drawn, LINE)).axes
    levels, observed = curve(left, "observed").get_xydata().T
    np.testing.assert_allclose(observed, levels, atol=0.05)
    np.testing.assert_allclose([bar.get_height() for bar in right.patches], 1.0, atol=0.3)


def test_calibration_of_one_function_has_no_standard_error() -> None:
    u = gaussian(LINE, n=1)
    figure = plots.calibration(u, truth_for(u))
    left = figure.axes[0]
    levels, observed = curve(left, "observed").get_xydata().T
    comparison = compare(u, truth_for(u))
    np.testing.assert_allclose(observed, [coverage(comparison, level=level).mean() for level in levels])
    assert shade_heights(left).max() == 0.0
    assert shade_heights(plots.calibration(gaussian(LINE), truth_for(gaussian(LINE))).axes[0]).max() > 0.01
    assert rendered(figure).startswith(b"\x89PNG")


def test_losses_and_the_restored_epoch() -> None:
    (axes,) = plots.training(HISTORY).axes
    assert axes.get_yscale() == "log"
    np.testing.assert_allclose(curve(axes, "training").get_ydata(), HISTORY.train)
    np.testing.assert_allclose(curve(axes, "validation").get_xdata(), range(1, 11))
    assert len(axes.lines) == 2
    (marked,) = plots.training(replace(HISTORY, restored=7)).axes
    np.testing.assert_allclose(curve(marked, "weights of epoch 7").get_xdata(), 7)


def test_short_and_broken_training() -> None:
    (short,) = plots.training(History(train=(1.0,), validation=(), seconds=(1.0,))).axes
    assert len(short.lines) == 1
    broken = plots.training(History(train=(0.0, float("nan"), 1.0), validation=(), seconds=(1.0,) * 3))
    rendered(broken)
    np.testing.assert_array_equal(curve(broken.axes[0], "training").get_ydata(), [0.0, np.nan, 1.0])


def test_band_marks_where_the_truth_leaves_it() -> None:
    bands = bands_for(LINE)
    shift = torch.zeros_like(bands.mean)
    shift[1, 0, [3, 7]] = 2.0 * bands.half_width[1, 0, [3, 7]]
    above, below = plots.band(bands, Field(bands.mean + shift, LINE), index=1, label="u", axes=("x",)).axes
    marked = curve(above, "outside at 2 of 12 points")
    np.testing.assert_allclose(marked.get_xdata(), LINE.points[[3, 7], 0])
    np.testing.assert_allclose(curve(below, "truth").get_ydata(), shift[1, 0])
    inside = plots.band(bands, Field(bands.mean, LINE)).axes[0]
    assert [line.get_label() for line in inside.lines] == ["mean", "truth"]
    assert len(plots.band(bands).axes[0].lines) == 1


@pytest.mark.parametrize("make", MAKERS)
def test_matplotlib_is_left_as_it_was(make: Callable[[], Figure]) -> None:
    before = dict(matplotlib.rcParams)
    figure = make()
    assert isinstance(figure, Figure)
    assert rendered(figure).startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == before


def test_pyplot_is_not_loaded() -> None:
    program = (
        "import sys, torch; from probneural import plots, Grid; from probneural.distributions import EmpiricalField as E\n"
    )
    program += "plots.png(plots.field(E(torch.randn(3, 1, 1, 8), grid=Grid.uniform((8,)))), dpi=30)\n"
    program += "print('matplotlib.pyplot' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "False"


def test_draws_with_gradients_and_in_single_precision() -> None:
    u = gaussian(LINE, dtype=torch.float32)
    live = GaussianField(u.mean.requires_grad_(), u.root, latent="plot", grid=LINE)
    still = gaussian(LINE)
    figures = [[plots.field(field, truth_for(field)), plots.calibration(field, truth_for(field))] for field in (live, still)]
    for drawn, expected in zip(*figures, strict=True):
        assert rendered(drawn).startswith(b"\x89PNG")
        for axes, others in zip(drawn.axes, expected.axes, strict=True):
            assert len(axes.lines) == len(others.lines) > 0
            for line, other in zip(axes.lines, others.lines, strict=True):
                np.testing.assert_allclose(line.get_xydata(), other.get_xydata(), rtol=1e-5, atol=1e-5)


LINE_CASE, PLANE_CASE, SPACE_CASE = gaussian(LINE), gaussian(PLANE), gaussian(SPACE)
HOLED = GaussianField(torch.full((1, 1, 12), torch.nan), DenseRoot(torch.ones(1, 1, 12, 1)), latent="plot", grid=LINE)


def test_bands_in_a_plane_mark_what_lies_outside() -> None:
    bands = bands_for(PLANE)
    truth = truth_for(gaussian(PLANE))
    figure = plots.band(bands, truth, index=1, channel=1)
    error = (truth.values - bands.mean)[1, 1].abs()
    outside = (error > bands.half_width[1, 1]).flatten()
    (axes,) = [axes for axes in figure.axes if axes.lines]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), PLANE.points[outside])
    assert f"outside at {int(outside.sum())} of 54" in axes.get_title()


def test_spread_against_skill_is_that_of_the_scores() -> None:
    predictions, truth = two(PLANE), truth_for(gaussian(PLANE))
    (axes,) = plots.spread_skill(predictions, truth, channel=1, bins=4, noise=0.1).axes
    for name, u in predictions.items():
        result = spread_skill_curve(compare(u, truth, noise=0.1), bins=4)
        np.testing.assert_allclose(curve(axes, name).get_xydata().T, [result.spread[1].tolist(), result.skill[1].tolist()])


def test_bands_are_drawn_between_their_edges() -> None:
    bands = bands_for(LINE)
    truth = Field(bands.upper + torch.tensor([-1e-6, 1e-6]).reshape(1, 2, 1), LINE)
    for channel, outside in ((0, None), (1, LINE.size)):
        above = plots.band(bands, truth, index=1, channel=channel).axes[0]
        edges = np.unique(above.collections[0].get_paths()[0].vertices[:, 1].round(9))
        expected = torch.cat([bands.lower[1, channel], bands.upper[1, channel]]).numpy().round(9)
        assert set(expected) <= set(edges)
        marked = [line for line in above.lines if str(line.get_label()).startswith("outside")]
        assert [len(line.get_xdata()) for line in marked] == ([] if outside is None else [outside])


def evaluated(outputs: Field, *, objectives: int = 1) -> Evaluations:
    """Four evaluations, the second infeasible."""
    first, second = torch.tensor([1.0, 5.0, 2.0, 1.5]).double(), torch.tensor([3.0, 9.0, 1.0, 2.5]).double()
    goals = {"drag": first, "lift": second} if objectives == 2 else {"drag": first}
    constraint = {"load": torch.tensor([-1.0, 1.0, -1.0, 0.0]).double()}
    return Evaluations(torch.rand(4, 2).double(), goals, constraints=constraint, pairs=FieldPairs(outputs, outputs))


@pytest.mark.parametrize("grid", [LINE, PLANE, SCATTERED_PLANE])
def test_an_optimisation_shows_its_best_value_and_output(grid: Grid) -> None:
    outputs = truth_for(gaussian(grid))
    outputs = Field(torch.cat([outputs.values] * 4)[:4].double(), grid)
    figure = plots.optimisation(evaluated(outputs))
    progress, best = figure.axes[:2]
    np.testing.assert_allclose(curve(progress, "best so far").get_ydata(), [1.0, 1.0, 2.0, 2.0])
    crosses = [line for line in progress.lines if line.get_marker() == "x"]
    np.testing.assert_allclose(crosses[0].get_xydata(), [[2.0, 5.0]])
    if grid is LINE:
        np.testing.assert_allclose(best.lines[0].get_ydata(), outputs.values[2, 0])
    assert best.get_title() == "output of evaluation 3, the best"
    with pytest.raises(ArgumentError, match="channel"):
        plots.optimisation(evaluated(outputs), channel=7)


def test_several_objectives_show_their_front() -> None:
    progress, front = plots.optimisation(evaluated(Field(torch.zeros(4, 1, 12).double(), LINE), objectives=2)).axes
    np.testing.assert_allclose(curve(front, "Pareto front").get_xydata(), [[1.0, 3.0], [2.0, 1.0], [1.5, 2.5]])
    volumes = progress.lines[0].get_ydata()  # above the reference point (0.9, 0.8)
    np.testing.assert_allclose(volumes, [0.1 * 2.2, 0.1 * 2.2, 0.1 * 2.2 + 1.0 * 0.2, 0.1 * 2.2 + 0.5 * 1.7 + 0.5 * 0.2])


def test_loops_show_error_quantile_and_stated_error_by_labels() -> None:
    (axes,) = plots.active_learning({"random": loop(0.2, 0.1, 0.09), "chosen": loop(None, 0.08, 0.02)}).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    np.testing.assert_allclose(curve(axes, "random").get_xydata().T, [[16, 32, 64], [0.2, 0.1, 0.09]])
    np.testing.assert_allclose(curve(axes, "chosen").get_xydata().T, [[32, 64], [0.08, 0.02]])
    assert [text.get_text() for text in axes.get_legend().texts] == ["random", "chosen", "stated"]
    dashed = [line.get_ydata() for line in axes.lines if line.get_linestyle() == "--"]
    np.testing.assert_allclose(np.concatenate(dashed), [0.1, 0.05, 0.045, 0.04, 0.01])
    shades = [shade.get_paths()[0].vertices[:, 1].max() for shade in axes.collections]
    np.testing.assert_allclose(shades, [0.4, 0.16])
    assert axes.get_xticks().tolist() == [16, 32, 64]
    (alone,) = plots.active_learning(loop(0.2, 0.1)).axes
    assert [text.get_text() for text in alone.get_legend().texts] == ["error", "stated"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: plots.field(LINE_CASE, index=4), ArgumentError, "an integer from -4 to 3 as index"),
        (lambda: plots.field(LINE_CASE, channel=2), ArgumentError, "an integer from -2 to 1 as channel"),
        (lambda: plots.field(LINE_CASE, axes=()), ArgumentError, "1 axis names"),
        (lambda: plots.field(PLANE_CASE, axes=("x",)), ArgumentError, "2 axis names"),
        (lambda: plots.field(SPACE_CASE), GridError, "dimension 1 or 2"),
        (lambda: plots.field(LINE_CASE, truth_for(PLANE_CASE)), GridError, "truth on the grid"),
        (lambda: plots.field(LINE_CASE, truth_for(LINE_CASE)[:2]), ShapeError, "truth of shape"),
        (lambda: plots.field(LINE_CASE, LINE_CASE.mean), DataError, "a Field as truth"),
        (lambda: plots.field(LINE_CASE.mean), DataError, "a FieldDistribution"),
        (lambda: plots.field(HOLED), DataError, "finite predicted means"),
        (lambda: plots.field(LINE_CASE, Field(torch.full((4, 2, 12), torch.inf), LINE)), DataError, "finite true values"),
        (lambda: plots.band(LINE_CASE), DataError, "a BandField"),
        (lambda: plots.band(bands_for(SPACE), axes=("x", "y", "z")), GridError, "dimension 1 or 2;"),
        (lambda: plots.band(bands_for(LINE), axes=()), ArgumentError, "1 axis names"),
        (lambda: plots.band(bands_for(LINE), truth_for(PLANE_CASE)), GridError, "truth on the grid"),
        (lambda: plots.band(BandField(LINE_CASE.mean, LINE_CASE.mean * torch.nan, grid=LINE)), DataError, "finite half widths"),
        (lambda: plots.calibration(LINE_CASE.mean, truth_for(LINE_CASE)), DataError, "a FieldDistribution"),
        (lambda: plots.calibration(LINE_CASE, truth_for(PLANE_CASE)), GridError, "grid"),
        (lambda: plots.calibration(LINE_CASE, truth_for(LINE_CASE)[:2]), ShapeError, "truth"),
        (lambda: plots.training([1.0, 0.5]), DataError, "a History"),
        (lambda: plots.training(History(train=(), validation=(), seconds=())), DataError, "1 or more epochs"),
        (lambda: plots.png(plots.training(HISTORY), dpi=0.0), ArgumentError, "dpi"),
        (lambda: plots.active_learning(HISTORY), DataError, "a LearningHistory"),
        (lambda: plots.active_learning({}), DataError, "a LearningHistory"),
        (lambda: plots.active_learning({"a": HISTORY}), DataError, "a LearningHistory"),
        (lambda: plots.active_learning({"a": loop(None)}), DataError, "errors in the history 'a'"),
    ],
)
def test_bad_input(call: Callable[[], object], kind: type[ProbneuralError], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
