"""A recurrent operator: signals sample by sample, and fields state by state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import assign, check_flag, check_instance, check_integer
from probneural.errors import ArgumentError, DataError, ShapeError, UnsupportedError
from probneural.grids import Grid, check_grid, per_axis, resample
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_input, check_modes, check_where, grid_of_values
from probneural.operators.layers import ChannelNormalizer, PointwiseLinear, ReadoutLinear, SpectralConv, channels_innermost
from probneural.operators.layers.attention import check_heads
from probneural.operators.layers.recurrent import BlockState, RecurrentBlock
from probneural.pairs import Dataset
from probneural.registry import stored


@stored()
@dataclass(frozen=True, kw_only=True)
class SpectralEncoder:
    """How a `RecurrentOperator` sees each state of a field: blocks h -> gelu(Kh + Wh + b) with spectral convolutions K.

    Args:
        modes: Frequencies |k| < m kept per axis; their number sets the dimension, 1 to 3.
        depth: Number of blocks.
        history: States in an input of `forward`, the earliest first.
        parameters: Channels that follow the states in an input: parameters, or a forcing.
        periodic: Whether each axis is periodic; others are continued evenly, see `SpectralConv`.

    Raises:
        ArgumentError: If a size is out of range.
    """

    modes: tuple[int, ...]
    depth: int = 3
    history: int = 2
    parameters: int = 0
    periodic: tuple[bool, ...] | bool = True

    def __post_init__(self) -> None:
        """Validate the arguments."""
        modes = check_modes(self.modes)
        assign(
            self,
            modes=modes,
            depth=check_integer(self.depth, "depth"),
            history=check_integer(self.history, "history"),
            parameters=check_integer(self.parameters, "parameters", least=0),
            periodic=per_axis(self.periodic, len(modes), "periodic", check_flag),
        )

    @property
    def flags(self) -> tuple[bool, ...]:
        """Whether each axis is periodic, one entry per axis."""
        assert isinstance(self.periodic, tuple)  # since the constructor
        return self.periodic


@stored()
@dataclass(frozen=True, kw_only=True)
class RecurrentLayers:
    """The blocks over time of a `RecurrentOperator`.

    Args:
        width: Numbers of a state of the memory.
        depth: Number of blocks.
        heads: Parts of the attention; twice their number divides the width.
        horizon: Steps in which the attention's slowest pair turns once, see `StateAttention`.

    Raises:
        ArgumentError: If a size is not a positive integer, or twice the heads do not divide the width.
    """

    width: int = 32
    depth: int = 1
    heads: int = 4
    horizon: int = 200

    def __post_init__(self) -> None:
        """Validate the arguments."""
        assign(self, **{name: check_integer(getattr(self, name), name) for name in ("width", "depth", "heads", "horizon")})
        check_heads(self.width, self.heads)


@dataclass(frozen=True)
class RecurrentState:
    """State of a `RecurrentOperator` after the steps so far; its size does not grow with their number.

    Args:
        steps: Number of steps seen.
        blocks: One entry per block; their rows are samples, or samples times grid points.
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


_LAYERS = RecurrentLayers()


@stored(parts="configuration")
class RecurrentOperator(Operator):
    """Blocks over time, each a long short-term memory, attention over all states so far, and a network, with layer norms.

    | | signals (no encoder) | fields (with an encoder) |
    |---|---|---|
    | an input | `(n, in_channels, t)` on an axis of time | `(n, history * c + parameters, *grid)`, states earliest first |
    | `forward` | the output at every time, from inputs up to it | the output after the last state |
    | a step | a sample | a state; memory is at each grid point, and the encoder connects points |
    | `advance` | t samples, `(n, in_channels, t)` | t states, `(n, t, c + parameters, *grid)` |

    `advance` takes any number of steps and returns its state, so that one step at a time, pieces and the whole
    sequence give the same outputs up to rounding. The operator itself keeps no state. It is causal unless `is_bidirectional`.

    A trained operator belongs to the length of its step: samples at another rate are another problem, and the resolution
    in time is fixed. A query between samples gets interpolated hidden states, later ones included. Fields may come on any grid
    that resolves the encoder's modes.

    Good values: the defaults, with a `horizon` as long as the sequences are. Learning rates of 1e-2 with clipped gradients.

    Args:
        in_channels: Channels of the inputs; with an encoder, of all its states and parameters together.
        out_channels: Channels of the outputs.
        encoder: How a state of a field is seen; by default inputs are signals.
        layers: The blocks over time.
        is_bidirectional: Whether the output of a signal sees later samples, too: smoothing in place of filtering.
        seed: Names the initial weights; by default they come from torch's global generator.

    Raises:
        ArgumentError: If a size is out of range, or a bidirectional operator has an encoder.

    Reference:
        Hochreiter & Schmidhuber (1997), Long short-term memory; attention: Katharopoulos et al. (2020), Transformers are RNNs;
        layer norms: Ba, Kiros & Hinton (2016), Layer normalization; encoder: Li et al. (2021), Fourier neural operator.

    Examples:
        >>> operator = RecurrentOperator(1, 1, layers=RecurrentLayers(width=8, heads=2), seed=0)
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
        encoder: SpectralEncoder | None = None,
        layers: RecurrentLayers = _LAYERS,
        is_bidirectional: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.layers = check_instance(
            layers, RecurrentLayers, "layers", remedy="give RecurrentLayers(width=32)", error=ArgumentError
        )
        self.is_bidirectional = check_flag(is_bidirectional, "is_bidirectional")
        self.encoder: SpectralEncoder | None = None
        if encoder is not None:
            self.encoder = _checked_encoder(encoder, self.in_channels, is_bidirectional=self.is_bidirectional)
        channels = self.in_channels if encoder is None else self._state_channels + encoder.parameters
        self.input_normalizer = ChannelNormalizer(channels)
        self.output_normalizer = ChannelNormalizer(self.out_channels)
        with initial_weights(seed):
            width = layers.width
            self.lift = PointwiseLinear(channels, width)
            number = 0 if encoder is None else encoder.depth
            options: dict[str, Any] = {} if encoder is None else {"modes": encoder.modes, "periodic": encoder.flags}
            self.spectral = nn.ModuleList(SpectralConv(width, width, **options) for _ in range(number))
            self.pointwise = nn.ModuleList(PointwiseLinear(width, width) for _ in range(number))
            self.blocks = nn.ModuleList(
                RecurrentBlock(width, heads=layers.heads, horizon=layers.horizon, is_bidirectional=self.is_bidirectional)
                for _ in range(layers.depth)
            )
            self.projection = PointwiseLinear(width, 2 * width)
            self.readout = ReadoutLinear(2 * width, self.out_channels)

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate from a fresh memory; see the class.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid does not fit the values or the encoder's periodicity.
            ResolutionError: If an axis has too few points for the encoder's modes.
        """
        check_input(values, channels=self.in_channels, dimension=self._dimension, dtype=self.readout.weight.dtype)
        check_where(grid, query)
        where = self._located(values, grid)
        if self.encoder is None:
            hidden = self._over_samples(values, None)[0]
        else:
            states, parameters = values.split([self._state_channels * self.encoder.history, self.encoder.parameters], dim=1)
            states = states.unflatten(1, (self.encoder.history, -1))
            parameters = parameters[:, None].expand(-1, self.encoder.history, *parameters.shape[1:])
            hidden = self._over_states(torch.cat([states, parameters], dim=2), None, where)[0][:, -1]
        return self._read(hidden if query is None else resample(hidden, where, query))

    def advance(
        self, values: Float[Tensor, "n a *b"], state: RecurrentState | None = None, *, grid: Grid | None = None
    ) -> tuple[Float[Tensor, "n d *e"], RecurrentState]:
        """Take steps from where earlier ones ended.

        Args:
            values: t samples of signals, `(n, in_channels, t)`, or t states of fields with their parameters,
                `(n, t, c + parameters, *grid)`, in physical units.
            state: State that the previous call returned; None at the beginning.
            grid: Where fields live; by default a uniform grid on the unit domain. Signals need none.

        Returns:
            The output after each step, `(n, out_channels, t)` of signals and `(n, t, out_channels, *grid)` of fields, and the
            state.

        Raises:
            UnsupportedError: If the operator is bidirectional.
            ShapeError: If the values do not have that shape, or the state is that of other samples or another operator.
            DataError: If the values are of another dtype than the operator, or the state is none.
            GridError: If the grid does not fit the values or the encoder's periodicity.
        """
        if self.is_bidirectional:
            raise UnsupportedError(
                expected="a causal operator for single steps",
                got="one with is_bidirectional=True, whose outputs need the samples that follow",
                remedy="call it on whole signals, or build it with is_bidirectional=False",
            )
        dtype = self.readout.weight.dtype
        if self.encoder is None:
            check_input(values, channels=self.in_channels, dimension=1, dtype=dtype)
            check_where(grid, None)
            hidden, after = self._over_samples(values, state)
            return self._read(hidden), after
        check_instance(values, Tensor, "values", remedy="convert with torch.as_tensor(values)")
        if values.ndim < 3:
            raise ShapeError(
                expected="states of shape (n, t, c + parameters, *grid)",
                got=str(tuple(values.shape)),
                remedy="time comes second",
            )
        flat = values.flatten(0, 1)
        check_input(flat, channels=self.lift.in_channels, dimension=self._dimension, dtype=dtype)
        check_where(grid, None)
        hidden, after = self._over_states(values, state, self._located(flat, grid))
        return self._read(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2]), after

    @property
    def _dimension(self) -> int:
        return 1 if self.encoder is None else len(self.encoder.modes)

    @property
    def _state_channels(self) -> int:
        """Channels of one state of a field."""
        assert self.encoder is not None
        return (self.in_channels - self.encoder.parameters) // self.encoder.history

    def _located(self, values: Float[Tensor, "n c *grid"], grid: Grid | None) -> Grid:
        """Where values live."""
        flags = (False,) * (values.ndim - 2) if grid is None else check_grid(grid).periodic
        return grid_of_values(values, grid, periodic=flags if self.encoder is None else self.encoder.flags)

    def _over_samples(
        self, values: Float[Tensor, "n c t"], state: RecurrentState | None
    ) -> tuple[Float[Tensor, "n width t"], RecurrentState]:
        rows, after = self._remember(self.lift(self.input_normalizer(values)).mT, state)
        return rows.mT, after

    def _over_states(
        self, values: Float[Tensor, "n t c *grid"], state: RecurrentState | None, where: Grid
    ) -> tuple[Float[Tensor, "n t width *grid"], RecurrentState]:
        """Encode each state, and run the blocks at each point."""
        hidden = self.lift(channels_innermost(self.input_normalizer(values.flatten(0, 1))))
        for spectral, pointwise in zip(self.spectral, self.pointwise, strict=True):
            hidden = nn.functional.gelu(spectral(hidden, endpoint=where.endpoint, pointwise=pointwise))
        rows = hidden.flatten(2).unflatten(0, values.shape[:2]).permute(0, 3, 1, 2)  # (n, points, t, width)
        outputs, after = self._remember(rows.flatten(0, 1), state)
        return outputs.unflatten(0, rows.shape[:2]).permute(0, 2, 3, 1).unflatten(-1, where.shape), after

    def _remember(
        self, rows: Float[Tensor, "m t width"], state: RecurrentState | None
    ) -> tuple[Float[Tensor, "m t width"], RecurrentState]:
        self._check_state(state, rows)
        steps, after = 0 if state is None else state.steps, []
        for number, block in enumerate(self.blocks):
            rows, block_state = block(rows, state=None if state is None else state.blocks[number], steps=steps)
            after.append(block_state)
        return rows, RecurrentState(steps + rows.shape[1], tuple(after))

    def _read(self, hidden: Float[Tensor, "n width *grid"]) -> Float[Tensor, "n c *grid"]:
        features = nn.functional.gelu(self.projection(channels_innermost(hidden)))
        return self.output_normalizer.inverse(self.readout(features)).contiguous()

    def _check_state(self, state: RecurrentState | None, rows: Float[Tensor, "m t width"]) -> None:
        """Raise an error unless a state belongs to this operator, with the number and dtype of the rows."""
        if state is None:
            return
        check_instance(state, RecurrentState, "state", remedy="pass on what advance returned, or None to begin")
        expected = [(rows.shape[0], self.layers.width)] * self.layers.depth
        if [tuple(block.hidden.shape) for block in state.blocks] != expected:
            raise ShapeError(
                expected=f"a state of {self.layers.depth} blocks with {expected[0]} numbers each",
                got=str([tuple(block.hidden.shape) for block in state.blocks]),
                remedy="pass on the state that this operator returned for the same functions on the same grid",
            )
        if state.blocks[0].hidden.dtype != rows.dtype:
            raise DataError(
                expected=f"a state of {rows.dtype}",
                got=str(state.blocks[0].hidden.dtype),
                remedy="begin anew after a change of dtype",
            )

    def reset_parameters(self) -> None:
        """Draw all weights anew; normalisers keep their units."""
        for module in (self.lift, *self.spectral, *self.pointwise, *self.blocks, self.projection, self.readout):
            module.reset_parameters()

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take means and scales from training data; all states of a history have one unit."""
        inputs = [data.inputs for data in train]
        if self.encoder is None:
            self.input_normalizer.fit(*inputs)
        else:
            self.input_normalizer.fit(*inputs, alike=self._states(self.encoder))
        self.output_normalizer.fit(*(data.outputs for data in train))

    def _states(self, encoder: SpectralEncoder) -> list[list[int]]:
        """Channels of each state of a history, and those of the parameters after them."""
        channels, number = self._state_channels, encoder.history * self._state_channels
        parameters = range(number, self.in_channels)
        return [[*range(first, first + channels), *parameters] for first in range(0, number, channels)]


def _checked_encoder(encoder: object, in_channels: int, *, is_bidirectional: bool) -> SpectralEncoder:
    """Return an encoder for inputs of `in_channels` channels."""
    checked = check_instance(
        encoder, SpectralEncoder, "encoder", remedy="give SpectralEncoder(modes=(16,), history=2)", error=ArgumentError
    )
    if is_bidirectional:
        raise ArgumentError(
            expected="a causal operator for fields",
            got="is_bidirectional=True with an encoder",
            remedy="leave one of the two out: of a history of fields only the last output is returned",
        )
    if in_channels <= checked.parameters or (in_channels - checked.parameters) % checked.history:
        raise ArgumentError(
            expected=f"in_channels = {checked.history} * c + {checked.parameters}, from history and parameters of the encoder",
            got=str(in_channels),
            remedy="count the channels of all states of a history, and of the parameters once",
        )
    return checked
