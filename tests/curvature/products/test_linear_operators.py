"""Curvature matrices inside linear_operator's and SciPy's algorithms, against dense algebra."""

from __future__ import annotations

from dataclasses import replace

import linear_operator
import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from linear_operator import to_linear_operator
from torch import Tensor, nn
from torch.func import grad, jacrev

from probneural.curvature.products.linear_operators import GaussNewton
from probneural.curvature.products.linearisation import Linearisation, gauss_newton_term, hessian_term
from probneural.errors import DataError, ShapeError
from tests.curvature.cases import EVERY, F64, MATRICES, ProductCase, changed, close, in_single, product_case, tiny

KINDS = pytest.mark.parametrize("kind", MATRICES)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),  # linear_operator builds a sparse tensor when indexed
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),
]


def operator(case: ProductCase, kind: str):
    return MATRICES[kind](case.parameters, case.problem)


@EVERY
@KINDS
def test_equals_the_dense_matrix(case: ProductCase, kind: str) -> None:
    columns, dense = case.vectors(5).mT, case.matrix(kind)  # one chunk of three, and one filled up
    has_meshes = case.problem.where.has_points_per_sample
    matrix = MATRICES[kind](case.parameters, changed(case, batch=2 if has_meshes else 5))
    close(matrix @ columns, dense @ columns)
    assert matrix.linearisation.is_traced is not has_meshes
    assert matrix.shape == dense.shape
    assert matrix.dtype == F64


@KINDS
def test_vectors_batches_and_entries(kind: str) -> None:
    case = product_case("conv")
    matrix, dense = operator(case, kind), case.matrix(kind)
    columns = case.vectors(6).reshape(2, 3, -1).mT
    close(matrix @ columns, dense @ columns)
    close(matrix @ columns[0, :, 0], dense @ columns[0, :, 0])
    close(matrix.mT @ columns[0], dense @ columns[0])
    close(matrix.to_dense(), dense)
    close(matrix.diagonal(), dense.diagonal())
    rows, places = torch.tensor([3, 0, 0, 5]), torch.tensor([1, 7, 7, 0])
    close(matrix[rows, places], dense[rows, places])
    close(matrix[2:9, 5].to_dense() if hasattr(matrix[2:9, 5], "to_dense") else matrix[2:9, 5], dense[2:9, 5])


@pytest.mark.slow
@KINDS
def test_constants_are_remembered_within_the_budget(kind: str) -> None:
    case = product_case("conv")
    made = operator(case, kind).linearisation
    vectors = case.vectors(5)
    expected = made.product(vectors)
    everything = made.remembered
    assert everything > 0
    for share in (0.0, 0.6, 1.0):
        limited = Linearisation(case.problem, case.parameters, term=made.term, memory=int(share * everything))
        close(limited.product(vectors), expected, 1e-12)
        close(limited.product(vectors), expected, 1e-12)
        assert limited.remembered <= share * everything
        assert (limited.remembered > 0) == (share > 0)


@KINDS
def test_a_linearisation_keeps_its_parameters(kind: str) -> None:
    """Changing the tensor it was made at changes nothing."""
    case = tiny()
    theta = case.parameters
    matrix = MATRICES[kind](theta, case.problem)
    theta.mul_(2.0)
    close(matrix.linearisation.product(case.vectors(2)), case.vectors(2) @ case.matrix(kind))


class ByValue(nn.Module):
    """Its course depends on values, which tracing on shapes cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 1, 1, dtype=F64)

    def forward(self, values: Tensor) -> Tensor:
        return torch.tanh(self.layer(values)) if float(values.abs().sum()) > 0.0 else values


def test_operators_that_cannot_be_traced() -> None:
    module = ByValue().eval()
    case = ProductCase("by-value", changed(tiny(), operator=module, layout=tiny().problem.layout.of(module)))
    made = Linearisation(case.problem, case.parameters, term=gauss_newton_term)
    close(made.product(case.vectors(2)), case.vectors(2) @ case.matrix("gauss-newton"))
    assert not made.is_traced
    assert made.remembered == 0


@pytest.mark.slow
def test_solvers_of_linear_operator() -> None:
    """CG, Lanczos, quadratic forms and log determinants: exactly what the same calls give for the dense matrix."""
    case = product_case("fno-1d")
    dense = case.matrix("gauss-newton")
    matrix = operator(case, "gauss-newton").add_jitter(0.5)
    shifted = dense + 0.5 * torch.eye(len(dense), dtype=F64)
    columns = case.vectors(3).mT
    solution = torch.linalg.solve(shifted, columns)
    close(matrix.solve(columns), solution, 1e-9)  # by Cholesky
    quadratic, logarithm = matrix.inv_quad_logdet(columns, logdet=True)
    close(quadratic, (columns * solution).sum(), 1e-9)
    close(logarithm, torch.logdet(shifted), 1e-9)
    settings = linear_operator.settings
    with settings.max_cholesky_size(1), settings.cg_tolerance(1e-4), settings.max_cg_iterations(500):
        close(matrix.solve(columns), solution, 1e-3)  # by conjugate gradients
        estimates = []
        for each in (matrix, to_linear_operator(dense).add_jitter(0.5)):
            torch.manual_seed(0)
            estimates.append(each.logdet())
        close(estimates[0], estimates[1], 1e-6)  # by stochastic Lanczos quadrature, with the same probes
        root = operator(case, "gauss-newton").root_decomposition(method="lanczos").root.to_dense()
    close(root @ root.mT, dense, 1e-5)


def test_differentiable_in_the_parameters() -> None:
    """The gradient of a log marginal likelihood's terms, through linear_operator's own autograd functions."""
    case = product_case("conv")
    problem, columns = case.problem, case.vectors(2).mT

    def by_hand(theta: Tensor) -> Tensor:
        rows = jacrev(problem.outputs)(theta)
        shifted = torch.einsum("ncpk,cp,ncpl->kl", rows, problem.likelihood.weights, rows) + 0.5 * torch.eye(
            len(theta), dtype=F64
        )
        return (columns * torch.linalg.solve(shifted, columns)).sum() + torch.logdet(shifted)

    theta = case.parameters.requires_grad_(True)
    quadratic, logarithm = GaussNewton(theta, problem).add_jitter(0.5).inv_quad_logdet(columns, logdet=True)
    (gradient,) = torch.autograd.grad(quadratic + logarithm, theta)
    close(gradient, grad(by_hand)(theta.detach()), 1e-9)
    wanted = columns.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad((GaussNewton(case.parameters, problem) @ wanted).square().sum(), wanted)
    close(gradient, 2 * case.matrix("gauss-newton") @ (case.matrix("gauss-newton") @ columns), 1e-9)


@KINDS
@pytest.mark.parametrize("single", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["float64", "float32"])
def test_for_scipy(kind: str, single: bool) -> None:
    case = product_case("conv")
    problem = in_single(case.problem) if single else case.problem
    matrix = MATRICES[kind](problem.parameters, problem).to_scipy()
    dense, tolerance = case.matrix(kind), 1e-4 if single else 1e-10
    assert matrix.dtype == np.float64
    columns = case.vectors(5).mT.numpy()
    for result, right in (
        (matrix @ columns, dense.numpy() @ columns),
        (matrix @ columns[:, 0], dense.numpy() @ columns[:, 0]),
        (matrix.T @ columns, dense.numpy() @ columns),
        (matrix.rmatvec(columns[:, 1]), dense.numpy() @ columns[:, 1]),
    ):
        assert result.dtype == np.float64
        close(torch.from_numpy(result), torch.from_numpy(right), tolerance)
    values = scipy.sparse.linalg.eigsh(matrix, k=3, which="LM", return_eigenvectors=False, v0=np.ones(len(dense)))
    spectrum = torch.linalg.eigvalsh(dense)
    largest = spectrum[spectrum.abs().argsort()[-3:]].sort().values
    close(torch.from_numpy(np.sort(values)), largest, tolerance)


@KINDS
def test_single_precision(kind: str) -> None:
    case = product_case("conv")
    problem, columns = in_single(case.problem), case.vectors(5).mT
    matrix = MATRICES[kind](problem.parameters, problem)
    assert matrix.dtype == torch.float32
    result = matrix @ columns.float()
    assert result.dtype == torch.float32
    close(result.double(), case.matrix(kind) @ columns, 1e-4)


@pytest.mark.bad_input
def test_errors() -> None:
    case = tiny()
    with pytest.raises(ShapeError, match=r"parameters of shape \(6,\)"):
        GaussNewton(case.parameters[:5], case.problem)
    bare = replace(case.problem, targets=None)
    with pytest.raises(DataError, match="expected targets"):
        hessian_term(bare)
    close(GaussNewton(case.parameters, bare) @ case.vectors(2).mT, case.matrix("gauss-newton") @ case.vectors(2).mT)
