"""Selection of the predictors of a mixture that improve its Gaussian field."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.calibration.chunks import distributions
from probneural.calibration.decomposition import gaussian_of
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.mixture_predictor import MixturePredictor, as_component
from probneural.distributions.pooling import pooled
from probneural.pairs import Dataset, evenly_spread_rows

_VALUES = 2**15
"""Values of the functions that decide, about; predictions of these are kept."""


def selected_weights(mixture: MixturePredictor, calibration: Dataset) -> Float64[Tensor, " m"]:
    """The mixture's weights, without predictors that its Gaussian field is more likely without.

    Predictors are left out one after another: the one whose absence makes the joint density of the calibration functions
    largest, as long as that grows. A single predictor that is more likely than what is left then gets all weight, even one
    without any in the mixture. So the field is at least as likely as those of the whole mixture and of each predictor.

    Args:
        mixture: Of m predictors.
        calibration: Functions that predictors are compared on: of many, some evenly spread ones.
    """
    values = calibration.outputs.channels * calibration.outputs.grid.size
    some = calibration.subset(evenly_spread_rows(len(calibration), max(1, _VALUES // values)))
    everyone = MixturePredictor(mixture.predictors)
    chunks = list(_components(everyone, some))

    @functools.cache
    def density(kept: tuple[int, ...]) -> float:
        """Mean joint log density under the Gaussian field of the predictors of these numbers, in nats."""
        weights = mixture.weights[list(kept)] if len(kept) > 1 else mixture.weights.new_ones(1)
        total = 0.0
        for components, truth in chunks:
            parts = [components[number] for number in kept]
            shares = (weights / weights.sum()).to(parts[0].mean.device)
            field = pooled(parts, shares, name="pool", is_shared_across_calls=False)
            total += float(field.log_prob(truth, noise=everyone.noise, joint=True).sum())
        return total / len(some)

    kept = tuple(mixture.weights.nonzero().flatten().tolist())
    while len(kept) > 1:
        fewer = max((tuple(one for one in kept if one != number) for number in kept), key=density)
        if density(fewer) <= density(kept):
            break
        kept = fewer
    kept = max(kept, *((number,) for number in range(len(mixture.predictors))), key=density)
    weights = torch.zeros_like(mixture.weights)
    weights[list(kept)] = mixture.weights[list(kept)] if len(kept) > 1 else 1.0
    return weights / weights.sum()


def _components(
    mixture: MixturePredictor, pairs: Dataset
) -> Iterator[tuple[list[GaussianField], Float64[Tensor, "n c *grid"]]]:
    """What the predictors, all with some weight, predict, each as a Gaussian field, and the truth, some functions at a time."""
    for predicted in zip(*(distributions(one, pairs) for one in mixture.predictors), strict=True):
        components = (as_component(mixture, index, u) for index, (u, *_) in enumerate(predicted))
        yield [gaussian_of(one) for one in components], predicted[0][1]
