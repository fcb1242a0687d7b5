"""Heads of the comparison, with the cost of their trainings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

import probneural as pn
from benchmarks import recipes
from benchmarks.recipes import Recipe
from probneural.distributions import Predictor
from probneural.heads.laplace.laplace import LaplacePredictor
from probneural.randomness import stream_seed

MEMBERS = 4
QUARTERS = "ensemble of 4 quarters"
"""Four members with a quarter of the epochs each: an ensemble at the cost of one training."""
BATCH = 20
"""Functions per gradient, as in training."""
DEFAULT = "last layer"
PROCESS = "residual process"
KERNEL = "kernel operator"
REGRESSION = "linear regression"
LONGER = "twice as long"
_SECOND = "last layer of the second"
ENSEMBLE = f"ensemble of {MEMBERS}"


@dataclass(frozen=True)
class Data:
    """Samples of one problem and seed.

    Attributes:
        train: Training pairs.
        scaling: Pairs that scale the variances of all heads, and fit the weights of stacking.
        weighing: Further pairs, which scale the predictors inside stacking.
        noise: Variance of the measurement noise in all outputs, `(c,)`, in physical units squared.
    """

    train: pn.FieldPairs
    scaling: pn.FieldPairs
    weighing: pn.FieldPairs
    noise: torch.Tensor

    def scale(self) -> pn.calibration.VarianceScale:
        """The calibrator of all heads."""
        return pn.calibration.VarianceScale(noise=self.noise)


@dataclass(frozen=True)
class Fitted:
    """An uncalibrated head, with processor seconds.

    Attributes:
        predictor: Predictor of the head.
        trainings: Seconds of trainings shared with other heads.
        fit: Seconds of the fit, with those of component heads.
    """

    predictor: Predictor
    trainings: float
    fit: float


class Workshop:
    """Trains networks and fits component heads, each once, and stores their cost.

    Args:
        recipe: Recipe of the operator.
        data: The samples.
        seed: Seed of weights and batches.
    """

    def __init__(self, recipe: Recipe, data: Data, *, seed: int) -> None:
        self.recipe, self.data, self.seed = recipe, data, seed
        self._trained: dict[tuple[int, float], tuple[torch.nn.Module, float]] = {}
        self._fitted: dict[str, Fitted] = {}
        self._borrowed = 0.0

    def head(self, name: str) -> Fitted:
        """A fitted head of `HEADS`; its seconds count for every head that contains it."""
        if name in self._fitted:
            self._borrowed += self._fitted[name].fit
            return self._fitted[name]
        outer, self._borrowed = self._borrowed, 0.0
        before, start = self.seconds, time.process_time()
        predictor, trainings = (HEADS | COPIED | _PARTS)[name](self)
        own = time.process_time() - start - (self.seconds - before)
        self._fitted[name] = Fitted(predictor, trainings, own + self._borrowed)
        self._borrowed += outer
        return self._fitted[name]

    def member(self, number: int, *, length: float = 1.0) -> tuple[torch.nn.Module, float]:
        """One trained operator and its processor seconds, with a number of epochs relative to the recipe."""
        key = (number, length)
        if key not in self._trained:
            recipe = replace(self.recipe, epochs=max(1, int(length * self.recipe.epochs)))
            start = time.process_time()
            operator, _, _ = recipe.train(self.data.train, seed=self.seed_of(number), tick=lambda: None)
            self._trained[key] = operator, time.process_time() - start
        return self._trained[key]

    def members(self, count: int, *, length: float = 1.0) -> tuple[list[torch.nn.Module], float]:
        """Several trained operators and their total seconds."""
        found = [self.member(number, length=length) for number in range(count)]
        return [operator for operator, _ in found], sum(seconds for _, seconds in found)

    def seed_of(self, number: int) -> int:
        """Seed of one training."""
        return stream_seed(self.seed, "heads recipe", number)

    @property
    def seconds(self) -> float:
        """Processor seconds of all trainings so far."""
        return sum(seconds for _, seconds in self._trained.values())

    def copies(self, count: int) -> pn.FieldPairs:
        """Training pairs with a number of images of each, under shifts if the problem has them, else mirrors and rotations."""
        grid = self.pairs.inputs.grid
        is_periodic = any(grid.periodic)
        symmetries = pn.augmentation.shifts(grid, count, seed=self.seed) if is_periodic else pn.augmentation.box(grid)[:count]
        return pn.augmentation.augment(self.pairs, symmetries)

    @property
    def pairs(self) -> pn.FieldPairs:
        """Training pairs."""
        return self.data.train


Maker = Callable[[Workshop], tuple[Predictor, float]]
"""Returns an uncalibrated predictor, and the seconds of the trainings that it shares with others."""


def last_layer(shop: Workshop, *, number: int = 0, length: float = 1.0) -> tuple[Predictor, float]:
    """The last-layer posterior of one operator."""
    operator, seconds = shop.member(number, length=length)
    return pn.heads.LastLayerLaplace().fit(operator, shop.pairs), seconds


def variational(shop: Workshop) -> tuple[Predictor, float]:
    """Mean-field variational weights of the same operator, with the number of gradients of its training."""
    operator, seconds = shop.member(0)
    steps = max(4, shop.recipe.epochs * len(shop.pairs) // BATCH // 2)
    head = pn.heads.BayesianOperator(steps=steps, batch_size=BATCH, seed=shop.seed_of(0), show_progress=False)
    predictor = head.fit(operator, shop.pairs)
    assert isinstance(predictor, LaplacePredictor)
    return predictor.sampled(32, seed=shop.seed_of(1)), seconds


def ensemble(shop: Workshop, *, count: int, length: float = 1.0) -> tuple[Predictor, float]:
    """Several operators with equal epochs."""
    operators, seconds = shop.members(count, length=length)
    return recipes.ensemble(operators, shop.pairs), seconds


def mixture(shop: Workshop, *, count: int) -> tuple[Predictor, float]:
    """Mixture of the last-layer posteriors of several operators."""
    operators, seconds = shop.members(count)
    return pn.heads.LaplaceEnsemble().fit(operators, shop.pairs), seconds


def kernel(shop: Workshop, *, copies: int = 0) -> tuple[Predictor, float]:
    """A Gaussian process without network."""
    return pn.heads.KernelOperator().fit(None, shop.copies(copies) if copies else shop.pairs), 0.0


def copied_ensemble(shop: Workshop, *, count: int, copies: int) -> tuple[Predictor, float]:
    """Several operators trained on augmented data with the same number of evaluations."""
    pairs = shop.copies(copies)
    recipe = replace(shop.recipe, epochs=max(1, shop.recipe.epochs * len(shop.pairs) // len(pairs)))
    operators = [recipe.train(pairs, seed=shop.seed_of(number), tick=lambda: None)[0] for number in range(count)]
    return recipes.ensemble(operators, shop.pairs), 0.0


class Average(torch.nn.Module):
    """Mean of the outputs of several operators."""

    def __init__(self, operators: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.operators = torch.nn.ModuleList(operators)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack([operator(values) for operator in self.operators]).mean(0)


def residual_process(shop: Workshop, *, count: int = 1, length: float = 1.0) -> tuple[Predictor, float]:
    """A Gaussian process of the training residuals of one operator, or of the mean of several."""
    operators, seconds = shop.members(count, length=length)
    return pn.heads.KernelOperator().fit(operators[0] if count == 1 else Average(operators), shop.pairs), seconds


def regression(shop: Workshop) -> tuple[Predictor, float]:
    """The last-layer posterior of a linear map."""
    return pn.heads.LastLayerLaplace().fit(pn.operators.LinearRegression.fitted(shop.pairs), shop.pairs), 0.0


def stacked(shop: Workshop, *, heads: Sequence[str]) -> tuple[Predictor, float]:
    """Stacking of some heads, a Gaussian process and a linear regression; the last head shares all trainings."""
    found = [shop.head(name) for name in (*heads, KERNEL, REGRESSION)]
    seconds = found[len(heads) - 1].trainings
    scaled = [shop.data.scale().fit(one.predictor, shop.data.weighing) for one in found]
    return pn.calibration.Stacking("gaussian").fit(scaled, shop.data.scaling), seconds


HEADS: dict[str, Maker] = {
    DEFAULT: last_layer,
    QUARTERS: partial(ensemble, count=MEMBERS, length=1 / MEMBERS),
    "variational": variational,
    PROCESS: residual_process,
    "stacked": partial(stacked, heads=(DEFAULT, PROCESS)),
    KERNEL: kernel,
    REGRESSION: regression,
    "ensemble of 2": partial(ensemble, count=2),
    "mixture of 2": partial(mixture, count=2),
    f"{PROCESS} of 2": partial(residual_process, count=2),
    "stacked with 2": partial(stacked, heads=(DEFAULT, _SECOND, f"{PROCESS} of 2")),
    f"{DEFAULT}, {LONGER}": partial(last_layer, length=2.0),
    f"{PROCESS}, {LONGER}": partial(residual_process, length=2.0),
    f"stacked, {LONGER}": partial(stacked, heads=(f"{DEFAULT}, {LONGER}", f"{PROCESS}, {LONGER}")),
    f"{DEFAULT}, {MEMBERS} times as long": partial(last_layer, length=float(MEMBERS)),
    ENSEMBLE: partial(ensemble, count=MEMBERS),
    f"mixture of {MEMBERS}": partial(mixture, count=MEMBERS),
}
"""Heads in the order of training cost: one training and less than one more, none, two, four."""
FEWER, MORE = 7, 39
"""Images of each sample under symmetries: those of a square, and enough to turn 25 samples into 1,000."""
COPIED: dict[str, Maker] = {
    f"{KERNEL}, {FEWER} copies": partial(kernel, copies=FEWER),
    f"{KERNEL}, {MORE} copies": partial(kernel, copies=MORE),
    f"{ENSEMBLE}, {FEWER} copies": partial(copied_ensemble, count=MEMBERS, copies=FEWER),
}
"""Heads for operators that commute with these symmetries."""
_PARTS: dict[str, Maker] = {_SECOND: partial(last_layer, number=1)}
BRIEF = (
    DEFAULT,
    PROCESS,
    "stacked",
    KERNEL,
    REGRESSION,
    "ensemble of 2",
    "mixture of 2",
    f"{DEFAULT}, {LONGER}",
    ENSEMBLE,
    f"mixture of {MEMBERS}",
)
"""Heads of the default run: they need four trainings of the recipe and one of twice its length."""
