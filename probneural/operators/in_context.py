"""An operator that learns in context: a set transformer over example pairs and a query, on retained Fourier modes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.distributions import LowRankMultivariateNormal

from probneural.checks import check_callable, check_flag, check_instance, check_integer
from probneural.errors import GridError, ResolutionError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators.attention import AttentionBlock, normalised
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_input, check_modes, check_where
from probneural.operators.layers import ChannelNormalizer
from probneural.operators.layers.mlp import MLP, HiddenLayers
from probneural.pairs import Dataset, FieldPairs, evenly_spread_rows
from probneural.randomness import check_seed, stream_seed
from probneural.registry import stored

_HEADS = 4
_ORDERS = 4
"""Frequencies of the position of a pair in an ordered context."""
_MOST_LOG = 8.0
"""Bound of logarithms of standard deviations, in units of the training outputs."""
_FITTED_ROWS = 4096
"""Maximum number of tasks from which units are taken."""


@stored(parts="configuration")
class InContextOperator(Operator):
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
        self.frequencies = _frequencies(self.modes)
        count = len(self.frequencies)
        numbers = 2 * (self.in_channels + self.out_channels)
        products = numbers * (numbers + 1) // 2
        inputs = 2 * self.in_channels
        self.input_normalizer = ChannelNormalizer(self.in_channels * 2 * count)
        self.output_normalizer = ChannelNormalizer(self.out_channels * 2 * count)
        layers = HiddenLayers(width=2 * self.width, depth=1)
        with initial_weights(seed):
            self.mode = nn.Embedding(count, self.width)
            self.pair = MLP(numbers + products + 2 * _ORDERS * self.ordered + self.width, self.width, layers=layers)
            self.summary = MLP(products + numbers + 1 + self.width, self.width, layers=layers)
            self.query = MLP(inputs + inputs * (inputs + 1) // 2 + self.width, self.width, layers=layers)
            self.across_pairs, self.across_modes = (
                nn.ModuleList(AttentionBlock(self.width, heads=_HEADS) for _ in range(self.depth)) for _ in range(2)
            )
            # of mean and columns of the root: a matrix and an offset; of the diagonal: logarithms
            self.readout = nn.Linear(self.width, 2 * self.out_channels * ((1 + self.rank) * (inputs + 1) + 1))

    def forward(self, values, *, grid=None, query=None):
        check_where(grid, query)
        dtype = self.readout.weight.dtype
        each = self.in_channels + self.out_channels
        pairs, rest = divmod(values.shape[1] - 1 - self.in_channels, each)
        if rest or pairs < 0: raise ShapeError(expected="", got="", remedy="")
        check_input(values, channels=values.shape[1], dimension=len(self.modes), dtype=dtype)
        grid = Grid.uniform(tuple(values.shape[2:])) if grid is None else grid
        coefficients = self.coefficients(values[:, :-1], grid)
        f, context, u = coefficients.split([self.in_channels, pairs * self.in_channels, pairs * self.out_channels], 1)
        mean, columns, std = self.gaussian(
            f[:, None],
            context.unflatten(1, (pairs, self.in_channels)),
            u.unflatten(1, (pairs, self.out_channels)),
            values[:, -1].flatten(1)[:, 0].round().long(),
        )
        parts = torch.cat([mean, std.log(), columns.flatten(-3, -2)], -2)[:, 0]
        return self.evaluate(parts, grid if query is None else query, domain=grid)

    def evaluate(self, coefficients, query, *, domain):
        basis = self.basis(query, domain).to(coefficients)
        return (coefficients @ basis).unflatten(-1, query.shape)

    def coefficients(self, values, grid):
        basis = self.basis(grid, grid).to(values)
        return values.flatten(2) @ basis.mT / grid.size

    def basis(self, query, domain):
        origin = torch.tensor([axis.origin for axis in domain.axes], dtype=torch.float64)
        lengths = torch.tensor([axis.length for axis in domain.axes], dtype=torch.float64)
        phases = 2.0 * math.pi * (self.frequencies @ ((query.points - origin) / lengths).mT)
        scale = torch.where((self.frequencies == 0).all(1), 1.0, math.sqrt(2.0))[:, None, None]
        return (scale * torch.stack([phases.cos(), phases.sin()], 1)).flatten(0, 1)

    def gaussian(self, query, inputs, outputs, counts):
        """query (b q c F), inputs (b n c F), outputs (b n c2 F), counts (b)."""
        f = self._units(query, self.input_normalizer)  # (b, q, k, 2c)
        known = torch.cat([self._units(inputs, self.input_normalizer), self._units(outputs, self.output_normalizer)], -1)
        batch, pairs, modes, _ = known.shape
        queries = f.shape[1]
        mask = torch.arange(pairs, device=known.device) < counts[:, None]
        mode = self.mode.weight
        quadratic = _products(known) 
        features = torch.cat([known, quadratic], -1) * mask[..., None, None].to(known)
        number = counts.to(known)[:, None, None]
        stats = torch.cat([features.sum(1) / (1.0 + number), number.add(1.0).log().expand(-1, modes, 1)], -1)
        if self.ordered:
            place = torch.arange(pairs, device=known.device)[:, None] * (math.pi / 2.0 ** torch.arange(_ORDERS))
            place = torch.cat([place.cos(), place.sin()], -1).to(known)
            features = torch.cat([features, place[None, :, None].expand(batch, -1, modes, -1)], -1)
        def embed(net, x):
            x = torch.cat([x, mode.expand(*x.shape[:-1], -1)], -1)
            return net(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        summary = embed(self.summary, stats)[:, None]
        states = torch.cat([summary, embed(self.pair, features), summary + embed(self.query, torch.cat([f, _products(f)], -1))], 1)
        weights = torch.cat([mask.new_ones(batch, 1), mask], 1).to(known).log()
        weights = weights[:, None].expand(-1, modes, -1).reshape(-1, 1, 1, pairs + 1)
        total = states.shape[1]
        for across_pairs, across_modes in zip(self.across_pairs, self.across_modes, strict=True):
            states = states.transpose(1, 2).flatten(0, 1)
            states = across_pairs(states, states[:, : pairs + 1], weights).unflatten(0, (batch, modes)).transpose(1, 2)
            states = states.flatten(0, 1)
            states = across_modes(states, states).unflatten(0, (batch, total))
        out = self.readout(normalised(states[:, pairs + 1 :]))  # (b q k .)
        log_std, maps = out.split([2 * self.out_channels, out.shape[-1] - 2 * self.out_channels], -1)
        maps = maps.unflatten(-1, (1 + self.rank, 2 * self.out_channels, -1))
        # mean and columns: A f + b
        parts = (maps[..., :-1] @ f[..., None, :, None])[..., 0] + maps[..., -1]  # (b q k 1+r 2c)
        parts = parts.unflatten(-1, (self.out_channels, 2)).permute(0, 1, 3, 4, 2, 5).flatten(-2)  # (b q 1+r c F)
        log_std = _MOST_LOG * (log_std / _MOST_LOG).tanh()
        std = log_std.exp().unflatten(-1, (self.out_channels, 2)).permute(0, 1, 3, 2, 4).flatten(-2)
        scale = self.output_normalizer.scale.unflatten(0, (self.out_channels, -1))
        mean = parts[:, :, 0] * scale + self.output_normalizer.mean.unflatten(0, (self.out_channels, -1))
        return mean, parts[:, :, 1:] * scale, std * scale

    def _units(self, coefficients, normalizer):
        """(b n c F) -> (b n k 2c)"""
        values = normalizer(coefficients.flatten(2).flatten(0, 1)).unflatten(0, coefficients.shape[:2])
        return values.unflatten(-1, (coefficients.shape[2], -1, 2)).transpose(2, 3).flatten(-2)

    def negative_log_density(self, predicted, target, grid):
        scale = self.output_normalizer.scale.unflatten(0, (self.out_channels, -1))
        parts = self.coefficients(predicted, grid).unflatten(1, (2 + self.rank, self.out_channels))
        target = self.coefficients(target, grid)
        keep = torch.arange(scale.shape[-1]) != 1
        def units(x): return x[..., keep].flatten(-2)
        normal = LowRankMultivariateNormal(
            units(parts[:, 0] / scale), units(parts[:, 2:] / scale[:, None].transpose(0, 1)).mT,
            units(parts[:, 1] - scale.log()).mul(2).exp(), validate_args=False)
        value = units(target / scale)
        return (units(scale.log()).mean() - normal.log_prob(value) / value.shape[-1]).mean()

    def fit_normalizers(self, *train):
        rows = [data[evenly_spread_rows(len(data), _FITTED_ROWS)] for data in train]
        where = Grid.scattered([[0.0]], [1.0])
        for normalizer, fields in (
            (self.input_normalizer, [Field(p.inputs.values[:, : self.in_channels], p.inputs.grid) for p in rows]),
            (self.output_normalizer, [p.outputs for p in rows])):
            normalizer.fit(*(Field(self.coefficients(x.values.double(), x.grid).flatten(1)[..., None], where) for x in fields))


def _products(x):
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1])
    return x[..., i] * x[..., j]


def _frequencies(modes):
    every = itertools.product(*(range(-m + 1, m) for m in modes))
    zero = (0,) * len(modes)
    return torch.tensor([k for k in every if k >= zero], dtype=torch.float64)


def context_tasks(family, *, tasks, pairs, resolution, seed=0):
    rows, each = [], pairs + 1
    turn = (torch.arange(each)[:, None] + torch.arange(each)) % each  # row q: the query q, then its context
    used = torch.arange(pairs) < torch.arange(each)[:, None]
    inputs, outputs, groups = [], [], []
    for number in range(-(-tasks // each)):
        sample = family(stream_seed(seed, "in-context operator", number)).sample(each, resolution=resolution, seed=stream_seed(seed, "in-context pairs", number))
        f, u = sample.inputs.values, sample.outputs.values
        grid = sample.inputs.grid
        shape = (1,) * (f.ndim - 2)
        mask = used.reshape(each, pairs, 1, *shape).to(f)
        count = torch.arange(each).to(f).reshape(-1, 1, *shape).expand(-1, 1, *f.shape[2:])
        context = [(part[turn[:, 1:]] * mask).flatten(1, 2) for part in (f, u)]
        inputs.append(torch.cat([f[turn[:, 0]], *context, count], 1))
        outputs.append(u[turn[:, 0]])
    groups = torch.arange(len(inputs)).repeat_interleave(each)[:tasks]
    return FieldPairs(Field(torch.cat(inputs)[:tasks], grid), Field(torch.cat(outputs)[:tasks], grid), groups=groups)
