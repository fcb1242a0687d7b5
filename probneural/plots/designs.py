"""Plots of an optimisation over designs: the best value so far, and the field at the best design."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from probneural.checks import check_instance
from probneural.fields import Field
from probneural.plots import single

if TYPE_CHECKING:
    import probneural.active.loop.evaluations  # its package imports BoTorch


def optimisation(evaluations: probneural.active.loop.evaluations.Evaluations, *, channel: int = 0) -> Figure:
    """Draw the best value of an optimisation so far, and the output at the best design.

    Crosses are infeasible designs. With several objectives: the hypervolume so far, and the Pareto front of the first two.

    Args:
        evaluations: Result of `run` of an [`Optimizer`][probneural.active.Optimizer].
        channel: Index of the output's channel.

    Returns:
        The figure.

    Raises:
        ArgumentError: If the channel does not exist.
        DataError: If `evaluations` are of another type, or no design is feasible.
        GridError: If the output's grid has neither one nor two dimensions.
    """
    from probneural.active.loop.evaluations import Evaluations

    check_instance(evaluations, Evaluations, "evaluations", remedy="plot what optimizer.run returned")
    names, values, feasible = [*evaluations.objectives], [*evaluations.objectives.values()], evaluations.is_feasible
    counts = torch.arange(1, len(evaluations) + 1)
    figure = single.new_figure(single.WIDTH, 3.2)
    progress, best = figure.subplots(1, 2)
    progress.set_xlabel("evaluations")
    if len(names) > 1:
        progress.step(counts, evaluations.hypervolume, where="post", color=single.BLUE)
        progress.set_ylabel("hypervolume")
        _scatter(best, values[0], values[1], is_feasible=feasible)
        front = evaluations.is_optimal
        best.plot(values[0][front], values[1][front], "o", color=single.BLUE, markersize=4, label="Pareto front")
        best.set(xlabel=names[0], ylabel=names[1])
        best.legend(frameon=False, fontsize=8)
        return figure
    row = evaluations.best
    _scatter(progress, counts, values[0], is_feasible=feasible)
    progress.step(counts, evaluations.running_best, where="post", color=single.BLUE, label="best so far")
    progress.set_ylabel(names[0])
    progress.legend(frameon=False, fontsize=8)
    _draw_output(figure, best, evaluations.pairs.outputs[row], channel=channel)
    best.set_title(f"output of evaluation {row + 1}, the best", fontsize=10)
    return figure


def _scatter(axes: Axes, x: Tensor, y: Tensor, *, is_feasible: Bool[Tensor, " n"]) -> None:
    """Dots at feasible evaluations, crosses at infeasible ones."""
    axes.plot(x[is_feasible], y[is_feasible], ".", color=single.SKY, markersize=6)
    axes.plot(x[~is_feasible], y[~is_feasible], "x", color=single.VERMILION, markersize=5)


def _draw_output(figure: Figure, axes: Axes, output: Field, *, channel: int) -> None:
    """One channel of one output: a curve or a map."""
    grid = output.grid.first
    names = single.axis_names(None, grid, label="value")
    channel = single.checked_position(channel, output.channels, name="channel")
    values = output.values[0, channel].detach().cpu().double()[..., : grid.size]
    if grid.dimension == 1:
        order = grid.points[:, 0].argsort(stable=True)
        axes.plot(grid.points[order, 0], values[order], color=single.BLUE)
        axes.set_xlabel(names[0])
        return
    axes.set(xlabel=names[0], ylabel=names[1])
    image = single.draw_map(axes, grid, values=values.numpy(), colours=single.VALUE_MAP, scaling=single.limits([values]))
    figure.colorbar(image, ax=axes)
