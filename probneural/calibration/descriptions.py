"""Descriptions of inputs for novelty: numbers of the input and of the head's prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.calibration.chunks import CHUNK_VALUES
from probneural.calibration.stationary_process import Waves
from probneural.distributions.base import FieldDistribution
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.predictor import Predictor
from probneural.distributions.roots.base import FeatureRoot
from probneural.fields import Field
from probneural.grids import Grid, resample

_POINTS = 4096
"""Points of the grid on which input functions are described, at most."""
_BANDS_PER_OCTAVE = 2.0
"""Bands of wave numbers from four half periods on; below, each wave number is a band."""
_NARROW = 4.0
"""Wave number, in half periods or periods, from which bands are wider than one."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Descriptions:
    """Numbers about n input functions, float64 on the CPU; what was not asked for is None.

    Args:
        values: The functions on the grid of the description, times the roots of the quadrature's weights: their Euclidean
            distances are distances in mean square, `(n, c p)`, in physical units.
        powers: Mean squares in bands of wave numbers, the last of what the grid of the description does not hold, `(n, c, b)`,
            in physical units squared.
        features: Averages and standard deviations over the domain of features before the read-out, `(n, 2f)`, dimensionless.
        variance: The head's own variance, averaged over the domain, `(n, c')`, in physical units squared.
    """

    values: Float64[Tensor, "n d"] | None = None
    powers: Float64[Tensor, "n c b"] | None = None
    features: Float64[Tensor, "n f"] | None = None
    variance: Float64[Tensor, "n c2"] | None = None

    def __getitem__(self, rows: slice | Tensor) -> Descriptions:
        """Select functions."""
        parts = {name: value if value is None else value[rows] for name, value in vars(self).items()}
        return Descriptions(**parts)

    @classmethod
    def cat(cls, parts: Sequence[Descriptions]) -> Descriptions:
        """Put the functions of one or several descriptions one after the other."""
        columns = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
        return cls(**{name: None if values[0] is None else torch.cat(values) for name, values in columns.items()})


class Describer:
    """Describes input functions in one way, whatever the grid they come on.

    Functions are brought to the grid of the description, and predictions are asked for where the calibration outputs live. So
    one function has one description, as far as its grid resolves it.

    Args:
        inputs: Grid of the calibration inputs.
        outputs: Grid of the calibration outputs.
    """

    def __init__(self, inputs: Grid, outputs: Grid) -> None:
        self.grid = described_on(inputs)
        self.outputs = outputs
        self.step = max(1, CHUNK_VALUES // max(inputs.size, outputs.size))
        self._waves = Waves(self.grid)
        self._band = bands_of(self._waves.frequencies, all_periodic=all(inputs.periodic) and inputs.is_uniform)

    @property
    def bands(self) -> int:
        """Number of bands, with the last one."""
        return int(self._band.max()) + 2

    def __call__(self, predictor: Predictor, inputs: Field, *, asks_head: bool = True) -> Descriptions:
        """Describe n functions, some at a time.

        Args:
            predictor: A head's own, before any calibration.
            inputs: `(n, c, *grid)`.
            asks_head: Whether the head is asked for its features and variance.
        """
        starts = range(0, max(1, len(inputs)), self.step)
        parts = [inputs[start : start + self.step] for start in starts]
        described = []
        for part in parts:
            of_head = self._of_head(predictor, part) if asks_head else {}  # which looks at the inputs first
            described.append(Descriptions(**of_head, **self._of_inputs(part)))
        return Descriptions.cat(described)

    def _of_inputs(self, inputs: Field) -> dict[str, Tensor]:
        values, grid = inputs.values.to("cpu", torch.float64), inputs.grid.unmasked  # as the operator sees them
        there = resample(values, grid, self.grid)
        flat = there.flatten(2)
        power = self._waves.powers(flat)
        pooled = torch.zeros(*power.shape[:2], self.bands, dtype=torch.float64)
        pooled = pooled.index_add(2, self._band, power)
        if grid != self.grid and self.grid.is_uniform:
            beyond = _missed(values, grid, there, self.grid)
            if not all(self.grid.periodic):
                # Polynomials miss some of every function up to walls: as much as half of the points miss is ordinary.
                shape = (axis.size if axis.periodic else (axis.size + 1) // 2 for axis in self.grid.axes)
                half = self.grid.resized(tuple(shape))
                beyond = (beyond - _missed(there, self.grid, resample(there, self.grid, half), half)).clamp_min(0.0)
            pooled = torch.cat([pooled[..., :-1], beyond[..., None]], -1)
        return {"values": (flat * self.grid.mean_weights.sqrt()).flatten(1), "powers": pooled}

    def _of_head(self, predictor: Predictor, inputs: Field) -> dict[str, Tensor | None]:
        u = predictor(inputs, None if inputs.grid == self.outputs else self.outputs)
        variance = u.grid.mean(u.variance.to("cpu", torch.float64).flatten(2))
        return {"features": pooled_features(u), "variance": variance}


def _missed(
    values: Float64[Tensor, "n c *grid"], grid: Grid, coarse: Float64[Tensor, "n c *coarse"], coarse_grid: Grid
) -> Float64[Tensor, "n c"]:
    """Mean square of what the interpolant of a coarser grid misses."""
    return grid.mean((values - resample(coarse, coarse_grid, grid)).flatten(2).square())


def pooled_features(u: FieldDistribution) -> Float64[Tensor, "n f"] | None:
    """Averages and standard deviations over the domain of a last layer's features, or None where the head has none."""
    if not isinstance(u, GaussianField) or not isinstance(u.root, FeatureRoot):
        return None
    features = u.root.features.to("cpu", torch.float64).mT
    average = u.grid.mean(features)
    std = u.grid.mean((features - average[..., None]).square()).sqrt()
    return torch.cat([average, std], 1)


def bands_of(frequencies: Int64[Tensor, "k d"], *, all_periodic: bool) -> Int64[Tensor, " k"]:
    """The number of the band that each wave belongs to, without gaps: by its length, in periods where all axes are periodic.

    Examples:
        >>> bands_of(torch.tensor([[0], [1], [2], [3], [4], [5], [6]]), all_periodic=False).tolist()
        [0, 1, 2, 3, 4, 5, 5]
    """
    size = frequencies.to(torch.float64).square().sum(1).sqrt() / (2.0 if all_periodic else 1.0)
    octaves = (size.clamp_min(_NARROW) / _NARROW).log2()
    band = torch.where(size < _NARROW, size.round(), _NARROW + (_BANDS_PER_OCTAVE * octaves + 0.5).floor())
    return band.unique(return_inverse=True)[1]


def described_on(grid: Grid) -> Grid:
    """The grid itself, or a coarser one of its domain where it is large; scattered points stay."""
    if grid.size <= _POINTS or not grid.is_uniform:
        return grid
    factor = (_POINTS / grid.size) ** (1.0 / grid.dimension)
    return grid.resized(tuple(max(3, int(size * factor)) for size in grid.shape))
