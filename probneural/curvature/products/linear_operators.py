"""Curvature matrices as `linear_operator.LinearOperator`s, for its solvers, and as SciPy's, for theirs.

Importing this module imports linear_operator, which takes about a second; the package imports it on first use only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor

from probneural.checks import check_shape
from probneural.curvature.problem import CurvatureProblem
from probneural.curvature.products.functions import fisher_vector_product, gauss_newton_vector_product, hessian_vector_product
from probneural.curvature.products.linearisation import Linearisation, Term, fisher_term, gauss_newton_term, hessian_term

if TYPE_CHECKING:
    import scipy.sparse.linalg

SymmetricProduct = Callable[[CurvatureProblem, Tensor, Tensor], Tensor]


class CurvatureOperator(LinearOperator):
    """A symmetric `(P, P)` curvature matrix that is only ever multiplied with; abstract.

    Products at fixed parameters use a `Linearisation`, which remembers what does not depend on the vector. If the parameters
    require gradients, products go through the streaming autograd functions instead, and are differentiable in them.

    The diagonal takes P products.

    Args:
        parameters: Point of evaluation, `(P,)`: `problem.parameters` for the operator as it is.
        problem: The data.
        linearisation: One made before at the same parameters; a new one by default.

    Raises:
        ShapeError: If the parameters are not `(P,)`.
    """

    _term: Callable[[CurvatureProblem], Term]
    _product: SymmetricProduct

    def __init__(
        self, parameters: Float[Tensor, " P"], problem: CurvatureProblem, linearisation: Linearisation | None = None
    ) -> None:
        check_shape(parameters, "parameters", problem.size, remedy="see problem.parameters")
        if linearisation is None:
            linearisation = Linearisation(problem, parameters, term=self._term)
        # linear_operator rebuilds itself from these inside its solvers, so the linearisation has to travel along
        super().__init__(parameters, problem=problem, linearisation=linearisation)
        self.problem = problem
        self.parameters = parameters
        self.linearisation = linearisation

    def _rows(self, vectors: Tensor) -> Tensor:
        """M v for a block `(s, P)`."""
        if torch.is_grad_enabled() and (self.parameters.requires_grad or vectors.requires_grad):
            kind = self.problem.inputs.dtype
            result = self._product(self.problem, self.parameters.to(kind), vectors.to(kind))
            return result.to(vectors.dtype)
        return self.linearisation.product(vectors)

    def _matmul(self, rhs: Tensor) -> Tensor:
        if rhs.ndim == 1:
            return self._rows(rhs[None])[0]
        columns = rhs.mT
        return self._rows(columns.reshape(-1, columns.shape[-1])).reshape(columns.shape).mT

    def _size(self) -> torch.Size:
        return torch.Size((self.problem.size, self.problem.size))

    def _transpose_nonbatch(self) -> CurvatureOperator:
        return self

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(row_index.shape, col_index.shape)
        rows, columns = row_index.expand(shape), col_index.expand(shape)
        needed, position = columns.unique(return_inverse=True)
        entries = torch.zeros(shape, dtype=self.dtype, device=self.device)
        for start in range(0, len(needed), self.problem.width):
            chunk = needed[start : start + self.problem.width]
            unit = torch.zeros(len(chunk), self.problem.size, dtype=self.dtype, device=self.device)
            unit.scatter_(1, chunk[:, None], 1.0)
            in_block = (position >= start) & (position < start + len(chunk))
            entries[in_block] = self._rows(unit)[position[in_block] - start, rows[in_block]]
        return entries

    def to_scipy(self) -> scipy.sparse.linalg.LinearOperator:
        """The same matrix for SciPy: float64, with products of vectors and of matrices, on the CPU."""
        import scipy.sparse.linalg

        def product(columns: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
            vectors = torch.as_tensor(np.ascontiguousarray(columns.T), dtype=torch.float64).to(self.device)
            return self.linearisation.product(vectors.reshape(-1, self.problem.size)).cpu().numpy().T.reshape(columns.shape)

        size = self.problem.size
        return scipy.sparse.linalg.LinearOperator(
            shape=(size, size), dtype=np.float64, matvec=product, rmatvec=product, matmat=product, rmatmat=product
        )


class Hessian(CurvatureOperator):
    """The Hessian of the loss. Of a trained operator it is not positive definite as a rule."""

    _term = staticmethod(hessian_term)
    _product = staticmethod(hessian_vector_product)


class GaussNewton(CurvatureOperator):
    """J^T diag(w) J, positive semi-definite: the Hessian of the loss with the operator linearised."""

    _term = staticmethod(gauss_newton_term)
    _product = staticmethod(gauss_newton_vector_product)


class EmpiricalFisher(CurvatureOperator):
    """Sum over functions of g_i g_i^T with g_i the gradient of function i's loss: of rank n at most."""

    _term = staticmethod(fisher_term)
    _product = staticmethod(fisher_vector_product)
