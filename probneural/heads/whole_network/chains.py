"""Markov chains over all weights, driven by gradients of batches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import assign, check_integer, check_positive, check_real
from probneural.errors import TrainingError
from probneural.heads.whole_network.target import NetworkTarget
from probneural.randomness import stream

_PRODUCTS = 3
"""Products of a power iteration at each look at the curvature; four times as many at the first."""

Mover = Callable[[Tensor, float], tuple[Tensor, Tensor]]
"""Moves weights by a step h: from a vector `(P,)` to the next one, and the gradient of U there on a batch."""


@dataclass(frozen=True)
class Trace:
    """What one chain leaves.

    Attributes:
        vectors: Weights that are kept, `(s, P)`, float64.
        probes: Outputs at every recorded state, `(n, q)`.
        virials: (w - centre)^T dU/dw at every recorded state, `(n,)`; its mean is the number of weights that move.
        step: h, after burn-in.
        curvature: The largest one seen, in the coordinates of the Gaussian approximation.
        gradient_noise: The largest variance of a batch gradient seen, likewise.
    """

    vectors: Float64[Tensor, "s P"]
    probes: Float64[Tensor, "n q"]
    virials: Float64[Tensor, " n"]
    step: float
    curvature: float
    gradient_noise: float


@dataclass(frozen=True, kw_only=True)
class StochasticGradientMCMC(ABC):
    """What chains of stochastic gradients have in common; abstract. For the arguments see `SGLD`."""

    chains: int = 2
    burn_in: int = 1000
    draws: int = 500
    thinning: int = 5
    members: int = 64
    step_size: float = 0.1

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, least in (("chains", 1), ("burn_in", 0), ("draws", 4), ("thinning", 1), ("members", 2)):
            assign(self, **{name: check_integer(getattr(self, name), name, least=least)})
        assign(self, step_size=check_real(self.step_size, "step_size", above=0.0, most=1.0))
        check_integer(self.members, "members", least=self.chains)

    @property
    def steps(self) -> int:
        """Steps of a chain."""
        return self.burn_in + self.draws * self.thinning

    @abstractmethod
    def _step(self, curvature: float, gradient_noise: float) -> float:
        """The step h for the largest curvature of the energy and the largest variance of a batch gradient."""

    @abstractmethod
    def _mover(self, target: NetworkTarget, start: Float64[Tensor, " P"], *, number: int, seed: int) -> Mover:
        """What moves a chain that starts there."""

    def run(self, target: NetworkTarget, *, number: int, seed: int, tick: Callable[[], object]) -> Trace:
        """Run one chain from the trained weights.

        The step is that for the largest curvature and noise of gradients seen there and in burn-in after 1, 2, 4, 8, ... steps.

        Raises:
            TrainingError: If it leaves the numbers.
        """
        vector, direction = target.centre, None
        move = self._mover(target, vector, number=number, seed=seed)
        members = self.members // self.chains + (number < self.members % self.chains)
        kept_every = max(1, self.draws // members)
        vectors, probes, virials = [], [], []
        largest = [0.0, 0.0]
        for count in range(self.steps):
            if count == 0 or (count < self.burn_in and count.bit_count() == 1):
                products = _PRODUCTS if count else 4 * _PRODUCTS
                curvature, direction = target.largest_curvature(vector, direction=direction, iterations=products)
                seen = (curvature, target.largest_gradient_noise(vector))
                largest = [max(pair) for pair in zip(largest, seen, strict=True)]
                step = self._step(*largest)
            vector, gradient = move(vector, step)
            tick()
            number_of_draw, is_between = divmod(count + 1 - self.burn_in, self.thinning)
            if number_of_draw <= 0 or is_between:
                continue
            virials.append(float(((vector - target.centre) * gradient).sum()))
            if not math.isfinite(virials[-1]):
                raise TrainingError(
                    expected=f"chain {number} to stay finite",
                    got=f"{virials[-1]} after {count + 1} steps",
                    remedy=f"lower step_size, now {self.step_size:g}, or raise burn_in, in which steps are adapted",
                )
            probes.append(target.probes(vector))
            if number_of_draw % kept_every == 0:
                vectors.append(vector)
        kept = torch.stack(vectors[-members:])
        return Trace(kept, torch.stack(probes), torch.tensor(virials, dtype=torch.float64), step, *largest)


@dataclass(frozen=True, kw_only=True)
class SGLD(StochasticGradientMCMC):
    """Stochastic gradient Langevin dynamics: gradient steps, with noise that makes them draws.

        w <- w - h / 2 C g + h^1/2 C^1/2 xi,    xi ~ N(0, I),

    with g the gradient of the energy U on a batch and C the covariance of the Gaussian approximation, as a preconditioner that
    does not change. The stationary density is exp(-U) as h goes to 0; there is no rejection. A step of h makes a variance too
    large by 1 / (1 - h c / 4) along a direction of curvature c, and the noise v of batch gradients by h v / 4 where c = 1, so

        h = 4 step_size / max(c, v)

    at the largest c and v that are seen at the trained weights and in burn-in.

    Args:
        chains: Number of chains, one after the other, all from the trained weights.
        burn_in: Steps of each chain before the first draw.
        draws: Recorded states of each chain, at least 4: these are compared between chains.
        thinning: Steps between them.
        members: Weights that are kept, at least one of each chain: operators of the predictor. They are evenly spread over all
            recorded states, and at most these.
        step_size: Above, dimensionless: relative error of variances along the worst direction, about.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Welling and Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics. Deviations: a constant step and a
        constant preconditioner.
    """

    def _step(self, curvature: float, gradient_noise: float) -> float:
        """4 step_size over the larger of the two."""
        return 4.0 * self.step_size / max(curvature, gradient_noise)

    def _mover(self, target: NetworkTarget, start: Float64[Tensor, " P"], *, number: int, seed: int) -> Mover:
        """One gradient and one product with R per step."""
        generator, batches = stream(seed, "weight chain", number), target.batches(seed, number)
        gradient = target.gradient(start, next(batches))

        def move(vector: Tensor, step: float) -> tuple[Tensor, Tensor]:
            nonlocal gradient
            noise = torch.randn(target.root.rank, generator=generator, dtype=torch.float64, device="cpu").to(vector)
            vector = vector + target.moved(math.sqrt(step) * noise - 0.5 * step * target.scaled(gradient))
            gradient = target.gradient(vector, next(batches))
            return vector, gradient

        return move


@dataclass(frozen=True, kw_only=True)
class SGHMC(StochasticGradientMCMC):
    """Stochastic gradient Hamiltonian Monte Carlo: Langevin dynamics with momentum.

    In coordinates x of w = trained + R x, with R R^T the covariance of the Gaussian approximation, momentum z and friction f,

        dx = z dt,    dz = -dU/dx dt - f z dt + (2 f)^1/2 dW,

    whose stationary density is exp(-U(x) - |z|^2 / 2). Each step of length h takes one gradient of a batch, between half steps
    of x before and after which the momentum is partly renewed. Without noise of batches, variances of a Gaussian are exact at
    every stable h; that noise, of variance v, makes them too large by h v / (2 f), so

        h = min(c^-1/2, 2 f step_size / v)

    with the largest curvature c and the largest v that are seen at the trained weights and in burn-in.

    Args:
        chains: Number of chains, one after the other, all from the trained weights.
        burn_in: Steps of each chain before the first draw.
        draws: Recorded states of each chain, at least 4: these are compared between chains.
        thinning: Steps between them.
        members: Weights that are kept, at least one of each chain: operators of the predictor. They are evenly spread over all
            recorded states, and at most these.
        step_size: Above, dimensionless: relative error of variances along the worst direction, about.
        friction: f, per unit of time; momentum lasts 1 / f.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Chen, Fox and Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo, section 3.3. Deviations: the splitting of
        Leimkuhler and Matthews (2013), Rational construction of stochastic numerical methods for molecular sampling, in place
        of Euler's; the noise of batches is not compensated for, but kept small by the step.
    """

    friction: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        assign(self, friction=check_positive(self.friction, "friction"))

    def _step(self, curvature: float, gradient_noise: float) -> float:
        """The smaller one of what stability and the noise of batches allow."""
        stable = curvature**-0.5
        return min(stable, 2.0 * self.friction * self.step_size / gradient_noise) if gradient_noise > 0 else stable

    def _mover(self, target: NetworkTarget, start: Float64[Tensor, " P"], *, number: int, seed: int) -> Mover:
        """Half a kick, half a drift, renewal, half a drift, gradient, half a kick."""
        generator, batches = stream(seed, "weight chain", number), target.batches(seed, number)
        size = target.root.rank

        def drawn() -> Tensor:
            return torch.randn(size, generator=generator, dtype=torch.float64, device="cpu").to(target.centre)

        force = target.scaled(target.gradient(start, next(batches)))
        momentum = torch.zeros_like(force)  # at the mode; all of it at once would throw a large network out of its valley

        def move(vector: Tensor, step: float) -> tuple[Tensor, Tensor]:
            nonlocal momentum, force
            before, kept = momentum - 0.5 * step * force, math.exp(-self.friction * step)
            after = kept * before + math.sqrt(1.0 - kept**2) * drawn()
            vector = vector + target.moved(0.5 * step * (before + after))
            gradient = target.gradient(vector, next(batches))
            force = target.scaled(gradient)
            momentum = after - 0.5 * step * force
            return vector, gradient

        return move
