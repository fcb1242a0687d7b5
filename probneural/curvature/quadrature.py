"""Traces of functions of a positive semi-definite map from one set of Lanczos runs: stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_counts, check_finite, check_floating, check_shape, validated
from probneural.curvature.lanczos import Eigenpairs, RitzPairs, check_semidefinite
from probneural.linear_algebra.symmetric_maps import Map, apply, gaussian, row_norms
from probneural.randomness import stream

_STRIDE = 5
"""Steps between two questions whether a measure has settled."""
_ROOM = 2**26
"""Numbers in the vectors that `_FEW` steps keep; probes beyond run one after the other."""
_FEW = 20
"""Initially allocated number of steps."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SpectralMeasure:
    """A discrete approximation of the spectral measure of A: known eigenvalues, and one quadrature per probe for the rest.

        tr f(A) ~= sum over known k of f(lambda_k) + mean over probes of sum over j of weights_j f(nodes_j)

    Attributes:
        nodes: `(probes, steps)`, >= 0, float64, in A's units.
        weights: `(probes, steps)`, >= 0, float64: counts of eigenvalues; those of a probe sum to the number of unknown ones.
            Early termination is padded with nodes at zero of weight zero.
        deflated: Deflated eigenvalues, `(r,)`, float64, including unresolved ones.
        products: Number of products with A.
    """

    nodes: Float64[Tensor, "probes steps"]
    weights: Float64[Tensor, "probes steps"]
    deflated: Float64[Tensor, " r"]
    products: int

    def trace(self, function: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        """Estimate tr f(A), known eigenvalues included.

        Args:
            function: f, elementwise and finite on [0, infinity).

        Returns:
            The estimate and its standard error over probes, infinite for a single one; zero where all eigenvalues are known.

        Raises:
            DataError: If f is not finite at a node.
        """
        deflated = float(_finite(function(self.deflated)).sum()) if len(self.deflated) else 0.0
        remainder, error = self.remainder(function)
        return deflated + remainder, error

    def remainder(self, function: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        """Estimate tr f of A on the complement of the known eigenvectors alone; see `trace`."""
        present = self.weights > 0
        if not bool(present.any()):
            return 0.0, 0.0
        values = torch.zeros_like(self.nodes)
        values[present] = _finite(function(self.nodes[present]))
        totals = (values * self.weights).sum(1)
        probes = len(totals)
        error = math.inf if probes == 1 else float(totals.std()) / math.sqrt(probes)
        return float(totals.mean()), error


def _finite(values: Tensor) -> Tensor:
    check_finite(values, "values of the function at the nodes", remedy="add a positive shift")
    return values


@validated
def spectral_density(
    product: Map,
    size: int,
    *,
    probes: int,
    steps: int,
    seed: int = 0,
    deflate: Eigenpairs | None = None,
    is_settled: Callable[[SpectralMeasure], bool] | None = None,
    like: Tensor | None = None,
) -> SpectralMeasure:
    """Run Lanczos from random vectors, and keep the Gauss quadrature of each.

        tr f(A) = E[z^T f(A) z],   z^T f(A) z / ||z||^2 ~= e_1^T f(T) e_1 = sum over j of (first entry of y_j)^2 f(theta_j)

    with T the tridiagonal matrix of `steps` Lanczos steps from z and (theta_j, y_j) its eigenpairs. The same nodes serve
    every f, such as log det(A / s2 + tau) for all s2 and tau. With `deflate`, probes are orthogonal to the known
    eigenvectors, whose contribution is exact; unresolved ones contribute an error of the square of their relative residuals,
    much smaller than the probes' error. Probes are uniform on the sphere of radius sqrt(P - r), so that weights sum
    to the number of unknown eigenvalues.

    The error of the quadrature itself, which `steps` controls, is not in the standard error. It vanishes for polynomials up
    to degree 2 steps - 1 and is small for log(1 + x / c) if eigenvalues far above c are deflated. Otherwise it is not:
    40 steps on eigenvalues spread evenly over the decades from c / 1000 to c * 10^9 overestimate the log-determinant by a
    third, with a standard error of 2 %.

    Rounding can put a node slightly below zero; it is set to zero if within 1e-3 of the largest node or known value.

    Args:
        product: A on rows, `(s, P)` to `(s, P)`.
        size: P.
        probes: Number of random vectors.
        steps: Lanczos steps, fully reorthogonalised: all vectors of a probe are kept.
        seed: Seed of the probes.
        deflate: Known eigenpairs of A with orthonormal vectors, and unresolved ones.
        is_settled: Stopping criterion, called with the current measure every 5 steps.
        like: Tensor with the dtype and device of the vectors; float64 on the CPU by default.

    Returns:
        Nodes, weights and known values.

    Raises:
        ArgumentError: If A has a clearly negative eigenvalue, or a count is not positive.
        ShapeError: If `deflate` or a product has the wrong shape.
        DataError: If a product is not finite.

    Reference:
        Ubaru, Chen & Saad (2017), Fast estimation of tr(f(A)) via stochastic Lanczos quadrature, section 3. Deviation: exact
        deflation, and probes on the sphere.

    Examples:
        >>> measure = spectral_density(lambda rows: 3.0 * rows, 5, probes=2, steps=4)
        >>> tuple(round(number, 6) for number in measure.trace(torch.sqrt))
        (8.660254, 0.0)
    """
    check_counts(size=size, probes=probes, steps=steps)
    like = torch.zeros((), dtype=torch.float64, device="cpu") if like is None else check_floating(like, "like").new_zeros(())
    deflated, directions = _taken_out(deflate, size, like)
    remaining = size - len(deflated)
    steps = min(steps, max(remaining, 1))
    if remaining == 0:
        empty = deflated.new_zeros(probes, steps)
        return SpectralMeasure(nodes=empty, weights=empty.clone(), deflated=deflated, products=0)
    first = gaussian(probes, size, generator=stream(seed, "spectral density"), like=like)
    first = _off(_off(first, directions), directions)
    runs: list[_Run] = []
    for piece in first.split(max(1, _ROOM // (min(steps, _FEW) * size))):
        run = _Run(product, piece, directions, steps=steps)
        while run.step():
            # The first probes determine the number of steps of all probes.
            is_due = not runs and run.steps_done % _STRIDE == 0
            if is_due and is_settled is not None and is_settled(_measure([run], deflated, remaining)):
                break
        steps = run.steps_done if not runs else steps
        runs.append(run)
    return _measure(runs, deflated, remaining)


def _taken_out(deflate: Eigenpairs | None, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Known eigenvalues, `(r,)`, and their eigenvectors as rows, `(r, P)`, the unresolved ones last."""
    if deflate is None:
        return torch.zeros(0, dtype=torch.float64, device=like.device), like.new_zeros(0, size)
    check_shape(deflate.vectors, "eigenvectors", size, "r", remedy="those of the same map")
    groups: list[Eigenpairs | RitzPairs] = [deflate] if deflate.unresolved is None else [deflate, deflate.unresolved]
    deflated = torch.cat([group.values.to(like.device, torch.float64) for group in groups])
    return deflated, torch.cat([group.vectors.to(like).mT for group in groups])


class _Run:
    """Batched Lanczos from b starting rows, step by step, fully reorthogonalised.

    Attributes:
        diagonal: Diagonals of the tridiagonal matrices, `(b, steps)`.
        beside: Their off-diagonals, `(b, steps - 1)`; zero after termination.
        taken: Steps taken.
        products: Number of products.
    """

    def __init__(self, product: Map, first: Tensor, directions: Tensor, *, steps: int) -> None:
        probes, size = first.shape
        self.product, self.directions, self.steps = product, directions, steps
        self.diagonal = torch.zeros(probes, steps, dtype=torch.float64, device=first.device)
        self.beside = torch.zeros(probes, max(steps - 1, 0), dtype=torch.float64, device=first.device)
        self.basis = first.new_empty(probes, min(steps, _FEW), size)
        self.current = first / row_norms(first)[:, None].to(first)
        self.scale = torch.zeros(probes, dtype=torch.float64, device=first.device)
        self.steps_done = self.products = 0
        self.has_ended = False

    def step(self) -> bool:
        """Take one more step, unless all were taken or all runs have ended."""
        if self.has_ended or self.steps_done == self.steps:
            return False
        step, current = self.steps_done, self.current
        if step == self.basis.shape[1]:
            more = min(self.steps - step, step)
            self.basis = torch.cat([self.basis, self.basis.new_empty(len(current), more, current.shape[1])], dim=1)
        self.basis[:, step] = current
        image = apply(self.product, current, size=current.shape[1]).detach()
        self.products += len(current)
        self.steps_done += 1
        self.diagonal[:, step] = (current.to(torch.float64) * image.to(torch.float64)).sum(1)
        self.scale = torch.maximum(self.scale, row_norms(image))
        if self.steps_done == self.steps:
            return True
        past = self.basis[:, : self.steps_done]
        image = _off(image, self.directions)
        for _ in range(2):
            image = image - torch.einsum("bj,bjp->bp", torch.einsum("bjp,bp->bj", past, image), past)
        norms = row_norms(image)
        going = norms > 100.0 * torch.finfo(current.dtype).eps * self.scale
        self.has_ended = not bool(going.any())
        self.beside[:, step] = torch.where(going, norms, 0.0)
        self.current = torch.where(going[:, None], image / torch.where(going, norms, 1.0)[:, None].to(image), 0.0)
        return True


def _measure(runs: Sequence[_Run], deflated: Tensor, remaining: int) -> SpectralMeasure:
    """The measure of the unknown eigenvalues from some runs."""
    steps_done = max(run.steps_done for run in runs)
    diagonal = torch.cat([run.diagonal[:, :steps_done] for run in runs])
    beside = torch.cat([run.beside[:, : steps_done - 1] for run in runs])
    tridiagonal = torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)
    nodes, vectors = torch.linalg.eigh(tridiagonal.cpu())
    nodes, masses = nodes.to(deflated), vectors[:, 0].square().to(deflated)
    largest = max(float(nodes.max()), float(deflated.max()) if len(deflated) else 0.0, 0.0)
    # A step that was not taken is a zero row and column of T: an eigenvalue of zero, with no part in the first entry.
    check_semidefinite(float(torch.where(masses > 0, nodes, 0.0).min()), largest)
    weights = remaining * masses / masses.sum(1, keepdim=True)
    products = sum(run.products for run in runs)
    return SpectralMeasure(nodes=nodes.clamp_min(0.0), weights=weights, deflated=deflated, products=products)


def _off(rows: Tensor, directions: Tensor) -> Tensor:
    return rows - (rows @ directions.mT) @ directions if len(directions) else rows
