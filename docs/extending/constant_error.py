"""The simplest head: every output is off by one random constant per channel."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from probneural.checks import check_module
from probneural.contexts import copy_for_call, undisturbed
from probneural.distributions import (
    DenseRoot,
    FieldDistribution,
    GaussianField,
    Latent,
    Predictor,
    PredictorTraits,
)
from probneural.distributions.latent import digest
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads.training_data import check_some, recorded, training_data
from probneural.heads.weight_problem import residuals_of
from probneural.pairs import Dataset
from probneural.registry import stored


@dataclass(frozen=True)
class ConstantError:
    """u_c(x) = operator_c(x) + s_c ξ_c, with s_c² the mean square of the residuals' averages.

    The variance of the residuals around their averages is the noise. All inputs have the same
    variance.
    """

    @recorded
    @undisturbed()
    @torch.no_grad()
    def fit(self, operator: nn.Module, data: Dataset) -> ConstantErrorPredictor:
        """Take both variances from the training residuals.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`; it does not change.
            data: Training pairs.

        Returns:
            A predictor with its own copy of the operator.

        Raises:
            DataError: If the data are not finite.
        """
        pairs = training_data(data, check_module(operator, "operator"))
        frozen = copy.deepcopy(operator).eval().requires_grad_(False)
        device = pairs.outputs.device
        sums = torch.zeros(2, pairs.outputs.channels, dtype=torch.float64, device=device)
        for batch in pairs.batches(64):
            residuals = residuals_of(frozen, batch, pairs.query).flatten(2)
            averages = pairs.grid.mean(residuals)
            variances = pairs.grid.mean((residuals - averages[..., None]).square())
            sums += torch.stack([averages.square().sum(0), variances.sum(0)])
        variance, noise = pairs.summed(sums) / pairs.functions
        return ConstantErrorPredictor(
            operator=frozen,
            prior_std=variance.sqrt(),
            noise=noise,
            domain=pairs.inputs.grid,
            in_channels=pairs.inputs.channels,
        )


@stored()
class ConstantErrorPredictor(Predictor):
    """The predictor that `ConstantError` fits.

    Attributes:
        operator: The predictor's own copy of the operator.
        prior_std: Standard deviation of the constant, `(c,)`, in physical units.
        latent: The name of the constants' randomness.
    """

    def __init__(
        self,
        *,
        operator: nn.Module,
        prior_std: Float64[Tensor, " c"],
        noise: Float64[Tensor, " c"],
        domain: Grid,
        in_channels: int,
    ) -> None:
        like = next(operator.parameters())
        traits = PredictorTraits(in_channels=in_channels, noise=noise, domain=domain, like=like)
        super().__init__(traits)
        self.operator = operator
        self.prior_std = prior_std
        self.latent = Latent(id=f"constant-error-{digest(prior_std, noise)}", rank=len(noise))

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        check_some(inputs)
        where = inputs.grid if query is None else query
        mean = evaluate(copy_for_call(self.operator), inputs, query)
        columns = torch.diag(self.prior_std.to(mean))  # (c, k), k = c constants
        root = DenseRoot(columns[None, :, None].expand(len(inputs), -1, where.size, -1))
        return GaussianField(mean, root, latent=self.latent, grid=where)
