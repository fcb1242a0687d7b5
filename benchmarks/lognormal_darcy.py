"""Log-normal Darcy flow with a flux at one end: the exact moments of a nonlinear functional of a Gaussian field.

-(e^g u')' = 1 with u(0) = 0 and no flux at 1 has u(x) = F(g)(x), the integral of q(s) e^-g(s) from 0 to x, q(s) = 1 - s. The
logarithm g has a squared-exponential covariance of length .15, and is observed at four points with noise of deviation .1.
Given these it is Gaussian of mean m and covariance k, so that

    E u(x)          = int_0^x q e^(-m + k(s, s)/2) ds,
    Cov(u(x), u(y)) = int_0^x int_0^y q(s) q(t) e^(-m(s) - m(t) + (k(s, s) + k(t, t))/2) (e^k(s, t) - 1) dt ds.

On a grid the integrals are sums, F is a function of the values of g, and both formulas with sums are its exact moments.
The linearised field has the mean F(m) and the covariance J k J^T; every linearised posterior has its error.
Calibration can correct its standard deviations, but neither its mean nor its shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

import probneural as pn
from benchmarks import verdicts
from benchmarks.over_seeds import Row
from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField, Predictor, PredictorTraits

POINTS, LENGTH, NOISE = 201, 0.15, 0.1
PLACES, DATA = (0.1, 0.35, 0.6, 0.9), (0.4, -0.3, 0.2, -0.5)
PRIORS = (0.5, 1.0)
"""Prior standard deviations of g."""
GRID = pn.Grid.uniform((POINTS,), periodic=False)
MEASURES = 2
"""Number of tested maxima of z for each prior: of means and of variances."""
_FLUX = 1.0 - GRID.points[:, 0]
NOTE = (
    "Log-normal Darcy flow with a flux at one end, its logarithm seen at four points. Linearised: the Gaussian field of the "
    "logarithm, propagated through the exact map by its derivative; draws: the same field, pushed forward by draws. mean "
    "error: relative L2. sd ratio: of stated standard deviations to the exact ones, root mean squares over the domain and at "
    "the far end. covariance error: in the Frobenius norm, relative. coverage: probability of the stated central 90 % "
    "intervals by independent draws, a mean over points. mean z, variance z: largest errors of draws over the points, in "
    "Monte Carlo standard errors"
)


@dataclass(frozen=True, eq=False)
class Exact:
    """Distribution of the logarithm given data, and exact moments of the solution.

    Attributes:
        logarithm: g given the data, one function.
        mean: Mean of the solution, `(201,)`.
        covariance: Covariance of the solution, `(201, 201)`.
    """

    logarithm: GaussianField
    mean: Float64[Tensor, " p"]
    covariance: Float64[Tensor, "p p"]

    @classmethod
    def of(cls, prior_std: float) -> Exact:
        """Condition the prior on the data, and integrate."""
        s = GRID.points[:, 0]
        prior = prior_std**2 * torch.exp(-(s[:, None] - s).square() / (2.0 * LENGTH**2))
        values, vectors = torch.linalg.eigh(prior)
        root = DenseRoot((vectors * values.clamp_min(0.0).sqrt())[None, None])
        field = GaussianField(torch.zeros(1, 1, POINTS, dtype=torch.float64), root, latent="logarithm", grid=GRID)
        seen = pn.functionals.sensors(GRID, [[place] for place in PLACES])
        logarithm = field.condition(seen, torch.tensor(DATA, dtype=torch.float64)[None, None], noise=NOISE**2)
        covariance = logarithm.covariance.to_dense()[0].double()
        weight = _FLUX * torch.exp(-logarithm.mean[0, 0] + covariance.diagonal() / 2.0)
        second = weight[:, None] * weight * torch.expm1(covariance)
        return cls(logarithm, integrated(weight), integrated(integrated(second).mT).mT)

    def draws(self, count: int, *, seed: int) -> Float64[Tensor, "s p"]:
        """Exact draws of the solution."""
        found: Tensor = solution(self.logarithm.rsample((count,), seed=seed))[:, 0, 0]
        return found


def integrated(values: Float64[Tensor, "*n p"]) -> Float64[Tensor, "*n p"]:
    """The integral from 0 to each point, by the trapezoidal rule."""
    steps = (values[..., 1:] + values[..., :-1]) / (2.0 * (POINTS - 1))
    return torch.cat([torch.zeros_like(values[..., :1]), steps.cumsum(-1)], dim=-1)


def solution(logarithm: Float64[Tensor, "*n p"]) -> Float64[Tensor, "*n p"]:
    """F: the solution of each logarithm of the permeability."""
    return integrated(_FLUX * torch.exp(-logarithm))


class ExactMap(Predictor):
    """F as a known operator: only its input is uncertain."""

    def __init__(self) -> None:
        none = torch.zeros(1, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=1, noise=none, domain=GRID, like=none))

    def _predict(self, sets: list[tuple[pn.Field, pn.Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: pn.Field, query: pn.Grid | None) -> GaussianField:
        root = DenseRoot(torch.zeros(len(inputs), 1, POINTS, 1, dtype=torch.float64))
        return GaussianField(solution(inputs.values), root, latent="exact map", grid=GRID if query is None else query)


def linearised(exact: Exact) -> GaussianField:
    """The field of the logarithm, propagated by the derivative of the map at its mean."""
    start = pn.Field(exact.logarithm.mean, GRID)
    found = pn.forecasts.propagate(ExactMap(), start, steps=1, initial=exact.logarithm).at(1)
    assert isinstance(found, GaussianField)
    return found


def sampled(exact: Exact, *, draws: int, seed: int) -> EmpiricalField:
    """The field of the logarithm, pushed forward by draws."""
    return exact.logarithm.apply_by_draws(solution, draws=draws, seed=seed)


def rows(*, small: bool, families: int) -> list[Row]:
    """Both fields compared with the exact distribution, for each prior."""
    draws = 1000 if small else 20_000
    found = []
    for prior_std in PRIORS:
        exact = Exact.of(prior_std)
        fresh = exact.draws(draws, seed=1)
        for name, u in (("linearised", linearised(exact)), ("draws", sampled(exact, draws=draws, seed=0))):
            row: Row = {"prior sd": prior_std, "field": name} | compared(u, exact, fresh)
            found.append(row | (judged(row, families=families) if name == "draws" else {}))
    return found


def compared(u: FieldDistribution, exact: Exact, fresh: Float64[Tensor, "s p"]) -> Row:
    """Errors of moments, energy distance, and coverage of intervals."""
    if isinstance(u, EmpiricalField):
        stated = u.samples[:, 0, 0].double()
        covariance = torch.cov(stated.mT)
    else:
        stated = u.rsample((len(fresh),), seed=2)[:, 0, 0].double()
        covariance = u.covariance.to_dense()[0].double()
    mean, variance, right = u.mean[0, 0].double(), covariance.diagonal(), exact.covariance.diagonal()
    some = slice(0, 2000)
    row: Row = {
        "mean error": float((mean - exact.mean).norm() / exact.mean.norm()),
        "sd ratio": float((variance.mean() / right.mean()).sqrt()),
        "sd ratio at the end": float((variance[-1] / right[-1]).sqrt()),
        "covariance error": float((covariance - exact.covariance).norm() / exact.covariance.norm()),
        "energy distance": float(energy_distance(stated[None, some], fresh[None, some])),
        "coverage": coverage(stated[None, :, 1:], fresh[None, :, 1:]),
    }
    return row | (errors(stated, exact) if isinstance(u, EmpiricalField) else {})


def energy_distance(first: Float64[Tensor, "n s p"], second: Float64[Tensor, "n t p"]) -> Float64[Tensor, " n"]:
    """Unbiased estimate of 2 E|X - Y| - E|X - X'| - E|Y - Y'| in the root-mean-square norm."""
    scale = math.sqrt(first.shape[-1])

    def within(draws: Tensor) -> Tensor:
        return torch.cdist(draws, draws).sum((1, 2)) / (draws.shape[1] * (draws.shape[1] - 1))

    return (2.0 * torch.cdist(first, second).mean((1, 2)) - within(first) - within(second)) / scale


def coverage(stated: Float64[Tensor, "n s p"], exact: Float64[Tensor, "n t p"], *, level: float = 0.9) -> float:
    """Exact probability of the central intervals of predicted draws, averaged over points and samples."""
    low, high = (stated.quantile(q, dim=1, keepdim=True) for q in ((1 - level) / 2, (1 + level) / 2))
    return float(((exact >= low) & (exact <= high)).double().mean())


def errors(draws: Float64[Tensor, "s p"], exact: Exact) -> Row:
    """Largest errors of means and variances over the points but the first, in standard errors of independent draws."""
    off, variance = draws[:, 1:] - exact.mean[1:], exact.covariance.diagonal()[1:]
    squares = off.square() - variance
    return {
        f"{name} z": float((one.mean(0) / one.std(0)).abs().max()) * math.sqrt(len(draws))
        for name, one in (("mean", off), ("variance", squares))
    }


def judged(row: Row, *, families: int) -> Row:
    """Limit of z, and the verdict on whether draws have the exact distribution."""
    limit = verdicts.largest_z(POINTS - 1, families=families)
    return {"limit": limit, "verdict": verdicts.verdict(row, {"mean z": limit, "variance z": limit})}
