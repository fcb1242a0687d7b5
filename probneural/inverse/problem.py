"""Inverse problems and their solvers."""

from __future__ import annotations

import math
import os
import time
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor
from tqdm.auto import tqdm

from probneural import checks
from probneural.contexts import undisturbed
from probneural.distributions.latent import digest
from probneural.errors import ArgumentError, ConvergenceWarning, DataWarning, FileError, warn
from probneural.fields import Field
from probneural.inverse.gauss_newton import GaussianApproximation, approximate
from probneural.inverse.model import InverseModel, Solver
from probneural.inverse.posterior import InversePosterior, tested
from probneural.inverse.samplers import NoUTurn, PreconditionedCrankNicolson, State, kalman_inverted, tempered
from probneural.randomness import check_seed, stream
from probneural.training import files

_METHODS = ("nuts", "pcn", "smc")
_BLOCKS = 20
"""Number of blocks of draws; a chain file is written after each."""
_STARTS = 4
"""Starts of the search for the most probable parameters: the prior's centre and draws from the prior."""
_MISFIT = 5.0
"""Standard deviations of chi² above its mean, at the most probable parameters, from which a misfit is reported."""


class InverseProblem(InverseModel):
    """The posterior of parameters theta, given observations data = A u(encode(theta)) + N(0, noise).

    The likelihood states how the uncertainty of the predictor enters:

    * `"mean"`: the predicted mean m is taken as exact, N(data; A m(theta), noise). Intervals are too narrow if errors of the
      predictor are not small compared with the noise.
    * `"joint"`: N(data; A m(theta), A C(theta) A^T + noise) with the predicted joint covariance C. It is the expected
      likelihood over operators, so its posterior is the expected unnormalised one.
    * `"draws"`: s coherent draws of the operator, each with a normalised posterior; the result is their average. One operator
      makes the errors at all theta; a discrepancy, which is independent between inputs, stays in the covariance.

    Both account for the predictor's uncertainty. `"draws"` takes all operators as equally probable, whatever the data;
    `"joint"` weighs operators by their evidence. They agree where the predictor is accurate.

    Args:
        predictor: A head's or calibrated predictor; or a function from input fields to output fields, as `problem.solve`,
            which has no uncertainty and takes `"mean"`.
        prior: A `torch.distributions.Distribution` of event shape (d,) or (); a problem's input distribution, with
            `encode=lambda theta: problem.inputs(theta, grid=grid)`; or a list of independent distributions.
        encode: Maps parameters `(n, d)`, float64, to n input fields, differentiably.
        functional: A; its grid is that of the predictions.
        data: Observations `(c, m)` of the outputs' c channels, or `(m,)` of one channel; in the outputs' units.
        noise: Variance of their independent errors, positive: a number, or one per observation; in the data's units squared.
        likelihood: `"mean"`, `"joint"` or `"draws"`.
        operator_draws: Number s of operator draws of `"draws"`.
        novelty: A fitted [`Novelty`][probneural.calibration.Novelty], which tests whether the posterior lies where the
            predictor was trained; that of a predictor from [`calibrate`][probneural.calibration.calibrate] by default.

    Raises:
        ArgumentError: If an argument is of another kind or out of range, or noise is not positive.
        DataError: If data are not finite, or `encode` returns no fields.
        ShapeError: If data or noise do not fit the functional, or `encode` returns another number of fields.
        ConstraintError: If observations contradict each other beyond their noise.

    Reference:
        Stuart and Teckentrup (2018), Posterior consistency for Gaussian process approximations of Bayesian posterior
        distributions (mean and expected likelihoods); arXiv 2601.03532 (expected unnormalised and expected posteriors).
    """

    def map(self, *, iterations: int = 100, tolerance: float = 1e-4, seed: int = 0) -> InversePosterior:
        """The most probable parameters of each target, by Gauss-Newton steps from four starts.

        Probable in standard normal coordinates z, theta = T(z): for Gaussian priors the maximum of `log_posterior`. Others, as
        those of boxes, have their prior density in z, so that no solution lies on the boundary.

        Args:
            iterations: Maximum number of steps.
            tolerance: Length of the last step, in standard deviations of the Gauss-Newton approximation; dimensionless.
            seed: Seed of three of the starts.

        Raises:
            DataError: If the likelihood is not finite, or predictions have no derivatives in the parameters.
        """
        start = self._started()
        approximation = self._approximated(iterations=iterations, tolerance=tolerance, seed=seed)
        return self._posterior("map", approximation.mode[:, None, None], start, chi2=approximation.chi2)

    def laplace(self, *, draws: int = 1000, seed: int = 0) -> InversePosterior:
        """The Gauss-Newton approximation N(map, (I + J^T S^-1 J)^-1) in standard normal coordinates: draws and evidence.

        It is exact for linear predictions with a Gaussian prior, up to the Monte Carlo error of the draws;
        [`approximation`][probneural.inverse.InverseProblem.approximation] has its mean and covariance without that error.

        Args:
            draws: Number of draws, of all targets together.
            seed: Names the draws.

        Raises:
            DataError: See `map`.
        """
        start, draws = self._started(), checks.check_integer(draws, "draws")
        approximation = self._approximated(seed=seed)
        shape = (self.targets, math.ceil(draws / self.targets), self.size)
        white = torch.randn(shape, dtype=torch.float64, generator=stream(check_seed(seed), "laplace draws"))
        evidence, z = approximation.log_evidence, approximation.moved(white)[:, None]
        return self._posterior("laplace", z, start, chi2=approximation.chi2, log_evidence=evidence, seed=seed)

    def approximation(self, *, seed: int = 0) -> GaussianApproximation:
        """Mean and covariance factor of the Gauss-Newton approximation of each target, in standard normal coordinates."""
        return self._approximated(seed=seed)

    @undisturbed()
    def sample(
        self,
        method: str = "pcn",
        *,
        draws: int = 1000,
        chains: int | None = None,
        warm_up: int = 200,
        exact: Solver | None = None,
        path: str | os.PathLike[str] | None = None,
        seed: int = 0,
        show_progress: bool = True,
    ) -> InversePosterior:
        """Draw from the posterior.

        Args:
            method: `"pcn"`, preconditioned Crank-Nicolson steps around the Gauss-Newton approximation, robust in the dimension;
                `"nuts"`, the No-U-Turn sampler (extra `pyro`); `"smc"`, tempered from the prior, for several modes, with the
                evidence and without derivatives.
            draws: Number of draws of all chains together; of `"smc"` the number of particles of each target.
            chains: Chains of each target; 4 by default, and 2 for `"draws"`.
            warm_up: Steps that adapt the step size.
            exact: Exact solver, from input fields to output fields. It turns pCN into delayed acceptance: the predictor
                proposes, the solver accepts with one call per draw, and the posterior is the solver's.
            path: File of the chains, written 20 times; an existing one of the same problem and arguments is continued.
            seed: Names the chains.
            show_progress: Whether to show a progress bar.

        Raises:
            ArgumentError: If an argument is out of range, or `exact` or `path` do not fit method and likelihood.
            DataError: See `map`; predictions or solutions that are not finite.
            FileError: If the file holds chains of another problem or of other arguments.
        """
        checks.check_choice(method, _METHODS, "method")
        draws, warm_up, seed = checks.check_integer(draws, "draws"), checks.check_integer(warm_up, "warm_up"), check_seed(seed)
        chains = checks.check_integer(chains if chains is not None else 2 if self.targets > 1 else 4, "chains")
        silent, start = not checks.check_flag(show_progress, "show_progress"), self._started()
        if exact is not None:
            checks.check_callable(exact, "exact", remedy="give a function of input fields, as problem.solve")
            if method != "pcn" or self.targets > 1:
                raise ArgumentError(
                    expected='exact= with "pcn" and the likelihood "mean" or "joint"',
                    got=f"{method!r} and {self.likelihood!r}",
                    remedy='"joint" proposes widely enough',
                )
        if method == "smc":
            if path is not None:
                raise ArgumentError(expected='path= with "pcn" or "nuts"', got=method, remedy="leave path out")
            with tqdm(total=1.0, desc="temperature", disable=silent, bar_format="{l_bar}{bar}| {n:.3f}") as bar:
                z, evidence, rate = tempered(self, particles=draws, seed=seed, tick=lambda at: bar.update(at - bar.n))
            return self._posterior(method, z[:, None], start, log_evidence=evidence, acceptance=rate, seed=seed)
        reference = self._approximated(seed=seed)
        sampler: NoUTurn | PreconditionedCrankNicolson
        if method == "nuts":
            sampler = NoUTurn(problem=self, reference=reference, warm_up=warm_up, seed=seed)
        else:
            likelihood = None if exact is None else partial(self._exact_log_likelihood, exact)
            sampler = PreconditionedCrankNicolson(problem=self, reference=reference, warm_up=warm_up, exact=likelihood)
        length = math.ceil(draws / (self.targets * chains))
        sizes = [0, *(len(part) for part in torch.arange(length).chunk(min(_BLOCKS, length)))]
        key = {"arguments": [method, draws, chains, warm_up, seed, exact is not None], "problem": self._key}
        state, blocks = _read(path, key) or (sampler.start(chains, seed), [])
        with tqdm(total=length, initial=sum(sizes[: len(blocks)]), desc=method, unit="draw", disable=silent) as bar:
            for number in range(len(blocks), len(sizes)):
                with torch.set_grad_enabled(method == "nuts"):
                    state, block = sampler.block(state, sizes[number], stream(seed, "posterior blocks", number))
                blocks.append(block)
                if path is not None:
                    _write(path, key, state, blocks)
                bar.update(sizes[number])
        return self._posterior(
            method,
            torch.cat(blocks, dim=2),
            start,
            chi2=reference.chi2,
            log_evidence=reference.log_evidence if exact is None else None,
            acceptance=float(state["accepted"].mean()),
            solver_calls=int(state.get("solver_calls", torch.zeros(()))),
            is_correlated=True,
            seed=seed,
        )

    def kalman(self, *, members: int = 200, seed: int = 0) -> InversePosterior:
        """Ensemble Kalman inversion in eight steps: cheap, without derivatives, approximate where the map is nonlinear.

        Args:
            members: Members of each target's ensemble; more than the parameters.
            seed: Names the ensemble.
        """
        start = self._started()
        z = kalman_inverted(self, members=checks.check_integer(members, "members", least=2), seed=check_seed(seed))
        return self._posterior("kalman", z[:, None], start, seed=seed)

    def _started(self) -> tuple[float, int]:
        """Time and number of evaluations at the start of a solver."""
        return time.perf_counter(), self.evaluations

    def _approximated(self, *, iterations: int = 100, tolerance: float = 1e-2, seed: int) -> GaussianApproximation:
        """The Gauss-Newton approximation; warns of data that the model does not explain, and of missing convergence."""
        iterations = checks.check_integer(iterations, "iterations")
        tolerance = checks.check_real(tolerance, "tolerance", above=0.0, below=1.0)
        shape = (self.targets, _STARTS, self.size)
        starts = torch.randn(shape, dtype=torch.float64, generator=stream(check_seed(seed), "inversion starts"))
        starts[:, 0] = 0.0
        result = approximate(self, starts, iterations=iterations, tolerance=tolerance)
        if not bool(result.has_converged.all()):
            warn(f"the search for the most probable parameters stopped after {result.iterations} steps", ConvergenceWarning)
        misfit = (result.chi2.max() - 1.0) * math.sqrt(0.5 * len(self.data))
        if misfit > _MISFIT:
            warn(
                f"no parameters explain the data: chi² per observation is {float(result.chi2.max()):.3g} at the most probable "
                "ones; check noise, units and sensors, or the predictor there",
                DataWarning,
            )
        return result

    def _posterior(
        self, method: str, z: Float64[Tensor, "t c n d"], start: tuple[float, int], **details: Any
    ) -> InversePosterior:
        """The result of a solver, from draws in standard normal coordinates."""
        with torch.no_grad():
            chains = self.prior.from_normal(z)
        checks.check_finite(chains, "posterior draws", remedy="check the predictor and the prior")
        spent: dict[str, Any] = {"seconds": time.perf_counter() - start[0], "evaluations": self.evaluations - start[1]}
        return tested(InversePosterior(problem=self, method=method, chains=chains, **spent, **details))

    @torch.no_grad()
    def _exact_log_likelihood(self, solver: Solver, z: Float64[Tensor, "t n d"]) -> Float64[Tensor, "t n"]:
        """Log likelihood under an exact solver, up to a constant; -inf where it returns values that are not finite."""
        inputs = self.inputs_of(self.prior.from_normal(z.flatten(0, 1)))
        outputs = checks.check_instance(solver(inputs), Field, "the solver's result", remedy="return a Field")
        numbers = self.functional(outputs.values.to(torch.float64)).flatten(1)
        squares = ((self.data - numbers).square() / self.noise).sum(-1)
        return torch.where(squares.isfinite(), -0.5 * squares, -math.inf).view(z.shape[:2])

    @cached_property
    def _key(self) -> str:
        """Digest of data, noise and likelihood, of the predictor's means and the prior's map at some parameters."""
        with torch.no_grad():
            z = torch.linspace(-1.0, 1.0, 3 * self.size, dtype=torch.float64).view(1, 3, self.size).expand(self.targets, -1, -1)
            theta = self.prior.from_normal(z)
            return digest(self.data, self.noise, theta, torch.tensor(self.targets), self.log_densities(theta))


def _read(path: str | os.PathLike[str] | None, key: dict[str, Any]) -> tuple[State, list[Tensor]] | None:
    """State and blocks of draws of a chain file; None without one."""
    if path is None or not os.path.exists(checks.check_path(path, "path")):
        return None
    tensors, metadata = files.read(path)
    if metadata.get("chains of") != key:
        raise FileError(
            expected="chains of the same problem, method, draws, chains and seed",
            got=f"others at {os.fspath(path)}",
            remedy="give another path, or delete the file",
        )
    blocks = sorted((name for name in tensors if name.startswith("block-")), key=lambda name: int(name.removeprefix("block-")))
    return {name: part for name, part in tensors.items() if name not in blocks}, [tensors[name] for name in blocks]


def _write(path: str | os.PathLike[str], key: dict[str, Any], state: State, blocks: list[Tensor]) -> None:
    """Write a chain file, atomically."""
    named = {f"block-{number}": block for number, block in enumerate(blocks)}
    files.write(path, {**state, **named}, metadata={"chains of": key})
