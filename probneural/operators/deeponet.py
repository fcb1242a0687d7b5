"""The deep operator network: coefficients from the input times basis functions of position."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import check_instance, check_integer, check_shape
from probneural.contexts import remembered
from probneural.grids import Grid, check_grid
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_samples, check_where
from probneural.operators.layers import ChannelNormalizer
from probneural.operators.layers.branch import GroupedLinear, PointBranch, SensorBranch, check_in_domain
from probneural.operators.layers.mlp import MLP, HiddenLayers, is_plain
from probneural.operators.layers.position import point_embedding, point_features
from probneural.pairs import Dataset
from probneural.registry import stored

_LAYERS = HiddenLayers()


@stored(parts="configuration")
class DeepONet(Operator):
    """u_c(x) = sum over k of w_ck b_ck(a) t_ck(x) + w_c: a branch network b of the input, a trunk network t of the point.

    The branch takes the input at fixed sensors, on any input grid, or without sensors at any points of the domain, which may
    differ between samples: see `SensorBranch` and `PointBranch`. The trunk takes the sine and cosine of a point's phase on
    periodic axes, so the output is periodic, and its coordinate scaled to [-1, 1] on others; it is evaluated once per point
    for all inputs, and the branch once per input for all points. On a CPU without gradients, the trunk's outputs on a uniform
    grid are kept (64 MiB in all) and used again while its weights are equal. The output is not interpolated; its points are
    arbitrary, also in another domain and dimension than the input's.

    Output channels share the hidden layers of both networks; the products b t, and the weights w of the read-out, are
    separate per channel. The initial read-out is the plain sum. The features of a last-layer posterior are the products:
    n x c x K x p numbers for n inputs and p points, as for an `FNO` with projection c x K; they are formed only for it.

    Good values: the defaults and those of `pn.fit`. For smooth maps, whose error is small, a tenth of that learning
    rate is better; fronts need more `frequencies`, which the training outputs' grid must resolve. It does not
    commute with translations, so for translation-invariant problems it needs more data than an `FNO`.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        sensors: Sensor grid of the branch; inputs are on uniform grids of the sensors' domain that cover the sensors,
            or at the sensors. None: at the inputs' own points, which lie in the domain.
        domain: A uniform grid of any size on the domain of the outputs, of which only origin, lengths and periodicity count;
            by default the sensors.
        basis: K, the number of products per output channel.
        layers: Hidden layers of branch and trunk.
        frequencies: Harmonics of a periodic axis that the trunk is shown.
        seed: Seed of the initial weights; by default torch's global generator is used.

    Raises:
        ArgumentError: If a size is not a positive integer.
        GridError: If the sensors are another object, or the domain is not a uniform grid.

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
        sensors: Grid | None,
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
        if sensors is not None:
            check_grid(sensors, "sensors")
        remedy = "scattered sensors do not say where the domain ends: give domain=, a uniform grid of any size on it"
        domain = check_grid(domain, "domain", uniform=True, remedy=remedy)
        self.sensors, self.domain = sensors, domain
        self.basis, self.layers, self.frequencies = basis, layers, frequencies
        with initial_weights(seed):
            self.branch: SensorBranch | PointBranch
            if sensors is None:
                self.branch = PointBranch(
                    in_channels, domain=domain, harmonics=frequencies, groups=out_channels, basis=basis, layers=layers
                )
            else:
                self.branch = SensorBranch(in_channels, sensors=sensors, groups=out_channels, basis=basis, layers=layers)
            self.in_channels, self.out_channels = self.branch.in_channels, out_channels
            self.trunk = MLP(point_features(domain, harmonics=frequencies), out_channels * basis, layers=layers)
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
        check_in_domain(target, self.domain, name="a query")
        check_samples(target, values)
        branch = self.branch(values, where)
        if target.has_points_per_sample:
            return self._at_points(branch, target.points)
        functions = self._on_grid(target, branch).mT.unflatten(0, (-1, self.basis)).unflatten(-1, target.shape)
        return self.readout.contract(branch, functions[None], units=self.output_normalizer)

    def _on_grid(self, grid: Grid, like: Tensor) -> Float[Tensor, "p ck"]:
        """The trunk's outputs on a grid; on a CPU without gradients, those of the same weights are not computed again."""
        if not grid.is_uniform:
            return self.trunk(point_embedding(grid.points, self.domain, harmonics=self.frequencies).to(like))
        where = (grid, self.domain, self.frequencies, like.dtype, like.device)
        if like.device.type == "cpu" and _is_fixed(self.trunk):
            return _outputs_on_grid(where, self.trunk.activation, _Weights(self.trunk))[0]
        return self.trunk(_embedding_of_grid(*where).detach())

    def evaluate_at(
        self, values: Float[Tensor, "n c *grid"], points: Float[Tensor, "n p d"], *, grid: Grid | None = None
    ) -> Float[Tensor, "n c2 p"]:
        """Evaluate each output sample at separate points; gradients reach the points.

        Args:
            values: Input samples, in physical units.
            points: p points per sample in the domain of the outputs, in its units.
            grid: Grid of the inputs; by default on the sensors' domain, or at scattered sensors.

        Returns:
            `(n, c2, p)`, in physical units.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`, or there are not p points for each.
            DataError: If the values are of another dtype than the operator, or points are not finite.
            GridError: If the grid does not hold the sensors, or points lie outside the domain of the outputs.
        """
        where = self.branch.locate(values, grid)
        check_instance(points, Tensor, "points", remedy="convert with torch.as_tensor(points)")
        remedy = "give points for each function, or the same to all as query="
        check_shape(points, "points", len(values), "points", self.domain.dimension, remedy=remedy)
        flat = points.flatten(0, 1)
        check_in_domain(Grid.scattered(flat, torch.ones(len(flat))), self.domain, name="a query")
        return self._at_points(self.branch(values, where), points.double())

    def _at_points(self, branch: Float[Tensor, "n c k"], points: Float64[Tensor, "n p d"]) -> Float[Tensor, "n c p"]:
        """Evaluate each sample at its points."""
        position = point_embedding(points, self.domain, harmonics=self.frequencies).to(branch)
        trunk = self.trunk(position.flatten(0, 1)).unflatten(0, points.shape[:2]).mT
        return self.readout.contract(branch, trunk.unflatten(1, (-1, self.basis)), units=self.output_normalizer)

    def reset_parameters(self) -> None:
        """Reinitialise branch and trunk and reset the read-out to the plain sum; normalisers keep their units."""
        self.branch.reset_parameters()
        self.trunk.reset_parameters()
        self.readout.reset_parameters()

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take means and scales from training data."""
        self.branch.normalizer.fit(*(data.inputs for data in train))
        self.output_normalizer.fit(*(data.outputs for data in train))


@remembered(2**26)
def _embedding_of_grid(
    grid: Grid, domain: Grid, frequencies: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "p e"]:
    return point_embedding(grid.points, domain, harmonics=frequencies).to(device, dtype)


class _Weights:
    """The weights of a network as a key, compared by value, since not every change in place has a version."""

    def __init__(self, network: MLP) -> None:
        self.network = [network]
        self.tensors = [weight.detach() for weight in network.parameters()]
        self.hash = hash(tuple(self.tensors[-1].flatten()[:8].tolist()))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Weights) and all(map(torch.equal, self.tensors, other.tensors))


@remembered(2**26)
def _outputs_on_grid(where: tuple[Any, ...], activation: str, weights: _Weights) -> tuple[Tensor, ...]:
    """The outputs of a network, and copies of its weights, to which the key refers from now on."""
    weights.tensors = [weight.clone() for weight in weights.tensors]
    return weights.network.pop()(_embedding_of_grid(*where)), *weights.tensors


def _is_fixed(network: MLP) -> bool:
    """Whether only its weights and inputs determine the outputs of a network, and nothing records their computation."""
    is_known = type(network) is MLP and all(type(layer) is nn.Linear for layer in network.layers)
    is_disturbed = torch.is_autocast_enabled("cpu") or torch._C._len_torch_dispatch_stack() > 0
    return is_known and not is_disturbed and is_plain(network, *network.layers)
