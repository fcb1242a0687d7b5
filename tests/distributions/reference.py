"""The slow dense reference: Gaussians and weighted samples as plain vectors and matrices, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probneural.functionals import Functional


def matrix_of(functional: Functional) -> Tensor:
    """The functional's matrix, `(m, p)`."""
    identity = torch.eye(functional.grid.size, dtype=torch.float64)
    return functional(identity.unflatten(-1, functional.grid.shape)).mT.contiguous()


@dataclass(frozen=True)
class Dense:
    """Mean `(n, c, p)` and joint covariance `(n, c, p, n, c, p)` of n functions."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def gaussian(cls, mean: Tensor, root: Tensor) -> Dense:
        """From mean `(n, c, p)` and root `(n, c, p, k)`."""
        root = root.double()
        return cls(mean.double(), torch.einsum("ncpk,mdqk->ncpmdq", root, root))

    @classmethod
    def empirical(cls, samples: Tensor, weights: Tensor) -> Dense:
        """From samples `(s, n, c, p)` and their probabilities."""
        samples, weights = samples.double(), weights.double()
        mean = torch.einsum("s,sncp->ncp", weights, samples)
        return cls(mean, torch.einsum("s,sncp,smdq->ncpmdq", weights, samples - mean, samples - mean))

    @property
    def size(self) -> int:
        return self.mean.numel()

    @property
    def vector(self) -> Tensor:
        """The mean of all values, `(n * c * p,)`."""
        return self.mean.reshape(-1)

    @property
    def matrix(self) -> Tensor:
        """The covariance of all values, `(n * c * p, n * c * p)`."""
        return self.covariance.reshape(self.size, self.size)

    @property
    def variance(self) -> Tensor:
        return self.matrix.diagonal().reshape(self.mean.shape)

    def with_matrix(self, vector: Tensor, matrix: Tensor) -> Dense:
        """The same functions with another mean and covariance of all values."""
        return Dense(vector.reshape(self.mean.shape), matrix.reshape(self.covariance.shape))

    def select(self, rows: list[int]) -> Dense:
        return Dense(self.mean[rows], self.covariance[rows][:, :, :, rows])

    def push(self, functional: Functional) -> Dense:
        A = matrix_of(functional)
        return Dense(self.mean @ A.mT, torch.einsum("ap,ncpmdq,bq->ncamdb", A, self.covariance, A))

    def scale(self, factors: Tensor) -> Dense:
        """One factor per channel, or one per value `(n, c, p)`."""
        f = (factors.double() if factors.ndim > 1 else factors.double()[:, None]).expand(self.mean.shape)
        return Dense(self.mean, self.covariance * f[..., None, None, None] * f)

    def observing(self, functional: Functional) -> Tensor:
        """The matrix that reads the functional in every channel of every function, `(n * c * m, n * c * p)`."""
        count, channels, _ = self.mean.shape
        return torch.kron(torch.eye(count * channels, dtype=torch.float64), matrix_of(functional))

    def condition(self, A: Tensor, values: Tensor, noise: Tensor | float = 0.0) -> Dense:
        """Bayes' rule for A u + N(0, diag(noise)) = values, with everything observed jointly."""
        S = self.gram(A, noise)
        gain = torch.linalg.solve(S, A @ self.matrix).mT
        residual = values.double().reshape(-1) - A @ self.vector
        return self.with_matrix(self.vector + gain @ residual, self.matrix - gain @ A @ self.matrix)

    def gram(self, A: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """The covariance of the observations."""
        variance = torch.as_tensor(noise, dtype=torch.float64).expand(A.shape[0])
        return A @ self.matrix @ A.mT + variance.diag()

    def constrain(self, functional: Functional, values: Tensor) -> Dense:
        """The distribution of u + K (values - A u) with one gain K per function, from that function's own covariance."""
        A, gain = self.observing(functional), torch.zeros(self.size, values.numel(), dtype=torch.float64)
        per_field, observed = self.size // len(self.mean), values[0].numel()
        for i in range(len(self.mean)):
            rows = slice(i * per_field, (i + 1) * per_field)
            own, seen = A[i * observed : (i + 1) * observed, rows], self.matrix[rows, rows]
            gain[rows, i * observed : (i + 1) * observed] = torch.linalg.solve(own @ seen @ own.mT, own @ seen).mT
        project = torch.eye(self.size, dtype=torch.float64) - gain @ A
        moved = self.vector + gain @ (values.double().reshape(-1) - A @ self.vector)
        return self.with_matrix(moved, project @ self.matrix @ project.mT)

    def chi2(self, A: Tensor, values: Tensor, noise: Tensor | float = 0.0) -> float:
        """Squared standardised residual per observation."""
        residual = values.double().reshape(-1) - A @ self.vector
        return float(residual @ torch.linalg.solve(self.gram(A, noise), residual)) / len(residual)


def joined(*parts: tuple[Tensor, Tensor]) -> Dense:
    """The joint distribution of Gaussian fields driven by one latent, from means and roots, as one long function."""
    means = torch.cat([mean.double().reshape(-1) for mean, _ in parts])
    roots = torch.cat([root.double().reshape(-1, root.shape[-1]) for _, root in parts])
    return Dense.gaussian(means[None, None], roots[None, None])
