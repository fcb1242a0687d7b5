"""Prior and likelihood of the parameters of input functions, given observations of outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)

from probneural import checks
from probneural.calibration.calibrate import CalibratedPredictor
from probneural.calibration.novelty.detector import NoveltyDetector
from probneural.contexts import Undisturbed
from probneural.distributions import FieldDistribution, GaussianField, MixtureField, Predictor
from probneural.distributions.mixture import choose, gaussian_of, uniform_numbers
from probneural.errors import ArgumentError, ConstraintError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.functionals import Functional
from probneural.functionals.base import check_functional
from probneural.linear_algebra.densities import by_covariance, by_gram, normal_log_density
from probneural.problems import InputDistribution


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


PriorLike = Distribution | InputDistribution | Sequence[Distribution | InputDistribution]
"""A distribution of event shape (d,) or (), a problem's input distribution, or several independent ones of both kinds."""
_REMEDY = "give a torch.distributions.Distribution of event shape (d,), a problem's input_distribution, or a list of these"


class Prior(Undisturbed):
    """Independent distributions, side by side, as one distribution of theta in R^d.

    Every solver works in standard normal coordinates z with theta = T(z), in which prior densities are those of N(0, I).

    Args:
        prior: See [`InverseProblem`][probneural.inverse.InverseProblem].

    Raises:
        ArgumentError: If it is none of these, or has batch axes.
        UnsupportedError: If a distribution has no map from standard normal numbers.
    """

    def __init__(self, prior: PriorLike) -> None:
        parts: Sequence[Any] = prior if isinstance(prior, list | tuple) else [prior]
        factors = [factor for part in parts for factor in (part.factors if isinstance(part, InputDistribution) else [part])]
        self.factors = tuple(map(_dense, factors))
        for factor in self.factors:
            if not isinstance(factor, Distribution) or len(factor.batch_shape) or len(factor.event_shape) > 1:
                raise ArgumentError(
                    expected="a prior without batch axes",
                    got=repr(factor),
                    remedy=f"{_REMEDY}; see torch.distributions.Independent",
                )
        self._sizes = [math.prod(factor.event_shape) for factor in self.factors]
        if not sum(self._sizes):
            raise ArgumentError(expected="a prior of at least one parameter", got="none", remedy=_REMEDY)
        self.from_normal(torch.zeros(1, self.size, dtype=torch.float64))

    @property
    def size(self) -> int:
        """Number d of parameters."""
        return sum(self._sizes)

    def from_normal(self, z: Float64[Tensor, "*n d"]) -> Float64[Tensor, "*n d"]:
        """The parameters T(z), differentiable; standard normal z give draws from the prior."""
        parts = zip(self.factors, z.split(self._sizes, dim=-1), strict=True)
        moved = [_moved(factor, part if len(factor.event_shape) else part[..., 0]) for factor, part in parts]
        columns = [
            part if len(factor.event_shape) else part[..., None] for factor, part in zip(self.factors, moved, strict=True)
        ]
        return torch.cat([column.to(torch.float64) for column in columns], dim=-1)

    def log_prob(self, theta: Float[Tensor, "*n d"]) -> Float64[Tensor, "*n"]:
        """Log density of parameters, in nats; -inf outside the support."""
        total = theta.new_zeros(theta.shape[:-1], dtype=torch.float64)
        for factor, part in zip(self.factors, theta.to(torch.float64).split(self._sizes, dim=-1), strict=True):
            values = part if len(factor.event_shape) else part[..., 0]
            inside = getattr(factor.support, "check", torch.isfinite)(values)
            anchor = _moved(factor, torch.zeros_like(values)).to(values)
            safe = torch.where(inside[..., None] if len(factor.event_shape) else inside, values, anchor)
            total = total + torch.where(inside, factor.log_prob(safe), -math.inf)
        return total


def _dense(factor: Distribution) -> Distribution:
    """A low-rank normal distribution with its covariance matrix, in float64; others as they are."""
    if not isinstance(factor, LowRankMultivariateNormal):
        return factor
    return MultivariateNormal(factor.loc.to(torch.float64), factor.covariance_matrix.to(torch.float64))


def _moved(distribution: Distribution, z: Tensor) -> Tensor:
    """Map standard normal numbers to draws: affine for Gaussians, else by the inverse distribution function."""
    if isinstance(distribution, Independent):
        return _moved(distribution.base_dist, z)
    if isinstance(distribution, Normal):
        return distribution.loc.to(z) + distribution.scale.to(z) * z
    if isinstance(distribution, MultivariateNormal):
        return distribution.loc.to(z) + z @ distribution.scale_tril.to(z).mT
    if isinstance(distribution, TransformedDistribution):
        moved = _moved(distribution.base_dist, z)
        for transform in distribution.transforms:
            moved = transform(moved)
        return moved
    epsilon = torch.finfo(torch.float64).eps
    try:
        return distribution.icdf(torch.special.ndtr(z).clamp(epsilon, 1.0 - epsilon))
    except NotImplementedError as error:
        raise UnsupportedError(
            expected="a Gaussian prior, one with an inverse distribution function (icdf), or a transformation of one",
            got=repr(distribution),
            remedy="write the parameter as a function of such a variable, within encode",
        ) from error


Solver = Callable[[Field], Field]
"""An exact map from input fields to output fields, for instance `problem.solve`."""
LIKELIHOODS = ("mean", "joint", "draws")
_CHUNK_VALUES = 2**20
"""Number of values of input and output fields per prediction."""
_CONTRADICTION = 40.0
"""Squared standardised contradiction between data of dependent functionals that is refused: probability 3e-10."""


class InverseModel(Undisturbed):
    """Prior and likelihood of an [`InverseProblem`][probneural.inverse.InverseProblem], which documents the arguments."""

    def __init__(
        self,
        predictor: Predictor | Solver,
        *,
        prior: PriorLike,
        encode: Callable[[Tensor], Field],
        functional: Functional,
        data: Float[Tensor, "..."],
        noise: float | Float[Tensor, "..."],
        likelihood: str = "joint",
        operator_draws: int = 16,
        novelty: NoveltyDetector | None = None,
    ) -> None:
        self.predictor = checks.check_callable(predictor, "predictor", remedy="fit a head; or give problem.solve")
        self.prior = Prior(prior)
        self.encode = checks.check_callable(
            encode, "encode", remedy="give a function of parameters (n, d) that returns a Field"
        )
        self.functional = check_functional(functional)
        self.likelihood = checks.check_choice(likelihood, LIKELIHOODS, "likelihood")
        self.operator_draws = checks.check_integer(operator_draws, "operator_draws")
        if not isinstance(predictor, Predictor) and likelihood != "mean":
            raise ArgumentError(
                expected='likelihood="mean" with a function, which has no uncertainty',
                got=likelihood,
                remedy="give a predictor",
            )
        if isinstance(predictor, CalibratedPredictor) and novelty is None:
            novelty = None if predictor.measure is None else predictor.novelty
        if novelty is not None:
            checks.check_instance(novelty, NoveltyDetector, "novelty", remedy="give Novelty().fit(predictor, held_out)")
        self.novelty = novelty
        self.data, self.noise = self._checked_data(data, noise)
        self.evaluations = 0
        self._check_contradictions()

    @property
    def size(self) -> int:
        """Number d of parameters."""
        return self.prior.size

    @property
    def targets(self) -> int:
        """Number of posteriors that are averaged: the operator draws of `"draws"`, else 1."""
        return self.operator_draws if self.likelihood == "draws" else 1

    def log_likelihood(self, theta: Float[Tensor, "*n d"]) -> Float64[Tensor, "..."]:
        """Log likelihood of parameters, in nats, differentiable.

        Args:
            theta: `(..., d)`.

        Returns:
            `(...)`; with `"draws"` `(s, ...)`, one for each operator draw, since each posterior is normalised by itself.

        Raises:
            ShapeError: If the last axis is not d.
            DataError: If a parameter is not finite.
        """
        rows = self._checked_parameters(theta)
        flat = rows.reshape(1, -1, self.size).expand(self.targets, -1, -1)
        logs = self.log_densities(flat).reshape(self.targets, *rows.shape[:-1])
        return logs if self.likelihood == "draws" else logs[0]

    def log_posterior(self, theta: Float[Tensor, "*n d"]) -> Float64[Tensor, "..."]:
        """Log likelihood plus log prior density, not normalised; see `log_likelihood`."""
        return self.log_likelihood(theta) + self.prior.log_prob(self._checked_parameters(theta))

    def log_densities(self, theta: Float64[Tensor, "t n d"]) -> Float64[Tensor, "t n"]:
        """Log likelihood of each target's parameters, in nats, differentiable."""
        parts = []
        for part in self.chunks(theta):
            values = self.values(part)
            if isinstance(values, FieldDistribution):
                logs = log_density(values, self.data, self.noise)
            else:
                logs = values.log_prob(self.data, self.noise)
            parts.append(logs.view(part.shape[:2]))
        return torch.cat(parts, dim=1)

    def moments(self, theta: Float64[Tensor, "t n d"]) -> tuple[Float64[Tensor, "t n q"], Float64[Tensor, "t n q q"]]:
        """Mean and covariance of the data given parameters, noise included; that of mixtures by their moments."""
        values, shape = self.values(theta), theta.shape[:2]
        numbers = GaussianNumbers.of(values) if isinstance(values, FieldDistribution) else values
        return numbers.mean.unflatten(0, shape), numbers.covariance(self.noise).unflatten(0, shape)

    def values(self, theta: Float64[Tensor, "t n d"]) -> FieldDistribution | GaussianNumbers:
        """The functional's values: their distribution for `"joint"`, else the predicted ones or those of operator draws."""
        flat = theta.flatten(0, 1)
        fields = self.inputs_of(flat)
        self.evaluations += len(flat)
        if not isinstance(self.predictor, Predictor):
            outputs = checks.check_instance(self.predictor(fields), Field, "the solver's result", remedy="return a Field")
            return GaussianNumbers.exact(self.functional(outputs.values.to(torch.float64)))
        predicted = self.predictor(fields, self.functional.grid)
        if self.likelihood == "joint":
            return predicted.apply(self.functional)
        if self.likelihood == "draws":
            seeds = [seed for seed in range(self.targets) for _ in range(theta.shape[1])]
            return operator_draws(predicted, self.functional, seeds)
        return GaussianNumbers.exact(self.functional(predicted.mean.to(torch.float64)))

    def inputs_of(self, theta: Float64[Tensor, "n d"]) -> Field:
        """The input fields of parameters, checked."""
        fields = checks.check_instance(
            self.encode(theta), Field, "the result of encode", remedy="return a Field of n input functions"
        )
        remedy = "map parameters (n, d) to a Field of n functions"
        checks.check_count(len(fields), len(theta), "fields from encode, one per row of parameters", remedy=remedy)
        return fields

    def chunks(self, theta: Float64[Tensor, "t n d"]) -> tuple[Tensor, ...]:
        """The parameters in parts along n, of a size that limits memory."""
        return theta.split(max(1, _CHUNK_VALUES // (self.functional.grid.size * len(theta))), dim=1)

    def _checked_parameters(self, theta: Float[Tensor, "*n d"]) -> Float64[Tensor, "*n d"]:
        rows = checks.real_tensor(theta, "theta", dtype=torch.float64)
        checks.check_shape(rows, "parameters", "...", self.size, remedy="the prior's size is d")
        checks.check_finite(rows, "theta", remedy="check the parameters")
        return rows

    def _checked_data(self, data: object, noise: object) -> tuple[Float64[Tensor, " q"], Float64[Tensor, " q"]]:
        """Data and noise variances as vectors, channel by channel."""
        values = torch.atleast_1d(checks.real_tensor(data, "data", dtype=torch.float64))
        channels = (
            self.predictor.out_channels if isinstance(self.predictor, Predictor) else values.numel() // self.functional.size
        )
        shape = (max(1, channels), self.functional.size)
        remedy = "channels, then the functional's numbers: observe at least one, and give the functional of the observed ones"
        checks.check_shape_among(values, "data", shape, (1, *shape), shape[channels == 1 :], remedy=remedy)
        checks.check_finite(values, "data", remedy="leave missing observations out of data and functional")
        variance = checks.check_variances(noise, "noise", positive=True)
        try:
            spread = variance.reshape(shape) if variance.numel() == math.prod(shape) else variance.expand(shape)
        except RuntimeError as error:
            raise ShapeError(
                expected=f"noise as a number, or of the data's shape {shape}",
                got=str(tuple(variance.shape)),
                remedy="give one variance per observation",
            ) from error
        return values.reshape(-1), spread.reshape(-1).clone()

    def _check_contradictions(self) -> None:
        """Refuse data that no field explains: with w^T A = 0, w^T data is noise of variance sum w² noise."""
        if self.functional.grid.has_points_per_sample or self.functional.size > 2048:
            return
        rows = self.functional.adjoint(torch.eye(self.functional.size, dtype=torch.float64)).flatten(1)
        left, values, _ = torch.linalg.svd(rows)
        rank = int((values > 1e-10 * values.max()).sum())
        null = left[:, rank:]
        data, noise = (part.view(-1, self.functional.size) for part in (self.data, self.noise))
        # the residual of weighted least squares in the null space, (N^T D N)^-1 with D the noise
        for row, variance in zip(data, noise, strict=True):
            if null.shape[1]:
                contrast = null.mT @ row
                squares = contrast @ torch.linalg.solve(null.mT @ (variance[:, None] * null), contrast)
                if squares > _CONTRADICTION + 2.0 * null.shape[1]:
                    raise ConstraintError(
                        expected="observations that agree within their noise where one follows from others",
                        got=f"a squared standardised contradiction of {float(squares):.3g}",
                        remedy="check units and places of sensors, and noise, which is a variance",
                    )
