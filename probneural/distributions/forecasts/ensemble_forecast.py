"""Forecasts by members: functionals over leads, and files in zarr stores that xarray reads."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from torch import Tensor

from probneural import atomic
from probneural.arrays.reading import grid_attributes
from probneural.checks import check_finite, check_integer, check_path, check_sequence, check_shape, optional, real_tensor
from probneural.contexts import Undisturbed
from probneural.distributions.base import index_grid, inherit_image
from probneural.distributions.empirical import EmpiricalField, push_draws
from probneural.errors import ArgumentError, FileError, ForecastError
from probneural.functionals import Functional
from probneural.functionals.base import check_functional
from probneural.grids import Grid, check_unmasked

_CHUNK_BYTES = 2**26
"""Maximum bytes per chunk, unless one sample at one lead is larger."""
_DIMENSIONS = "_ARRAY_DIMENSIONS"
"""Where xarray looks for the names of an array's axes."""
MapOfSpace = Callable[[Tensor], Tensor]
"""From values `(s, n, c, *grid)` to numbers `(s, n, c', m)`."""


class EnsembleForecast(Undisturbed, ABC):
    """A forecast by members, each of them one trajectory at all leads; abstract.

    So quantities of several leads are joint over them, member by member.
    """

    @property
    @abstractmethod
    def steps(self) -> int:
        """The largest lead."""

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """Grid of all states."""

    @property
    @abstractmethod
    def members(self) -> int:
        """Number of members s."""

    @property
    @abstractmethod
    def channels(self) -> int:
        """Channels c of a state."""

    @property
    def times(self) -> Float64[Tensor, " steps"] | None:
        """Time of each lead since the start, `(steps,)`; None if it is unknown."""
        return None

    @abstractmethod
    def at(self, lead: int) -> EmpiricalField:
        """The members' states at a lead, in the same order at all leads."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples n."""

    @abstractmethod
    def _until(self, last: int) -> Iterator[tuple[int, EmpiricalField]]:
        """Leads 1 to `last` in order, each with the members' states."""

    @abstractmethod
    def _attributes(self) -> dict[str, Any]:
        """Metadata of the forecast in a file."""

    def leads(self) -> Iterator[tuple[int, EmpiricalField]]:
        """Leads 1 to `steps` in order, each with the members' states.

        A roll-out computes them one after the other, in bounded memory: its budget and the states of a step.

        Raises:
            ForecastError: At the first lead at which a member is not finite.
        """
        return self._until(self.steps)

    def apply(
        self,
        functional: Functional | Sequence[Functional],
        *,
        leads: Sequence[int] | None = None,
        weights: Sequence[float] | Sequence[Sequence[float]] | Float[Tensor, "..."] | None = None,
    ) -> EmpiricalField:
        """Push forward through a linear functional of space, or of space and time: joint over leads, member by member.

        Args:
            functional: Functional of the states with m numbers per channel; or one per lead, for a moving sensor.
            leads: Leads; 1 to `steps` by default.
            weights: Weights of a sum over leads, `(l,)`, or k sums, `(k, l)`; `[dt / 2, dt, ..., dt, dt / 2]` is the integral
                over time by the trapezoidal rule. By default no sum.

        Returns:
            The distribution of the numbers, those of the first lead, or sum, first: `l * m` or `k * m` numbers per channel.

        Raises:
            ArgumentError: If a lead is out of range, or weights or functionals are not one per lead.
            GridError: If a functional has another grid.
        """
        chosen = self._chosen(leads)
        maps = (functional,) * len(chosen) if isinstance(functional, Functional) else functional
        maps = check_sequence(maps, "functional", remedy="give a functional, or a list of one per lead")
        for part in maps:
            check_functional(part, grid=self.grid)
        if len(maps) != len(chosen):
            raise ArgumentError(
                expected=f"one functional per lead, {len(chosen)}", got=str(len(maps)), remedy="or one for all leads"
            )
        return applied(maps, self._at_leads(chosen), leads=chosen, weights=weights)

    def apply_by_draws(
        self,
        function: MapOfSpace,
        *,
        leads: Sequence[int] | None = None,
        weights: Sequence[float] | Sequence[Sequence[float]] | Float[Tensor, "..."] | None = None,
    ) -> EmpiricalField:
        """Push forward through any function of space, linear or not, member by member.

        Args:
            function: Maps values `(s, n, c, *grid)` to `(s, n, c', m)`, as [`maximum`][probneural.functionals.maximum] does.
            leads: As in `apply`.
            weights: As in `apply`.

        Returns:
            As `apply`. Nonlinear functions of time are functions of the samples: the maximum over leads is `samples.amax(-1)`.

        Raises:
            ArgumentError: If a lead is out of range, or weights are not one per lead.
            ShapeError: If the function's result is not `(s, n, c', m)`.
            DataError: If it returns no tensor, or values that are not finite.
        """
        chosen = self._chosen(leads)
        return applied([function] * len(chosen), self._at_leads(chosen), leads=chosen, weights=weights)

    def to_zarr(self, path: str | os.PathLike[str], *, times: Sequence[float] | Tensor | None = None) -> None:
        """Write all states into a zarr store that xarray reads, a lead at a time; needs the extra `data`.

        The variable `states` has the dimensions `member`, `sample`, `time`, `channel`, and `x0`, `x1`, ...; lead 0 comes first.
        The store appears when it is whole. Where members blow up, it holds the leads before, and the error is raised then.

        Args:
            path: Path of the new store.
            times: Times of leads 0 to `steps`, ascending; by default the forecast's own, from 0, or the leads if it has none.

        Raises:
            FileError: If there is something of that name already, or the folder cannot be written to.
            ForecastError: If a member is not finite, after the leads before are written.
            ArgumentError: If there is not one time per lead.
        """
        write_zarr(self, path, times=times, attributes=self._attributes())

    def _chosen(self, leads: Sequence[int] | None) -> list[int]:
        if leads is None:
            return list(range(1, self.steps + 1))
        checked = check_sequence(leads, "leads", remedy="give a list of numbers")
        chosen = [check_integer(lead, "lead", least=0, most=self.steps) for lead in checked]
        if not chosen:
            raise ArgumentError(expected="one lead or more", got="none", remedy="leave leads out for all")
        return chosen

    def _at_leads(self, chosen: Sequence[int]) -> Callable[[], Iterator[tuple[int, EmpiricalField]]]:
        """An iterator over rows of `chosen` and states, in the order of leads, in one pass."""

        def states() -> Iterator[tuple[int, EmpiricalField]]:
            rows: dict[int, list[int]] = {}
            for row, lead in enumerate(chosen):
                rows.setdefault(lead, []).append(row)
            for row in rows.pop(0, ()):
                yield row, self.at(0)
            for lead, u in self._until(max(rows, default=0)):
                for row in rows.get(lead, ()):
                    yield row, u

        return states


def write_zarr(
    forecast: EnsembleForecast,
    path: str | os.PathLike[str],
    *,
    times: Sequence[float] | Tensor | None,
    attributes: Mapping[str, Any],
) -> None:
    """Write all states; see `EnsembleForecast.to_zarr`."""
    target = check_path(path, "path")
    if times is None and forecast.times is not None:
        times = torch.cat([forecast.times.new_zeros(1), forecast.times])
    numbers = _checked_times(times, forecast.steps)
    if target.exists() or target.is_symlink():
        raise FileError(
            expected="a path that does not exist", got=str(target), remedy="choose another path, or remove the existing file"
        )
    with atomic.replacing_folder(target) as folder:
        stopped = _filled(forecast, folder, numbers, attributes)
    if stopped is not None:
        raise stopped


def _checked_times(times: Sequence[float] | Tensor | None, steps: int) -> NDArray[np.float64]:
    if times is None:
        return np.arange(steps + 1, dtype=np.float64)
    numbers = real_tensor(times, "times", dtype=torch.float64).numpy()
    if numbers.shape != (steps + 1,) or not np.isfinite(numbers).all() or not (np.diff(numbers) > 0).all():
        raise ArgumentError(
            expected=f"{steps + 1} ascending times, of leads 0 to {steps}", got=str(numbers)[:100], remedy="the start has one"
        )
    return numbers


def _filled(
    forecast: EnsembleForecast, store: Path, times: NDArray[np.float64], attributes: Mapping[str, Any]
) -> ForecastError | None:
    """Fill a new store, and return the error that ended the forecast, if one did."""
    optional("zarr", "writing trajectories", extra="data")
    import zarr

    first = forecast.at(0).samples
    members, functions, *field_shape = first.shape
    per_member = max(1, _CHUNK_BYTES // max(1, first[0].numel() * first.element_size()))
    space = [f"x{number}" for number in range(len(forecast.grid.shape))] if forecast.grid.is_uniform else ["point"]
    description = {**attributes, "probneural_version": version("probneural")}
    group = zarr.create_group(store=store, attributes=description, zarr_format=2)  # supported by xarray for longest
    check_unmasked(forecast.grid, "files of forecasts")
    about_grid: dict[str, Any] = dict(grid_attributes(forecast.grid)) if forecast.grid.is_uniform else {}
    array = group.create_array(
        "states",
        shape=(members, functions, forecast.steps + 1, *field_shape),
        chunks=(min(members, per_member), functions, 1, *field_shape),
        dtype=str(first.dtype).removeprefix("torch."),
        fill_value=float("nan"),
        attributes=about_grid | {_DIMENSIONS: ["member", "sample", "time", "channel", *space]},
    )
    _coordinates(group, forecast, space)
    stopped = None
    try:
        for lead, u in itertools.chain([(0, forecast.at(0))], forecast.leads()):
            array[:, :, lead] = u.samples.cpu().numpy()
            written = lead + 1
    except ForecastError as error:
        stopped = error
        array.resize((members, functions, written, *field_shape))
        group.attrs["ended"] = str(error)
    _coordinate(group, "time", times[:written], ["time"])
    _coordinate(group, "lead", np.arange(written), ["time"])
    zarr.consolidate_metadata(store)
    return stopped


def _coordinates(group: Any, forecast: EnsembleForecast, space: Sequence[str]) -> None:
    """Coordinates of members, samples, channels and space."""
    counts = {"member": forecast.members, "sample": len(forecast), "channel": forecast.channels}
    for name, count in counts.items():
        _coordinate(group, name, np.arange(count), [name])
    if forecast.grid.is_uniform:
        for name, axis in zip(space, forecast.grid.axes, strict=True):
            _coordinate(group, name, axis.coordinates.numpy(), [name])
        return
    for number, along in enumerate(forecast.grid.points.T):
        _coordinate(group, f"x{number}", along.numpy(), ["point"])
    _coordinate(group, "weight", forecast.grid.weights.numpy(), ["point"])


def _coordinate(group: Any, name: str, values: NDArray[Any], dims: list[str]) -> None:
    attributes = {_DIMENSIONS: dims}
    array = group.create_array(name, shape=values.shape, dtype=values.dtype, fill_value=None, attributes=attributes)
    array[:] = values


def applied(
    maps: Sequence[MapOfSpace],
    states: Callable[[], Iterator[tuple[int, EmpiricalField]]],
    *,
    leads: Sequence[int],
    weights: Sequence[float] | Sequence[Sequence[float]] | Tensor | None,
) -> EmpiricalField:
    """The distribution of all maps' numbers, or of weighted sums of them.

    Args:
        maps: One map per row of the result (lead), all with the same number of values.
        states: Iterator over rows and states, each row once, in any order.
        leads: Leads of the rows, for their names.
        weights: `(l,)`, `(k, l)`, or None.

    Raises:
        ArgumentError: If there is not one weight, or map, per lead.
        ShapeError: If the maps give different numbers.
    """
    sums = None if weights is None else _checked_weights(weights, len(maps))
    parts: dict[int, Tensor] = {}
    total: Tensor | None = None
    labels: dict[int, tuple[str, ...] | None] = {}
    image: EmpiricalField | None = None
    for row, u in states():
        if row >= len(maps):
            raise ArgumentError(expected="one functional per lead", got=f"{len(maps)}", remedy="or one for all leads")
        function = maps[row]
        image = u.apply(function) if isinstance(function, Functional) else push_draws(u, function, draws=1, seed=0)
        labels[row] = image.labels
        if sums is None:
            parts[row] = image.samples
        else:
            term = sums[:, row].to(image.samples)[:, None] * image.samples[..., None, :]
            total = term if total is None else _alike(total, term) + term
    if sums is None:
        ordered = [parts[row] for row in range(len(maps))]
        for part in ordered[1:]:
            _alike(ordered[0], part)
        samples = torch.cat(ordered, dim=-1)
        by_lead = [(lead, labels[row]) for row, lead in enumerate(leads)]
        missing = any(label is None for _, label in by_lead)
        named = None if missing else tuple(f"{name}, lead {lead}" for lead, label in by_lead for name in label or ())
    else:
        assert total is not None  # there is one lead or more
        samples, named = total.flatten(-2), labels.get(0) if len(sums) == 1 else None
    assert image is not None
    return inherit_image(EmpiricalField(samples, grid=index_grid(samples.shape[-1])), image, named)


def _checked_weights(weights: Sequence[float] | Sequence[Sequence[float]] | Tensor, count: int) -> Tensor:
    """Weights `(k, l)`."""
    numbers = real_tensor(weights, "weights", dtype=torch.float64)
    check_finite(numbers, "weights")
    if numbers.ndim not in (1, 2) or numbers.shape[-1] != count:
        raise ArgumentError(
            expected=f"weights of shape ({count},) or (k, {count}), one per lead",
            got=str(tuple(numbers.shape)),
            remedy="pass the leads: leads=range(1, 21)",
        )
    return numbers if numbers.ndim == 2 else numbers[None]


def _alike(first: Tensor, second: Tensor) -> Tensor:
    """The first, or a ShapeError if the second has another shape."""
    check_shape(second, "numbers at each lead", *first.shape, remedy="apply functionals of different sizes one by one")
    return first
