"""The neural ODE: times between, points in space and time, adjoint gradients, and what irregular times teach it."""

from __future__ import annotations

import builtins
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jvp

import probneural as pn
from probneural.errors import DataError, GridError, ShapeError, SolverError, UnsupportedError
from probneural.grids import Grid
from probneural.operators import NeuralODEOperator, ODESolver, space_time
from probneural.operators.integration import Rate
from tests.helpers import generator

TIMES = [0.0, 0.013, 0.125, 0.13, 0.7, 1.0, 1.61]


def normal(*shape: int, name: str = "values") -> Tensor:
    return torch.randn(*shape, generator=generator(name), dtype=torch.float64)


def small(**solver: Any) -> NeuralODEOperator:
    return NeuralODEOperator(1, 2, modes=(3,), width=4, solver=ODESolver(**solver), seed=0).double()


def rotation(state: Tensor) -> Tensor:
    """Two coupled oscillators' worth of harmonic motion: z' = J z, whose solution is a turn."""
    return torch.stack([-state[:, 1], state[:, 0]], dim=1)


def turned(time: float) -> Tensor:
    return torch.tensor([math.cos(time), math.sin(time)], dtype=torch.float64)


def error_after(solver: ODESolver, times: list[float], rate: Rate = rotation) -> float:
    start = torch.tensor([[[1.0], [0.0]]], dtype=torch.float64)
    states = solver.states(rate, start, times=torch.tensor(times, dtype=torch.float64), parameters=())
    return max(
        float((state[0, :, 0] - turned(time / solver.time)).abs().max()) for state, time in zip(states, times, strict=True)
    )


def test_order_of_convergence() -> None:
    """Fourth order at steps and between them, in the unit of the solver's time."""
    for times in ([3.0], [0.31, 1.7, 2.9]):
        coarse, fine = (error_after(ODESolver(time=1.5, steps=steps), times) for steps in (8, 16))
        assert 3.7 < math.log2(coarse / fine) < 4.5


def test_equal_steps_are_those_of_torchdiffeq() -> None:
    """The states, by its fixed steps: the adjoint's forward pass."""
    direct, adjoint = (small(adjoint=flag).at_times(normal(2, 1, 8), TIMES) for flag in (False, True))
    torch.testing.assert_close(direct, adjoint, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "dopri8", "adaptive_heun"])
def test_adaptive_methods_agree_with_small_steps(method: str) -> None:
    reference = small(steps=32).at_times(normal(1, 1, 8), TIMES)
    found = small(method=method, rtol=1e-5, atol=1e-6).at_times(normal(1, 1, 8), TIMES)
    torch.testing.assert_close(found, reference, atol=1e-4, rtol=1e-4)


def gradients(operator: NeuralODEOperator) -> Tensor:
    values = normal(2, 1, 8).requires_grad_()
    operator.at_times(values, TIMES[1:]).square().sum().backward()
    assert values.grad is not None
    return torch.cat([values.grad.flatten(), *(one.grad.flatten() for one in operator.parameters() if one.grad is not None)])


@pytest.mark.parametrize(
    ("solver", "tolerance"),
    [({"steps": 16}, 1e-4), ({"method": "dopri5", "rtol": 1e-7, "atol": 1e-7}, 1e-4)],
    ids=["equal steps", "adaptive"],
)
def test_adjoint_and_direct_gradients_agree(solver: dict[str, Any], tolerance: float) -> None:
    """Up to the method's error, which is what tells them apart; with few steps it does."""
    direct, adjoint = (gradients(small(**solver, adjoint=flag)) for flag in (False, True))
    assert (direct - adjoint).norm() < tolerance * direct.norm()
    rough, adjoint = (gradients(small(steps=1, adjoint=flag)) for flag in (False, True))
    assert (rough - adjoint).norm() > 1e-5 * direct.norm()


def test_derivatives_under_transforms_are_direct() -> None:
    """An operator with an adjoint still has forward-mode derivatives, those of what it computes."""
    tangents = []
    for flag in (False, True):
        operator = small(adjoint=flag)
        parameters = {name: one.detach() for name, one in operator.named_parameters()}
        ones = {name: torch.ones_like(one) for name, one in parameters.items()}
        tangents.append(
            jvp(lambda given, own=operator: functional_call(own, given, (normal(1, 1, 8),)), (parameters,), (ones,))[1]
        )
    assert torch.equal(*tangents)


def test_a_state_does_not_depend_on_the_other_times() -> None:
    operator, values = small(), normal(2, 1, 8)
    together = operator.at_times(values, TIMES)
    for number, time in enumerate(TIMES):
        torch.testing.assert_close(operator.at_times(values, [time])[:, 0], together[:, number], atol=1e-14, rtol=1e-14)
    shuffled = operator.at_times(values, [0.7, 0.0, 0.7])
    assert torch.equal(shuffled[:, 0], shuffled[:, 2])
    torch.testing.assert_close(shuffled[:, :2], together[:, [4, 0]], atol=1e-14, rtol=1e-14)


def test_queries_in_space_and_time() -> None:
    """Scattered points, states at given times, and a uniform grid of both are the same function."""
    operator, values, grid = small(time=0.7), normal(2, 1, 9), Grid.uniform(9, lengths=2.0)
    states = operator.at_times(values, TIMES, grid=grid)
    field = space_time(states, times=TIMES, grid=grid)
    torch.testing.assert_close(operator(values, grid=grid, query=field.grid), field.values, atol=1e-13, rtol=0)
    torch.testing.assert_close(operator(values, grid=grid), states[:, 4], atol=1e-13, rtol=0)
    order = torch.randperm(field.grid.size, generator=generator("order"))[:20]
    points = Grid.scattered(field.grid.points[order], torch.ones(20))
    torch.testing.assert_close(operator(values, grid=grid, query=points), field.values[..., order], atol=1e-12, rtol=0)
    both = Grid.uniform((4, 9), lengths=(1.5, 2.0), periodic=(False, True))
    expected = operator.at_times(values, [0.0, 0.5, 1.0, 1.5], grid=grid).movedim(1, 2)
    torch.testing.assert_close(operator(values, grid=grid, query=both), expected, atol=1e-13, rtol=0)


def test_weights_in_space_and_time_integrate() -> None:
    """A function linear in time, and periodic in space."""
    grid, times = Grid.uniform(8, lengths=2.0), torch.tensor([0.5, 0.6, 1.1, 2.0], dtype=torch.float64)
    wave = torch.cos(math.pi * grid.points[:, 0]).square()
    field = space_time((times[:, None] * wave)[None, :, None], times=times, grid=grid)
    assert float(field.values[0, 0] @ field.grid.weights) == pytest.approx(1.0 * (2.0**2 - 0.5**2) / 2.0, abs=1e-12)


def test_learns_a_semigroup_from_irregular_times() -> None:
    """Advection at five irregular times; between them it is better than the state at the nearest one of them, by far."""
    trained, between = [0.07, 0.16, 0.31, 0.43, 0.6], [0.11, 0.23, 0.37, 0.52]
    field = pn.problems.GaussianRandomField(1, modes=3)
    inputs = pn.problems.Advection(random_field=field).sample_inputs(80, resolution=12, seed=0)

    def states(rows: slice, times: list[float]) -> Tensor:
        return torch.stack(
            [pn.problems.Advection(random_field=field, time=time).solve(inputs[rows]).values for time in times], dim=1
        )

    outputs = space_time(states(slice(0, 64), trained), times=trained, grid=inputs.grid)
    operator = NeuralODEOperator(1, 1, modes=(4,), width=8, depth=1, solver=ODESolver(time=0.6, steps=2), seed=0)
    pn.fit(
        operator,
        pn.FieldPairs(inputs[:64], outputs),
        epochs=20,
        data=pn.training.DataOptions(batch_size=8),
        seed=0,
        learning_rate=3e-2,
        show_progress=False,
    )
    unseen = slice(64, 80)
    exact, nearest = states(unseen, between), []
    for time in between:
        nearest.append(states(unseen, [min(trained, key=lambda one, time=time: abs(one - time))])[:, 0])
    with torch.no_grad():
        found = operator.at_times(inputs[unseen].values, between, grid=inputs.grid)
    error, baseline = ((one - exact).norm() / exact.norm() for one in (found, torch.stack(nearest, dim=1)))
    assert error < 0.35 * baseline


def test_last_layer_over_space_and_time(tmp_path: Any) -> None:
    operator, grid = small(), Grid.uniform(8)
    outputs = space_time(normal(6, 3, 2, 8, name="outputs"), times=[0.1, 0.4, 1.0], grid=grid)
    data = pn.FieldPairs(pn.Field(normal(6, 1, 8), grid), outputs)
    operator.fit_normalizers(data)
    predictor = pn.heads.LastLayerLaplace().fit(operator, data)
    posterior = predictor(data.inputs, Grid.scattered([[0.2, 0.5], [0.9, 0.1]], [0.5, 0.5]))
    assert posterior.mean.shape == (6, 2, 2)
    assert bool((posterior.variance > 0).all())
    pn.save(predictor, tmp_path / "predictor")
    again = pn.load(tmp_path / "predictor")(data.inputs, outputs.grid)
    assert torch.equal(again.variance, predictor(data.inputs, outputs.grid).variance)


@pytest.mark.parametrize("adjoint", [False, True])
def test_stiff_dynamics_are_a_typed_error_whose_remedies_work(adjoint: bool) -> None:
    solver = ODESolver(method="dopri5", adjoint=adjoint)
    start, times = torch.tensor([1.0, 0.0]).double()[None, :, None], torch.tensor([1.0]).double()

    def rate(state: Tensor) -> Tensor:  # the second channel is the time, from .5 on the first one needs tiny steps
        return torch.stack([1e15 * torch.cos(1e3 * state[:, 0]) * (state[:, 1] > 0.5), torch.ones_like(state[:, 1])], dim=1)

    with pytest.raises(
        SolverError, match=r'underflow in dt.*raise rtol, take ODESolver\(method="rk4", steps=\.\.\.\)'
    ) as caught:
        solver.states(rate, start, times=times, parameters=())
    assert "Optimization(weight_decay=...)" in str(caught.value)
    for other in (ODESolver(method="rk4", steps=8), ODESolver(method="dopri5", rtol=1e15)):
        assert torch.isfinite(other.states(rate, start, times=times, parameters=())[0]).all()


def test_without_torchdiffeq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal steps need none; others name what is missing."""
    importing = builtins.__import__

    def absent(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "torchdiffeq":
            raise ModuleNotFoundError("No module named 'torchdiffeq'", name="torchdiffeq")
        return importing(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert small()(normal(1, 1, 8)).shape == (1, 2, 8)
    with pytest.raises(ImportError, match=r"NeuralODEOperator needs torchdiffeq: pip install torchdiffeq"):
        small(method="dopri5")(normal(1, 1, 8))


@pytest.mark.bad_input
def test_refuses_times() -> None:
    operator, values = small(), normal(1, 1, 8)
    with pytest.raises(GridError, match="times of 0 or later; got -0.5"):
        operator.at_times(values, [0.1, -0.5])
    with pytest.raises(GridError, match="times of 0 or later"):
        operator(values, query=Grid.scattered([[-0.1, 0.5]], [1.0]))
    with pytest.raises(ShapeError, match="a row of times"):
        operator.at_times(values, torch.zeros(0))
    with pytest.raises(DataError, match="times"):
        operator.at_times(values, ["soon"])  # type: ignore[list-item]
    with pytest.raises(GridError, match="or of 2 with time first"):
        operator(values, query=Grid.uniform((2, 2, 8)))


@pytest.mark.bad_input
def test_refuses_states_without_times() -> None:
    grid = Grid.uniform(8)
    with pytest.raises(ShapeError, match=r"values of shape \(n, 2, c, 8\)"):
        space_time(normal(1, 3, 1, 8), times=[0.1, 0.2], grid=grid)
    with pytest.raises(GridError, match="ascending times"):
        space_time(normal(1, 2, 1, 8), times=[0.2, 0.1], grid=grid)
    with pytest.raises(DataError, match="tensor"):
        space_time([[0.0]], times=[0.1], grid=grid)  # type: ignore[arg-type]


@pytest.mark.bad_input
def test_adaptive_steps_are_refused_under_transforms() -> None:
    operator = small(method="dopri5")
    with pytest.raises(UnsupportedError, match='the method "rk4" under transforms'):
        jvp(operator, (normal(1, 1, 8),), (normal(1, 1, 8),))


@pytest.mark.parametrize("time", [float("nan"), float("inf")])
def test_times_are_finite(time: float) -> None:
    with pytest.raises(DataError, match="times"):
        small().at_times(normal(1, 1, 8), [0.1, time])
