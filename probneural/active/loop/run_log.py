"""Log of an active learning loop: its decisions so far, kept in its store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from probneural.active.loop.history import LearningHistory, Round, RoundErrors, RoundSeconds, SimulationCounts
from probneural.active.simulation.store import ResultStore
from probneural.checks import check_least
from probneural.errors import ArgumentError, DataError, FileError
from probneural.fields import Field
from probneural.pairs import FieldPairs
from probneural.training import schema

_RESTORE = "restore what is missing or ends in .broken in {}, or begin another store with a copy of its results"


def digest(names: Sequence[str]) -> str:
    """A short digest of several texts."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def keys_of(store: ResultStore, fields: Field) -> list[str]:
    """The store's key of each function."""
    return [store.key(fields[position]) for position in range(len(fields))]


@dataclass(frozen=True)
class SimulationBatch:
    """Simulations of one request, stored before the first of them starts.

    Attributes:
        round: The round they belong to.
        target: Labels planned for the end of that round.
        calibration: Positions in the pool of calibration functions, which only the random start has.
        training: Positions of functions to learn from, in the order of choice.
        seconds: Time of the choice.
        found: Positions with a result in the store at the time of the request.
    """

    round: int
    target: int
    calibration: tuple[int, ...]
    training: tuple[int, ...]
    seconds: float
    found: tuple[int, ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """All of them, calibration first."""
        return self.calibration + self.training


@dataclass(frozen=True)
class BatchOutcome:
    """Outcome of a batch.

    Attributes:
        failed: Positions of those without a usable result.
        seconds: Wall time.
    """

    failed: tuple[int, ...]
    seconds: float

    def reused(self, batch: SimulationBatch) -> int:
        """Number of usable results that the batch took from the store."""
        return len({*batch.found} - {*self.failed})


_Entry = TypeVar("_Entry", SimulationBatch, BatchOutcome)


class RunLog:
    """Log of one loop in a store, where each entry is written once and read again after a restart.

    Args:
        store: The store.
        pool: The candidates. Functions that a batch takes from elsewhere are appended to it.
    """

    def __init__(self, store: ResultStore, pool: Field) -> None:
        self.store = store
        self.pool = pool
        self.keys = keys_of(store, pool)
        self._settings = {"pool": digest(self.keys), "pool size": len(pool)}
        first: dict[str, int] = {}
        for position, key in enumerate(self.keys):
            first.setdefault(key, position)
        self.distinct = tuple(first.values())
        """Positions of the candidates in the pool, the first of equal ones."""
        self._held: dict[str, tuple[list[int], FieldPairs]] = {}
        self.batches = [_built(SimulationBatch, entry) for entry in self._recalled("batch")]
        self.outcomes = [_built(BatchOutcome, entry) for entry in self._recalled("outcome")]
        self.rounds = [Round.from_row(entry) for entry in self._recalled("round")]
        is_whole = len(self.outcomes) <= len(self.batches) <= len(self.outcomes) + 1
        if not is_whole or not {entry.number for entry in self.rounds} <= {batch.round for batch in self.batches}:
            raise FileError(
                expected="a memory without gaps",
                got=f"{len(self.batches)} batches, {len(self.outcomes)} outcomes and {len(self.rounds)} rounds",
                remedy=_RESTORE.format(store.path / "decisions"),
            )
        for number, batch in enumerate(self.batches):
            if max(batch.positions, default=-1) >= len(self.pool):
                tensors = store.load_tensors(f"candidates-{number:04d}")
                if tensors is None:
                    raise FileError(
                        expected=f"the inputs of batch {number}",
                        got="none that can be read",
                        remedy=_RESTORE.format(store.path),
                    )
                self._append(Field(tensors["inputs"], pool.grid))

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Remember the settings of the loop, or check that they are those that it began with.

        Args:
            settings: Everything that decides what the loop does, in types that JSON knows. A "simulator" of None is one that
                cannot be told from others, and is not compared.

        Raises:
            FileError: If the store belongs to a loop of other settings; the message names those.
        """
        ours: dict[str, Any] = json.loads(json.dumps({**settings, **self._settings}))
        theirs: Any = self.store.recall("settings")
        if theirs is None:
            self.store.remember("settings", ours)
            return
        unknown = {name for name in ("simulator",) if None in (ours.get(name), theirs.get(name))}
        differ = [name for name in {**ours, **theirs} if name not in unknown and ours.get(name) != theirs.get(name)]
        if differ:
            raise FileError(
                expected="the settings that the store's loop began with: "
                + ", ".join(f"{name} {theirs.get(name)!r}" for name in differ),
                got=", ".join(f"{name} {ours.get(name)!r}" for name in differ),
                remedy="construct the learner as before (build the operator from the same seed), or name another store",
            )

    def check_pool(self, needed: int, test: FieldPairs | None) -> None:
        """Check that the random start fits, and that no test function is a candidate, to float32 accuracy if dtypes differ.

        Raises:
            DataError: If one is, or the pool has less than `needed` different functions.
        """
        remedy = "draw a larger pool, or lower initial or calibration"
        check_least(len(self.distinct), needed, "different functions in the pool", remedy=remedy)
        if test is None:
            return
        candidates = self.keys
        inputs = test.inputs
        if inputs.dtype != self.pool.dtype:
            candidates, inputs = keys_of(self.store, self.pool.to(torch.float32)), inputs.to(torch.float32)
        common = {*candidates} & {*keys_of(self.store, inputs)}
        if common:
            raise DataError(
                expected="test functions that are not in the pool",
                got=f"{len(common)} that are",
                remedy="draw them with another seed: what may be trained on measures nothing",
            )

    @property
    def history(self) -> LearningHistory:
        """The finished rounds."""
        return LearningHistory(tuple(self.rounds))

    @property
    def open(self) -> SimulationBatch | None:
        """The batch whose simulations are under way, if there is one."""
        return self.batches[-1] if len(self.batches) > len(self.outcomes) else None

    @property
    def labelled(self) -> list[int]:
        """Positions of the functions to learn from, in the order of choice."""
        return self.labelled_before(len(self.batches))

    def labelled_before(self, number: int) -> list[int]:
        """Positions of those that rounds before this one contribute."""
        return [
            position for batch, failed in self._closed() if batch.round < number for position in _left(batch.training, failed)
        ]

    @property
    def calibration(self) -> list[int]:
        """Positions of the calibration functions."""
        return [position for batch, failed in self._closed() for position in _left(batch.calibration, failed)]

    @property
    def scaling(self) -> list[int]:
        """Positions of the calibration functions that a calibrator is fitted on: the first half."""
        return self.calibration[: len(self.calibration) // 2]

    @property
    def conformal(self) -> list[int]:
        """Positions of the calibration functions that no calibrator has seen: the second half."""
        return self.calibration[len(self.calibration) // 2 :]

    @property
    def free(self) -> list[int]:
        """Positions of the candidates that no batch has asked for."""
        requested = {position for batch in self.batches for position in batch.positions}
        return [position for position in self.distinct if position not in requested]

    def unasked(self, candidates: Field, test: FieldPairs | None) -> Field:
        """The different ones of further candidates, without those that a batch has asked for and test functions.

        Raises:
            DataError: If they are no Field on the pool's grid, of its channels.
        """
        alike = isinstance(candidates, Field) and candidates.grid == self.pool.grid and not self.pool.grid.is_batch
        if not alike or candidates.channels != self.pool.channels:
            raise DataError(
                expected=f"candidates as a Field of {self.pool.channels} channels on the pool's one grid, {self.pool.grid!r}",
                got=repr(candidates),
                remedy="return a Field from candidates(predictor), for instance encode(posterior.theta)",
            )
        fields = candidates.detached().to("cpu").to(self.pool.dtype)
        excluded = {self.keys[position] for batch in self.batches for position in batch.positions}
        excluded |= set() if test is None else {*keys_of(self.store, test.inputs)}
        first: dict[str, int] = {}
        for position, key in enumerate(keys_of(self.store, fields)):
            first.setdefault(key, position)
        return fields[[position for key, position in first.items() if key not in excluded]]

    def append(self, inputs: Field) -> tuple[int, ...]:
        """Keep inputs of the next batch that are not in the pool, and return their positions."""
        self.store.save_tensors(f"candidates-{len(self.batches):04d}", {"inputs": inputs.values})
        return self._append(inputs)

    def _append(self, inputs: Field) -> tuple[int, ...]:
        start = len(self.pool)
        self.pool = Field(torch.cat([self.pool.values, inputs.values]), self.pool.grid)
        self.keys += keys_of(self.store, inputs)
        return tuple(range(start, len(self.pool)))

    def round_of(self, number: int) -> list[tuple[SimulationBatch, BatchOutcome]]:
        """The closed batches of one round."""
        return [pair for pair in zip(self.batches, self.outcomes, strict=False) if pair[0].round == number]

    def recent(self, count: int) -> list[bool]:
        """Whether the last `count` simulations of closed batches failed, in the order they were asked for."""
        return [position in failed for batch, failed in self._closed() for position in batch.positions][-count:]

    def pairs(self, positions: Sequence[int], kind: str) -> FieldPairs:
        """The candidates at these positions with their results; those asked for last are kept for each kind.

        Raises:
            DataError: If there are none yet.
        """
        if not positions:
            raise DataError(expected=f"{kind} functions", got="none yet", remedy="call run, or tell what ask asked for")
        held = self._held.get(kind)
        if held is None or held[0] != positions:  # reading them back takes a file each
            held = (list(positions), self.store.pairs([self.keys[position] for position in positions]))
            self._held[kind] = held
        return held[1]

    def _unlike(self, batch: SimulationBatch) -> dict[int, Field]:
        """Results of a batch on another grid, or of other channels or dtype, than the first closed result, by position.

        Without a closed result, those unlike most of the batch's.
        """
        outputs = {position: self._outputs(position) for position in batch.positions if self.keys[position] in self.store}
        first = next(iter(self.calibration + self.labelled), None)
        kinds = [_kind(field) for field in (outputs.values() if first is None else [self._outputs(first)])]
        expected = max(kinds, key=kinds.count, default=None)  # of equally many the first
        return {position: field for position, field in outputs.items() if _kind(field) != expected}

    def _outputs(self, position: int) -> Field:
        return self.store.pairs([self.keys[position]]).outputs

    def ask(self, batch: SimulationBatch) -> SimulationBatch:
        """Open a batch, for good."""
        found = tuple(position for position in batch.positions if self.keys[position] in self.store)
        batch = replace(batch, found=found)
        self._remember(f"batch-{len(self.batches):04d}", asdict(batch))
        self.batches.append(batch)
        return batch

    def close(self, outcome: BatchOutcome) -> None:
        """Close the open batch."""
        self._remember(f"outcome-{len(self.outcomes):04d}", asdict(outcome))
        self.outcomes.append(outcome)

    def without_result(self, batch: SimulationBatch) -> tuple[int, ...]:
        """Positions without a usable result."""
        return tuple(position for position in batch.positions if self.keys[position] not in self.store)

    def missing(self, batch: SimulationBatch) -> list[int]:
        """Positions without a result or a failed attempt."""
        failed = {failure.key for failure in self.store.failures()}
        return [position for position in self.without_result(batch) if self.keys[position] not in failed]

    def failed(self, batch: SimulationBatch) -> tuple[int, ...]:
        """Positions without a result, or with one of another grid, channels or dtype than the others."""
        unlike = self._unlike(batch)
        for position, outputs in unlike.items():
            if not self.store.attempts(self.keys[position]):
                reason = f"{outputs!r}, of another grid, channels or dtype than the others"
                self.store.fail(self.pool[position], reason=reason, seconds=0.0)
        return (*self.without_result(batch), *unlike)

    def finish(self, *, loss: float | None, errors: RoundErrors, train_seconds: float, fit_seconds: float) -> None:
        """Add a finished round."""
        number = len(self.rounds)
        batches = self.round_of(number)
        reused = sum(outcome.reused(batch) for batch, outcome in batches)
        failed = sum(len(outcome.failed) for _, outcome in batches)
        simulated = sum(len(batch.positions) for batch, _ in batches) - reused - failed
        entry = Round(
            number=number,
            labels=len(self.labelled),
            chosen=tuple(position for batch, _ in batches for position in batch.training),
            simulations=SimulationCounts(simulated=simulated, reused=reused, failed=failed),
            loss=loss,
            errors=errors,
            seconds=RoundSeconds(
                select=sum(batch.seconds for batch, _ in batches),
                simulate=sum(outcome.seconds for _, outcome in batches),
                train=train_seconds,
                fit=fit_seconds,
            ),
        )
        self._remember(f"round-{number:04d}", entry.to_row())
        self.rounds.append(entry)

    def trained(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Weights after the training of a round and what it reported, or None if it has not ended or they are damaged."""
        report: Any = self.store.recall(f"training-{number:04d}")
        weights = None if report is None else self.store.load_tensors(f"weights-{number:04d}")
        return None if weights is None else (weights, report)

    def keep(self, number: int, weights: Mapping[str, Tensor], report: Mapping[str, Any]) -> None:
        """Remember weights, and then that there are some."""
        self.store.save_tensors(f"weights-{number:04d}", dict(weights))
        if self.store.recall(f"training-{number:04d}") is None:
            self._remember(f"training-{number:04d}", dict(report))

    def _remember(self, name: str, value: dict[str, Any]) -> None:
        try:
            self.store.remember(name, value)
        except ArgumentError as error:
            raise FileError(
                expected="a store that one learner uses",
                got=f"{name}, which another learner or process has written since this one was constructed",
                remedy="end all but one, and construct that again: it goes on where they were",
            ) from error

    def _closed(self) -> list[tuple[SimulationBatch, frozenset[int]]]:
        pairs = zip(self.batches, self.outcomes, strict=False)
        return [(batch, frozenset(outcome.failed)) for batch, outcome in pairs]

    def _recalled(self, kind: str) -> list[Any]:
        entries: list[Any] = []
        while (entry := self.store.recall(f"{kind}-{len(entries):04d}")) is not None:
            entries.append(entry)
        later = sorted(path.stem for path in (self.store.path / "decisions").glob(f"{kind}-*.safetensors"))[len(entries) :]
        if later:
            raise FileError(
                expected="a memory without gaps",
                got=f"{later[0]}, but no usable {kind}-{len(entries):04d}",
                remedy=_RESTORE.format(self.store.path / "decisions"),
            )
        return entries


def _kind(outputs: Field) -> tuple[Any, ...]:
    return outputs.grid, outputs.channels, outputs.dtype


def _left(positions: Sequence[int], failed: frozenset[int]) -> list[int]:
    return [position for position in positions if position not in failed]


def _built(kind: type[_Entry], entry: Mapping[str, Any]) -> _Entry:
    """An entry of the memory from what JSON holds, which has lists for tuples.

    Raises:
        FileError: If another version wrote it.
    """
    schema.check_names(entry, [part.name for part in fields(kind)], where=f"a {kind.__name__} of the loop's memory")
    parts: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return kind(**parts)
