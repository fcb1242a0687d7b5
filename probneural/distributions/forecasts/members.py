"""Members of a roll-out: initial states, operators, and one step of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.checks import check_callable, check_choice, check_count, check_finite, check_instance, check_integer
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.errors import ArgumentError, DataError, DataWarning, ForecastError, GridError, ShapeError, warn
from probneural.fields import Field, check_field
from probneural.grids import Grid
from probneural.randomness import check_seed, stream_seed
from probneural.settings import Count, Settings

if TYPE_CHECKING:
    import probneural.distributions.predictors.base  # which imports this module

_LARGEST = 1e30
"""Absolute value of a state above which a roll-out is unstable."""
StepPredictor: TypeAlias = "probneural.distributions.predictors.base.Predictor"
"""Predictor of the next state."""
Forcing = Callable[[int], Field | Tensor]
"""Map from a lead to the time-dependent channels, `(n, k, *grid)` or `(k, *grid)`, that accompany the state at that lead."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StepInputs(Settings):
    """Inputs of a step other than the last state: earlier states, and other channels.

    Args:
        history: Number of states in an input; by default that of the training windows, or 1 if they are unknown.
        parameters: Channels that are constant in time, `(n, k, *grid)`, or None.
        forcing: A function of the lead, from 0 to the last lead but one, that returns the channels that vary in time, as they
            are beside the state at that lead; or None.

    Raises:
        ArgumentError: If the history is not a positive integer, or the forcing is not callable.
        DataError: If parameters are not a field, or not finite.
    """

    history: Count | None = None
    parameters: Field | None = None
    forcing: Annotated[Forcing, partial(check_callable, remedy="give a function of the lead")] | None = None

    def __post_init__(self) -> None:
        """Check the parts."""
        super().__post_init__()
        if self.parameters is not None:
            check_finite(check_field(self.parameters, "parameters").values, "parameters")


@dataclass(frozen=True, eq=False, kw_only=True)
class Members:
    """An ensemble of roll-outs of one predictor.

    The input of a step is `[states, extras]`: the states, the earliest first, then what `start` has beyond them, parameters,
    and forcing.

    Args:
        predictor: Predictor of one step.
        start: States at lead 0 and constant channels, `(n, history * c + ..., *grid)`.
        count: Number s of members.
        draws: `"trajectory"` or `"step"`.
        initial: Distribution of the states at lead 0, or None if they are known.
        inputs: Inputs of a step other than the last state, including the history.
        seed: Seed of draws and starts.
        shift: Offset of the operators: member m has the operator of member m + shift.
    """

    predictor: StepPredictor
    start: Field
    count: int
    draws: str
    initial: FieldDistribution | None
    inputs: StepInputs
    seed: int
    shift: int = 0

    @property
    def grid(self) -> Grid:
        """Grid of all states."""
        return self.start.grid

    def shifted(self) -> Members:
        """The same initial states, each with the operators of the next member."""
        return replace(self, shift=self.shift + 1)

    @property
    def channels(self) -> int:
        """Channels c of a state."""
        return self.predictor.out_channels

    @property
    def history(self) -> int:
        """Number of states in an input."""
        assert self.inputs.history is not None
        return self.inputs.history

    @cached_property
    def _constant(self) -> Float[Tensor, "n k *grid"]:
        """Extra channels that do not vary in time."""
        extras = self.start.values[:, self.history * self.channels :]
        parameters = self.inputs.parameters
        return extras if parameters is None else torch.cat([extras, parameters.values.to(extras)], dim=1)

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
        seeds = [stream_seed(self.seed, "roll-out starts", member) for member in range(self.count)]
        return drawn_starts(self.initial, seeds).to(states)

    def step(self, window: Float[Tensor, "s n hc *grid"], lead: int) -> Float[Tensor, "s n c *grid"]:
        """The states at a lead, from those before it.

        Raises:
            ForecastError: If some are not finite; it names the members.
        """
        extras = self.extras(lead - 1)
        inputs = torch.cat([window, extras.expand(self.count, *extras.shape)], dim=2) if extras.shape[1] else window
        try:
            states = self._evaluate(inputs, self.seeds(lead))
        except DataError as error:  # predictors raise for values that are not finite
            blown_up = [member for member in range(self.count) if not self._is_finite(inputs, member, lead)]
            if not blown_up:
                raise
            raise self._blow_up(blown_up, lead) from error
        finite = torch.isfinite(states).flatten(1).all(1)
        if not bool(finite.all()):
            raise self._blow_up(torch.nonzero(~finite).flatten().tolist(), lead)
        if (largest := float(states.abs().max())) > _LARGEST >= float(window.abs().max()):  # warn once
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

    def extras(self, lead: int) -> Float[Tensor, "n k *grid"]:
        """Extra channels at a lead."""
        constant = self._constant
        if self.inputs.forcing is None:
            return constant
        forcing = self.inputs.forcing(lead)
        values = forcing.values if isinstance(forcing, Field) else forcing
        check_instance(values, Tensor, "forcing", remedy="return a tensor (k, *grid) or (n, k, *grid), or a Field")
        count = self.predictor.in_channels - self.history * self.channels - constant.shape[1]
        shape = (len(self.start), count, *self.grid.shape)
        if tuple(values.shape) not in (shape, shape[1:]):
            raise ShapeError(
                expected=f"forcing of shape {shape[1:]} or {shape}",
                got=str(tuple(values.shape)),
                remedy="return the operator's input channels other than states and parameters",
            )
        check_finite(values, f"forcing at lead {lead}")
        return torch.cat([constant, values.to(constant).expand(shape)], dim=1)


def drawn_starts(initial: FieldDistribution, seeds: Sequence[int]) -> Float[Tensor, "s n c *grid"]:
    """One state per member: the samples of an ensemble of as many equal members, or else draws of the seeds."""
    if isinstance(initial, EmpiricalField) and len(initial.weights) == len(seeds) and initial.has_equal_weights:
        return initial.samples.detach()
    return torch.stack([initial.rsample(seed=seed) for seed in seeds])


@undisturbed()
def members_of(
    predictor: StepPredictor,
    start: Field,
    *,
    members: int = 1,
    draws: str = "trajectory",
    initial: FieldDistribution | None = None,
    inputs: StepInputs | None = None,
    seed: int = 0,
) -> Members:
    """Check the start of a roll-out; see [`rollout`][probneural.distributions.Predictor.rollout]."""
    check_field(start, "start")
    check_finite(start.values, "start")
    if not len(start):
        raise DataError(expected="a start of at least one sample", got="none", remedy="roll out from some states")
    check_choice(draws, ("trajectory", "step"), "draws")
    inputs = StepInputs() if inputs is None else check_instance(inputs, StepInputs, "inputs", remedy="StepInputs(history=2)")
    parameters, history = inputs.parameters, _history(predictor, inputs.history)
    states = history * predictor.out_channels
    if parameters is not None:
        _check_alike(parameters, start, "parameters", channels=parameters.channels)
    if initial is not None:
        check_instance(initial, FieldDistribution, "initial", remedy="give a distribution over the states at lead 0")
        _check_alike(Field(initial.mean, initial.grid), start, "initial", channels=states)
    added = 0 if parameters is None else parameters.channels
    extra, extras = predictor.in_channels - states, start.channels - states + added
    if extra < 0 or start.channels < states or (extras > extra if inputs.forcing is not None else extras != extra):
        raise ShapeError(
            expected=f"{predictor.in_channels} input channels: {history} states of {predictor.out_channels}, then extras",
            got=f"a start of {start.channels} and {added} parameters",
            remedy="give the other channels by start, or by inputs=StepInputs(parameters=, forcing=), and set history=",
        )
    return Members(
        predictor=predictor,
        start=start.without_own_masks().detached().to(predictor.dtype).to(predictor.device),
        count=check_integer(members, "members"),
        draws=draws,
        initial=initial,
        inputs=replace(inputs, history=history),
        seed=check_seed(seed),
    )


def step_duration(predictor: StepPredictor) -> float | None:
    """Time that one step of a predictor takes, in the units of its training data; None if it is unknown."""
    record = predictor.trained_on
    if record is None or record.step is None or record.lead < 1:
        return None
    return float(record.lead * record.step)


def _history(predictor: StepPredictor, history: int | None) -> int:
    """Number of states in an input: that of the training windows, if recorded, else the argument, or 1."""
    record = predictor.trained_on
    if record is None or (record.step is None and record.history == 1):  # pairs without times have no history
        return history or 1
    if record.history > 1 and record.lead > 1:
        raise ArgumentError(
            expected="a predictor of neighbouring states, lead=1, to roll out with a history",
            got=f"training windows of history={record.history} and lead={record.lead}",
            remedy="thin out the times of the training trajectories instead, and train on windows(history=..., lead=1)",
        )
    if history not in (None, record.history):
        raise ArgumentError(
            expected=f"history={record.history}, as in training windows", got=f"history={history}", remedy="leave history= out"
        )
    return int(record.history)


def _check_alike(field: Field, start: Field, name: str, *, channels: int) -> None:
    """Raise an error unless a field has the start's grid and number of samples, and a number of channels."""
    if field.grid.shared != start.grid.shared:
        raise GridError(expected=f"{name} on the grid of the start, {start.grid!r}", got=repr(field.grid), remedy="resample it")
    check_count(len(field), len(start), f"samples of {name}", remedy="one for each function of the start")
    check_count(field.channels, channels, f"channels of {name}", remedy="choose those that the operator takes")
