"""Members of a roll-out: initial states, operators, and one step of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.checks import check_callable, check_choice, check_finite, check_instance, check_integer, check_variances
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.errors import ArgumentError, DataError, DataWarning, ForecastError, GridError, ShapeError, warn
from probneural.fields import Field, check_field
from probneural.grids import Grid
from probneural.pairs.provenance import Provenance, TrainingRecord
from probneural.randomness import check_seed, stream_seed

_LARGEST = 1e30
"""Absolute value of a state above which a roll-out has left what any data are."""
Forcing = Callable[[int], Field | Tensor]
"""From a lead to the channels that vary in time, `(n, k, *grid)` or `(k, *grid)`, beside the state at that lead."""


@runtime_checkable
class StepPredictor(Protocol):
    """The part of a predictor that a roll-out depends on; see [`Predictor`][probneural.distributions.Predictor]."""

    @property
    def in_channels(self) -> int:
        """Channels of an input."""

    @property
    def out_channels(self) -> int:
        """Channels c of a state."""

    @property
    def noise(self) -> Float[Tensor, " c"]:
        """Variance of the measurement noise, in physical units squared."""

    @property
    def dtype(self) -> torch.dtype:
        """Real dtype of a step."""

    @property
    def device(self) -> torch.device:
        """Device of a step."""

    @property
    def is_calibrated(self) -> bool:
        """Whether variances or weights were fitted to held-out pairs."""

    @property
    def trained_on(self) -> TrainingRecord | None:
        """Record of the training pairs."""

    @property
    def calibrated_on(self) -> Int64[Tensor, " m"]:
        """Row keys of the calibration pairs."""

    def __call__(self, inputs: Field, /) -> FieldDistribution:
        """Predict fields."""

    def evaluate_draws(self, inputs: Field, *, seeds: Sequence[int], each: bool) -> Float[Tensor, "..."]:
        """Evaluate draws by seed."""

    def _provenance(self) -> Provenance:
        """Provenance of its fields."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Members:
    """An ensemble of roll-outs of one predictor.

    The input of a step is `[states, extras]`: `history` states, the earliest first, then what `start` has beyond them,
    `parameters`, and `forcing`.

    Args:
        predictor: Of one step.
        start: States at lead 0 and what is constant, `(n, history * c + ..., *grid)`.
        count: How many members s.
        draws: `"trajectory"` or `"step"`.
        initial: Distribution of the states at lead 0, or None where they are known.
        noise: Variance of the measurement noise, `(c,)`, in physical units squared.
        parameters: Channels that are constant in time, or None.
        forcing: Channels that vary in time, or None.
        history: States in an input.
        seed: Of draws and starts.
        shift: Each member has the operator of the member so many places after it.
    """

    predictor: StepPredictor
    start: Field
    count: int
    draws: str
    initial: FieldDistribution | None
    noise: Float64[Tensor, " c"]
    parameters: Field | None
    forcing: Forcing | None
    history: int
    seed: int
    shift: int = 0

    @property
    def grid(self) -> Grid:
        """Where all states live."""
        return self.start.grid

    def shifted(self) -> Members:
        """The same initial states, each with the operators of the next member."""
        return replace(self, shift=self.shift + 1)

    @property
    def channels(self) -> int:
        """Channels c of a state."""
        return self.predictor.out_channels

    @cached_property
    def _constant(self) -> Float[Tensor, "n k *grid"]:
        """Extra channels that do not vary in time."""
        extras = self.start.values[:, self.history * self.channels :]
        return extras if self.parameters is None else torch.cat([extras, self.parameters.values.to(extras)], dim=1)

    def seeds(self, lead: int) -> list[int]:
        """The seed of each member's operator at the step to this lead."""
        indices = () if self.draws == "trajectory" else (lead,)
        owners = [(member + self.shift) % self.count for member in range(self.count)]
        return [stream_seed(self.seed, "roll-out draws", owner, *indices) for owner in owners]

    def starts(self) -> Float[Tensor, "s n hc *grid"]:
        """The states at leads 1 - history to 0, as channels."""
        states = self.start.values[:, : self.history * self.channels]
        if self.initial is None:
            return states.expand(self.count, *states.shape)
        initial = self.initial
        if isinstance(initial, EmpiricalField) and len(initial.weights) == self.count and initial.has_equal_weights:
            return initial.samples.detach().to(states)
        seeds = [stream_seed(self.seed, "roll-out starts", member) for member in range(self.count)]
        return torch.stack([initial.rsample(seed=seed) for seed in seeds]).to(states)

    def step(self, window: Float[Tensor, "s n hc *grid"], lead: int) -> Float[Tensor, "s n c *grid"]:
        """The states at a lead, from those before it.

        Raises:
            ForecastError: If some are not finite; it names the members.
        """
        extras = self._extras(lead - 1)
        inputs = torch.cat([window, extras.expand(self.count, *extras.shape)], dim=2) if extras.shape[1] else window
        try:
            states = self._evaluate(inputs, self.seeds(lead))
        except DataError as error:  # predictors refuse what is not finite
            blown_up = [member for member in range(self.count) if not self._is_finite(inputs, member, lead)]
            if not blown_up:
                raise
            raise self._blow_up(blown_up, lead) from error
        finite = torch.isfinite(states).flatten(1).all(1)
        if not bool(finite.all()):
            raise self._blow_up(torch.nonzero(~finite).flatten().tolist(), lead)
        if (largest := float(states.abs().max())) > _LARGEST >= float(window.abs().max()):  # once, where the bound is crossed
            warn(
                f"states of a roll-out reach {largest:.1g} at lead {lead}: the operator is unstable over so many steps",
                DataWarning,
            )
        return states

    def _is_finite(self, inputs: Tensor, member: int, lead: int) -> bool:
        """Whether a member's step, alone, gives finite values."""
        try:
            states = self._evaluate(inputs[member : member + 1], self.seeds(lead)[member : member + 1])
            return bool(torch.isfinite(states).all())
        except DataError:
            return False

    def _evaluate(self, inputs: Float[Tensor, "s n k *grid"], seeds: Sequence[int]) -> Float[Tensor, "s n c *grid"]:
        """The next states, draw i at the i-th inputs."""
        repeated = [seed for seed in seeds for _ in range(inputs.shape[1])]
        drawn = self.predictor.evaluate_draws(Field(inputs.flatten(0, 1), self.grid), seeds=repeated, each=True)
        return drawn.unflatten(0, inputs.shape[:2])

    def _blow_up(self, members: Sequence[int], lead: int) -> ForecastError:
        shown = ", ".join(map(str, members[:5])) + (f" and {len(members) - 5} others" if len(members) > 5 else "")
        return ForecastError(
            expected=f"finite states at lead {lead}",
            got=f"NaN or infinite ones of {len(members)} of {self.count} members: {shown}",
            remedy=(f"earlier leads stand, so take {lead - 1} steps or fewer, or " if lead > 1 else "")
            + "train the operator on several steps",
            lead=lead,
            members=tuple(members),
        )

    def _extras(self, lead: int) -> Float[Tensor, "n k *grid"]:
        """Extra channels beside the state at a lead."""
        constant = self._constant
        if self.forcing is None:
            return constant
        forcing = self.forcing(lead)
        values = forcing.values if isinstance(forcing, Field) else forcing
        check_instance(values, Tensor, "forcing", remedy="return a tensor (k, *grid) or (n, k, *grid), or a Field")
        count = self.predictor.in_channels - self.history * self.channels - constant.shape[1]
        shape = (len(self.start), count, *self.grid.shape)
        if tuple(values.shape) not in (shape, shape[1:]):
            raise ShapeError(
                expected=f"forcing of shape {shape[1:]} or {shape}",
                got=str(tuple(values.shape)),
                remedy="return the channels that the operator takes beside states and parameters",
            )
        check_finite(values, f"forcing at lead {lead}")
        return torch.cat([constant, values.to(constant).expand(shape)], dim=1)


@undisturbed()
def members_of(
    predictor: StepPredictor,
    start: Field,
    *,
    members: int,
    draws: str,
    initial: FieldDistribution | None,
    noise: bool | float | Tensor,
    parameters: Field | None,
    forcing: Forcing | None,
    history: int | None,
    seed: int,
) -> Members:
    """Check what a roll-out starts from; see [`rollout`][probneural.distributions.Predictor.rollout]."""
    check_field(start, "start")
    check_finite(start.values, "start")
    if not len(start):
        raise DataError(expected="a start of at least one function", got="none", remedy="roll out from some states")
    check_choice(draws, ("trajectory", "step"), "draws")
    history = _history(predictor, history)
    states = history * predictor.out_channels
    if parameters is not None:
        check_field(parameters, "parameters")
        check_finite(parameters.values, "parameters")
        _check_alike(parameters, start, "parameters", channels=parameters.channels)
    if forcing is not None:
        check_callable(forcing, "forcing", remedy="give a function of the lead")
    if initial is not None:
        check_instance(initial, FieldDistribution, "initial", remedy="give a distribution over the states at lead 0")
        _check_alike(Field(initial.mean, initial.grid), start, "initial", channels=states)
    extra = predictor.in_channels - states
    extras = start.channels - states + (0 if parameters is None else parameters.channels)
    if extra < 0 or start.channels < states or (extras > extra if forcing is not None else extras != extra):
        raise ShapeError(
            expected=f"{predictor.in_channels} input channels: {history} states of {predictor.out_channels}, then extras",
            got=f"a start of {start.channels} and {0 if parameters is None else parameters.channels} parameters",
            remedy="set history=, and give what the operator takes beside states by start, parameters= or forcing=",
        )
    if isinstance(noise, bool):
        variance = predictor.noise.detach().cpu().to(torch.float64) if noise else torch.zeros(predictor.out_channels)
    else:
        variance = check_variances(noise, "noise")
    if variance.ndim and tuple(variance.shape) != (predictor.out_channels,):
        raise ShapeError(
            expected=f"a noise variance, or one per channel ({predictor.out_channels},)",
            got=str(tuple(variance.shape)),
            remedy="noise=True takes the predictor's",
        )
    converted = start.without_own_masks().detached().to(predictor.dtype).to(predictor.device)
    return Members(
        predictor=predictor,
        start=converted,
        count=check_integer(members, "members"),
        draws=draws,
        initial=initial,
        noise=variance.to("cpu", torch.float64).expand(predictor.out_channels),
        parameters=parameters,
        forcing=forcing,
        history=history,
        seed=check_seed(seed),
    )


def step_duration(predictor: StepPredictor) -> float | None:
    """Time that one step of a predictor takes, in the units of its training data; None if it is unknown."""
    record = predictor.trained_on
    if record is None or record.step is None or record.lead < 1:
        return None
    return float(record.lead * record.step)


def _history(predictor: StepPredictor, history: int | None) -> int:
    """The number of states in an input: that of the training windows, if it is known, else the stated one, or 1."""
    stated = None if history is None else check_integer(history, "history")
    record = predictor.trained_on
    if record is None or (record.step is None and record.history == 1):  # pairs without times say nothing of their history
        return stated or 1
    if record.history > 1 and record.lead > 1:
        raise ArgumentError(
            expected="a predictor of neighbouring states, lead=1, to roll out with a history",
            got=f"training windows of history={record.history} and lead={record.lead}",
            remedy="thin out the times of the training trajectories instead, and train on windows(history=..., lead=1)",
        )
    if stated not in (None, record.history):
        raise ArgumentError(
            expected=f"history={record.history}, as the training windows have",
            got=f"history={stated}",
            remedy="leave history= out",
        )
    return int(record.history)


def _check_alike(field: Field, start: Field, name: str, *, channels: int) -> None:
    """Raise an error unless a field has the start's grid and number of functions, and so many channels."""
    if field.grid.shared != start.grid.shared:
        raise GridError(expected=f"{name} on the grid of the start, {start.grid!r}", got=repr(field.grid), remedy="resample it")
    if (len(field), field.channels) != (len(start), channels):
        raise ShapeError(
            expected=f"{name} of {len(start)} functions and {channels} channels",
            got=f"{len(field)} and {field.channels}",
            remedy="one for each function of the start",
        )
