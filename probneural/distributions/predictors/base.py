"""Predictors: frozen maps from input fields to field distributions."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from probneural import checks
from probneural.arrays.plausibility import warn_of_fill_values
from probneural.contexts import Undisturbed, undisturbed
from probneural.displays import html_table
from probneural.distributions.base import FieldDistribution
from probneural.distributions.forecasts.members import StepInputs, members_of
from probneural.distributions.forecasts.trajectory import Trajectory
from probneural.distributions.latent import Latent, checked_seeds, common_random_numbers, digest
from probneural.errors import ArgumentError, GridError, UnsupportedError
from probneural.fields import MISSING, Field, check_field
from probneural.fingerprints import identity_of
from probneural.functionals import Functional
from probneural.grids import Grid, check_grid
from probneural.pairs import Dataset, batches, evenly_spread_rows
from probneural.pairs.provenance import Provenance, TrainingRecord, check_units, joined_record, no_keys, warn_of_mask
from probneural.pretrained import Pretrained
from probneural.randomness import check_seed
from probneural.registry import stored

_DRAWN_VALUES = 2**20
"""Number of values per chunk of draws, about 600 bytes each."""
AnyPredictor = TypeVar("AnyPredictor", bound="Predictor")
_NAMED = 4
"""Number of parameters of an operator, and of values of each, in its fingerprint."""
_SAMPLES = 64
"""Maximum number of samples over which the variance of a discrepancy is averaged."""
_VALUES = 2**16
"""Number of values per prediction of these samples."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictorTraits:
    """Properties of a predictor; wrappers may share those of the wrapped predictor.

    Args:
        in_channels: Channels its inputs must have.
        noise: Pointwise observation variance per channel, `(c,)`, in physical units squared.
        domain: The grid of the training inputs; other inputs may have another resolution.
        like: A tensor of the dtype, or of its complex counterpart, and on the device that the operator computes with.
        trained_on: Record of the pairs that trained the operator and the head; None if unknown.
        discrepancy_variance: Mean variance of the discrepancy of its fields per channel, c numbers, in physical units squared;
            empty where fields have none.
    """

    in_channels: int
    noise: Float[Tensor, " c"]
    domain: Grid
    like: Tensor
    trained_on: TrainingRecord | None = None
    discrepancy_variance: tuple[float, ...] = ()


class Predictor(Pretrained, Undisturbed, ABC):
    """A frozen map from input fields to a distribution over output fields; abstract.

    Args:
        traits: Channels, noise, domain, dtype and device.

    Attributes:
        traits: The same.
        effective_observations: Independent observations that one observed function amounts to, per channel, `(c,)`,
            dimensionless, independent of the grid; None if the head does not provide it.
        calibrated_on: Row keys of the pairs that its variances were scaled on, `(m,)`; empty for a head's predictor.
    """

    traits: PredictorTraits
    effective_observations: Float[Tensor, " c"] | None = None
    calibrated_on: Int64[Tensor, " m"] = no_keys()
    _conditioned: ClassVar[Callable[..., Predictor]]
    """Function that conditions a predictor; set by the module `conditioned`, which imports this one."""

    def __init__(self, traits: PredictorTraits) -> None:
        domain = traits.domain.first.unmasked
        self.traits = traits if domain is traits.domain else replace(traits, domain=domain)

    if not TYPE_CHECKING:
        __getattr__ = checks.missing_attribute

    @property
    def in_channels(self) -> int:
        """Channels its inputs must have."""
        return self.traits.in_channels

    @property
    def out_channels(self) -> int:
        """Channels c of its predictions."""
        return len(self.traits.noise)

    @property
    def noise(self) -> Float[Tensor, " c"]:
        """Pointwise observation variance per channel, `(c,)`, in physical units squared."""
        return self.traits.noise

    @property
    def domain(self) -> Grid:
        """The grid of the training inputs; other inputs may have another resolution."""
        return self.traits.domain

    @property
    def trained_on(self) -> TrainingRecord | None:
        """Record of the pairs that trained the operator and the head; None if unknown."""
        return self.traits.trained_on

    @property
    def is_calibrated(self) -> bool:
        """Whether variances or weights were fitted to held-out pairs."""
        return len(self.calibrated_on) > 0

    @property
    def dtype(self) -> torch.dtype:
        """Real dtype the operator computes in; inputs are converted to it."""
        return self.traits.like.dtype.to_real()

    @property
    def device(self) -> torch.device:
        """Device the operator computes on; inputs are moved to it."""
        return self.traits.like.device

    @property
    def discrepancy_variance(self) -> tuple[float, ...]:
        """Mean variance of the discrepancy of its fields per channel, in physical units squared; empty if they have none."""
        return self.traits.discrepancy_variance

    @property
    def residual_variance(self) -> Float64[Tensor, " c"]:
        """Variance of one observed value about the operator that all samples share, noise and discrepancy, `(c,)`, on the CPU.

        In physical units squared. The discrepancy's part is its mean over the domain and over samples of the fit.
        """
        noise = self.noise.detach().to("cpu", torch.float64)
        return noise + noise.new_tensor(self.discrepancy_variance or (0.0,))

    @abstractmethod
    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        """Predict for several sets of inputs, which share a per-call latent.

        Args:
            sets: Inputs `(n, in_channels, *grid)`, validated, of the predictor's dtype and device, each with its query; n may
                be 0.

        Returns:
            For each set, a distribution over n samples with `out_channels` channels on the query, by default on the inputs'
            grid, differentiable in `inputs.values`.
        """

    def __call__(self, inputs: Field, query: Grid | None = None) -> FieldDistribution:
        """Predict the outputs of n inputs.

        Args:
            inputs: Input fields, `(n, in_channels, *grid)`, at any resolution that the operator accepts.
            query: Grid of the outputs; the inputs' grid by default.

        Returns:
            A distribution over n samples, differentiable in `inputs.values`. With masks that differ between samples, in
            inputs or query, it is that on the grid without masks.

        Raises:
            DataError: If the inputs are not a `Field` or not finite, or a channel has another unit than in training.
            ShapeError: If the number of channels is not the operator's.
            GridError: If the domain differs from the training inputs', or the query is not a grid.
        """
        inputs, query = self._checked(inputs, query), None if query is None else query.shared
        with undisturbed():
            prediction = self._predict([(inputs, query)])[0]
        if isinstance(prediction, FieldDistribution):  # users of another result refuse it by name
            remedy = "inputs may be far outside the training data, or their scale"
            checks.check_finite(prediction.mean, "predicted means", remedy=remedy)
            prediction.provenance = Provenance(is_calibrated=self.is_calibrated, trained_on=self.trained_on, inputs=inputs)
            prediction.source = prediction.source or self._key
        return prediction

    @torch.no_grad()
    def predict(self, values: Tensor | NDArray[Any], *, grid: Grid | None = None, query: Grid | None = None) -> tuple[Any, Any]:
        """Return means and standard deviations as arrays; predictions are made in chunks.

        Args:
            values: Inputs, `(n, in_channels, *grid)`, a tensor or a NumPy array, in physical units.
            grid: Grid of the inputs; by default the uniform domain of training at the resolution of `values`.
            query: Grid of the outputs; the inputs' grid by default.

        Returns:
            Mean, and standard deviation without measurement noise, each `(n, c, *query.shape)` in physical units and the
            predictor's dtype: tensors on the device of `values`, or NumPy arrays.

        Raises:
            DataError: If `values` is no array of real numbers, or not finite.
            ShapeError: If it has another shape, or number of channels.
            GridError: If the training inputs have no uniform grid and `grid` is missing, or domains differ.
        """
        if not isinstance(values, Tensor):
            checks.check_instance(values, np.ndarray, "values", remedy="give a tensor or a NumPy array (n, c, *grid)")
        if grid is None and not self.domain.is_uniform:  # training samples may have had different points
            raise GridError(expected="grid=, the points of the inputs", got="None", remedy="pass a Grid")
        axes = self.domain.dimension if grid is None else len(check_grid(grid).shape)
        remedy = "give (n, c, *grid), channels second; use values[None, None]"
        checks.check_count(values.ndim, 2 + axes, "axes of values", remedy=remedy)
        grid = self.domain.resized(tuple(values.shape[2:])) if grid is None else grid
        largest = max(self.in_channels * grid.size, self.out_channels * (grid if query is None else check_grid(query)).size)
        step, parts = max(1, _VALUES // largest), []
        for start in range(0, max(1, len(values)), step):
            rows = slice(start, start + step)
            part = checks.real_tensor(values[rows], "values", dtype=self.dtype)
            u = self(Field(part, grid.select(rows)), None if query is None else query.select(rows))
            parts.append(torch.stack([u.mean, u.variance.sqrt().to(u.mean)]).to(part.device))
        mean, deviation = torch.cat(parts, 1)
        return (mean, deviation) if isinstance(values, Tensor) else (mean.numpy(), deviation.numpy())

    def _checked(self, inputs: Field, query: Grid | None) -> Field:
        """The inputs in the operator's dtype and on its device, or an error."""
        check_field(inputs, "inputs")
        checks.check_count(inputs.channels, self.in_channels, "channels of inputs", remedy="use the training layout")
        if query is not None:
            check_grid(query, "query")
        check_units(self.trained_on, inputs)
        check_domain(inputs.grid, self.domain)
        checks.check_finite(inputs.values, "inputs", remedy=MISSING)
        warn_of_fill_values({"inputs": inputs.values})
        warn_of_mask(self.trained_on, query or inputs.grid)
        return inputs.without_own_masks().to(self.dtype).to(self.device)

    def to(self, device: torch.device | str) -> Predictor:
        """Return the same predictor on another device, with copies of all predictors inside it.

        The dtype stays: convert the operator, and fit the head again.

        Args:
            device: A device, or `"auto"` for the best there is.

        Raises:
            ArgumentError: If the device does not exist.
            UnsupportedError: If a part cannot be copied, as a predictor class of your own.
        """
        storage = importlib.import_module("probneural.storage.kinds")  # a higher layer
        moved: Predictor = storage.moved(self, checks.check_device(device))
        return moved

    def condition(
        self, inputs: Field, functional: Functional, *, values: Float[Tensor, "n c m"], noise: float | Tensor = 0.0
    ) -> Predictor:
        """Return the predictor conditioned on measurements of n outputs, by Bayes' rule.

        Measurements inform all later predictions through the shared latent or Gaussian process. The discrepancy of a measured
        sample is not updated: for that, predict the sample, and condition the field. Measured again in
        a later `condition`, the same function counts as another with its input.

        Args:
            inputs: Inputs of the measured outputs, `(n, in_channels, *grid)`, without uncertainty.
            functional: A, of size m; its grid may have another resolution than the inputs.
            values: The measurements of A u, `(n, c, m)`; lists and arrays will do.
            noise: Noise variance, in the values' units squared: a number, one per channel, or one per value; 0 is exact.

        Raises:
            ConstraintError: If there are more exact measurements than the rank of the latent, or they contradict.
            ArgumentError: If noise is negative, or zero for some values only.
            DataError: If a value is not finite.
            ShapeError: If the number of samples, channels or values does not match.
            UnsupportedError: If the predictor's fields are not Gaussian; `VarianceScale` makes them so.
        """
        return self._conditioned(self, inputs, functional=functional, values=values, noise=noise)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute once: predictors are frozen."""
        is_shared = isinstance(getattr(Predictor, name, None), property)
        if is_shared or (name in Predictor.__annotations__ and name in self.__dict__):
            raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be changed")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        """Channels and domain, and whether nobody calibrated it."""
        return self._description() if self.is_calibrated else f"{self._description()}, uncalibrated"

    def _repr_html_(self) -> str:
        """A table of channels, operator, calibration, noise and training data."""
        rows = {
            "predictor": self._description(),
            "channels": f"{self.in_channels} → {self.out_channels}",
            "operator": ", ".join(dict.fromkeys(self._operators)) or "none",
            "calibrated": "yes" if self.is_calibrated else "no: uncalibrated",
            "noise variance": ", ".join(f"{value:.3g}" for value in self.noise.tolist()),
            "trained on": "unknown" if self.trained_on is None else str(self.trained_on),
        }
        return html_table(type(self).__name__, rows.items())

    @property
    def _parts(self) -> list[Predictor]:
        """The predictors inside it."""
        inner = getattr(self, "inner", None)
        return [inner] if isinstance(inner, Predictor) else list(getattr(self, "predictors", ()))

    @property
    def _operators(self) -> list[str]:
        """Class names of the operators inside it."""
        operator = getattr(self, "operator", None)
        return [type(operator).__name__] if operator is not None else [name for part in self._parts for name in part._operators]

    def _description(self) -> str:
        """Description of the predictor, without its calibration."""
        return f"{type(self).__name__}({self.in_channels} -> {self.out_channels} channels on {self.domain!r})"

    def evaluate_draws(
        self, inputs: Field, query: Grid | None = None, *, seeds: Sequence[int], each: bool = False
    ) -> Float[Tensor, "..."]:
        """Evaluate draws of operators by seed, without mean and covariance.

        Args:
            inputs: `(n, in_channels, *grid)`, at any resolution the operator accepts.
            query: Grid of the outputs; the inputs' grid by default.
            seeds: Non-negative integers: one for each draw, or with `each` one for each input.
            each: Whether input i is mapped only by the draw of seed i.

        Returns:
            `(s, n, c, *query.shape)`, or `(n, c, *query.shape)` with `each`; differentiable in the inputs.

        Raises:
            DataError: If the inputs are not a `Field` or not finite.
            ArgumentError: If a seed is not a non-negative integer, or there are no seeds.
            ShapeError: If the number of channels is not the operator's, or that of the seeds does not fit.
            GridError: If the domain differs from the training inputs', or the query is not a grid.
            UnsupportedError: If the predictor returns no field distribution.
        """
        checked = self._checked(inputs, query)
        seeds = checked_seeds(seeds, each=each, samples=len(checked))
        if not seeds and not each:
            raise ArgumentError(expected="at least one seed", got="none", remedy="give seeds=[0]")
        size = max(self.in_channels * checked.grid.size, self.out_channels * (query or checked.grid).size)
        step = max(1, _DRAWN_VALUES // max(1, size * (1 if each else len(seeds))))
        starts = range(0, max(1, len(checked)), step)
        parts = []
        for start in starts:
            rows = slice(start, start + step)
            where = None if query is None else query.select(rows)
            parts.append(self._drawn(checked[rows], where, seeds[rows] if each else seeds, each=each))
        return torch.cat(parts, dim=0 if each else 1)

    def _drawn(self, inputs: Field, query: Grid | None, seeds: Sequence[int], *, each: bool) -> Float[Tensor, "..."]:
        with undisturbed():
            field = self._predict([(inputs, None if query is None else query.shared)])[0]
            checks.check_instance(field, FieldDistribution, "field", remedy="return one from _predict", error=UnsupportedError)
            field.source = field.source or self._key
            return field.draw(seeds, each=each)

    @cached_property
    def _identity(self) -> str:
        """Name that follows from contents: the latent's, or one of the constructor's arguments; copies and files keep it."""
        latent = getattr(self, "latent", None)
        if isinstance(latent, Latent):
            return latent.id
        arguments = inspect.signature(type(self).__init__).parameters
        contents = [_contents(getattr(self, name, None)) for name in arguments if name != "self"]
        return f"{type(self).__name__}-{hashlib.blake2b(repr(contents).encode(), digest_size=8).hexdigest()}"

    @cached_property
    def _key(self) -> str:
        """Name that keys random numbers: of the training pairs and some weights of the operator, to two digits.

        Rounding does not change it, so a seed gives the same draws with every library for linear algebra and on every device.
        Contents name a predictor whose training pairs are unknown.
        """
        if self._parts:
            return f"{type(self).__name__}({', '.join(part._key for part in self._parts)})"
        if self.trained_on is None or not len(self.trained_on.row_keys):
            return self._identity
        operator = getattr(self, "operator", None)
        weights = (
            [part.detach().flatten()[:_NAMED] for part in operator.parameters()] if isinstance(operator, nn.Module) else []
        )
        values = [value for part in weights[:_NAMED] for value in (part.real if part.is_complex() else part).tolist()]
        return f"{type(self).__name__}-{digest(self.trained_on.row_keys)}({' '.join(f'{value:.1e}' for value in values)})"

    def draw(self, seed: int, *, shared: bool = False) -> FunctionDraw:
        """Return one drawn operator, the same function at every input, grid and call.

        A discrepancy is drawn with one vector for all samples: each sample has its marginal distribution, and the draw is
        continuous in the inputs.

        Args:
            seed: Names the draw, a non-negative integer. Draws of different predictors are independent, with one seed too.
            shared: Whether the draws of this seed of all predictors have common random numbers, so that differences between
                similar predictors vary less.
        """
        return FunctionDraw(self, seed=seed, shared=shared)

    def rollout(
        self,
        start: Field,
        *,
        steps: int,
        members: int = 32,
        draws: str = "trajectory",
        initial: FieldDistribution | None = None,
        inputs: StepInputs | None = None,
        seed: int = 0,
        show_progress: bool = True,
    ) -> Trajectory:
        """Repeat the step that this predictor predicts, as an ensemble: a forecast of the states at leads 1 to `steps`.

        Args:
            start: States at lead 0, `(n, history * c, *grid)`, the earliest first; then any channels that stay constant.
            steps: Number of steps.
            members: Number s of roll-outs.
            draws: `"trajectory"`: a member is one operator, `draw(seed)`, at all steps. `"step"`: a member is a fresh draw at
                every step, so errors of different steps are independent.
            initial: Distribution of the states at lead 0: one draw per member.
            inputs: Inputs of a step other than the last state and the constant channels of `start`: earlier states, constant
                channels, and a forcing.
            seed: Seed of draws and starts.
            show_progress: Whether long computations show a progress bar.

        Returns:
            The forecast; nothing is computed yet.

        Raises:
            ArgumentError: If a number, the kind of draws, or the seed is none of those allowed, or the history is not that of
                the training windows.
            ShapeError: If the number of channels or samples does not match.
            GridError: If grids differ, or the domain is not that of the training inputs.
            DataError: If an input is not a field, or not finite.
        """
        ensemble = members_of(self, start, members=members, draws=draws, initial=initial, inputs=inputs, seed=seed)
        check_domain(start.grid, self.domain)
        return Trajectory(ensemble, steps=steps, show_progress=show_progress)


def description(predictor: Predictor) -> str:
    """The text of a predictor, without saying whether it was calibrated."""
    return repr(predictor).removesuffix(", uncalibrated")


@torch.no_grad()
def with_discrepancy(predictor: AnyPredictor, pairs: Dataset) -> AnyPredictor:
    """A predictor, just made, with the mean variance of the discrepancy of its fields at some of these pairs."""
    subset = pairs.subset(evenly_spread_rows(len(pairs), _SAMPLES))
    total, grid = torch.zeros(predictor.out_channels, dtype=torch.float64, device="cpu"), subset.outputs.grid.shared
    for part in batches(subset, max(1, _VALUES // (predictor.out_channels * grid.size))):
        u = predictor(part.inputs.detached(), grid)
        variance = u.grid.fill(u._discrepancy_variance.to("cpu", torch.float64))
        total += u.grid.mean(variance.flatten(2)).sum(0) / len(subset)
    return with_traits(predictor, discrepancy_variance=tuple(total.tolist()))


def with_records(predictor: AnyPredictor, *records: TrainingRecord | None) -> AnyPredictor:
    """A new predictor with merged training records, which key the random numbers of its latent."""
    with_traits(predictor, trained_on=joined_record(records)).__dict__.pop("_key", None)
    latent = getattr(predictor, "latent", None)
    if isinstance(latent, Latent):
        predictor.__dict__["latent"] = replace(latent, source=predictor._key)
    return predictor


def with_traits(predictor: AnyPredictor, **changes: Any) -> AnyPredictor:
    """A predictor, just made, with other traits."""
    predictor.__dict__["traits"] = replace(predictor.traits, **changes)
    return predictor


def check_domain(grid: Grid, domain: Grid) -> None:
    """Raise a GridError if the domain of a uniform grid differs from the training inputs', which operators do not check."""
    if not (grid.is_uniform and domain.is_uniform):
        return

    names, trained = ([axis.name for axis in where.axes] for where in (grid, domain))
    if names != trained and sorted(names) == sorted(trained):
        raise GridError(
            expected=f"axes of space in the order {', '.join(trained)} of the training inputs",
            got=", ".join(names),
            remedy=f"transpose the values: array.transpose(..., {', '.join(map(repr, trained))})",
        )
    if grid.domain != domain.domain:
        raise GridError(
            expected=f"inputs on the domain of the training inputs, {domain!r}",
            got=repr(grid),
            remedy="only the resolution may differ; give the grid its lengths, origin and periodicity",
        )


def _contents(part: object) -> object:
    """Text that identifies a component of a predictor: names of predictors, tensors of modules."""
    if isinstance(part, Predictor):
        return part._identity
    if isinstance(part, list | tuple):
        return [_contents(item) for item in part]
    if is_dataclass(part):
        return [_contents(getattr(part, item.name)) for item in fields(part)]
    return identity_of(part.state_dict() if isinstance(part, nn.Module) else part)


@stored()
class FunctionDraw(Undisturbed, nn.Module):
    """One draw from a predictor's distribution over operators; callable like an operator.

    Args:
        predictor: The predictor.
        seed: Names the draw, a non-negative integer.
        shared: Whether it shares random numbers with draws of this seed from other predictors.

    Raises:
        ArgumentError: If the seed is invalid.
    """

    def __init__(self, predictor: Predictor, *, seed: int, shared: bool = False) -> None:
        super().__init__()
        self.predictor = checks.check_instance(predictor, Predictor, "predictor", remedy="fit a head, or calibrate one")
        self.seed = check_seed(seed)
        self.shared = checks.check_flag(shared, "shared")

    @property
    def in_channels(self) -> int:
        """Channels of its inputs."""
        return self.predictor.in_channels

    @property
    def out_channels(self) -> int:
        """Channels of its outputs."""
        return self.predictor.out_channels

    def _apply(self, *_: object, **__: object) -> FunctionDraw:
        """Raise an error for `.to(...)` and similar methods: a draw has no parameters."""
        raise UnsupportedError(
            expected="a draw used in the dtype and on the device of its predictor",
            got="a conversion",
            remedy="convert the operator before the head is fitted, or draw from predictor.to(device)",
        )

    def forward(
        self, values: Float[Tensor, "..."], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c *grid"]:
        """Evaluate the draw, in chunks of about a million values (600 MB).

        Args:
            values: Inputs, `(n, c, *grid)`.
            grid: Their grid; by default the training domain at the values' resolution.
            query: Grid of the outputs; the inputs' grid by default.

        Returns:
            `(n, c', *query.shape)`.
        """
        checks.check_instance(values, Tensor, "values", remedy="convert with torch.as_tensor(values)")
        domain, shape = self.predictor.domain, tuple(values.shape[2:])
        where = grid if grid is not None else domain if domain.shape == shape else domain.resized(shape)
        with common_random_numbers() if self.shared else nullcontext():
            return self.predictor.evaluate_draws(Field(values, where), query, seeds=[self.seed])[0]


class Calibrated(Predictor):
    """A predictor whose fields are those of another predictor, mapped one by one; abstract.

    Draws, roll-outs and conditioning follow from the mapped field: a calibrated ensemble draws from its Gaussian field, and the
    members themselves roll out by the ensemble's own `rollout`.

    Args:
        inner: The predictor it wraps.
        calibrated_on: Row keys of the calibration pairs, and of those that `inner` was calibrated on, `(m,)`.
        traits: Those of `inner` by default.
    """

    def __init__(self, inner: Predictor, *, calibrated_on: Int64[Tensor, " m"], traits: PredictorTraits | None = None) -> None:
        super().__init__(inner.traits if traits is None else traits)
        self.inner = inner
        self.calibrated_on = calibrated_on
        self.effective_observations = inner.effective_observations

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        fields = self.inner._predict(sets)
        for field in fields:
            field.source = field.source or self.inner._key
        return [self._map(inputs, field) for (inputs, _), field in zip(sets, fields, strict=True)]

    @abstractmethod
    def _map(self, inputs: Field, field: FieldDistribution) -> FieldDistribution:
        """Map the inner predictor's field of inputs `(n, in_channels, *grid)` to the calibrated field."""

    def _details(self) -> str:
        """Parameters of the map, for the description."""
        return ""

    def _description(self) -> str:
        """The class, the inner predictor and the parameters of the map."""
        return f"{type(self).__name__}({', '.join(filter(None, (description(self.inner), self._details())))})"
