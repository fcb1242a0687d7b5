"""Operators on meshes: errors on test, finer and graded meshes, joint densities, and coverage of three kinds of intervals."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import probneural as pn
from benchmarks import environment, kept_units, recipes, sections
from probneural.grids.mesh import barycentric
from probneural.grids.resampling import background
from probneural.operators.base import initial_weights
from probneural.operators.layers import ChannelNormalizer, PointwiseLinear, ReadoutLinear
from probneural.randomness import stream_seed

LEVEL = 0.9
QUANTILE = 1.6448536269514722
"""Half width of a Gaussian interval at that level, in standard deviations."""
PARTS = {"train": 300, "scale": 100, "band": 100, "test": 400, "finer": 60, "graded": 60}
"""Number of samples by purpose."""
SIZES = {"train": 300, "finer": 1200, "finest": 4800}
"""Points per mesh."""
EPOCHS = 20
WHOLE = 40
"""Test samples for joint densities."""
BASELINE, SHARED = "interpolation and FNO", ("kernel operator", "linear regression")
"""Baselines on a background grid, and on one mesh for all samples."""
BACKGROUND = 1024
"""Points of the uniform grid of the interpolating baseline."""
REFINED = {"samples": 1000, "epochs": 40}
"""Training of the refinement study."""
SMALL = {"parts": 10, "sizes": 3, "epochs": 1}
"""Divisors of the numbers of samples and points, and the epochs, of a smoke test."""

Quantity = Callable[[pn.FieldPairs], pn.functionals.Functional]


@dataclass(frozen=True)
class Case:
    """A problem, its resolutions and its quantity of interest.

    Attributes:
        problem: Object with `sample(n, resolution=, seed=)`.
        modes: Modes of `PointFNO` per coordinate.
        quantity: Returns the functional of some pairs whose interval is scored.
        has_graded: Whether `sample` takes `graded=True`.
        is_shared: Whether all samples have one mesh.
    """

    problem: Any
    modes: tuple[int, ...]
    quantity: Quantity
    has_graded: bool = False
    is_shared: bool = False

    def sample(self, part: str, *, count: int, size: int, graded: bool = False) -> pn.FieldPairs:
        """Return pairs of one part of the study."""
        seed = stream_seed(0, "mesh functions", list(PARTS).index(part))
        options = {"graded": True} if graded else {}
        pairs: pn.FieldPairs = self.problem.sample(count, resolution=size, seed=seed, **options)
        return pairs


def lift(pairs: pn.FieldPairs) -> pn.functionals.Functional:
    """Return the lift coefficient: the integral of c_p n·(-sin α, cos α) over the airfoil, with one angle per sample."""
    angle = pairs.inputs.values[:, 0, 0].double()
    upward = torch.stack([-angle.sin(), angle.cos()], dim=1)
    return pn.functionals.boundary_integral(pairs.inputs.grid, pn.problems.JoukowskiAirfoil().on_surface, direction=upward)


CASES = {
    "Poisson on shapes": Case(
        pn.problems.PoissonOnShapes(), (6, 6), lambda pairs: pn.functionals.integral(pairs.outputs.grid), has_graded=True
    ),
    "Joukowski airfoil": Case(pn.problems.JoukowskiAirfoil(), (5, 5), lift),
    "Heat on the sphere": Case(
        pn.problems.SphereHeat(),
        (4, 4, 4),
        lambda pairs: pn.functionals.region(pairs.outputs.grid, lambda points: points[:, 2] > 0.0),
        is_shared=True,
    ),
}
"""Problems by title: the integral of the solution, the lift coefficient, and the heat of the northern hemisphere."""


class BackgroundFNO(nn.Module):
    """The baseline: interpolation to a uniform grid with a mask channel, an FNO, and bilinear interpolation back.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        grid: The uniform grid, in two dimensions.
        modes: Modes of the FNO per axis.
        width: Channels of hidden states.
    """

    def __init__(self, in_channels: int, out_channels: int, *, grid: pn.Grid, modes: tuple[int, ...], width: int = 32) -> None:
        super().__init__()
        self.grid = grid
        self.input_normalizer, self.output_normalizer = ChannelNormalizer(in_channels), ChannelNormalizer(out_channels)
        self.body = pn.operators.FNO(
            in_channels + 1, width, modes=modes, width=width, periodic=False, embeds_position=True, seed=0
        )
        self.projection, self.readout = PointwiseLinear(width, 64), ReadoutLinear(64, out_channels)
        self.located: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def forward(self, values: Tensor, *, grid: pn.Grid, query: pn.Grid | None = None) -> Tensor:
        """Evaluate at the points of the query, by default those of the grid."""
        target = grid if query is None else query
        raster = self._raster(self.input_normalizer(values), grid)
        hidden = self.body(raster, grid=self.grid)
        origin, lengths = (torch.tensor([getattr(axis, name) for axis in self.grid.axes]) for name in ("origin", "length"))
        points = target.points if target.has_points_per_sample else target.points[None]
        position = (2.0 * (points - origin) / lengths - 1.0).flip(-1).to(values)  # grid_sample expects the last axis first
        sampled = nn.functional.grid_sample(hidden, position[:, None].expand(len(values), -1, -1, -1), align_corners=True)
        features = nn.functional.gelu(self.projection(sampled[:, :, 0]))
        return self.output_normalizer.inverse(self.readout(features))

    def _raster(self, values: Tensor, grid: pn.Grid) -> Tensor:
        """Piecewise linear values on the uniform grid, 0 outside the mesh, and a channel that is 1 inside."""
        parts = []
        for sample, mesh in zip(values, grid.singles(), strict=True):
            key = hash(mesh.points.numpy().tobytes())
            if key not in self.located:  # once per mesh: the search takes longer than an FNO's step
                assert mesh.cells is not None
                self.located[key] = barycentric(mesh.points, mesh.cells, self.grid.points)
            indices, weights, is_inside = self.located[key]
            parts.append(torch.cat([(sample[:, indices] * weights.to(sample)).sum(-1) * is_inside, is_inside[None].to(sample)]))
        return torch.stack(parts).unflatten(-1, self.grid.shape)


def operators(case: Case, train: pn.FieldPairs) -> dict[str, Callable[[int], nn.Module]]:
    """Return constructors of untrained operators by name; they take a seed."""
    channels = (train.inputs.channels, train.outputs.channels)
    dimension = len(case.modes)

    def grid_fno(seed: int) -> nn.Module:
        with initial_weights(seed):
            module = BackgroundFNO(*channels, grid=background(train.inputs.grid, size=BACKGROUND, margin=0.02), modes=(8, 8))
        module.input_normalizer.fit(train.inputs)
        module.output_normalizer.fit(train.outputs)
        return module

    domain = background(train.inputs.grid, size=4**dimension, margin=0.2)
    every: dict[str, Callable[[int], nn.Module]] = {
        "PointFNO": lambda seed: pn.operators.PointFNO(*channels, modes=case.modes, seed=seed),
        "AttentionOperator": lambda seed: pn.operators.AttentionOperator(
            *channels, dimension=dimension, width=32, depth=3, seed=seed
        ),
        "DeepONet": lambda seed: pn.operators.DeepONet(*channels, sensors=None, domain=domain, seed=seed),
    }
    return every if case.is_shared else every | {BASELINE: grid_fno}


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """One operator on one problem, with both heads.

    Attributes:
        problem: Title of the problem.
        operator: Name of the operator.
        commit: Commit of the code.
        is_small: Whether sizes are those of a smoke test.
    """

    problem: str
    operator: str
    commit: str
    is_small: bool = False

    @property
    def name(self) -> str:
        """Problem and operator, for the progress bar."""
        return f"{self.problem}, {self.operator}"

    def run(self, folder: Path) -> dict[str, Any]:
        """Train two networks, fit a last layer on the first and an ensemble of both, and score; or fit one linear baseline."""
        del folder
        case, size = CASES[self.problem], SIZES["train"] // (SMALL["sizes"] if self.is_small else 1)
        data = {
            part: case.sample(
                part,
                count=count // (SMALL["parts"] if self.is_small else 1),
                size=SIZES["finer"] if part == "finer" else size,
                graded=part == "graded",
            )
            for part, count in PARTS.items()
            if part not in ("finer", "graded") or (case.has_graded if part == "graded" else self.operator not in SHARED)
        }
        train = data["train"]
        start = time.process_time()
        fits: dict[str, Callable[[], pn.distributions.Predictor]]
        if self.operator == "kernel operator":
            fits, steps = {"Gaussian process": lambda: pn.heads.KernelOperator().fit(None, train)}, 1
        elif self.operator == "linear regression":
            regression = pn.operators.LinearRegression.fitted(train)
            fits, steps = {"last layer": lambda: pn.heads.LastLayerLaplace().fit(regression, train)}, 1
        else:
            networks = [operators(case, train)[self.operator](seed) for seed in range(2)]
            rate = 3e-3 if self.operator in ("PointFNO", BASELINE) else 1e-2  # as their pages recommend
            for seed, network in enumerate(networks):
                fit(network, train, epochs=SMALL["epochs"] if self.is_small else EPOCHS, seed=seed, rate=rate)
            fits, steps = (
                {
                    "last layer": lambda: pn.heads.LastLayerLaplace().fit(networks[0], train),
                    "ensemble of 2": lambda: recipes.ensemble(networks, train),
                },
                2,
            )
        seconds = (time.process_time() - start) / steps
        rows = []
        for name, head in fits.items():
            start = time.process_time()
            predictor = pn.calibration.VarianceScale().fit(head(), data["scale"])
            band = pn.calibration.SimultaneousBand(LEVEL).fit(predictor, data["band"])
            row = {"problem": self.problem, "operator": self.operator, "head": name}
            row |= scores(predictor, band, data, quantity=case.quantity)
            rows.append(row | {"training, CPU s": seconds, "head and scores, CPU s": time.process_time() - start})
        return {"rows": rows}


def fit(network: nn.Module, train: pn.FieldPairs, *, epochs: int, seed: int, rate: float = 3e-3) -> None:
    """Train without output."""
    pn.fit(network, train, epochs=epochs, seed=seed, learning_rate=rate, show_progress=False)


def scores(
    predictor: pn.distributions.Predictor,
    band: Any,
    data: dict[str, pn.FieldPairs],
    *,
    quantity: Quantity,
) -> dict[str, Any]:
    """Errors on all test meshes; density and coverage on those of the training size."""
    test = pn.metrics.score_pairs(predictor, data["test"], level=LEVEL, whole=WHOLE)
    row: dict[str, Any] = {"error": test.relative_l2}
    for part in ("finer", "graded"):
        pairs = data.get(part)
        row[f"error, {part}"] = None if pairs is None else pn.metrics.score_pairs(predictor, pairs, whole=1).relative_l2
    inside = []
    for part in chunks(data["test"]):
        u = predictor(part.inputs)
        functional = quantity(part)
        value = u.apply(functional)
        deviation = (functional(part.outputs.values) - value.mean).abs()
        inside.append((deviation <= QUANTILE * value.standard_deviation).flatten())
    return row | {
        "joint NLL": test.joint_nll,
        "pointwise": test.coverage,
        "band": band.coverage(data["test"]),
        "quantity": float(torch.cat(inside).double().mean()),
    }


def chunks(pairs: pn.FieldPairs, size: int = 20) -> list[pn.FieldPairs]:
    """Batches of pairs."""
    return [pairs[start : start + size] for start in range(0, len(pairs), size)]


@dataclass(frozen=True)
class Refinement(kept_units.Unit):
    """One `PointFNO` trained on many samples: errors and standard deviations of the same functions on finer meshes.

    Attributes:
        commit: Commit of the code.
        is_small: Whether sizes are those of a smoke test.
    """

    commit: str
    is_small: bool = False
    name = "refinement"

    def run(self, folder: Path) -> dict[str, Any]:
        """Train, fit the last layer, and evaluate it on four kinds of meshes."""
        del folder
        case, count = CASES["Poisson on shapes"], 20 if self.is_small else REFINED["samples"]
        train = case.sample("train", count=count, size=SIZES["train"])
        network = pn.operators.PointFNO(train.inputs.channels, train.outputs.channels, modes=case.modes, seed=0)
        fit(network, train, epochs=SMALL["epochs"] if self.is_small else REFINED["epochs"], seed=0)
        predictor = pn.heads.LastLayerLaplace().fit(network, train)
        rows, coarse = [], None
        for size in SIZES.values():
            for graded in (False, True):
                pairs = case.sample("test", count=4 if self.is_small else 60, size=size, graded=graded)
                fields = [predictor(part.inputs) for part in chunks(pairs)]
                deviation = torch.cat([u.grid.mean(u.variance.flatten(2)) for u in fields]).mean(1).sqrt()
                coarse = deviation if coarse is None else coarse
                row = {"points": size, "mesh": "graded" if graded else "uniform"}
                row |= {"error": pn.metrics.score_pairs(predictor, pairs, whole=1).relative_l2}
                rows.append(row | {"sd ratio": float((deviation / coarse).mean())})
        return {"rows": rows}


def main(*, mode: str, output: Path, workers: int, problem: str | None = None) -> dict[str, Any]:
    """Run all problems and operators without stored results."""
    is_small, commit = mode == "small", environment.commit()
    todo: list[kept_units.Unit] = [Refinement(commit, is_small)]
    for title, case in CASES.items():
        if title.startswith(problem or ""):
            names = [*operators(case, case.sample("train", count=1, size=SIZES["train"])), *(SHARED if case.is_shared else ())]
            todo += [Unit(title, name, commit, is_small) for name in names]
    notes = [
        f"{PARTS['train']} training samples of {SIZES['train']} points, {EPOCHS} epochs; finer: {SIZES['finer']} points. "
        "error: relative L2, mean over samples. Nominal coverage .9: pointwise and quantity after VarianceScale alone, band: "
        "SimultaneousBand. quantity: integral of u, lift coefficient, heat of a hemisphere.",
    ]
    results: dict[str, list[dict[str, Any]]] = {}

    def run() -> list[dict[str, Any]]:
        units = kept_units.spread(todo, output / "meshes", workers=workers, notes=notes)
        results.update({unit.name: kept["rows"] for unit, kept in units.items()})
        return [row for unit in todo[1:] for row in results[unit.name]]

    return sections.write(
        "meshes",
        {"scores": run, "refinement": lambda: results["refinement"]},
        mode=mode,
        output=output,
        commit=commit,
        chosen={"problem": problem},
        notes=notes,
    )
