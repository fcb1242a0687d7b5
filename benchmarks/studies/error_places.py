"""How much can be learned of where along a function a network errs, by the number of functions that it is learned from.

A second network learns the logarithm of the first one's absolute errors, on functions that the first has not seen. What it
reaches on others is what a deterministic scale could know; whatever it lacks is chance, or hidden in the first network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import probneural as pn
from benchmarks import environment, exact, kept_units, sections, studies
from benchmarks.calibration import FRONT_RANK, FRONTS
from benchmarks.kept_units import noted
from benchmarks.over_seeds import CONFIDENCE, Row, average, grouped
from probneural.distributions.roots.modulated import DiagonalRoot
from probneural.fields import Field
from probneural.metrics.spread import rank_correlation
from probneural.randomness import stream_seed

SEEDS = 3
FLOOR = 0.01
"""Added to absolute errors before the logarithm, in units of their mean."""
DISAGREEMENT, SCALE = "difference of two networks, by itself", "last layer, local scale"
READS = ("input", "input, prediction", "input, prediction, difference of two networks")
"""What the second network reads."""
FAILED = "failed"


@dataclass(frozen=True)
class Sizes:
    """How large a run is.

    Attributes:
        functions: That errors are learned from, and for how many epochs.
        tests: Others, that are ranked.
        mode: Which sizes of `exact` the first networks have.
    """

    functions: tuple[tuple[int, int], ...] = ((200, 100), (1000, 60), (8000, 15))
    tests: int = 400
    mode: str = "full"


SIZES = {"default": Sizes(), "small": Sizes(functions=((30, 2), (60, 2)), tests=20, mode="small")}


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """One problem under one seed.

    Attributes:
        problem: Its name in `exact`.
        sizes: How large.
        seed: Of functions and weights.
        commit: Of the code.
    """

    problem: str
    sizes: Sizes
    seed: int
    commit: str

    @property
    def name(self) -> str:
        """Name in progress messages."""
        return f"{self.problem}, seed {self.seed}"

    def run(self, folder: Path) -> dict[str, Any]:
        """Train two networks, learn the errors of the first, and rank those on other functions."""
        del folder
        (case,) = exact.chosen(self.sizes.mode, problem=self.problem)
        recipe, source = case.recipe("FNO"), case.source
        assert isinstance(source, exact.ProblemSource)
        most = max(count for count, _ in self.sizes.functions)
        train, further, test = (
            source.problem.sample(
                count, resolution=source.resolution, seed=stream_seed(self.seed, "error-places functions", part)
            )
            for part, count in enumerate((source.pairs, most, self.sizes.tests))
        )
        first, second = (recipe.train(train, seed=self._seed(number), tick=lambda: None)[0] for number in range(2))
        rows: list[Row] = []
        failed: list[Row] = []
        what, errors = _read(first, second, test)
        rows.append({"reads": DISAGREEMENT, "functions": None, "rank": ranked(what[:, -errors.shape[1] :].abs(), errors, test)})
        known, targets = _read(first, second, further)
        inputs, outputs = test.inputs.channels, test.outputs.channels
        columns = dict(zip(READS, (inputs, inputs + outputs, inputs + 2 * outputs), strict=True))
        for count, epochs in self.sizes.functions:
            for reads, channels in columns.items():
                with noted(failed, f"{reads}, {count} functions"):
                    pairs = pn.FieldPairs(
                        Field(known[:count, :channels], train.inputs.grid), Field(_logs(targets[:count]), train.outputs.grid)
                    )
                    network = recipe.build(pairs, seed=self._seed(2))
                    stop = pn.training.EarlyStopping(patience=max(1, epochs // 3))
                    pn.fit(
                        network,
                        pairs,
                        epochs=epochs,
                        learning_rate=recipe.learning_rate,
                        data=pn.training.DataOptions(validation=0.2),
                        optimization=pn.training.Optimization(early_stopping=stop),
                        seed=self._seed(3),
                        show_progress=False,
                    )
                    stated = pn.fields.evaluate(network, Field(what[:, :channels], test.inputs.grid)).detach().exp()
                    rows.append({"reads": reads, "functions": count, "rank": ranked(stated, errors, test)})
            with noted(failed, f"{SCALE}, {count} functions"):
                head = pn.heads.LastLayerLaplace().fit(first, train)
                u = pn.calibration.VarianceScale().fit(head, further[:count])(test.inputs)
                rows.append({"reads": SCALE, "functions": count, "rank": ranked(u.standard_deviation, errors, test)})
        whose = {"problem": self.problem, "head": "second network", "seed": self.seed}
        return {"rows": [whose | row for row in rows], FAILED: [whose | row for row in failed]}

    def _seed(self, number: int) -> int:
        return stream_seed(self.seed, "error-places network", number)


def _read(first: torch.nn.Module, second: torch.nn.Module, pairs: pn.FieldPairs) -> tuple[Tensor, Tensor]:
    """Channels that errors may be read off, and absolute errors of the first network."""
    one, other = (pn.fields.evaluate(network, pairs.inputs).detach() for network in (first, second))
    return torch.cat([pairs.inputs.values, one, one - other], 1), (pairs.outputs.values - one).abs()


def _logs(errors: Tensor) -> Tensor:
    return (errors / errors.mean() + FLOOR).log()


def ranked(stated: Tensor, errors: Tensor, pairs: pn.FieldPairs) -> float:
    """The rank correlation within functions of what is stated and the errors, averaged over functions and channels."""
    own = DiagonalRoot(stated.double().flatten(2))
    nothing = pn.distributions.DenseRoot(torch.zeros(*own.std.shape, 0, dtype=torch.float64))
    u = pn.distributions.GaussianField(
        torch.zeros_like(errors.double()), nothing, latent="stated", grid=pairs.outputs.grid, discrepancy=own
    )
    found = rank_correlation(pn.metrics.compare(u, Field(errors.double(), pairs.outputs.grid)), draws=1)
    return float(found.within.mean())


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Run all units, and write the table."""
    commit, sizes = environment.commit(), SIZES[mode]
    todo = [Unit(name, sizes, seed, commit) for seed in range(1 if mode == "small" else SEEDS) for name in FRONTS]
    notes = [
        "Rank correlation, between the points of one function, of what is stated and the absolute error of the first network; "
        f"a mean over {sizes.tests} functions, and over seeds with their {CONFIDENCE:.0%} intervals. The target of local "
        f"scales is {FRONT_RANK:g}; they are fitted on 200 functions.",
        "Networks and their training as in `exact`. The second one learns the logarithm of absolute errors on functions that "
        "the first has not seen, four fifths of them, and stops by the others; it is ranked on yet others.",
    ]

    def table() -> list[Row]:
        found = kept_units.spread(todo, output / "error-places", workers=workers, notes=notes)
        notes.extend(kept_units.failures(row for unit in todo for row in found[unit][FAILED]))
        return averaged([row for unit in todo for row in found[unit]["rows"]])

    return sections.write("error-places", {"ranks": table}, mode=mode, output=output, notes=notes, commit=commit)


def averaged(rows: list[Row]) -> list[Row]:
    """One row per problem and what is read, with a column per number of functions; means over seeds with intervals."""
    table = []
    for (problem, reads), own in grouped(rows, ("problem", "reads")).items():
        line: Row = {"problem": problem, "reads": reads, "seeds": len({row["seed"] for row in own})}
        for (count,), some in grouped(own, ("functions",)).items():
            heading = "none" if count is None else f"{count} functions"
            line[heading] = average([row["rank"] for row in some], digits=3)
        table.append(line)
    return table


if __name__ == "__main__":
    studies.run(main)
