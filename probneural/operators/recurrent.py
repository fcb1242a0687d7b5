"""A recurrent operator for signals, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_flag, check_instance, check_integer
from probneural.errors import DataError, ShapeError, UnsupportedError
from probneural.grids import Grid, check_grid, resample
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_input, check_where, grid_of_values
from probneural.operators.layers import ChannelNormalizer, PointwiseLinear, ReadoutLinear, channels_innermost
from probneural.operators.layers.recurrent import BlockState, RecurrentBlock
from probneural.pairs import Dataset
from probneural.registry import stored


@dataclass(frozen=True)
class RecurrentState:
    """State of a `RecurrentOperator` after the steps so far; its size does not grow with their number.

    Args:
        steps: Number of steps seen.
        blocks: One entry per block; their rows are samples.
    """

    steps: int
    blocks: tuple[BlockState, ...]

    def detached(self) -> RecurrentState:
        """Return the state without its graph: gradients of later steps end here."""
        blocks = tuple(
            BlockState(hidden=block.hidden.detach(), cell=block.cell.detach(), sums=block.sums.detach())
            for block in self.blocks
        )
        return replace(self, blocks=blocks)


@stored(parts="configuration")
class RecurrentOperator(Operator):
    """Blocks over time, each a long short-term memory, attention over all states so far, and a network, with layer norms.

    It maps a signal `(n, in_channels, t)` on an axis of time to the output at every time, from inputs up to it. `advance` takes
    any number of samples and returns its state, so that one sample at a time, pieces and the whole signal give the same outputs
    up to rounding. The operator itself keeps no state. It is causal unless `is_bidirectional`.

    A trained operator belongs to the length of its step: samples at another rate are another problem, and the resolution
    in time is fixed. A query between samples gets interpolated hidden states, later ones included.

    Good values: the defaults, with a `horizon` as long as the signals are. Learning rates of 1e-2 with clipped gradients.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        width: Size of a hidden state.
        depth: Number of blocks.
        heads: Number of attention heads; twice their number divides the width.
        horizon: Steps in which the attention's slowest pair turns once, see `StateAttention`.
        is_bidirectional: Whether the output of a signal sees later samples, too: smoothing in place of filtering.
        seed: Names the initial weights; by default they come from torch's global generator.

    Raises:
        ArgumentError: If a size is out of range, or twice the heads do not divide the width.

    Reference:
        Hochreiter & Schmidhuber (1997), Long short-term memory; attention: Katharopoulos et al. (2020), Transformers are RNNs;
        layer norms: Ba, Kiros & Hinton (2016), Layer normalization.

    Examples:
        >>> import torch
        >>> operator = RecurrentOperator(1, 1, width=8, heads=2, seed=0)
        >>> signals = torch.ones(2, 1, 6)
        >>> first, state = operator.advance(signals[..., :4])
        >>> second, state = operator.advance(signals[..., 4:], state)
        >>> torch.allclose(torch.cat([first, second], dim=-1), operator(signals), atol=1e-5), state.steps
        (True, 6)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        width: int = 32,
        depth: int = 1,
        heads: int = 4,
        horizon: int = 200,
        is_bidirectional: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.width, self.depth = check_integer(width, "width"), check_integer(depth, "depth")
        self.heads, self.horizon = check_integer(heads, "heads"), check_integer(horizon, "horizon")
        self.is_bidirectional = check_flag(is_bidirectional, "is_bidirectional")
        self.input_normalizer = ChannelNormalizer(self.in_channels)
        self.output_normalizer = ChannelNormalizer(self.out_channels)
        with initial_weights(seed):
            self.lift = PointwiseLinear(self.in_channels, self.width)
            self.blocks = nn.ModuleList(
                RecurrentBlock(self.width, heads=self.heads, horizon=self.horizon, is_bidirectional=self.is_bidirectional)
                for _ in range(self.depth)
            )
            self.projection = PointwiseLinear(self.width, 2 * self.width)
            self.readout = ReadoutLinear(2 * self.width, self.out_channels)

    def forward(
        self, values: Float[Tensor, "n c t"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate from a fresh memory; see the class.

        Raises:
            ShapeError: If the values are not `(n, in_channels, t)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid does not fit the values.
        """
        check_input(values, channels=self.in_channels, dimension=1, dtype=self.readout.weight.dtype)
        check_where(grid, query)
        flags = (False,) if grid is None else check_grid(grid).periodic
        where = grid_of_values(values, grid, periodic=flags)
        hidden, _ = self._remember(values, None)
        return self._read(hidden if query is None else resample(hidden, where, query))

    def advance(
        self, values: Float[Tensor, "n c t"], state: RecurrentState | None = None
    ) -> tuple[Float[Tensor, "n c2 t"], RecurrentState]:
        """Take steps from where earlier ones ended.

        Args:
            values: t samples of signals, `(n, in_channels, t)`, in physical units.
            state: State that the previous call returned; None at the beginning.

        Returns:
            The output after each step, `(n, out_channels, t)`, and the state.

        Raises:
            UnsupportedError: If the operator is bidirectional.
            ShapeError: If the values do not have that shape, or the state is that of other samples or another operator.
            DataError: If the values are of another dtype than the operator, or the state is none.
        """
        if self.is_bidirectional:
            raise UnsupportedError(
                expected="a causal operator for single steps",
                got="one with is_bidirectional=True, whose outputs need the samples that follow",
                remedy="call it on whole signals, or build it with is_bidirectional=False",
            )
        check_input(values, channels=self.in_channels, dimension=1, dtype=self.readout.weight.dtype)
        hidden, after = self._remember(values, state)
        return self._read(hidden), after

    def _remember(
        self, values: Float[Tensor, "n c t"], state: RecurrentState | None
    ) -> tuple[Float[Tensor, "n width t"], RecurrentState]:
        rows = self.lift(self.input_normalizer(values)).mT
        self._check_state(state, rows)
        steps, after = 0 if state is None else state.steps, []
        for number, block in enumerate(self.blocks):
            rows, block_state = block(rows, state=None if state is None else state.blocks[number], steps=steps)
            after.append(block_state)
        return rows.mT, RecurrentState(steps + rows.shape[1], tuple(after))

    def _read(self, hidden: Float[Tensor, "n width *grid"]) -> Float[Tensor, "n c *grid"]:
        features = nn.functional.gelu(self.projection(channels_innermost(hidden)))
        return self.output_normalizer.inverse(self.readout(features)).contiguous()

    def _check_state(self, state: RecurrentState | None, rows: Float[Tensor, "n t width"]) -> None:
        """Raise an error unless a state belongs to this operator, with the number and dtype of the rows."""
        if state is None:
            return
        check_instance(state, RecurrentState, "state", remedy="pass on what advance returned, or None to begin")
        expected = [(rows.shape[0], self.width)] * self.depth
        if [tuple(block.hidden.shape) for block in state.blocks] != expected:
            raise ShapeError(
                expected=f"a state of {self.depth} blocks with {expected[0]} numbers each",
                got=str([tuple(block.hidden.shape) for block in state.blocks]),
                remedy="pass on the state that this operator returned for the same samples",
            )
        if state.blocks[0].hidden.dtype != rows.dtype:
            raise DataError(
                expected=f"a state of {rows.dtype}",
                got=str(state.blocks[0].hidden.dtype),
                remedy="begin anew after a change of dtype",
            )

    def reset_parameters(self) -> None:
        """Draw all weights anew; normalisers keep their units."""
        for module in (self.lift, *self.blocks, self.projection, self.readout):
            module.reset_parameters()

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take means and scales from training data."""
        self.input_normalizer.fit(*(data.inputs for data in train))
        self.output_normalizer.fit(*(data.outputs for data in train))
