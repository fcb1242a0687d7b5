"""Nonlinear constraints: against linear ones, closed forms, a general optimiser and exact solutions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, GaussianField
from probneural.distributions import gaussian as gaussian_module
from probneural.distributions.constraints import Mode
from probneural.errors import ArgumentError, ConstraintError, DataError, ShapeError
from probneural.functionals import Functional, derivative
from probneural.grids import Grid
from tests.distributions.cases import GaussianCase, assert_close, check_type, normal, observed, on_every_gaussian

LINE = Grid.uniform(24)
Residual = Callable[[Tensor], Tensor]


def linear(functional: Functional, values: Tensor) -> Residual:
    return lambda u: (functional(u) - values.to(u)).flatten(1)


def energy(u: Tensor) -> Tensor:
    """The integral of u^2 over the unit interval, `(n, 1)`."""
    return u.square().mean(-1).sum(-1, keepdim=True)


def waves(grid: Grid, highest: int) -> Tensor:
    """A constant, sines and cosines with decaying amplitudes, `(p, 2 highest + 1)`."""
    x = grid.points[:, :1]
    pairs = [wave(2 * math.pi * k * x) / k**1.5 for k in range(1, highest + 1) for wave in (torch.sin, torch.cos)]
    return torch.cat([torch.ones_like(x), *pairs], dim=-1)


def wavy_field(count: int, deviation: float, *, dtype: torch.dtype = torch.float64, highest: int = 6) -> GaussianField:
    columns = waves(LINE, highest)
    mean = normal("weights", count, 1, columns.shape[1]) @ columns.mT
    root = deviation * columns.expand(count, 1, -1, -1)
    return GaussianField(mean.to(dtype), DenseRoot(root.to(dtype)), latent="weights", grid=LINE)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of steps of all calls."""
    taken, find = [], gaussian_module.find_mode

    def spy(*arguments: object, **options: object) -> Mode:
        mode = find(*arguments, **options)  # type: ignore[arg-type]
        taken.append(mode.iterations)
        return mode

    monkeypatch.setattr(gaussian_module, "find_mode", spy)
    return taken


@on_every_gaussian
class TestLinearConstraints:
    def test_are_constraints_found_in_one_step(self, case: GaussianCase, steps: list[int]) -> None:
        functional = observed(case.field.grid, 2)
        values = functional(case.field.rsample(seed=1))
        moved = case.field.constrain_residual(linear(functional, values))
        bound = case.field.constrain(functional, values)
        check_type(moved, case)
        assert steps == [1]
        assert moved.latent is case.field.latent
        assert_close(moved.mean, bound.mean, 10 * case.tolerance)
        assert_close(moved.root.dense(), bound.root.dense().double(), 10 * case.tolerance)

    def test_with_noise_are_bayes_rule_for_each_function(self, case: GaussianCase, steps: list[int]) -> None:
        functional = observed(case.field.grid, 2)
        values = functional(case.field.rsample(seed=1)) + 0.3
        moved = case.field.constrain_residual(linear(functional, values), noise=0.2)
        assert max(steps) == 1
        for index in range(len(case.field)):
            one = case.field[index].condition(functional, values[[index]], noise=0.2)
            assert_close(moved[index].mean, one.mean, 10 * case.tolerance)
            assert_close(moved[index].variance, one.variance, 10 * case.tolerance)


class TestEnergy:
    """|u|^2 is prescribed: with a prior that is the same in all directions, u keeps its own and changes its length."""

    @pytest.mark.parametrize("share", [0.05, 0.5, 1.1, 20.0])
    def test_of_an_isotropic_prior_rescales_the_mean(self, share: float) -> None:
        mean = normal("mean", 3, 2, LINE.size)
        root = 0.7 * torch.eye(2 * LINE.size, dtype=torch.float64).unflatten(0, (2, LINE.size)).expand(3, -1, -1, -1)
        field = GaussianField(mean, DenseRoot(root), latent="xi", grid=LINE)
        target = share * energy(mean)
        moved = field.constrain_residual(lambda u: energy(u) - target)
        assert_close(moved.mean, mean * share**0.5, 1e-8)
        assert_close(energy(moved.mean), target, 1e-9)

    @pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
    def test_gives_the_most_probable_function(self, noise: float) -> None:
        field = wavy_field(2, 0.3, highest=2)
        target, root = 1.7 * energy(field.mean), field.root.dense()[:, 0]
        moved = field.constrain_residual(lambda u: energy(u) - target, noise=noise, tolerance=1e-14)
        for index in range(2):
            start, rows, wanted = field.mean[index, 0].numpy(), root[index].numpy(), float(target[index])

            def missed(xi: np.ndarray, start: np.ndarray = start, rows: np.ndarray = rows, wanted: float = wanted) -> float:
                return float(np.square(start + rows @ xi).mean() - wanted)

            def cost(xi: np.ndarray) -> float:
                return float(xi @ xi) / 2 + (missed(xi) ** 2 / (2 * noise) if noise else 0.0)

            constraint = [] if noise else [{"type": "eq", "fun": missed}]
            optimum = scipy.optimize.minimize(
                cost,
                np.full(rows.shape[1], 0.1),
                constraints=constraint,
                method="SLSQP",
                options={"ftol": 1e-15, "maxiter": 500},
            )
            assert optimum.success
            assert_close(moved.mean[index, 0], torch.from_numpy(start + rows @ optimum.x), 1e-6)

    def test_draws_obey_it_to_first_order(self) -> None:
        misses = []
        for deviation in (0.01, 0.001):
            field = wavy_field(3, deviation)
            target = energy(field.mean) * 1.01
            moved = field.constrain_residual(lambda u, target=target: energy(u) - target)
            misses.append((energy(moved.rsample((50,), seed=0).flatten(0, 1)) - target.repeat(50, 1)).abs().max().item())
        assert 50 <= misses[0] / misses[1] <= 200  # ten times the deviation, a hundred times the miss

    def test_of_one_function_does_not_depend_on_the_others(self) -> None:
        field = wavy_field(4, 0.3)
        target = torch.tensor([[0.5], [1.0], [9.0], [3.0]], dtype=torch.float64)
        together = field.constrain_residual(lambda u: energy(u) - target, tolerance=1e-4)
        for index in range(4):
            alone = field[index].constrain_residual(lambda u, index=index: energy(u) - target[index], tolerance=1e-4)
            assert_close(alone.mean[0], together.mean[index], 1e-12)
            assert_close(alone.variance[0], together.variance[index], 1e-12)


FIRST, SECOND = derivative(LINE), derivative(LINE, order=2)


def burgers(u: Tensor) -> Tensor:
    """Steady u u' - 0.05 u'' at every grid point."""
    return u.flatten(1) * FIRST(u).flatten(1) - 0.05 * SECOND(u).flatten(1)


class TestPhysics:
    """u u' - nu u'' = f with the f of a known solution."""

    x = LINE.points[:, 0]
    truth = (torch.sin(2 * math.pi * x) + 0.3 * torch.cos(4 * math.pi * x) + 0.5)[None, None]

    def field(self, deviation: float) -> GaussianField:
        field = wavy_field(4, deviation, highest=11)
        mean = self.truth + deviation * field.mean
        return GaussianField(mean, field.root, latent="weights", grid=LINE)

    @pytest.mark.parametrize("deviation", [0.05, 0.3])
    def test_at_some_points(self, deviation: float) -> None:
        field, force = self.field(deviation), burgers(self.truth)
        moved = field.constrain_residual(lambda u: (burgers(u) - force)[:, ::3])
        assert (burgers(moved.mean) - force)[:, ::3].abs().max() <= 1e-7 * burgers(field.mean).abs().max()
        assert (moved.mean - self.truth).norm() < (field.mean - self.truth).norm()
        assert moved.variance.mean() < 0.9 * field.variance.mean()

    def test_everywhere_fixes_the_solution_of_given_mean(self) -> None:
        """The equation holds with u^2 / 2 - nu u' = F + c for any c: only its mean singles a solution out."""
        field, force, mean = self.field(0.1), burgers(self.truth), self.truth.mean()
        constraint = lambda u: torch.cat([burgers(u) - force, u.mean(-1) - mean], dim=1)  # noqa: E731
        moved = field.constrain_residual(constraint, noise=1e-8)
        assert constraint(moved.mean).abs().max() <= 1e-3
        assert (moved.mean - self.truth).abs().max() <= 0.01 * (field.mean - self.truth).abs().max()
        assert moved.standard_deviation.max() <= 0.02 * field.standard_deviation.max()

    def test_several_noises(self) -> None:
        field, force = self.field(0.1), burgers(self.truth)
        noise = torch.linspace(1e-4, 1e-3, LINE.size)
        one = field.constrain_residual(lambda u: burgers(u) - force, noise=noise)
        other = field.constrain_residual(lambda u: (burgers(u) - force) / noise.sqrt().double(), noise=torch.ones(4, LINE.size))
        assert_close(one.mean, other.mean, 1e-6)
        assert_close(one.variance, other.variance, 1e-6)


class TestDerivatives:
    @pytest.mark.parametrize("noise", [0.0, 0.05])
    def test_of_mean_and_draws(self, noise: float) -> None:
        """By the implicit function theorem, curvature of the constraint included."""
        mean, root, target = normal("mean", 2, 1, 3), 0.5 * normal("root", 2, 1, 3, 4), 3.0 + normal("target", 2, 1).abs()

        def numbers(mean: Tensor, root: Tensor, target: Tensor) -> list[Tensor]:
            field = GaussianField(mean, DenseRoot(root), latent="xi", grid=Grid.uniform(3))
            moved = field.constrain_residual(lambda u: energy(u) - target, noise=noise, tolerance=1e-30)
            return [moved.mean, moved.variance, moved.rsample(seed=1)]

        tensors = [tensor.requires_grad_() for tensor in (mean, root, target)]
        assert torch.autograd.gradcheck(numbers, tensors, rtol=1e-4, atol=1e-6)

    def test_leave_no_graph_where_none_is_needed(self) -> None:
        moved = wavy_field(2, 0.3).constrain_residual(lambda u: energy(u) - 3.0)
        assert not moved.mean.requires_grad
        mean = normal("mean", 2, 1, LINE.size).requires_grad_()
        with torch.no_grad():
            field = GaussianField(mean, wavy_field(2, 0.3).root, latent="xi", grid=LINE)
            assert not field.constrain_residual(lambda u: energy(u) - 3.0).mean.requires_grad


@pytest.mark.bad_input
class TestBadInput:
    FIELD = wavy_field(3, 0.3)

    def test_constraints_out_of_reach(self) -> None:
        with pytest.raises(ConstraintError, match=r"of 3 that do not after \d+: residuals up to|linearisation has a solution"):
            self.FIELD.constrain_residual(lambda u: energy(u) + 1.0)

    def test_constraints_whose_derivative_vanishes(self) -> None:
        flat = GaussianField(0 * self.FIELD.mean, self.FIELD.root, latent="xi", grid=LINE)
        with pytest.raises(ConstraintError, match="numerical rank 0, 3 of which stay unmet.* the derivative vanishes there"):
            flat.constrain_residual(lambda u: energy(u) - 1.0)

    def test_too_few_iterations(self) -> None:
        with pytest.raises(ConstraintError, match=r"within 1 iterations; got 3 of 3 that do not after 1: .*allow more"):
            self.FIELD.constrain_residual(lambda u: energy(u) - 9.0, iterations=1)

    def test_residuals_that_mix_functions(self) -> None:
        with pytest.raises(ArgumentError, match="not over the n samples"):
            self.FIELD.constrain_residual(lambda u: energy(u) - energy(u).mean())

    @pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1, 24), (3, 0)])
    def test_residuals_of_another_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"residuals of shape \(3, m\), m >= 1"):
            self.FIELD.constrain_residual(lambda u: torch.ones(shape).double())

    def test_residuals_that_are_not_finite(self) -> None:
        for constraint in (lambda u: energy(u).neg().sqrt(), lambda u: (energy(u) * 0).sqrt()):
            with pytest.raises(DataError, match="finite (residuals|derivatives of the residual) about the mean"):
                self.FIELD.constrain_residual(constraint)

    def test_noise(self) -> None:
        with pytest.raises(ArgumentError, match="positive everywhere, or zero everywhere"):
            self.FIELD.constrain_residual(lambda u: u.flatten(1)[:, :2], noise=torch.tensor([0.0, 1.0]))
