"""The evidence of Gaussian processes that share a kernel: its value, and its derivatives in the kernel's hyper-parameters.

With C = k + nugget at unit amplitude and a_k = C⁻¹ y_k, everything follows from three matrices of n x n numbers: C⁻¹, the
kernel's derivative in squared distances, and that in its shape. Derivatives in a relevance or a linear coefficient are sums
over entries with coordinates as factors, hence matrix products with n x r numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.heads.kernel.gaussian_processes import LEAST_SQUARE, SMOOTHNESS, Covariance, squared_distances

SHAPE = 6
"""Hyper-parameters before the relevances: log length, exponent, log alpha, log linear variance, its exponent, log noise."""
_OUTPUTS = 4
"""Components of the outputs that the curvature is taken from; the others count as alike."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Log evidence of f processes, each at its best amplitude.

    amplitude_k² = y_k^T C^-1 y_k / n, and the evidence is -(1/2) sum over k of (n log(2 pi e amplitude_k²) + log det C).

    Attributes:
        value: In nats.
        amplitude: `(f,)`.
        inverse: C^-1, `(n, n)`.
        solved: C^-1 y, `(n, f)`.
    """

    value: float
    amplitude: Float64[Tensor, " f"]
    inverse: Float64[Tensor, "n n"]
    solved: Float64[Tensor, "n f"]

    @classmethod
    @torch.no_grad()
    def of(cls, matrix: Float64[Tensor, "n n"], values: Float64[Tensor, "n f"]) -> Evidence | None:
        """Evaluate it for the covariance matrix C and the values y; None if C is singular."""
        root, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed):
            return None
        inverse = torch.cholesky_inverse(root)
        solved = inverse @ values
        squares = (values * solved).mean(0)
        if not bool((squares > 0).all()):
            return None
        count, outputs = values.shape
        total = count * (squares.log() + 1.0 + math.log(2.0 * math.pi)).sum() + 2.0 * outputs * root.diagonal().log().sum()
        return cls(-0.5 * float(total), squares.sqrt(), inverse, solved)

    def gradient(self) -> Float64[Tensor, "n n"]:
        """The gradient in C."""
        gradient = self.inverse * (-0.5 * len(self.amplitude))
        return gradient.addmm_(self.solved / self.amplitude.square(), self.solved.mT, alpha=0.5)


@dataclass(frozen=True, eq=False)
class Point:
    """The objective of a search at one vector of hyper-parameters, per training value.

    Args:
        value: Minus the log evidence and the log hyper-prior.
        gradient: `(6 + r,)`.
        find_curvature: Makes the curvature.
    """

    value: float
    gradient: Float64[Tensor, " h"]
    find_curvature: Callable[[], Float64[Tensor, "h h"]]

    @cached_property
    def curvature(self) -> Float64[Tensor, "h h"]:
        """A positive semi-definite estimate of the second derivatives, `(6 + r, 6 + r)`: found when it is first needed."""
        return self.find_curvature()


@dataclass(frozen=True, eq=False)
class Objective:
    """Minus log evidence and log hyper-prior as a function of hyper-parameters.

    Inverse length scales are exp(-length) * std_j^-exponent * exp(relevance_j): an exponent of 0 measures the distance of
    two input functions in L2, an exponent of 1 that of whitened coordinates. Log relevances have a standard normal hyper-prior.

    Args:
        kernel: One of `KERNELS`.
        points: Training coordinates, `(n, r)`.
        std: Their standard deviations, `(r,)`.
        values: Training values, `(n, f)`.
    """

    kernel: str
    points: Float64[Tensor, "n r"]
    std: Float64[Tensor, " r"]
    values: Float64[Tensor, "n f"]

    def unpacked(self, vector: Float64[Tensor, " h"]) -> tuple[Covariance, Tensor]:
        """The covariance and the nugget that hyper-parameters stand for."""
        length, exponent, alpha, weight, slope, noise = vector[:SHAPE]
        decay = self.std.log()
        covariance = Covariance(
            kernel=self.kernel,
            relevance=(vector[SHAPE:] - length - exponent * decay).exp(),
            linear=(0.5 * weight - slope * decay).exp(),
            alpha=alpha.exp(),
        )
        return covariance, noise.exp() * covariance.diagonal(self.points).mean()

    @torch.no_grad()
    def __call__(self, vector: Float64[Tensor, " h"]) -> Point | None:
        """Evaluate it with its derivatives; None where the covariance is singular to rounding.

        With G the gradient of the evidence in C, k' the derivative of the kernel in squared distances and H = G * k' entry by
        entry, the gradient is, for points z and relevances a,

            d / d log a_j = 4 a_j² (sum over i of (H 1)_i z_ij² - (Z^T H Z)_jj),
            d / d log linear_j = 2 linear_j² (Z^T G Z)_jj,

        and the nugget, which is a multiple of the mean diagonal of k, adds to the second. The curvature is the average of
        observed and expected information, in which traces cancel. With C_i the derivatives of C and
        b_k = C^-1 y_k / amplitude_k:

            (1/2) sum over k of (b_k^T C_i C^-1 C_j b_k - (b_k^T C_i b_k) (b_k^T C_j b_k) / n),

        the second term for the amplitudes, which follow.

        Reference:
            Gilmour, Thompson & Cullis (1995), Average information REML, an efficient algorithm for variance parameter
            estimation in linear mixed models. Deviations: amplitudes are eliminated, and of many outputs four stand for all.
        """
        covariance, nugget = self.unpacked(vector)
        centred = self.points - self.points.mean(0)
        matrix, slopes, in_alpha = _matrices(covariance, centred)
        if covariance.has_linear_part:
            moved = self.points * covariance.linear
            matrix.addmm_(moved, moved.mT)
        matrix.diagonal().add_(nugget)
        found = Evidence.of(matrix, self.values)
        if found is None:
            return None
        derivatives = _Derivatives(self, vector, covariance, nugget, centred, slopes, in_alpha)
        gradient = derivatives.gradient(found.gradient())
        gradient[SHAPE:] -= vector[SHAPE:]
        total = 0.5 * float(vector[SHAPE:].square().sum()) - found.value
        size = self.values.numel()
        return Point(total / size, -gradient / size, lambda: derivatives.curvature(found) / size)


@dataclass(frozen=True, eq=False)
class _Derivatives:
    """Derivatives of C at one vector of hyper-parameters, contracted with what they are asked for."""

    objective: Objective
    vector: Tensor
    covariance: Covariance
    nugget: Tensor
    centred: Tensor
    slopes: Tensor | None
    in_alpha: Tensor | None

    def gradient(self, weights: Float64[Tensor, "n n"]) -> Float64[Tensor, " h"]:
        """Sum over entries of C's derivatives times these weights."""
        points, relevance = self.objective.points, self.covariance.relevance
        in_nugget = weights.diagonal().sum()
        in_shape, in_linear, in_relevance = (torch.zeros((), dtype=weights.dtype, device=weights.device),) + (
            torch.zeros_like(relevance),
        ) * 2
        if self.covariance.has_linear_part:
            squares = (points * (weights @ points)).sum(0) + in_nugget * self._mean_squares
            in_linear = 2.0 * self.covariance.linear.square() * squares
        if self.slopes is not None:
            if self.in_alpha is not None:
                in_shape = (weights * self.in_alpha).sum()
            both = weights * self.slopes
            products = both @ self.centred
            squares_apart = (self.centred.square() * both.sum(1, keepdim=True)).sum(0) - (self.centred * products).sum(0)
            in_relevance = 4.0 * relevance.square() * squares_apart
        return self._joined(
            in_relevance[:, None], in_linear[:, None], in_shape.reshape(1), (in_nugget * self.nugget).reshape(1)
        )[:, 0]

    def curvature(self, evidence: Evidence) -> Float64[Tensor, "h h"]:
        """The average information, and what the hyper-prior adds."""
        outputs = evidence.solved.shape[1]
        chosen = torch.linspace(0, outputs - 1, min(outputs, _OUTPUTS)).round().long().to(evidence.solved.device)
        total = torch.zeros(len(self.vector), len(self.vector), dtype=torch.float64, device=evidence.solved.device)
        for column in (evidence.solved / evidence.amplitude)[:, chosen].mT:
            images = self._images(column)
            along = images @ column
            total += images @ (evidence.inverse @ images.mT) - along[:, None] * along / len(column)
        total *= 0.5 * outputs / len(chosen)
        total.diagonal()[SHAPE:] += 1.0
        return total

    def _images(self, column: Float64[Tensor, " n"]) -> Float64[Tensor, "h n"]:
        """C_i b for each hyper-parameter."""
        points, centred, relevance = self.objective.points, self.centred, self.covariance.relevance
        shape, none = (len(relevance), len(column)), column.new_zeros(1)
        in_relevance, in_linear, in_alpha = column.new_zeros(shape), column.new_zeros(shape), column.new_zeros(len(column))
        if self.covariance.has_linear_part:
            along = (points.mT @ column)[:, None] * points.mT + self._mean_squares[:, None] * column
            in_linear = 2.0 * self.covariance.linear.square()[:, None] * along
        if self.slopes is not None:
            if self.in_alpha is not None:
                in_alpha = self.in_alpha @ column
            weighted = centred * column[:, None]
            products = self.slopes @ torch.cat([column[:, None], weighted, centred * weighted], dim=1)
            first, second = products[:, 1 : 1 + len(relevance)], products[:, 1 + len(relevance) :]
            squares_apart = centred.square() * products[:, :1] - 2.0 * centred * first + second
            in_relevance = (2.0 * relevance.square() * squares_apart).mT
        return self._joined(in_relevance, in_linear, in_alpha + none, self.nugget * column)

    @property
    def _mean_squares(self) -> Tensor:
        """What the nugget adds: exp(noise) times the mean of z_j²."""
        return self.vector[SHAPE - 1].exp() * self.objective.points.square().mean(0)

    def _joined(
        self,
        in_relevance: Float64[Tensor, "r m"],
        in_linear: Float64[Tensor, "r m"],
        in_alpha: Float64[Tensor, " m"],
        in_noise: Float64[Tensor, " m"],
    ) -> Float64[Tensor, "h m"]:
        """Derivatives in all hyper-parameters from those in log a, log linear, log alpha and log noise."""
        log_std = self.objective.std.log()
        rows = [
            -in_relevance.sum(0),
            -(log_std @ in_relevance),
            in_alpha,
            0.5 * in_linear.sum(0),
            -(log_std @ in_linear),
            in_noise,
        ]
        return torch.cat([torch.stack(rows), in_relevance])


def _matrices(covariance: Covariance, centred: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The stationary part of k, its derivative in squared distances without the diagonal, and that in log alpha."""
    if covariance.stationary is None:
        return centred.new_zeros(len(centred), len(centred)), None, None
    scaled = centred * covariance.relevance
    kernel, slopes, in_alpha = _with_slopes(covariance.stationary, squared_distances(scaled, scaled), covariance.alpha)
    return kernel, slopes.fill_diagonal_(0.0), in_alpha


def _with_slopes(name: str, squares: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """A stationary kernel k, its derivative in squared distances, and that in log alpha if it has one; no graph is kept."""
    if name == "rational_quadratic":
        ratio = squares / (2.0 * alpha)
        logs, above = ratio.log1p(), ratio + 1.0
        kernel = (-alpha * logs).exp_()
        slope = kernel / above
        in_alpha = ratio.mul_(slope).sub_(logs.mul_(kernel)).mul_(alpha)
        return kernel, slope.mul_(-0.5), in_alpha
    if name == "rbf":
        kernel = (-0.5 * squares).exp_()
        return kernel, -0.5 * kernel, None
    order = SMOOTHNESS[name]
    distances = (2.0 * order * squares).clamp_min_(LEAST_SQUARE).sqrt_()
    decay = (-distances).exp()
    if order == 0.5:
        return decay, -0.5 * decay / distances, None
    if order == 1.5:
        return (1.0 + distances) * decay, -1.5 * decay, None
    linear = (1.0 + distances) * decay
    return linear + distances.square() * decay / 3.0, (-5.0 / 6.0) * linear, None
