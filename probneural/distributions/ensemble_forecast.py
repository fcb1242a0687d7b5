"""Forecasts whose members are trajectories: what they say of several leads, and their files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_integer, check_sequence
from probneural.contexts import Undisturbed
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.time_functionals import MapOfSpace, applied
from probneural.distributions.trajectory_files import write_zarr
from probneural.errors import ArgumentError
from probneural.functionals import Functional
from probneural.functionals.base import check_functional
from probneural.grids import Grid


class EnsembleForecast(Undisturbed, ABC):
    """A forecast by members, each of them one trajectory at all leads; abstract.

    So what is asked of several leads is joint over them, member by member.
    """

    @property
    @abstractmethod
    def steps(self) -> int:
        """The largest lead."""

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """Where all states live."""

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
        """Number of functions n."""

    @abstractmethod
    def _until(self, last: int) -> Iterator[tuple[int, EmpiricalField]]:
        """Leads 1 to `last` in order, each with the members' states."""

    @abstractmethod
    def _attributes(self) -> dict[str, Any]:
        """What a file says of the forecast."""

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
            functional: Of the states at each lead, m numbers per channel; or one for each lead, as of a sensor that moves.
            leads: Which; 1 to `steps` by default.
            weights: Of a sum over these leads, `(l,)`, or of k sums, `(k, l)`; `[dt / 2, dt, ..., dt, dt / 2]` is the integral
                over time by the trapezoidal rule. By default nothing is summed.

        Returns:
            The distribution of the numbers, those of the first lead, or sum, first: `l * m` or `k * m` numbers per channel.

        Raises:
            ArgumentError: If a lead is none of this forecast's, or weights or functionals are not one per lead.
            GridError: If a functional lives on another grid.
        """
        chosen = self._chosen(leads)
        maps = (functional,) * len(chosen) if isinstance(functional, Functional) else functional
        maps = check_sequence(maps, "functional", remedy="give a functional, or a list of one per lead")
        for one in maps:
            check_functional(one, grid=self.grid)
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
            As `apply`. What is not linear in time follows from the samples: the largest of all leads is `samples.amax(-1)`.

        Raises:
            ArgumentError: If a lead is none of this forecast's, or weights are not one per lead.
            ShapeError: If what the function returns is not `(s, n, c', m)`.
            DataError: If it returns no tensor, or values that are not finite.
        """
        chosen = self._chosen(leads)
        return applied([function] * len(chosen), self._at_leads(chosen), leads=chosen, weights=weights)

    def to_zarr(self, path: str | os.PathLike[str], *, times: Sequence[float] | Tensor | None = None) -> None:
        """Write all states into a zarr store that xarray reads, a lead at a time; needs the extra `data`.

        The variable `states` has the dimensions `member`, `sample`, `time`, `channel`, and `x0`, `x1`, ...; lead 0 comes first.
        The store appears when it is whole. Where members blow up, it holds the leads before, and the error is raised then.

        Args:
            path: Of the new store.
            times: Of leads 0 to `steps`, ascending; by default the forecast's own, from 0, or the leads if it has none.

        Raises:
            FileError: If there is something of that name already, or the folder cannot be written to.
            ForecastError: If a member is not finite, after the leads before are written.
            ArgumentError: If there is not one time per lead.
        """
        write_zarr(self, path, times=times, attributes=self._attributes())

    def _chosen(self, leads: Sequence[int] | None) -> list[int]:
        if leads is None:
            return list(range(1, self.steps + 1))
        given = check_sequence(leads, "leads", remedy="give a list of numbers")
        chosen = [check_integer(lead, "lead", least=0, most=self.steps) for lead in given]
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
