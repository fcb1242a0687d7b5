"""Closed-form posterior of a `HigherOrderGP` at single designs, in milliseconds."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from botorch.models import HigherOrderGP
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor


class SingleDesignHigherOrderGP(Model):
    """Posterior of a fitted `HigherOrderGP` at single designs, without Matheron's rule over all training observations.

    Its observations have the covariance K ⊗ C + noise I, with K between designs and C between observations. In the eigenvectors
    of C = V diag(c) V^T they are independent processes, and with K = U diag(k) U^T and y the training observations

        mean_j(x) = c_j k(x) U (diag(k) c_j + noise)^-1 U^T y V_j,
        variance_j(x) = c_j k(x, x) - c_j² |(diag(k) c_j + noise)^-1/2 U^T k(x)|²,

    which is exact. BoTorch instead draws from a prior over all training observations for every design, which takes seconds.

    Args:
        model: A fitted model whose outcomes are standardised.
    """

    def __init__(self, model: HigherOrderGP) -> None:
        super().__init__()
        model.eval()
        self.kernel = model.covar_modules[0]
        (self.designs,) = model.train_inputs
        self.outcomes = model.outcome_transform
        with torch.no_grad():
            axes = zip(model.covar_modules[1:], model.latent_parameters, strict=True)
            observations = reduce(torch.kron, [kernel(latent).to_dense() for kernel, latent in axes])
            values, self.rotation = torch.linalg.eigh(observations)
            between, self.vectors = torch.linalg.eigh(self.kernel(self.designs).to_dense())
            self.sizes = values.clamp_min(0.0)  # eigenvalues of a covariance: negative ones are rounding errors
            targets = self.vectors.mT @ model.train_targets.unflatten(-1, (len(self.designs), -1)) @ self.rotation
            self.inverse = 1.0 / (between.clamp_min(0.0)[:, None] * self.sizes + model.likelihood.noise)
            self.weights = self.inverse * targets * self.sizes

    @property
    def num_outputs(self) -> int:
        """Number of observations m."""
        return len(self.sizes)

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the model: empty."""
        return torch.Size()

    def posterior(self, X: Tensor, *arguments: Any, **options: Any) -> TransformedPosterior:
        """Joint distribution of all observations at each of `(b, 1, d)` designs, `(b, 1, m)`."""
        if X.shape[-2] != 1 or any(arguments) or any(options.values()):
            raise NotImplementedError("the observations of one design, and nothing besides")
        cross = self.kernel(X, self.designs).to_dense() @ self.vectors
        mean = (cross @ self.weights).squeeze(-2)
        explained = (cross.square() @ self.inverse).squeeze(-2) * self.sizes.square()
        prior = self.kernel(X, diag=True) * self.sizes
        variance = (prior - explained).clamp_min(torch.finfo(X.dtype).eps * prior.detach())
        independent = GPyTorchPosterior(MultivariateNormal(mean, DiagLinearOperator(variance)))

        def unrotated(values: Tensor) -> Tensor:
            """Transform `(..., m, 1)` in the eigenbasis to `(..., 1, m)` in physical units."""
            return self.outcomes.means + self.outcomes.stdvs * (values.mT @ self.rotation.mT)

        return TransformedPosterior(
            independent,
            sample_transform=unrotated,
            mean_transform=lambda mean, variance: unrotated(mean),
            variance_transform=lambda mean, variance: self.outcomes.stdvs.square() * (variance.mT @ self.rotation.square().mT),
        )
