"""The deep operator network on principal components of the training outputs."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_finite, check_integer, check_least
from probneural.grids import Grid, check_grid, check_unmasked, resample
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_where
from probneural.operators.layers import ChannelNormalizer
from probneural.operators.layers.branch import GroupedLinear, SensorBranch
from probneural.operators.layers.mlp import HiddenLayers
from probneural.pairs import Dataset, FieldSource, evenly_spread_rows
from probneural.registry import stored

_LAYERS = HiddenLayers()
_MOST_NUMBERS = 2**24
"""Maximum number of output values for mean and modes (128 MiB in float64), at least four samples per mode."""


@stored(parts="configuration")
class PODDeepONet(Operator):
    """u_c(x) = w_c0 m_c(x) + sum over k of w_ck b_ck(a) p_ck(x) + w_c: learned coefficients of modes p that data gave.

    m_c is the mean of the training outputs in channel c and p_c1, p_c2, ... are their principal components about it (proper
    orthogonal decomposition), orthogonal in L2 by quadrature, each scaled by the standard deviation of its coefficient, so the
    branch network b learns numbers of unit variance. Mean and modes are computed once, by `fit_normalizers`, which `pn.fit`
    calls with the training part of its data, and saved with the operator; before that both, and so the output, are zero.

    The output is evaluated elsewhere by interpolating the modes, which is exact on periodic axes if the training outputs are
    resolved on `out_grid`. The read-out, of the weights w, begins as the plain sum; mean and products are its features, a
    channel's own only, so a posterior of the last layer covers them: n x c x (K + 1) x p numbers for n inputs and p points.

    Good values: the defaults and those of `pn.fit`. For smooth maps, whose error is small, a tenth of that learning
    rate is better; `basis` has little effect once the omitted modes are below the target error. The output is in the
    span of the modes: components outside, such as a front at a new position, are lost.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        sensors: Sensor grid of the branch; inputs are on uniform grids of the sensors' domain that cover the sensors,
            or at the sensors.
        out_grid: Grid of mean and modes, usually that of the training outputs. A scattered one supports no
            outputs from other points, and give none there.
        basis: K, the number of modes per output channel, below the number of training pairs.
        layers: Hidden layers of the branch.
        seed: Seed of the initial weights; by default torch's global generator is used.

    Attributes:
        mean_function: m, `(out_channels, out_grid.size)`, in units of the output normaliser.
        modes: p, `(out_channels, basis, out_grid.size)`, in the same units.

    Raises:
        ArgumentError: If a size is not a positive integer, or there are more modes than points.
        GridError: If `sensors` or `out_grid` is not a grid.

    Reference:
        Lu et al. (2022), A comprehensive and fair comparison of two neural operators (POD-DeepONet). Deviations: quadrature
        weights, modes scaled by their standard deviation, weights w, a basis from training outputs only.

    Examples:
        >>> operator = PODDeepONet(1, 1, sensors=Grid.uniform(16), out_grid=Grid.uniform(8), basis=4)
        >>> operator(torch.zeros(3, 1, 32)).shape
        torch.Size([3, 1, 32])
    """

    mean_function: Tensor
    modes: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        sensors: Grid,
        out_grid: Grid,
        basis: int = 32,
        layers: HiddenLayers = _LAYERS,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        out_channels, remedy = check_integer(out_channels, "out_channels"), "lower basis, or give a finer out_grid"
        basis = check_integer(basis, "basis", most=check_grid(out_grid, "out_grid").size, remedy=remedy)
        with initial_weights(seed):
            self.branch = SensorBranch(in_channels, sensors=sensors, groups=out_channels, basis=basis, layers=layers)
            self.in_channels, self.out_channels = self.branch.in_channels, out_channels
            self.sensors, self.out_grid = sensors, out_grid
            self.basis, self.layers = basis, layers
            self.register_buffer("mean_function", torch.zeros(out_channels, out_grid.size))
            self.register_buffer("modes", torch.zeros(out_channels, basis, out_grid.size))
            self.readout = GroupedLinear(out_channels, basis + 1)
        self.output_normalizer = ChannelNormalizer(out_channels)

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class. By default the inputs are on the sensors' domain, or at scattered sensors.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid does not hold the sensors, or the query is not in the domain of `out_grid`.
        """
        check_where(grid, query)
        where = self.branch.locate(values, grid)
        target = where if query is None else check_grid(query, "query")
        coefficients = self.branch(values, where)
        coefficients = torch.cat([torch.ones_like(coefficients[..., :1]), coefficients], dim=-1)
        functions = torch.cat([self.mean_function[:, None], self.modes], dim=1).unflatten(-1, self.out_grid.shape)
        functions = resample(functions, self.out_grid, target)
        return self.readout.contract(coefficients, functions[None], units=self.output_normalizer)

    def reset_parameters(self) -> None:
        """Reinitialise the branch and reset the read-out to the plain sum; units, mean and modes are unchanged."""
        self.branch.reset_parameters()
        self.readout.reset_parameters()

    @property
    def has_units(self) -> bool:
        """Whether a normaliser, the mean or the modes have been fitted."""
        return super().has_units or bool((self.mean_function != 0).any() or (self.modes != 0).any())

    @torch.no_grad()
    def _snapshots(self, source: FieldSource, *, of: int) -> Float64[Tensor, "n c p"]:
        """Functions on `out_grid`, evenly spread over a source that holds a part of `of` samples."""
        most = max(4 * self.basis, _MOST_NUMBERS // (self.out_channels * max(source.grid.size, self.out_grid.size)))
        chosen = source[evenly_spread_rows(len(source), max(1, most * len(source) // of))]
        check_finite(chosen.values, "training outputs")
        if chosen.grid != self.out_grid:  # a mask that all samples have is one of the modes' grid, too
            check_unmasked(chosen.grid, "modes of a grid without that mask")
        return resample(chosen.values.to(torch.float64), chosen.grid, self.out_grid).flatten(2)

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take units from all training data, mean function and modes from as much as fits into memory.

        Modes need their snapshots at once: of more than 2^24 output values (1,024 samples of 128 x 128 points, or four per
        mode if those are more), samples evenly spread over the data are read.

        Raises:
            DataError: If there are not more pairs than modes, or they are not finite.
            ShapeError: If they have other channels.
            GridError: If the outputs are scattered and not on `out_grid`, or on another domain.
        """
        count = sum(map(len, train))
        check_least(count, self.basis + 1, "training pairs", remedy="give more pairs than modes, or lower basis")
        outputs = torch.cat([self._snapshots(data.outputs, of=count) for data in train])
        self.output_normalizer.fit(*(data.outputs for data in train))
        self.branch.normalizer.fit(*(data.inputs for data in train))
        shift, scale = self.output_normalizer.mean.to(outputs), self.output_normalizer.scale.to(outputs)
        units = (outputs - shift[:, None]) / scale[:, None]
        mean = units.mean(0)
        rows = (units - mean).movedim(0, 1)
        mean_weights = self.out_grid.mean_weights.to(rows)
        u = torch.linalg.svd(rows * mean_weights.sqrt(), full_matrices=False)[0][..., : self.basis]
        # Projections on the left vectors, unlike the right ones over sqrt(mean_weights), exist where a weight is zero.
        modes = u.mT @ rows / len(outputs) ** 0.5
        largest = modes.gather(-1, modes.abs().argmax(-1, keepdim=True))
        self.mean_function.copy_(mean)
        self.modes.copy_(modes * torch.where(largest < 0, -1.0, 1.0))  # a sign is arbitrary, so it is fixed
