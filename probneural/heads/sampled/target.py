"""Density of all weights: its energy on batches of samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from probneural.contexts import copy_for_call
from probneural.curvature.products.functions import gauss_newton_vector_product
from probneural.curvature.weights import WeightRoot
from probneural.errors import UnsupportedError
from probneural.fields import evaluate
from probneural.heads.laplace.laplace import Laplace, LaplacePredictor
from probneural.heads.weight_problem import WeightProblem, prepare
from probneural.pairs import Dataset
from probneural.randomness import stream


@dataclass(frozen=True, eq=False)
class NetworkTarget:
    """Minus the log density of all weights, up to a constant, whose mean over batches is that of all data.

    With N functions and batches of b,

        U(w) = N / b sum over functions of the batch and c of m_c / (2 s_c^2 |D|) * integral of (y - f(w))^2
               + 1/2 sum over j of tau_j w_j^2.

    Attributes:
        problem: Operator, data and given hyper-parameters.
        laplace: The Gaussian approximation that hyper-parameters, starting points and scales come from.
        batch_size: b, at most N.
    """

    problem: WeightProblem
    laplace: LaplacePredictor
    batch_size: int

    @classmethod
    def of(cls, operator: nn.Module, data: Dataset, *, laplace: Laplace, batch_size: int) -> NetworkTarget:
        """Fit the Gaussian approximation, and take over what it found.

        Raises:
            UnsupportedError: If its structure has no factorised covariance.
        """
        fitted = laplace.fit(operator, data)
        if fitted.structure == "iterative":
            raise UnsupportedError(
                expected="a structure whose covariance is known as a product",
                got="iterative",
                remedy='give laplace=Laplace("kronecker") or Laplace("diagonal")',
            )
        problem = prepare(
            operator,
            data,
            parameters=fitted.layout.names,
            noise=fitted.noise,
            prior_precision=fitted.prior_precision,
            effective_observations=fitted.effective_observations,
            is_shared=False,
        )
        return cls(problem, fitted, min(batch_size, problem.data.functions))

    @property
    def root(self) -> WeightRoot:
        """R of the Gaussian approximation's covariance R R^T."""
        return self.laplace.weights

    @cached_property
    def centre(self) -> Float64[Tensor, " P"]:
        """The trained weights."""
        return self.problem.vector.to(torch.float64)

    @cached_property
    def prior_precision(self) -> Float64[Tensor, " P"]:
        """tau; zero for weights that the prior fixes, which do not move."""
        assert self.problem.prior is not None
        prior = self.problem.prior.to(self.centre)
        return torch.where(prior.isinf(), 0.0, prior)

    @cached_property
    def _weights(self) -> Float64[Tensor, "c p"]:
        return self.problem.weights

    def potential(self, vector: Float64[Tensor, " P"], rows: Tensor | slice) -> Float64[Tensor, ""]:
        """U on a batch; differentiable."""
        problem = self.problem
        batch = problem.data.pairs[rows]
        weights = problem.layout.unflatten(vector.to(problem.vector))
        predicted = evaluate(copy_for_call(problem.operator, weights), batch.inputs, problem.query)
        residuals = batch.outputs.values.to(torch.float64) - predicted.to(torch.float64)
        squares = (residuals.flatten(2).square() * self._weights).sum()
        fraction = problem.data.functions / len(batch)
        return 0.5 * (fraction * squares + (self.prior_precision * vector.square()).sum())

    def batches(self, seed: int, number: int) -> Iterator[Tensor]:
        """Rows of one batch after the other, all functions once before any comes twice; without end."""
        generator = stream(seed, "weight batches", number)
        while True:
            order = torch.randperm(self.problem.data.functions, generator=generator)
            whole = len(order) // self.batch_size * self.batch_size
            yield from order[:whole].split(self.batch_size)

    def largest_curvature(self, *, iterations: int = 12) -> float:
        """Largest eigenvalue of R^T H R, with H the Gauss-Newton approximation at the trained weights.

        It is 1 where the Gaussian approximation is exact. Power iteration approaches it from below.
        """
        problem, generator = self.problem, stream(0, "stiffest direction")
        direction = torch.randn(self.root.rank, generator=generator, dtype=torch.float64, device="cpu").to(self.centre)
        for _ in range(iterations):
            # x <- R^T (G + diag tau) R x / |x|
            weights = self.root.product((direction / direction.norm())[None]).to(problem.vector)
            likelihood = gauss_newton_vector_product(problem.curvature, problem.vector, weights)
            product = likelihood.to(torch.float64) + self.prior_precision * weights
            direction = self.root.transposed_product(product)[0].to(torch.float64)
        return float(direction.norm())
