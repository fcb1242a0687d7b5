"""Input functions that are unlike those given, made of them: to be labelled by a solver."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.calibration.variance.stationary_process import Waves, evaluate_waves
from probneural.contexts import undisturbed
from probneural.errors import CalibrationError
from probneural.fields import Field, check_field
from probneural.grids import check_grid
from probneural.randomness import check_seed, stream

_STRETCH = 0.75
"""By how much deviations from the mean function grow at most."""


@torch.no_grad()
@undisturbed()
def synthetic_shifts(inputs: Field, *, seed: int = 0) -> dict[str, Field]:
    """Functions that are larger, summed, or rougher than those given, to be labelled by a solver and given to `NoveltyScale`.

    With d the deviation of a function from the mean of all,

    - `"stretched"`: d times a factor between 1 and 1.75;
    - `"superposed"`: d plus the deviation of another function;
    - `"roughened"`: the coefficient of each wave of d times (1 + k/2)^a, with k the wave number in half periods and a between
      0 and 1, scaled so that the mean square over all functions stays as it was.

    Factors and powers are uniform, drawn for each function. Channels that are positive everywhere are changed by their
    logarithms and stay positive, so permeabilities remain permeabilities; channels that are constant along every function,
    parameters, are left as they are. Other constraints that inputs may have to obey, zeros on a boundary, integers, or a
    divergence of zero, are not known and may be broken: make shifts of your own then.

    Args:
        inputs: `(n, c, *grid)` on a uniform grid, two functions or more; calibration inputs, for example.
        seed: Of factors, powers and partners.

    Returns:
        Functions by kind, as many as given, on their grid and of their dtype.

    Raises:
        CalibrationError: If there are fewer than 2 functions.
        DataError: If `inputs` is no `Field`.
        GridError: If the grid is not uniform.

    Examples:
        >>> from probneural.grids import Grid
        >>> inputs = Field(torch.tensor([[[1.0, -1.0, 1.0, -1.0]], [[-1.0, 1.0, -1.0, 1.0]]]), Grid.uniform((4,)))
        >>> synthetic_shifts(inputs, seed=0)["superposed"].values.abs().max().item()
        0.0
    """
    check_grid(check_field(inputs, "inputs").grid, uniform=True, remedy="make shifts of your own")
    if len(inputs) < 2:
        raise CalibrationError(expected="2 functions or more", got=str(len(inputs)), remedy="give all calibration inputs")
    seed = check_seed(seed)
    values = inputs.values.detach().to("cpu", torch.float64).flatten(2)
    is_positive = values.amin((0, 2), keepdim=True) > 0
    is_constant = (values.amax(2, keepdim=True) == values.amin(2, keepdim=True)).all(0, keepdim=True)
    level = torch.where(is_positive, values.clamp_min(torch.finfo(torch.float64).tiny).log(), values)
    mean = level.mean(0, keepdim=True)
    deviation, count = level - mean, len(inputs)
    factor, power = (
        torch.rand(count, 1, 1, dtype=torch.float32, generator=stream(seed, "synthetic shifts", kind)).double()
        for kind in (0, 1)
    )
    partner = 1 + int(torch.randint(count - 1, (), generator=stream(seed, "synthetic shifts", 2)))
    changed = {
        "stretched": deviation * (1.0 + _STRETCH * factor),
        "superposed": deviation + deviation.roll(partner, 0),
        "roughened": _roughened(deviation, inputs, power),
    }
    shifts = {}
    for kind, moved in changed.items():
        shifted = torch.where(is_positive, (mean + moved).exp(), mean + moved)
        combined = torch.where(is_constant, values, shifted)
        shifts[kind] = Field(combined.unflatten(-1, inputs.grid.shape).to(inputs.values), inputs.grid)
    return shifts


def _roughened(deviation: Float64[Tensor, "n c p"], inputs: Field, power: Float64[Tensor, "n 1 1"]) -> Float64[Tensor, "n c p"]:
    """Deviations with the coefficients of short waves raised, of equal mean square over all functions."""
    grid = inputs.grid
    waves = Waves(grid)
    coefficients = waves.coefficients(deviation)
    raised = coefficients * (1.0 + waves.frequencies.to(torch.float64).norm(dim=1) / 2.0) ** power
    before, after = (part.square().sum(2, keepdim=True).mean(0, keepdim=True) for part in (coefficients, raised))
    raised = raised * torch.where(after > 0, before / after.clamp_min(torch.finfo(torch.float64).tiny), 1.0).sqrt()
    basis = evaluate_waves(waves.candidates, grid.points, lower=waves.lower, lengths=waves.lengths, periodic=grid.periodic)
    return deviation + (raised - coefficients) @ basis.mT
