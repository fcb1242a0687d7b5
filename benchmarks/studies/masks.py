"""Heads beside an exact posterior whose covariance depends on the input: fields seen through sensors at random places.

All heads share the networks of a seed. What a covariance that is diagonal, or the same for all inputs, loses at least stands
beside them, in closed form.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import probneural as pn
from benchmarks import environment, kept_units, random_speed, recipes, sections, studies
from benchmarks.kept_units import noted
from benchmarks.over_seeds import CONFIDENCE, Row, average
from benchmarks.studies import masked_sensors
from benchmarks.studies.masked_sensors import Masked
from benchmarks.studies.sparse_sensors import POINTS
from probneural.distributions import EmpiricalField, FieldDistribution, Predictor
from probneural.randomness import stream_seed

SEEDS = 5
FLOORS = "floors"
RANKS = (0, 8)
OTHER = 0.2
"""Part of the training pairs that an operator does not see and its second read-out is fitted on, in one of the heads."""
COLUMNS = ("regret", "energy distance", "mean error", "sd ratio", "covariance error", "sd correlation")
FAILED = "failed"
EXACT_DRAWS = "draws of the exact posterior"


@dataclass(frozen=True)
class Sizes:
    """How large a run is.

    Attributes:
        pairs: Training pairs.
        epochs: Of the networks, and of operators that answer with draws.
        read_out: Epochs of a second read-out.
        held_out: Functions that variances are scaled on, and others that are scored.
        draws: Of operators that answer with draws.
        networks: Of the ensemble.
        width: Channels of the FNO.
    """

    pairs: int = 5000
    epochs: int = 30
    read_out: int = 40
    held_out: int = 300
    draws: int = 400
    networks: int = 4
    width: int = 24


SIZES = {
    "default": Sizes(),
    "small": Sizes(pairs=60, epochs=2, read_out=2, held_out=12, draws=80, networks=2, width=4),
}


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """All heads under one seed.

    Attributes:
        sizes: How large.
        seed: Of functions, places, weights and draws.
        commit: Of the code.
    """

    sizes: Sizes
    seed: int
    commit: str

    @property
    def name(self) -> str:
        """For readers of the progress."""
        return f"seed {self.seed}"

    def run(self, folder: Path) -> dict[str, Any]:
        """Train, fit and score."""
        del folder
        train, held_out, test = (
            Masked.drawn(count, seed=self.seed, part=part)
            for part, count in enumerate((self.sizes.pairs, self.sizes.held_out, self.sizes.held_out))
        )
        exact = test.posterior()
        rows: list[Row] = [{"head": name, "regret": value} for name, value in masked_sensors.floors(exact[1]).items()]
        failed: list[Row] = []
        for head, make in self._heads(train.pairs).items():
            with noted(failed, head):
                raw = make()
                scaled = pn.calibration.VarianceScale().fit(raw, held_out.pairs)
                for variances, predictor in (("as fitted", raw), ("scaled", scaled)):
                    found = self._scores(predictor(test.pairs.inputs), exact)
                    rows.append({"head": head, "variances": variances} | found)
        drawn = random_speed.gaussian_draws(*exact, count=self.sizes.draws, seed=self._seed(2))
        u = EmpiricalField(drawn.movedim(1, 0)[:, :, None], grid=masked_sensors.GRID)
        return {"rows": [*rows, {"head": EXACT_DRAWS} | self._scores(u, exact)], FAILED: failed}

    def _scores(self, u: FieldDistribution, exact: tuple[Tensor, Tensor]) -> Row:
        """Draws state no density."""
        known = masked_sensors.scores(_moments(u), exact) | ({"regret": None} if isinstance(u, EmpiricalField) else {})
        return known | {"energy distance": self._distance(u, exact)}

    def _distance(self, u: FieldDistribution, exact: tuple[Tensor, Tensor]) -> float:
        """Of draws of both, in units of the root mean square of exact deviations."""
        count = self.sizes.draws
        true = random_speed.gaussian_draws(*exact, count=count, seed=self.seed)
        if isinstance(u, EmpiricalField):
            stated = u.samples[:, :, 0].movedim(0, 1).double()
        else:
            stated = random_speed.gaussian_draws(*_moments(u), count=count, seed=self._seed(1))
        unit = exact[1].diagonal(dim1=1, dim2=2).mean().sqrt()
        return float(random_speed.energy_distance(stated, true).mean() / unit)

    def _heads(self, train: pn.FieldPairs) -> dict[str, Callable[[], Predictor]]:
        """What fits each head; networks are trained first."""
        networks = [self._fno(number) for number in range(self.sizes.networks)]
        for number, network in enumerate(networks):
            self._fit(network, train, number)

        def second_read_out(rank: int, *, trains: bool = False) -> Predictor:
            return self._read_out(rank, trains=trains).fit(networks[0], train)

        def of_other_pairs(rank: int) -> Predictor:
            seen = round((1.0 - OTHER) * len(train))
            operator = self._fno(0)
            self._fit(operator, train[:seen], 0)
            return self._read_out(rank).fit(operator, train[seen:])

        def drawing() -> Predictor:
            operator = pn.operators.NoiseConditionedOperator(
                self._fno(0), layers=["spectral"], noise=pn.operators.NoiseField(2), samples=4, seed=self._seed(0)
            )
            self._fit(operator, train, 0, loss=pn.training.EnergyScore(4))
            return pn.heads.NoiseConditioning(self.sizes.draws, seed=self.seed).fit(operator, train)

        return {
            "last layer": lambda: pn.heads.LastLayerLaplace().fit(networks[0], train),
            f"ensemble of {len(networks)}": lambda: recipes.ensemble(networks, train),
            **{f"second read-out, rank {rank}": partial(second_read_out, rank) for rank in RANKS},
            f"second read-out, rank {RANKS[-1]}, of other pairs": partial(of_other_pairs, RANKS[-1]),
            f"second read-out, rank {RANKS[-1]}, with the operator": partial(second_read_out, RANKS[-1], trains=True),
            "energy score, from scratch": drawing,
        }

    def _read_out(self, rank: int, *, trains: bool = False) -> pn.heads.HeteroscedasticGaussian:
        return pn.heads.HeteroscedasticGaussian(rank, epochs=self.sizes.read_out, trains_operator=trains, seed=self.seed)

    def _fno(self, number: int) -> pn.operators.FNO:
        return pn.operators.FNO(2, 1, modes=(16,), width=self.sizes.width, depth=4, seed=self._seed(number))

    def _fit(self, operator: torch.nn.Module, train: pn.FieldPairs, number: int, **settings: Any) -> None:
        pn.fit(operator, train, epochs=self.sizes.epochs, seed=self._seed(number), show_progress=False, **settings)

    def _seed(self, number: int) -> int:
        return stream_seed(self.seed, "masks training", number)


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Run all seeds, and write the table."""
    commit = environment.commit()
    todo = [Unit(SIZES[mode], seed, commit) for seed in range(1 if mode == "small" else SEEDS)]
    notes = [
        f"Heat seen through {masked_sensors.FEWEST} to {masked_sensors.MOST} sensors at random points of the grid, other ones "
        "for every function; the posterior is exact. regret: expected nats per value lost. energy distance: 2 E|X - Y| - "
        "E|X - X'| - E|Y - Y'| of stated and exact draws in the root-mean-square norm, over the root mean square of exact "
        "deviations. mean error: root mean square, in exact deviations. sd ratio: root of the ratio of mean variances. "
        "covariance error: Frobenius norm of the difference over that of the exact one. sd correlation: of logarithms of "
        "stated and exact deviations, over functions and points. Means over seeds with their "
        f"{CONFIDENCE:.0%} intervals.",
        f"scaled: by VarianceScale, on {SIZES[mode].held_out} functions that nothing was trained on. Of other pairs: the "
        f"operator has not seen the last {OTHER:.0%} of the training pairs, and the read-out is fitted on those alone.",
        "The first two rows are floors, in closed form, at the exact mean. Few directions of a field are uncertain, so nats "
        f"per value are small: times {POINTS} they are nats per function. An operator that answers with draws states no "
        f"density; its other scores are of {SIZES[mode].draws} draws, and the last row says by how much draws alone are wrong.",
    ]

    def table() -> list[Row]:
        results = list(kept_units.spread(todo, output / "masks", workers=workers, notes=notes).values())
        notes.append(
            f"a seed takes {statistics.median(found['processor_seconds'] for found in results):.0f} s of one processor"
        )
        notes.extend(f"failed: {row['what']}: {row['error'][:200]}" for found in results for row in found[FAILED])
        return rows(results)

    return sections.write("masks", {"random sensors": table}, mode=mode, output=output, notes=notes, commit=commit)


def rows(results: list[dict[str, Any]]) -> list[Row]:
    """One row per head: means over seeds, with intervals."""
    every: dict[tuple[str, str | None], list[Row]] = {}
    for found in results:
        for row in found["rows"]:
            every.setdefault((row["head"], row.get("variances")), []).append(row)
    return [
        {"head": head, "variances": variances, "seeds": len(own)}
        | {name: _known([row.get(name) for row in own]) for name in COLUMNS}
        for (head, variances), own in every.items()
    ]


def _known(values: list[float | None]) -> str | None:
    """The mean with its interval; None where a seed has no value."""
    known = [value for value in values if value is not None]
    return average(known, digits=3) if len(known) == len(values) else None


def _moments(u: FieldDistribution) -> tuple[Tensor, Tensor]:
    """Mean `(n, p)` and covariance `(n, p, p)`, float64."""
    if isinstance(u, EmpiricalField):
        samples = u.samples[:, :, 0].double()
        deviations = samples - samples.mean(0)
        return samples.mean(0), torch.einsum("snp,snq->npq", deviations, deviations) / (len(samples) - 1)
    return u.mean[:, 0].double(), u.covariance.to_dense().double()


if __name__ == "__main__":
    studies.run(main)
