"""The deep operator network: coefficients of the input times basis functions of the point."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_instance, check_integer
from probneural.contexts import outside_of_export, remembered, unrounded
from probneural.errors import GridError, ShapeError
from probneural.grids import Grid, check_grid
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_where
from probneural.operators.layers import ChannelNormalizer
from probneural.operators.layers.branch import GroupedLinear, SensorBranch
from probneural.operators.layers.mlp import MLP, HiddenLayers
from probneural.operators.layers.position import REMEMBERED_POINTS
from probneural.pairs import Dataset
from probneural.registry import stored

_LAYERS = HiddenLayers()


@stored(parts="configuration")
class DeepONet(Operator):
    """u_c(x) = sum over k of w_ck b_ck(a) t_ck(x) + w_c: a branch network b of the input, a trunk network t of the point.

    The branch sees the input at fixed sensors, on any input grid. The trunk sees a point by the sine and cosine of its
    phase on periodic axes, so the output closes up there, and by its coordinate scaled to [-1, 1] on others; it is evaluated
    once per point for all inputs, and the branch once per input for all points. Nothing is interpolated in the output, whose
    points may be any, in another domain and dimension than the input's.

    Output channels share the hidden layers of both networks; the products b t, and the weights w of the read-out, are a
    channel's own. It begins as the plain sum. A posterior of the last layer sees the products: n x c x K x p numbers for n
    inputs and p points, as many as an `FNO` has whose projection is c x K channels wide. They are formed for it alone.

    Good values: the defaults and those of `pn.fit`. For smooth maps, whose error is small, a tenth of that learning
    rate goes further; fronts take more `frequencies`, which the training outputs' grid must resolve. It does not
    commute with translations, so where the problem does it takes more data than an `FNO`.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        sensors: Where the branch sees the inputs, which therefore live on uniform grids of the sensors' domain that cover them,
            or at the sensors.
        domain: A uniform grid of any size on the domain of the outputs, of which only origin, lengths and periodicity count;
            by default the sensors.
        basis: K, the number of products per output channel.
        layers: Hidden layers of branch and trunk.
        frequencies: Harmonics of a periodic axis that the trunk is shown.
        seed: Names the initial weights; by default they come from torch's global generator.

    Raises:
        ArgumentError: If a size is not a positive integer.
        GridError: If the sensors are no grid, or the domain is no uniform one.

    Reference:
        Lu et al. (2021), Learning nonlinear operators via DeepONet based on the universal approximation theorem of operators;
        periodic embedding: Lu et al. (2022), A comprehensive and fair comparison of two neural operators. Deviations: weights
        w, inputs on any grid, no activation after the trunk's last layer.

    Examples:
        >>> operator = DeepONet(1, 2, sensors=Grid.uniform(16), domain=Grid.uniform((8, 8)), basis=4)
        >>> operator(torch.zeros(3, 1, 32), query=Grid.uniform((5, 5))).shape
        torch.Size([3, 2, 5, 5])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        sensors: Grid,
        domain: Grid | None = None,
        basis: int = 64,
        layers: HiddenLayers = _LAYERS,
        frequencies: int = 4,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        out_channels, basis = check_integer(out_channels, "out_channels"), check_integer(basis, "basis")
        domain = sensors if domain is None else domain
        frequencies = check_integer(frequencies, "frequencies")
        with initial_weights(seed):
            self.branch = SensorBranch(in_channels, sensors=sensors, groups=out_channels, basis=basis, layers=layers)
            self.in_channels, self.out_channels = self.branch.in_channels, out_channels
            if not isinstance(domain, Grid) or not domain.is_uniform:
                raise GridError(
                    expected="a uniform grid as domain",
                    got=repr(domain),
                    remedy="scattered sensors do not say where the domain ends: give domain=, a uniform grid of any size on it",
                )
            self.sensors, self.domain = sensors, domain
            self.basis, self.layers, self.frequencies = basis, layers, frequencies
            coordinates = sum(2 * frequencies if flag else 1 for flag in self.domain.periodic)
            self.trunk = MLP(coordinates, out_channels * basis, layers=layers)
            self.readout = GroupedLinear(out_channels, basis)
        self.output_normalizer = ChannelNormalizer(out_channels)

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class. By default the inputs are on the sensors' domain, or at scattered sensors.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid does not hold the sensors, or the query is not in the domain of the outputs.
        """
        check_where(grid, query)
        where = self.branch.locate(values, grid)
        target = where if query is None else check_grid(query, "query")
        _check_query(target, self.domain)
        branch = self.branch(values, where)
        if target.is_uniform and target.size <= REMEMBERED_POINTS:
            position = _embedding_of_grid(target, self.domain, self.frequencies, branch.dtype, branch.device).detach()
        else:
            position = _embedding(target.points, self.domain, self.frequencies).to(branch)
        functions = self.trunk(position).mT.unflatten(0, (-1, self.basis)).unflatten(-1, target.shape)
        return self.readout.contract(branch, functions, units=self.output_normalizer)

    def evaluate_at(
        self, values: Float[Tensor, "n c *grid"], points: Float[Tensor, "n p d"], *, grid: Grid | None = None
    ) -> Float[Tensor, "n c2 p"]:
        """Evaluate each output sample at separate points; gradients reach the points.

        Args:
            values: Input samples, in physical units.
            points: p points per sample in the domain of the outputs, in its units.
            grid: Where the inputs live; by default on the sensors' domain, or at scattered sensors.

        Returns:
            `(n, c2, p)`, in physical units.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`, or there are not p points for each.
            DataError: If the values are of another dtype than the operator, or points are not finite.
            GridError: If the grid does not hold the sensors, or points lie outside the domain of the outputs.
        """
        where = self.branch.locate(values, grid)
        check_instance(points, Tensor, "points", remedy="convert with torch.as_tensor(points)")
        if points.ndim != 3 or len(points) != len(values) or 0 in points.shape:
            raise ShapeError(
                expected=f"points of shape ({len(values)}, points, {self.domain.dimension})",
                got=str(tuple(points.shape)),
                remedy="give points for each function, or the same to all as query=",
            )
        flat = points.flatten(0, 1)
        _check_query(Grid.scattered(flat, torch.ones(len(flat))), self.domain)
        branch = self.branch(values, where)
        position = _embedding(flat.double(), self.domain, self.frequencies).to(branch)
        trunk = self.trunk(position).unflatten(-1, (-1, self.basis)).unflatten(0, points.shape[:2])
        with unrounded(values.device):
            weighted = branch.to(self.readout.weight) * self.readout.weight
            flat_values = torch.einsum("nck,npck->ncp", weighted, trunk.to(weighted))
            return self.output_normalizer.inverse(flat_values + self.readout.bias[:, None])

    def reset_parameters(self) -> None:
        """Draw branch and trunk anew and return the read-out to the plain sum; normalisers keep their units."""
        self.branch.reset_parameters()
        self.trunk.reset_parameters()
        self.readout.reset_parameters()

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take means and scales from training data."""
        self.branch.normalizer.fit(*(data.inputs for data in train))
        self.output_normalizer.fit(*(data.outputs for data in train))


@outside_of_export()
def _check_query(query: Grid, domain: Grid) -> None:
    """Raise a GridError unless a uniform query is on the domain, or scattered points lie in it."""
    fits = query.dimension == domain.dimension
    if fits and query.is_uniform:
        spans = [[(axis.origin, axis.length, axis.periodic) for axis in grid.axes] for grid in (query, domain)]
        fits = spans[0] == spans[1]
    elif fits:
        for axis, along in zip(domain.axes, query.points.unbind(1), strict=True):
            low, high = axis.origin - 1e-9 * axis.length, axis.origin + (1.0 + 1e-9) * axis.length
            fits &= axis.periodic or bool(((along >= low) & (along <= high)).all())
    if not fits:
        raise GridError(
            expected=f"a query in the outputs' domain, that of {domain!r}",
            got=repr(query),
            remedy="give query= there, uniform on all of it or scattered, or build the operator with the outputs' domain=",
        )


def _embedding(points: Float64[Tensor, "p d"], domain: Grid, frequencies: int) -> Float64[Tensor, "p e"]:
    """Coordinates as the trunk sees them: sines and cosines of the phase on periodic axes, else scaled to [-1, 1]."""
    columns = []
    for axis, along in zip(domain.axes, points.unbind(1), strict=True):
        turn = (along - axis.origin) / axis.length
        if axis.periodic:
            harmonics = torch.arange(1, frequencies + 1, dtype=turn.dtype, device=turn.device)
            phases = 2.0 * math.pi * torch.remainder(turn[:, None] * harmonics, 1.0)
            columns.append(torch.stack([phases.sin(), phases.cos()], dim=2).flatten(1))
        else:
            columns.append(2.0 * turn[:, None] - 1.0)
    return torch.cat(columns, dim=1)


@remembered(2**26)
def _embedding_of_grid(
    grid: Grid, domain: Grid, frequencies: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "p e"]:
    return _embedding(grid.points, domain, frequencies).to(device, dtype)
