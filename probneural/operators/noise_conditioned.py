"""Operators that noise enters, so that they answer with draws."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_instance, check_integer, check_module, check_sequence
from probneural.contexts import copy_for_call
from probneural.errors import ArgumentError, OperatorError, ShapeError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_where, stated_channels
from probneural.operators.layers.mlp import MLP, HiddenLayers
from probneural.operators.noise_field import NoiseField
from probneural.pairs import Dataset, FieldPairs, evenly_spread_rows
from probneural.randomness import check_seed
from probneural.registry import stored

_MOST_PAIRS = 1024
"""Pairs that units are taken from at most, where noise is among the channels."""


@stored(
    parts="parts",
    build="from_parts",
    state=lambda parts: {**parts["operator"].state_dict(), **(parts["weights"] or {})},
)
class NoiseConditionedOperator(Operator):
    """G(u, z): an operator with noise z as a second input, so that each draw of z gives a draw of the output function.

    The noise enters in one of two ways.

    * As extra input channels, the last `noise.channels` ones of an operator that has them in addition. It has to be trained
    from
      scratch.
    * With `layers`, into hidden states (feature-wise linear modulation): the outputs h of these layers become
      (1 + a(z)) h + b(z), with a and b read off a pointwise network of z that all layers share. At the beginning a = b = 0, so
      the operator is the one it was, and a trained deterministic operator is fine-tuned.

    `forward` returns `samples` draws as channels, all channels of one draw after the other, as the losses
    [`CRPS`][probneural.training.losses.CRPS] and [`EnergyScore`][probneural.training.losses.EnergyScore] take them, with noise
    from torch's global generators: `pn.fit(operator, train, loss=CRPS(2))` trains it. `conditioned` evaluates it at given
    noise, and [`NoiseConditioning`][probneural.heads.NoiseConditioning] makes a predictor of it.

    It learns the distribution of the training data: one output per input is enough, but small data sets are overfitted, and
    the spread is then too small. Calibrate it on held-out fields. The CRPS judges points one by one, so draws whose points are
    right may still vary together in a wrong way; where that matters, train by the energy score.

    Args:
        operator: Any module, which is trained in place. It has the attributes `in_channels` and `out_channels`.
        noise: The distribution of z.
        layers: Names of the submodules whose outputs noise modulates; of a `ModuleList`, all of it (`"spectral"` of an `FNO`).
            Each has `out_channels`, its outputs being `(n, channels, *grid)`, or `out_features`, `(n, ..., features)`. With
            modes, their outputs live on the inputs' grid.
        embedding: Hidden layers of the network of z.
        samples: Draws that `forward` returns, two or more.
        seed: Names the initial weights of the network of z; by default they come from torch's global generator.

    Raises:
        ArgumentError: If the operator is no module or lacks these attributes, has no such layers, or a number is out of
            range.

    Reference:
        Lang et al. (2024), AIFS-CRPS: ensemble forecasting using a model trained with a loss function based on the continuous
        ranked probability score; Alet et al. (2025), Skillful joint probabilistic weather forecasting from marginals (one
        vector of noise for a whole field). Perez et al. (2018), FiLM: visual reasoning with a general conditioning layer.
        Deviation: noise is a band-limited field of given coefficients, the same on every grid.

    Examples:
        >>> from probneural.operators.fno import FNO
        >>> fno = FNO(1, 1, modes=(3,), width=4, depth=2, seed=0)
        >>> operator = NoiseConditionedOperator(fno, layers=["spectral"], samples=3, seed=0)
        >>> draws = operator(torch.ones(5, 1, 8))
        >>> draws.shape, bool((draws == fno(torch.ones(5, 1, 8))).all())
        (torch.Size([5, 3, 8]), True)
    """

    def __init__(
        self,
        operator: nn.Module,
        *,
        noise: NoiseField | None = None,
        layers: Sequence[str] | None = None,
        embedding: HiddenLayers | None = None,
        samples: int = 2,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.operator = check_module(operator, "operator")
        remedy = "give NoiseField(channels=4, modes=(8,))"
        self.noise = NoiseField() if noise is None else check_instance(noise, NoiseField, "noise", remedy=remedy)
        self.embedding = HiddenLayers(width=64, depth=2) if embedding is None else embedding
        check_instance(self.embedding, HiddenLayers, "embedding", remedy="give HiddenLayers(width=64)", error=ArgumentError)
        seed = None if seed is None else check_seed(seed)
        self.samples = check_integer(samples, "samples", least=2)
        self.layers = () if layers is None else _named(operator, layers)
        self.channels = stated_channels(operator, "out_channels")
        stated = stated_channels(operator, "in_channels")
        self.in_channels = stated if self.layers else stated - self.noise.channels
        if self.in_channels < 1:
            raise ArgumentError(
                expected=f"an operator of more than {self.noise.channels} input channels, the last of which are noise",
                got=str(stated),
                remedy="build it with in_channels + noise.channels, or name layers=",
            )
        self.out_channels = self.samples * self.channels
        self.modulation: MLP | None = None
        if self.layers:
            with initial_weights(seed):
                self.modulation = MLP(self.noise.channels, 2 * sum(self._widths()), layers=self.embedding)
            nn.init.zeros_(self.modulation.layers[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(self.modulation.layers[-1].bias)  # type: ignore[arg-type]
            example = next(iter(operator.parameters()), None)
            if example is not None:
                self.modulation.to(example.device, example.dtype.to_real())

    @property
    def noise_size(self) -> int:
        """Coefficients of a draw of the noise."""
        return self.noise.size

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n sc *query"]:
        """Draw `samples` outputs of each input, independently; see the base class.

        Returns:
            `(n, samples * c, *query)`, all channels of one draw after the other.
        """
        self._check(values)
        size = (len(values) * self.samples, self.noise_size)
        drawn = torch.randn(size, dtype=values.dtype, device=values.device)
        members = self.conditioned(values.repeat_interleave(self.samples, 0), drawn, grid=grid, query=query)
        return members.unflatten(0, (len(values), self.samples)).flatten(1, 2)

    def conditioned(
        self,
        values: Float[Tensor, "n c *grid"],
        noise: Float[Tensor, "n z"],
        *,
        grid: Grid | None = None,
        query: Grid | None = None,
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate at given noise, a function of the input and of the noise alone.

        Args:
            values: Input functions, in physical units.
            noise: Coefficients of the noise of each, `(n, noise_size)`, standard normal.
            grid: Where the inputs live; by default a uniform grid on the unit domain.
            query: Where to evaluate; by default where the inputs live.

        Raises:
            ShapeError: If values or coefficients are of another shape.
            GridError: If the noise has modes of other axes than the grid.
            OperatorError: If a layer that noise modulates is not called, or its outputs are no hidden states.
        """
        self._check(values)
        check_where(grid, query)
        where = self._default_grid(values) if grid is None else grid
        field = self.noise.evaluate(noise.to(values), where)
        if not self.layers:
            entered = torch.cat([values, field.expand(-1, -1, *values.shape[2:])], dim=1)
            return evaluate(self.operator, Field(entered, where), query)
        modulated, called = self._modulated(field)
        result = evaluate(modulated, Field(values, where), query)
        missing = [name for name in self.layers if name not in called]
        if missing:
            raise OperatorError(
                expected=f"an operator that calls {missing[0]}", got="no call of it", remedy="name layers that are called"
            )
        return result

    def _default_grid(self, values: Tensor) -> Grid:
        """The grid of values that come without one: the one that the operator would take, else that of the noise."""
        periodic = getattr(self.operator, "periodic", None)
        if not isinstance(periodic, (bool, tuple)):
            periodic = True if self.noise.modes is None else self.noise._periodic
        return Grid.uniform(tuple(values.shape[2:]), periodic=periodic)

    def _check(self, values: object) -> None:
        values = check_instance(values, Tensor, "values", remedy="convert with torch.as_tensor(values)")
        if values.ndim < 3 or values.shape[1] != self.in_channels or len(values) == 0:
            raise ShapeError(
                expected=f"values of shape (n, {self.in_channels}, points, ...), of at least one function",
                got=str(tuple(values.shape)),
                remedy="noise is no input of yours: it is drawn, or given to `conditioned`",
            )

    def _widths(self) -> list[int]:
        return [_width(self.operator.get_submodule(name))[0] for name in self.layers]

    def _modulated(self, field: Float[Tensor, "n q *grid"]) -> tuple[nn.Module, set[str]]:
        """A copy of the operator for one call whose layers are modulated, and which of them have been called."""
        assert self.modulation is not None
        rows = field.movedim(1, -1)
        factors = self.modulation(rows.flatten(0, -2)).unflatten(0, rows.shape[:-1]).movedim(-1, 1)
        copied, called = copy_for_call(self.operator), set[str]()
        for name, part in zip(self.layers, factors.split([2 * width for width in self._widths()], dim=1), strict=True):
            hook = functools.partial(_modulate, name=name, factors=part, called=called)
            copied.get_submodule(name).register_forward_hook(hook)
        return copied, called

    def reset_parameters(self) -> None:
        """Draw all weights anew, those of the operator included; noise has no effect at the beginning.

        Raises:
            ArgumentError: If the operator cannot.
        """
        reset = getattr(self.operator, "reset_parameters", None)
        if not callable(reset):
            raise ArgumentError(
                expected="an operator with reset_parameters()", got=type(self.operator).__name__, remedy="build a new one"
            )
        reset()
        if self.modulation is not None:
            self.modulation.reset_parameters()
            nn.init.zeros_(self.modulation.layers[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(self.modulation.layers[-1].bias)  # type: ignore[arg-type]

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take the operator's units from training data; noise has mean 0 and scale 1."""
        if not isinstance(self.operator, Operator):
            return
        if self.layers:
            self.operator.fit_normalizers(*train)
        else:
            self.operator.fit_normalizers(*(self._with_unit_noise(data) for data in train))

    def _with_unit_noise(self, data: Dataset) -> FieldPairs:
        """Pairs with constants of mean 0 and scale 1 in place of noise."""
        pairs = data[evenly_spread_rows(len(data), _MOST_PAIRS)]
        values = pairs.inputs.values.repeat(2, 1, *(1,) * len(pairs.inputs.grid.shape))
        signs = torch.ones_like(values[:, :1]).expand(-1, self.noise.channels, *values.shape[2:]).clone()
        signs[len(pairs) :] = -1.0
        outputs = Field(torch.cat([pairs.outputs.values] * 2), pairs.outputs.grid)
        return FieldPairs(Field(torch.cat([values, signs], dim=1), pairs.inputs.grid), outputs)

    def parts(self) -> dict[str, Any]:
        """Parts for a file."""
        weights = None if self.modulation is None else dict(self.modulation.state_dict())
        return {
            "operator": self.operator,
            "in_channels": stated_channels(self.operator, "in_channels"),
            "out_channels": self.channels,
            "noise": self.noise,
            "layers": self.layers,
            "embedding": self.embedding,
            "samples": self.samples,
            "weights": weights,
        }

    @classmethod
    def from_parts(
        cls,
        operator: nn.Module,
        *,
        in_channels: int,
        out_channels: int,
        noise: NoiseField,
        layers: tuple[str, ...],
        embedding: HiddenLayers,
        samples: int,
        weights: Mapping[str, Float[Tensor, "..."]] | None,
    ) -> NoiseConditionedOperator:
        """Build the operator from the parts in a file.

        Raises:
            ArgumentError: If the weights are not those of its network.
        """
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if getattr(operator, name, None) is None:  # attributes of other libraries' modules are not in the state
                setattr(operator, name, channels)
        built = cls(operator, noise=noise, layers=layers or None, embedding=embedding, samples=samples, seed=0)
        expected = {} if built.modulation is None else built.modulation.state_dict()
        loaded = {} if weights is None else dict(weights)
        if {name: value.shape for name, value in expected.items()} != {name: value.shape for name, value in loaded.items()}:
            raise ArgumentError(
                expected="the weights of the network of the noise", got=f"{sorted(loaded)}", remedy="save the operator again"
            )
        if built.modulation is not None:
            built.modulation.load_state_dict(loaded, assign=True)
            built.modulation.requires_grad_(True)
        return built


def _modulate(
    module: nn.Module, arguments: tuple[Any, ...], output: object, *, name: str, factors: Tensor, called: set[str]
) -> Tensor:
    """(1 + a) h + b, for a layer's output h and its factors `(n, 2 f, *grid)` or `(n, 2 f, 1, ...)`."""
    width, axis = _width(module)
    hidden = output if isinstance(output, Tensor) else torch.empty(0)
    moved = hidden.movedim(axis, 1) if hidden.ndim >= 2 else hidden
    if tuple(moved.shape[:2]) != (factors.shape[0], width):
        raise OperatorError(
            expected=f"an output of {name} with {width} channels of each of {factors.shape[0]} functions",
            got=str(tuple(hidden.shape)),
            remedy="name layers of hidden states of the functions",
        )
    is_constant = factors.shape[2:].numel() == 1
    if not is_constant and factors.shape[2:] != moved.shape[2:]:
        raise OperatorError(
            expected=f"outputs of {name} on the inputs' grid {tuple(factors.shape[2:])}, where the noise lives",
            got=str(tuple(moved.shape[2:])),
            remedy="name other layers, or give noise without modes",
        )
    spread = factors.reshape(*factors.shape[:2], *(1,) * (moved.ndim - 2)) if is_constant else factors
    scale, shift = spread.chunk(2, dim=1)
    called.add(name)
    return (moved + scale * moved + shift).movedim(1, axis)


def _width(module: nn.Module) -> tuple[int, int]:
    """Channels of a layer's outputs, and their axis."""
    for attribute, axis in (("out_channels", 1), ("out_features", -1)):
        width = getattr(module, attribute, None)
        if isinstance(width, int):
            return width, axis
    raise ArgumentError(
        expected="layers with out_channels or out_features", got=type(module).__name__, remedy="name the layers within it"
    )


def _named(operator: nn.Module, layers: object) -> tuple[str, ...]:
    """Names of submodules, lists of them written out, or an ArgumentError."""
    modules, names = dict(operator.named_modules()), list[str]()
    for name in check_sequence(layers, "layers", remedy='give their names: layers=["spectral"]'):
        if not isinstance(name, str) or name not in modules or not name:
            shown = ", ".join(key for key in modules if key)
            raise ArgumentError(expected=f"layers among {shown}", got=repr(name), remedy="see named_modules()")
        module = modules[name]
        inner = [f"{name}.{key}" for key, _ in module.named_children()] if isinstance(module, nn.ModuleList) else [name]
        names += inner
    if not names:
        raise ArgumentError(
            expected="one layer or more", got=repr(layers), remedy="leave layers out for noise among the inputs"
        )
    for name in names:
        _width(modules[name])
    return tuple(dict.fromkeys(names))
