"""Densities of observed numbers under a predictor, with the covariance of its predictions in low-rank form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.distributions import FieldDistribution, GaussianField, MixtureField
from probneural.distributions.mixture import choose, gaussian_of, uniform_numbers
from probneural.functionals import Functional
from probneural.linear_algebra.densities import by_covariance, by_gram, normal_log_density


class GaussianNumbers(NamedTuple):
    """N(mean, root root^T): a functional's values of n samples, or those of one component of a mixture.

    Attributes:
        mean: `(n, q)`, float64, in the functional's units.
        root: `(n, q, k)`, float64.
    """

    mean: Float64[Tensor, "n q"]
    root: Float64[Tensor, "n q k"]

    @classmethod
    def exact(cls, values: Float64[Tensor, "n c m"]) -> GaussianNumbers:
        """Values without uncertainty."""
        return cls(values.flatten(1), values.new_zeros(len(values), values.shape[1] * values.shape[2], 0))

    @classmethod
    def of(cls, values: FieldDistribution) -> GaussianNumbers:
        """The moments of a functional's values: of mixtures and members those of the Gaussian that matches them."""
        matched = gaussian_of(values)
        mean = matched.mean.to(torch.float64).flatten(1)
        roots = [matched.root] if matched.discrepancy is None else [matched.root, matched.discrepancy]
        columns = torch.cat([root.dense().to(torch.float64).flatten(1, 2) for root in roots], dim=-1)
        return cls(mean, columns)

    def log_prob(self, data: Float64[Tensor, " q"], noise: Float64[Tensor, " q"]) -> Float64[Tensor, " n"]:
        """Log density of data with independent noise of given variances, in nats.

        With N = diag(noise), F = N^(-1/2) root and r = N^(-1/2) (data - mean), the covariance is N^(1/2) (I + F F^T)
        N^(1/2). For k < q, with C = (I + F^T F)^-1: r^T (I + F F^T)^-1 r = |r - F x|² + |x|² at x = C F^T r.
        """
        scale = noise.sqrt()
        residual, rows = (data - self.mean) / scale, self.root / scale[..., None]
        squares, log_determinant = (by_covariance if rows.shape[-1] > rows.shape[-2] else by_gram)(rows, residual)
        return normal_log_density(squares, log_determinant + noise.log().sum(), residual)

    def covariance(self, noise: Float64[Tensor, " q"]) -> Float64[Tensor, "n q q"]:
        """The matrices root root^T + diag(noise)."""
        return self.root @ self.root.mT + torch.diag(noise)


def operator_draws(field: FieldDistribution, functional: Functional, seeds: Sequence[int]) -> GaussianNumbers:
    """A functional's values of the operators of seeds, one for each sample.

    A discrepancy is not part of the operator: it is independent between inputs, so its covariance stays.
    """
    if isinstance(field, MixtureField):
        rows = torch.arange(len(seeds))
        parts = [operator_draws(component, functional, seeds) for component in field.components]
        chosen = components_of(field, seeds)
        rank = max(part.root.shape[2] for part in parts)
        roots = torch.stack([torch.nn.functional.pad(part.root, (0, rank - part.root.shape[2])) for part in parts])
        return GaussianNumbers(torch.stack([part.mean for part in parts])[chosen, rows], roots[chosen, rows])
    values = GaussianNumbers.exact(functional(operator_values(field, seeds).to(torch.float64)))
    if not isinstance(field, GaussianField) or field.discrepancy is None:
        return values
    return values._replace(root=field.discrepancy.push(functional).dense().to(torch.float64).flatten(1, 2))


def components_of(field: MixtureField, seeds: Sequence[int]) -> Int64[Tensor, " n"]:
    """The component of each sample's operator, by seed."""
    rows, uniform = torch.arange(len(seeds)), uniform_numbers(seeds, field.source or "operator draws")
    return choose(field.weights.detach().cpu(), uniform, len(field))[rows, rows]


def operator_values(field: FieldDistribution, seeds: Sequence[int]) -> Tensor:
    """Fields of the operators of seeds, one for each sample, without discrepancy."""
    if not isinstance(field, GaussianField):
        return field.draw(seeds, each=True)
    return GaussianField(field.mean, field.root, latent=field.latent, grid=field.grid).draw(seeds, each=True)


def log_density(values: FieldDistribution, data: Float64[Tensor, " q"], noise: Float64[Tensor, " q"]) -> Float64[Tensor, " n"]:
    """Log density of data under a functional's values: of a mixture, exactly; of members, by their mean and covariance."""
    if not isinstance(values, MixtureField):
        return GaussianNumbers.of(values).log_prob(data, noise)
    logs = torch.stack([GaussianNumbers.of(component).log_prob(data, noise) for component in values.components])
    weights = values.weights.to(logs)
    weights = weights if weights.ndim == 2 else weights[:, None].expand_as(logs)
    return torch.logsumexp(torch.where(weights > 0, logs + weights.clamp_min(1e-300).log(), -torch.inf), dim=0)
