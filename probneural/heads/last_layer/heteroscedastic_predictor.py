"""Predictor of `HeteroscedasticGaussian`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.distributions import (
    DenseRoot,
    FeatureRoot,
    FieldDistribution,
    GaussianField,
    Latent,
    Predictor,
    PredictorTraits,
    Root,
)
from probneural.distributions.latent import digest
from probneural.distributions.roots.base import square_root
from probneural.distributions.roots.modulated import DiagonalRoot
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.errors import ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads.last_layer.readout import Readout
from probneural.heads.residuals import check_some
from probneural.registry import stored

LEAST_VARIANCE = 1e-6
"""Least variance of the diagonal, in units of the mean square residual: the density of finite rank stays finite."""
_BATCH_ELEMENTS = 2**23
"""Feature values evaluated at once (32 MiB in float32)."""


@stored()
class HeteroscedasticPredictor(Predictor):
    """Gaussian fields whose covariance is a second read-out of the operator's last features, low rank plus diagonal.

    With features phi(x; a), the last of which is 1, and the unit s_c of a channel,

        u_c(x) = mean_c(x) + s_c sum over j of (F_cj . phi(x)) zeta_j + s_c (1e-6 + softplus(v_c . phi(x)))^1/2 e_c(x).

    Both parts are each function's own: data on one function say nothing about another. The diagonal e is independent from point
    to point, on every grid, so it averages out in integrals; `draw` and roll-outs leave it out, because it is another one on
    every grid.

    Attributes:
        readout: The predictor's own copy of the operator, split into features and last layer.
        variance_weights: v, `(c, f)`, dimensionless; float64.
        factor_weights: F, `(c, f, r)`, dimensionless; float64.
        unit: s, `(c,)`, in physical units; float64.
        report: `nats_per_value`, the mean log density of the training outputs, and `rank`.
    """

    def __init__(
        self,
        *,
        readout: Readout,
        variance_weights: Float64[Tensor, "c f"],
        factor_weights: Float64[Tensor, "c f r"],
        unit: Float64[Tensor, " c"],
        noise: Float64[Tensor, " c"],
        report: Mapping[str, float],
        domain: Grid,
        in_channels: int,
    ) -> None:
        like = next(readout.operator.parameters())
        super().__init__(PredictorTraits(in_channels=in_channels, noise=noise, domain=domain, like=like))
        features = readout.weight.shape[1] + (0 if readout.has_bias else 1)
        wanted = (len(noise), features)
        if tuple(variance_weights.shape) != wanted or tuple(factor_weights.shape[:2]) != wanted or factor_weights.ndim != 3:
            raise ShapeError(
                expected=f"weights {wanted} and {(*wanted, 'r')}",
                got=f"{tuple(variance_weights.shape)} and {tuple(factor_weights.shape)}",
                remedy="fit the head",
            )
        self.readout = readout
        self.variance_weights = variance_weights
        self.factor_weights = factor_weights
        self.unit = unit
        self.report = dict(report)
        self._latent = Latent(id=f"heteroscedastic-{digest(variance_weights, factor_weights, unit)}", rank=0)

    @property
    def operator(self) -> nn.Module:
        """The predictor's own copy of the operator."""
        return self.readout.operator

    @property
    def rank(self) -> int:
        """Columns r of the low-rank part."""
        return self.factor_weights.shape[2]

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        mean, rows = self._evaluated(inputs, query)
        where = inputs.grid if query is None else query
        discrepancy: Root = DiagonalRoot(square_root(self._variance(rows)).to(mean))
        if self.rank:
            discrepancy = SideBySideRoot(self._low_rank(rows), discrepancy)
        nothing = DenseRoot(mean.new_zeros(*mean.shape[:2], where.size, 0))
        return GaussianField(mean, nothing, latent=self._latent, grid=where, discrepancy=discrepancy)

    def _evaluated(self, inputs: Field, query: Grid | None) -> tuple[Float[Tensor, "n c *grid"], Float[Tensor, "n p f"]]:
        """The operator's values and its features, with a constant."""
        check_some(inputs)
        where = inputs.grid if query is None else query
        step = max(1, _BATCH_ELEMENTS // (where.size * self.variance_weights.shape[1]))
        parts = [self.readout.evaluate(inputs[start : start + step], query) for start in range(0, len(inputs), step)]
        rows = torch.cat([with_constant(features, self.readout) for _, features in parts])
        return torch.cat([values for values, _ in parts]), rows

    def _low_rank(self, rows: Float[Tensor, "n p f"]) -> FeatureRoot:
        return FeatureRoot(rows, (self.unit[:, None, None] * self.factor_weights)[None])

    def _variance(self, rows: Float[Tensor, "n p f"]) -> Float[Tensor, "n c p"]:
        """The diagonal, in physical units squared."""
        return self.unit.square()[:, None] * diagonal(rows.to(torch.float64), self.variance_weights)


def diagonal(rows: Float64[Tensor, "n p f"], weights: Float64[Tensor, "c f"]) -> Float64[Tensor, "n c p"]:
    """The diagonal variances, in units of the mean square residual."""
    return LEAST_VARIANCE + nn.functional.softplus(torch.einsum("npf,cf->ncp", rows, weights))


def with_constant(rows: Float[Tensor, "n p f"], readout: Readout) -> Float[Tensor, "n p f2"]:
    """Features, the last of which is 1."""
    return rows if readout.has_bias else torch.cat([rows, torch.ones_like(rows[..., :1])], dim=-1)
