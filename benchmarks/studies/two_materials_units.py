"""Units of the benchmark of flow through two materials: heads and bands under one seed, kept in a file when they are done."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import probneural as pn
from benchmarks import kept_units, recipes
from benchmarks.head_makers import DEFAULT, ENSEMBLE, MEMBERS, Data, Workshop
from benchmarks.kept_units import noted
from benchmarks.over_seeds import Row
from benchmarks.recipes import Recipe
from probneural.calibration.bands.shapes import FLOOR, Modulation, band_shape, domain_quantile
from probneural.calibration.predictions import domain_average
from probneural.distributions import DenseRoot, FieldDistribution, GaussianField, Predictor, PredictorTraits
from probneural.distributions.latent import digest
from probneural.distributions.roots.modulated import DiagonalRoot
from probneural.fields import Field
from probneural.grids import Grid
from probneural.randomness import stream_seed

SCRATCH = "energy score, from scratch"
TUNED = "energy score, fine-tuned"
COPIES = "last layer, with copies"
LONGER = f"{DEFAULT}, {MEMBERS} times as long"
HEADS = {
    DEFAULT: DEFAULT,
    SCRATCH: SCRATCH,
    TUNED: "noise-conditioned",
    ENSEMBLE: ENSEMBLE,
    LONGER: LONGER,
    COPIES: COPIES,
}
"""Names in the tables, and in the workshop."""
CONSTANT, SECOND, FURTHER = "constant width", "second network", "second network, functions of its own"
SCALES = ("none", "local", "mixed")
"""Variances as the head states them; with a factor that varies; and with that and a random scale for every function."""
BANDS = (CONSTANT, SECOND, FURTHER, DEFAULT, SCRATCH, ENSEMBLE, COPIES)
"""What bands are wide in proportion to; the first four lie around the same network."""
PROMISES = ((0.1, 0.1), (0.1, 0.05), (0.05, 0.1), (0.05, 0.05), (0.02, 0.1))
"""α, the part of the domain that a function may leave a band on, and δ, the probability of a function that does so on more."""
SECOND_LEVEL = 0.9
"""Quantile of absolute errors that the second network learns."""
RANK, BOUND = "ranks", "bound"
"""How the quantile is found: ranks of calibration functions; or Hoeffding's bound for points, as in UQNO's published code."""
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 0.1
CONTINUATION = "periodic"
"""The best for one network, and for one with copies, of some that were tried on functions of other seeds. An even continuation
without decay of weights had errors a third larger there."""
WHOLE = 40
"""Test functions that scores of whole functions are computed on."""
TOGETHER = 50
"""Functions that are predicted at once."""
FAILED = "failed"


@dataclass(frozen=True)
class Sizes:
    """How large a run is.

    Attributes:
        points: Per axis.
        cells: Least number per axis that the flow is solved on.
        pairs: Training pairs.
        held_out: Functions that variances are scaled on, and that the second network learns from.
        conformal: Functions that bands are calibrated on.
        tests: Functions that are scored.
        epochs: Of a network.
        width: Channels of the FNO.
        modes: Per axis.
    """

    points: int = 43
    cells: int = 168
    pairs: int = 1000
    held_out: int = 200
    conformal: int = 300
    tests: int = 300
    epochs: int = 20
    width: int = 16
    modes: int = 12


SIZES = {
    "default": Sizes(),
    "published": Sizes(points=85, cells=420, width=32, epochs=25),
    "small": Sizes(pairs=30, held_out=20, conformal=60, tests=20, epochs=1, width=4, modes=4),
}


class Parts(NamedTuple):
    """The functions of one seed.

    Attributes:
        train: What networks learn from.
        held_out: What variances are scaled on, and a second network learns from.
        conformal: What bands are calibrated on.
        test: What is scored.
        further: As many as networks learn from, for a second network.
    """

    train: pn.FieldPairs
    held_out: pn.FieldPairs
    conformal: pn.FieldPairs
    test: pn.FieldPairs
    further: pn.FieldPairs

    @classmethod
    def drawn(cls, sizes: Sizes, seed: int, *, device: str = "cpu") -> Parts:
        """Draw all of them, and solve on the device."""
        counts = (sizes.pairs, sizes.held_out, sizes.conformal, sizes.tests, sizes.pairs)
        problem = pn.problems.PiecewiseDarcy(cells=sizes.cells)
        return cls(
            *(
                problem.sample(
                    count, resolution=sizes.points, seed=stream_seed(seed, "two-materials functions", part), device=device
                )
                for part, count in enumerate(counts)
            )
        )


class Pinball(NamedTuple):
    """The loss whose least mean is at a quantile, in units of the targets' mean.

    Attributes:
        level: Of the quantile.
    """

    level: float

    def __call__(self, predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
        del grid
        above = target - predicted
        return torch.maximum(self.level * above, (self.level - 1.0) * above).mean() / target.mean()


class TwoNetworks(Predictor):
    """One network's values, with a second one's in place of a deviation: a band's shape, not a distribution."""

    def __init__(self, operator: nn.Module, width: nn.Module, *, like: pn.FieldPairs) -> None:
        super().__init__(
            PredictorTraits(
                in_channels=like.inputs.channels,
                noise=torch.zeros(like.outputs.channels, dtype=torch.float64),
                domain=like.inputs.grid,
                like=next(operator.parameters()),
            )
        )
        self.operator, self.width = operator, width
        self._latent = pn.distributions.Latent(id=f"two networks {digest(*width.parameters())}", rank=0)

    def _predict(self, sets: list[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        mean, width = (pn.fields.evaluate(one, inputs, query).detach() for one in (self.operator, self.width))
        where = inputs.grid if query is None else query
        nothing = DenseRoot(mean.new_zeros(*mean.shape[:2], where.size, 0))
        own = DiagonalRoot(width.clamp_min(0.0).flatten(2))
        return GaussianField(mean, nothing, latent=self._latent, grid=where, discrepancy=own)


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """All heads and bands under one seed.

    Attributes:
        sizes: How large.
        seed: Of functions, weights and draws.
        commit: Of the code.
        device: Where everything runs.
    """

    sizes: Sizes
    seed: int
    commit: str
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For readers of the progress."""
        return f"seed {self.seed}"

    def run(self, folder: Path) -> dict[str, Any]:
        """Train, fit, calibrate and score."""
        del folder
        parts = Parts.drawn(self.sizes, self.seed, device=self.device)
        exactly = torch.zeros(1, dtype=torch.float64)
        shop = Workshop(self.recipe, Data(parts.train, parts.held_out, parts.held_out, exactly), seed=self.seed)
        found: dict[str, Any] = {"seed": self.seed, "heads": [], "bands": [], FAILED: []}
        raw: dict[str, Predictor] = {}
        scaled: dict[str, Predictor] = {}
        for head, whose in HEADS.items():
            with noted(found[FAILED], head):
                own = {SCRATCH: self._from_scratch, COPIES: self._with_copies}
                raw[head] = own[head](shop) if head in own else shop.head(whose).predictor
                scaled[head] = shop.data.scale().fit(raw[head], parts.held_out)
                mixed = pn.calibration.ScaleMixture(seed=self.seed).fit(scaled[head], parts.held_out)
                for scale, predictor in zip(SCALES, (raw[head], scaled[head], mixed), strict=True):
                    found["heads"].append({"head": head, "scale": scale} | scores(predictor, parts.test))
        for shape in BANDS:
            with noted(found[FAILED], f"band, {shape}"):
                if shape in (SECOND, FURTHER):
                    predictor = self._second(shop, parts.held_out if shape == SECOND else parts.further)
                elif (whose := DEFAULT if shape == CONSTANT else shape) in scaled:
                    predictor = scaled[whose]
                else:
                    continue  # the head failed, which is noted
                found["bands"] += band_rows(shape, predictor, parts=parts)
        return found

    @property
    def recipe(self) -> Recipe:
        """Of the network."""
        modes, width = (self.sizes.modes,) * 2, self.sizes.width
        options: dict[str, Any] = {"width": width, "projection": 2 * width, "continuation": CONTINUATION}
        usual = recipes.fno(*modes, epochs=self.sizes.epochs, learning_rate=LEARNING_RATE, embeds_position=True, **options)
        return replace(usual, weight_decay=WEIGHT_DECAY)

    def _from_scratch(self, shop: Workshop) -> Predictor:
        """An operator that answers with draws, never trained in another way."""
        operator = pn.operators.NoiseConditionedOperator(
            shop.recipe.build(shop.pairs, seed=shop.seed_of(0)),
            layers=["spectral"],
            noise=pn.operators.NoiseField(4),
            samples=2,
            seed=shop.seed_of(0),
        )
        settings = {"epochs": self.sizes.epochs, "learning_rate": LEARNING_RATE, "optimization": shop.recipe.optimization}
        loss = pn.training.EnergyScore(2)
        pn.fit(operator, shop.pairs, loss=loss, seed=shop.seed_of(0), show_progress=False, **settings)
        return pn.heads.NoiseConditioning(64, seed=shop.seed_of(0)).fit(operator, shop.pairs)

    def _with_copies(self, shop: Workshop) -> Predictor:
        """An operator that learned from mirrors and turns of all functions too, from as many evaluations as the ensemble."""
        copies = pn.augmentation.augment(shop.pairs, pn.augmentation.box(shop.pairs.inputs.grid))
        epochs = max(1, MEMBERS * self.sizes.epochs * len(shop.pairs) // len(copies))
        operator, _, _ = replace(shop.recipe, epochs=epochs).train(copies, seed=shop.seed_of(0), tick=lambda: None)
        return pn.heads.LastLayerLaplace().fit(operator, shop.pairs)

    def _second(self, shop: Workshop, unseen: pn.FieldPairs) -> Predictor:
        """The first network, and one that has learned a quantile of its absolute errors on functions that it has not seen."""
        operator, _ = shop.member(0)
        errors = (unseen.outputs.values - pn.fields.evaluate(operator, unseen.inputs).detach()).abs()
        pairs = pn.FieldPairs(unseen.inputs, Field(errors, unseen.outputs.grid))
        width = shop.recipe.build(pairs, seed=shop.seed_of(1))
        epochs = self.sizes.epochs * self.sizes.pairs // len(unseen)  # as many steps as the first network has
        stop = replace(shop.recipe.optimization, early_stopping=pn.training.EarlyStopping(patience=max(1, epochs // 3)))
        fit: Callable[..., object] = partial(
            pn.fit, epochs=epochs, learning_rate=LEARNING_RATE, data=pn.training.DataOptions(validation=0.2)
        )
        fit(width, pairs, loss=Pinball(SECOND_LEVEL), optimization=stop, seed=shop.seed_of(1), show_progress=False)
        return TwoNetworks(operator, width, like=shop.pairs)


def scores(predictor: Predictor, test: pn.FieldPairs) -> Row:
    """Scores of the fields; those in the field's units, in units of the root mean square of the outputs."""
    known = pn.metrics.score(predictor(test.inputs), test.outputs, noise=predictor.noise, whole=WHOLE)
    unit = root_mean_square(test)
    return {
        "relative L2": known.relative_l2,
        "CRPS": known.crps / unit,
        "energy": None if known.energy is None else known.energy / unit,
        "coverage": known.coverage,
        "whole": known.simultaneous_coverage,
    }


def root_mean_square(pairs: pn.FieldPairs) -> float:
    """Of the outputs, in physical units."""
    return float(pairs.outputs.values.double().square().mean().sqrt())


class Strays(NamedTuple):
    """How far functions stray from what was predicted.

    Attributes:
        ratios: Absolute errors in units of the band's local scale, `(n, c, *grid)`.
        scale: The local scale averaged over the domain and all functions, in physical units.
        grid: Where.
    """

    ratios: Tensor
    scale: float
    grid: Grid

    @classmethod
    def of(cls, predictor: Predictor, pairs: pn.FieldPairs, *, modulation: Modulation) -> Strays:
        """Predict some functions at a time."""
        ratios, scales = [], []
        for start in range(0, len(pairs), TOGETHER):
            some = pairs[start : start + TOGETHER]
            shape = band_shape(predictor(some.inputs), predictor, modulation=modulation, floor=FLOOR)
            ratios.append(shape.ratios(some.outputs.values.double()))
            scales.append(domain_average(shape.scale, some.outputs.grid))
        return cls(torch.cat(ratios), float(torch.cat(scales).mean()), pairs.outputs.grid)

    def quantiles(self, fraction: float) -> Tensor:
        """How many local scales wide a band has to be to hold each function on this fraction of the domain, `(n,)`."""
        return domain_quantile(self.ratios, self.grid, fraction=fraction)


def band_rows(shape: str, predictor: Predictor, *, parts: Parts) -> list[Row]:
    """What each promise comes to, by either rule: the functions that keep it, and how wide the band is."""
    modulation: Modulation = "constant" if shape == CONSTANT else "std"
    first, second = (Strays.of(predictor, pairs, modulation=modulation) for pairs in (parts.conformal, parts.test))
    unit = root_mean_square(parts.test)
    rows = []
    for alpha, delta in PROMISES:
        needed = second.quantiles(1.0 - alpha)
        for rule, find in RULES.items():
            row: Row = {"band": shape, "α": alpha, "δ": delta, "rule": rule, "held": None, "width": None}
            quantile = find(first, alpha, delta)
            if quantile is not None:
                row |= {"held": float((needed <= quantile).double().mean()), "width": quantile * second.scale / unit}
            rows.append(row)
    return rows


def by_ranks(strays: Strays, alpha: float, delta: float) -> float | None:
    """The rank of a new function among those for calibration, each by the part 1 - α of its domain, as PointwiseBand has it.

    None where there are too few functions.
    """
    rank = math.ceil((len(strays.ratios) + 1) * (1.0 - delta))
    return None if rank > len(strays.ratios) else float(strays.quantiles(1.0 - alpha).sort().values[rank - 1])


def by_bound(strays: Strays, alpha: float, delta: float) -> float | None:
    """What the code does that was published with UQNO: all grid points count alike, as independent draws of the domain.

    A part t of α is kept for Hoeffding's bound: its least, and a third of the rest. None where it leaves nothing.

    Reference:
        Ma et al. (2024), Calibrated uncertainty quantification for operator learning via conformal prediction, and
        scripts/train_uqno_darcy.py of neuraloperator.
    """
    functions, points = strays.ratios.flatten(1).shape
    least = math.sqrt(-math.log(delta) / (2 * points))
    kept = (alpha - least) / 3 + least
    left = delta - math.exp(-2 * points * kept**2)
    if alpha <= kept or left <= 0:
        return None
    outside, above = math.ceil((alpha - kept) * points), math.ceil((functions + 1) * left)
    if above >= functions:
        return None
    by_function = strays.ratios.flatten(1).sort(dim=1, descending=True).values[:, outside]
    return float(by_function.sort(descending=True).values[above])


RULES: dict[str, Callable[[Strays, float, float], float | None]] = {RANK: by_ranks, BOUND: by_bound}
