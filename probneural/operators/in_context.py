"""An operator that learns in context: a set transformer over example pairs and a query, on retained Fourier modes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.distributions import LowRankMultivariateNormal

from probneural.checks import check_callable, check_count, check_flag, check_instance, check_integer
from probneural.errors import ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.grids.grid import check_same_grid
from probneural.operators.attention import AttentionBlock, normalised
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_input, check_modes, check_resolution, check_where, grid_of_values
from probneural.operators.layers import ChannelNormalizer
from probneural.operators.layers.mlp import MLP, HiddenLayers
from probneural.pairs import Dataset, FieldPairs, evenly_spread_rows
from probneural.randomness import check_seed, stream_seed
from probneural.registry import stored

_HEADS = 4
"""Number of attention heads, a divisor of the width."""
_ORDERS = 4
"""Number of frequencies in the encoding of a pair's position in an ordered context."""
_LARGEST_LOG = 8.0
"""Bound of logarithms of standard deviations of the diagonal, in units of the training outputs."""
_FITTED_ROWS = 4096
"""Maximum number of tasks from which units are taken."""


@stored(parts="configuration")
class InContextOperator(Operator):
    """A set transformer that predicts an operator's output from example pairs (f_i, u_i), i = 1 ... n, and a query f.

    Functions are represented by their Fourier coefficients with |k| < m, in units of each coefficient. Mode k has one state
    for each pair, one for the query, and one for sums over the pairs: of coefficients and of their products, such as
    |f_ik|^2 and conj(f_ik) u_ik, the sufficient statistics of a linear operator that commutes with translations. In each of
    `depth` layers, the states of a mode read those of the pairs and of the sums, then the modes of a pair read each other. No
    encoding of a pair's position: the prediction is invariant to the order of the pairs. The predictive distribution of the
    output's coefficients u_k is Gaussian,

        mean_k = A_k f_k + a_k,    covariance = V V^T + diag(s^2),    V_kj = B_kj f_k + b_kj,    j = 1 ... rank,

    where A, a, B, b and log s are linear in the query's last states. It includes the noise of the training outputs.

    Train on `context_tasks` with the loss `negative_log_density`; `pn.heads.InContext` then predicts from a context.

    Args:
        in_channels: Channels c of the inputs f.
        out_channels: Channels c' of the outputs u.
        modes: m for each axis of a periodic grid.
        width: Channels of the states, a multiple of 4.
        depth: Number of layers.
        rank: Number of columns of V.
        ordered: Whether the position of a pair is encoded, so that predictions depend on the order of the context.
        seed: Seed of the initial weights; by default torch's global generator is used.

    Raises:
        ArgumentError: If a size is not a positive integer, or the width is no multiple of 4.

    Reference:
        Lee et al. (2019), Set transformer; Yang et al. (2023), In-context operator learning with data prompts for differential
        equation problems. Deviations: states of Fourier modes, sums of products, Gaussian outputs.

    Examples:
        >>> operator = InContextOperator(1, 1, modes=(4,), seed=0).eval()
        >>> operator(torch.zeros(2, 1 + 3 * 2 + 1, 16)).shape  # a query, 3 pairs and the size of the context
        torch.Size([2, 4, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        modes: Sequence[int],
        width: int = 32,
        depth: int = 2,
        rank: int = 2,
        ordered: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.modes, self.ordered = check_modes(modes), check_flag(ordered, "ordered")
        self.width, self.depth = check_integer(width, "width"), check_integer(depth, "depth")
        self.rank = check_integer(rank, "rank")
        # one of k and -k, k = 0 first
        every = itertools.product(*(range(1 - mode, mode) for mode in self.modes))
        self._frequencies = torch.tensor([k for k in every if k >= (0,) * len(self.modes)], dtype=torch.float64, device="cpu")
        count, inputs, numbers = len(self._frequencies), 2 * self.in_channels, 2 * (self.in_channels + self.out_channels)
        self.input_normalizer = ChannelNormalizer(inputs * count)
        self.output_normalizer = ChannelNormalizer(2 * self.out_channels * count)
        layers = HiddenLayers(width=2 * self.width, depth=1)
        with initial_weights(seed):
            self.mode = nn.Embedding(count, self.width)
            self.pair = MLP(_size(numbers) + 2 * _ORDERS * self.ordered + self.width, self.width, layers=layers)
            self.sums = MLP(_size(numbers) + 1 + self.width, self.width, layers=layers)
            self.query = MLP(_size(inputs) + self.width, self.width, layers=layers)
            self.across_pairs, self.across_modes = (
                nn.ModuleList(AttentionBlock(self.width, heads=_HEADS) for _ in range(self.depth)) for _ in range(2)
            )
            # log s, then (A, a) and columns (B_j, b_j)
            self.readout = nn.Linear(self.width, 2 * self.out_channels * (1 + (1 + self.rank) * (inputs + 1)))

    def forward(
        self, values: Float[Tensor, "n channels *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n parameters *query"]:
        """Evaluate the parameters of the predictive distribution of n tasks.

        Args:
            values: `(n, c + N (c + c') + 1, *grid)`, in physical units: the query, the inputs of N pairs, their outputs, and
                the number of pairs that count, a constant channel.
            grid: Their grid, uniform and periodic; by default on the unit domain.
            query: Grid of the outputs, any points of the domain.

        Returns:
            `(n, (2 + rank) c', *query)`: functions with the coefficients mean, log s, and the columns of V; means and columns
            in physical units. In training, those of each layer, `(n, depth (2 + rank) c', *query)`.

        Raises:
            ShapeError: If the channels are no task.
            DataError: If the values are of another dtype than the operator.
            GridError: If the grid is not uniform and periodic.
            ResolutionError: If an axis has fewer than 2m - 1 points.
        """
        check_where(grid, query)
        check_instance(values, Tensor, "values", remedy="give tasks of pn.operators.context_tasks: tasks.inputs.values")
        check_input(values, channels=values.shape[1], dimension=len(self.modes), dtype=self.readout.weight.dtype)
        pairs, rest = divmod(values.shape[1] - 1 - self.in_channels, self.in_channels + self.out_channels)
        if rest or pairs < 0:
            raise ShapeError(
                expected=f"{self.in_channels} + {self.in_channels + self.out_channels} N + 1 channels of a task with N pairs",
                got=str(tuple(values.shape)),
                remedy="make tasks with pn.operators.context_tasks; for a context of your own use pn.heads.InContext",
            )
        grid = grid_of_values(values, grid, periodic=(True,) * len(self.modes))
        sizes = [self.in_channels, pairs * self.in_channels, pairs * self.out_channels]
        f, inputs, outputs = self.coefficients(values[:, :-1], grid).split(sizes, 1)
        inputs, outputs = (
            part.unflatten(1, (pairs, channels))
            for part, channels in ((inputs, self.in_channels), (outputs, self.out_channels))
        )
        counts = values[:, -1].flatten(1)[:, 0].round().long()
        layers = [
            torch.cat([mean, deviation.log(), columns.flatten(2, 3)], 2)[:, 0]
            for mean, columns, deviation in self._by_layer(f[:, None], inputs, outputs, counts)
        ]
        parameters = torch.cat(layers if self.training else layers[-1:], 1)
        where = grid if query is None else query
        return (parameters @ self.basis(where, domain=grid).to(parameters)).unflatten(-1, where.shape)

    def negative_log_density(
        self, predicted: Float[Tensor, "n parameters *grid"], target: Float[Tensor, "n c2 *grid"], grid: Grid
    ) -> Float[Tensor, ""]:
        """Mean negative log density of the targets' coefficients, a loss of `pn.fit`, in nats per coefficient.

        In training it is averaged over layers, so that predictions may leave out the later ones.

        Args:
            predicted: Outputs of `forward`.
            target: Observed outputs, in physical units.
            grid: Grid of both, uniform and periodic, with at least 2m - 1 points per axis.
        """
        predicted, target = self.coefficients(predicted, grid), self.coefficients(target, grid)
        scale = self.output_normalizer.scale.unflatten(0, (self.out_channels, -1))
        values = _kept(target / scale)
        mean, log_deviation, columns = predicted.unflatten(1, (-1, 2 + self.rank, self.out_channels)).tensor_split([1, 2], 2)
        normal = LowRankMultivariateNormal(
            _kept(mean[:, :, 0] / scale),
            _kept(columns / scale).mT,
            _kept(log_deviation[:, :, 0] - scale.log()).mul(2.0).exp(),
            validate_args=False,
        )
        return _kept(scale.log()).mean() - normal.log_prob(values[:, None]).mean() / values.shape[-1]

    @torch.no_grad()
    def fit_normalizers(self, *train: Dataset) -> None:
        """Take mean and scale of each coefficient from queries and their outputs."""
        tasks = [data[evenly_spread_rows(len(data), _FITTED_ROWS)] for data in train]
        point = Grid.scattered([[0.0]], [1.0])
        for normalizer, sides in (
            (self.input_normalizer, [(task.inputs.values[:, : self.in_channels], task.inputs.grid) for task in tasks]),
            (self.output_normalizer, [(task.outputs.values, task.outputs.grid) for task in tasks]),
        ):
            parts = [self.coefficients(values.to(torch.float64), grid).flatten(1) for values, grid in sides]
            normalizer.fit(*(Field(part[..., None], point) for part in parts))

    def coefficients(self, values: Float[Tensor, "n c *grid"], grid: Grid | None = None) -> Float[Tensor, "n c F"]:
        """Coefficients of 1, 0, and of sqrt(2) cos(2 pi k x) and sqrt(2) sin(2 pi k x) for each k, in the values' units.

        Raises:
            GridError: If the grid is not uniform and periodic.
            ResolutionError: If an axis has fewer than 2m - 1 points.
        """
        grid = grid_of_values(values, grid, periodic=(True,) * len(self.modes))
        check_resolution(grid.shape, self.modes)
        return values.flatten(2) @ self.basis(grid, domain=grid).to(values).mT / grid.size

    def basis(self, query: Grid, *, domain: Grid) -> Float64[Tensor, "F p"]:
        """The functions of `coefficients` at the points of a grid, as rows."""
        origin, lengths = (
            torch.tensor([getattr(axis, name) for axis in domain.axes], dtype=torch.float64, device="cpu")
            for name in ("origin", "length")
        )
        phases = 2.0 * math.pi * self._frequencies @ ((query.points - origin) / lengths).mT
        norms = self._frequencies.any(1).to(torch.float64).add(1.0).sqrt()[:, None, None]
        return (norms * torch.stack([phases.cos(), phases.sin()], 1)).flatten(0, 1)

    def predictive(
        self,
        queries: Float[Tensor, "q c F"],
        *,
        inputs: Float[Tensor, "n c F"],
        outputs: Float[Tensor, "n c2 F"],
        tolerance: float = 0.0,
    ) -> tuple[Float[Tensor, "q c2 F"], Float[Tensor, "q c2 F k"]]:
        """Predict from one context.

        A query exits at the first layer whose mean differs from that of the layer before by less than `tolerance` times the
        predicted standard deviation, in the L2 norm.

        Args:
            queries: Coefficients of q inputs, in physical units.
            inputs: Coefficients of the inputs of n pairs.
            outputs: Coefficients of their outputs.
            tolerance: Relative tolerance of an early exit, dimensionless; 0 for all layers.

        Returns:
            Means, and roots (V, diag(s)) of the covariances, in physical units.
        """
        counts = torch.tensor([len(inputs)], device=queries.device)
        is_done = torch.zeros(len(queries), dtype=torch.bool, device=queries.device)
        for layer, parts in enumerate(self._by_layer(queries[None], inputs[None], outputs[None], counts)):
            new_mean, columns, deviation = (part[0] for part in parts)
            diagonal = deviation.flatten(1).diag_embed().unflatten(1, deviation.shape[1:])
            new_root = torch.cat([columns.movedim(1, -1), diagonal], -1)
            if not layer:
                mean, root = new_mean, new_root
                continue
            # |m_l - m_(l - 1)|^2 < tolerance^2 tr C_l
            is_last = (new_mean - mean).square().sum((1, 2)) < tolerance**2 * new_root.square().sum((1, 2, 3))
            mean = torch.where(is_done[:, None, None], mean, new_mean)
            root = torch.where(is_done[:, None, None, None], root, new_root)
            is_done = is_done | is_last
            if tolerance and bool(is_done.all()):
                break
        return mean, root

    def _by_layer(
        self, queries: Tensor, inputs: Tensor, outputs: Tensor, counts: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Predict q queries in each of b contexts, of which the first `counts` pairs count, after each layer.

        Args:
            queries: Coefficients, `(b, q, c, F)`.
            inputs: Coefficients of the pairs' inputs, `(b, n, c, F)`.
            outputs: Coefficients of their outputs, `(b, n, c', F)`.
            counts: Size of each context, `(b,)`.

        Yields:
            Means `(b, q, c', F)`, columns of V `(b, q, rank, c', F)`, and deviations s `(b, q, c', F)`.
        """
        f = _dimensionless(queries, self.input_normalizer)
        pairs = torch.cat([_dimensionless(inputs, self.input_normalizer), _dimensionless(outputs, self.output_normalizer)], -1)
        batch, count, modes, _ = pairs.shape
        is_used = torch.arange(count, device=f.device) < counts[:, None]
        features = _with_products(pairs) * is_used[..., None, None]
        number = counts.to(f)[:, None, None]
        sums = torch.cat([features.sum(1) / (1.0 + number), number.log1p().expand(-1, modes, -1)], -1)
        if self.ordered:
            phases = torch.arange(count, device=f.device)[:, None] * math.pi / 2.0 ** torch.arange(_ORDERS, device=f.device)
            position = torch.cat([phases.cos(), phases.sin()], -1).to(f)[:, None]
            features = torch.cat([features, position.expand(batch, -1, modes, -1)], -1)
        state_of_sums = self._embedded(self.sums, sums)[:, None]
        state_of_queries = state_of_sums + self._embedded(self.query, _with_products(f))
        states = torch.cat([state_of_sums, self._embedded(self.pair, features), state_of_queries], 1)
        context = slice(0, count + 1)
        log_weights = torch.cat([is_used.new_ones(batch, 1), is_used], 1).to(f).log()
        log_weights = log_weights.repeat_interleave(modes, 0)[:, None, None]
        for across_pairs, across_modes in zip(self.across_pairs, self.across_modes, strict=True):
            rows = states.transpose(1, 2).flatten(0, 1)
            states = across_pairs(rows, rows[:, context], log_weights).unflatten(0, (batch, modes)).transpose(1, 2)
            rows = states.flatten(0, 1)
            states = across_modes(rows, rows).unflatten(0, (batch, -1))
            yield self._moments(states[:, count + 1 :], f)

    def _moments(self, states: Float[Tensor, "b q modes width"], f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means, columns of V and deviations from the states of queries."""
        # per query and mode: log s, and rows (A, a), (B_j, b_j) of maps of (f_k, 1)
        log_deviation, maps = self.readout(normalised(states)).tensor_split([2 * self.out_channels], -1)
        maps = maps.unflatten(-1, (1 + self.rank, 2 * self.out_channels, -1))
        moments = (maps[..., :-1] @ f[..., None, :, None])[..., 0] + maps[..., -1]
        log_deviation = _LARGEST_LOG * (log_deviation / _LARGEST_LOG).tanh()
        parts = torch.cat([moments, log_deviation.exp()[..., None, :]], -2)
        scale = self.output_normalizer.scale.unflatten(0, (self.out_channels, -1))
        # (b, q, modes, parts, 2 c') -> (b, q, parts, c', F)
        parts = scale * parts.unflatten(-1, (self.out_channels, 2)).permute(0, 1, 3, 4, 2, 5).flatten(-2)
        return parts[:, :, 0] + self.output_normalizer.mean.view_as(scale), parts[:, :, 1:-1], parts[:, :, -1]

    def _embedded(self, network: MLP, features: Float[Tensor, "*n k e"]) -> Float[Tensor, "*n k width"]:
        """First states from features and the embedding of the mode."""
        rows = torch.cat([features, self.mode.weight.expand(*features.shape[:-1], -1)], -1)
        result: Tensor = network(rows.flatten(0, -2)).unflatten(0, rows.shape[:-1])
        return result


def _size(numbers: int) -> int:
    """Number of features of `_with_products`."""
    return numbers + numbers * (numbers + 1) // 2


def _with_products(values: Float[Tensor, "*n e"]) -> Float[Tensor, "*n features"]:
    """Values, and the product of any two of them."""
    first, second = torch.triu_indices(values.shape[-1], values.shape[-1], device=values.device)
    return torch.cat([values, values[..., first] * values[..., second]], -1)


def _dimensionless(coefficients: Float[Tensor, "b n c F"], normalizer: ChannelNormalizer) -> Float[Tensor, "b n modes c_2"]:
    """Coefficients in units of the training data, those of a mode together."""
    values = normalizer(coefficients.flatten(2).flatten(0, 1)).view_as(coefficients)
    return values.unflatten(-1, (-1, 2)).transpose(2, 3).flatten(-2)


def _kept(coefficients: Float[Tensor, "*n c F"]) -> Float[Tensor, "*n values"]:
    """Coefficients without that of the sine of frequency 0, which is zero."""
    return torch.cat([coefficients[..., :1], coefficients[..., 2:]], -1).flatten(-2)


def context_tasks(
    family: Callable[[int], Any], *, tasks: int, pairs: int, resolution: int | Sequence[int], seed: int = 0
) -> FieldPairs:
    """Draw training tasks of an `InContextOperator` from a family of operators.

    Of each operator, N + 1 pairs make N + 1 tasks: task n predicts the output of pair n from the n pairs that follow it
    cyclically, n = 0 ... N. A validation split keeps the tasks of an operator together.

    Args:
        family: Map from a seed to a random operator of the family, an object with `sample(n, resolution=, seed=)`;
            `lambda seed: pn.problems.Heat(random_diffusivity(seed), dimension=1)` for example.
        tasks: Number of tasks.
        pairs: N, the largest size of a context.
        resolution: Points per axis.
        seed: Seed of operators and pairs.

    Returns:
        Tasks: inputs are the channels that `InContextOperator.forward` takes, with zeros for pairs that do not count; outputs
        are those of the queries.

    Raises:
        ArgumentError: If a number is out of range, or the family is not callable.
        DataError: If it gives no pairs.
        GridError: If they are not on one grid.

    Examples:
        >>> import probneural as pn
        >>> tasks = context_tasks(lambda seed: pn.problems.Heat(dimension=1), tasks=6, pairs=2, resolution=32)
        >>> tasks.inputs.values.shape, tasks.inputs.values[:, -1, 0].tolist()
        (torch.Size([6, 6, 32]), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    """
    remedy = "give a function of a seed: lambda seed: pn.problems.Heat(...)"
    check_callable(family, "family", remedy=remedy)
    tasks, pairs, seed = check_integer(tasks, "tasks"), check_integer(pairs, "pairs"), check_seed(seed)
    count, operators = pairs + 1, -(-tasks // (pairs + 1))

    def sample(number: int) -> FieldPairs:
        problem, draws = (stream_seed(seed, "operators in context", number, part) for part in range(2))
        draw = check_callable(getattr(family(problem), "sample", None), "family(seed).sample", remedy=remedy)
        result: FieldPairs = draw(count, resolution=resolution, seed=draws)
        return result

    drawn = FieldPairs.cat([sample(number) for number in range(operators)])
    f, u, grid = drawn.inputs.values, drawn.outputs.values, drawn.inputs.grid
    check_same_grid(drawn.outputs.grid, grid, "outputs, as inputs are,", remedy="resample them: outputs.resample(inputs.grid)")
    check_count(len(drawn), operators * count, "pairs of all operators", remedy="return as many pairs as asked for")
    numbers = torch.arange(count, device=f.device)
    rows = (numbers[:, None] + numbers) % count
    is_used = numbers <= numbers[:, None]  # the query, then n pairs
    f_rows, u_rows = (part.unflatten(0, (-1, count))[:, rows].flatten(0, 1) for part in (f, u))
    for part in (f_rows, u_rows):
        part *= is_used.repeat(operators, 1).reshape(-1, count, *(1,) * (part.ndim - 2))
    sizes = numbers.repeat(operators).to(f).reshape(-1, 1, *(1,) * (f.ndim - 2)).expand(-1, 1, *grid.shape)
    inputs = torch.cat([f_rows.flatten(1, 2), u_rows[:, 1:].flatten(1, 2), sizes], 1)
    groups = torch.arange(operators, device="cpu").repeat_interleave(count)
    return FieldPairs(Field(inputs, grid), Field(u, grid), groups=groups)[:tasks]
