"""A predictor of an uncertain linear map, whose likelihoods and posteriors are closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probneural.distributions import DenseRoot, FieldDistribution, GaussianField, Predictor, PredictorTraits
from probneural.distributions.latent import Latent
from probneural.fields import Field
from probneural.functionals.base import MatrixFunctional
from probneural.grids import Grid
from probneural.inverse import InverseProblem


class LinearPredictor(Predictor):
    """u(x) = (matrix + sum of xi_k parts_k) x + D zeta, with xi and zeta standard normal."""

    def __init__(self, matrix: Tensor, parts: Tensor, discrepancy: Tensor | None = None) -> None:
        grid = Grid.uniform((len(matrix),), periodic=False)
        traits = PredictorTraits(in_channels=1, noise=torch.zeros(1).double(), domain=grid, like=matrix[:0])
        super().__init__(traits)
        self.matrix, self.parts, self.discrepancy_root = matrix, parts, discrepancy
        self.latent = Latent(id="linear", rank=len(parts))

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs) for inputs, _ in sets]

    def _field(self, inputs: Field) -> GaussianField:
        mean = inputs.values @ self.matrix.mT
        root = torch.einsum("kpq,ncq->ncpk", self.parts, inputs.values)
        own = None if self.discrepancy_root is None else DenseRoot(self.discrepancy_root.expand(len(inputs), 1, -1, -1))
        return GaussianField(mean, DenseRoot(root), latent=self.latent, grid=inputs.grid, discrepancy=own)


def linear_problem(likelihood: str, **changes: Any) -> tuple[InverseProblem, LinearPredictor, Tensor]:
    """A problem of 4 parameters and 3 observations; its predictor, and the rows of its functional, `(3, 4)`."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    matrix, parts, rows = normal(4, 4), 0.3 * normal(5, 4, 4), normal(3, 4)
    predictor = LinearPredictor(
        matrix, parts if changes.pop("uncertain", True) else parts[:1] * 0.0, changes.pop("discrepancy", None)
    )
    grid = predictor.domain
    arguments: dict[str, Any] = {
        "prior": torch.distributions.MultivariateNormal(normal(4), torch.eye(4).double() + 0.3),
        "encode": lambda theta: Field(theta[:, None], grid),
        "functional": MatrixFunctional(grid, rows),
        "data": normal(3)[None],
        "noise": torch.tensor([0.05, 0.1, 0.2]),
        "likelihood": likelihood,
        "operator_draws": 6,
    }
    return InverseProblem(predictor, **arguments | changes), predictor, rows


def gaussian_posterior(problem: InverseProblem, map_: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, covariance and log evidence of theta for data = map theta + N(0, covariance)."""
    prior = problem.prior.factors[0]
    assert isinstance(prior, torch.distributions.MultivariateNormal)
    spread = map_ @ prior.covariance_matrix @ map_.mT + covariance
    gain = torch.linalg.solve(spread, map_ @ prior.covariance_matrix).mT
    mean = prior.loc + gain @ (problem.data - map_ @ prior.loc)
    evidence = torch.distributions.MultivariateNormal(map_ @ prior.loc, spread).log_prob(problem.data)
    return mean, prior.covariance_matrix - gain @ map_ @ prior.covariance_matrix, evidence
