"""A repeated step: powers of a matrix, recurrences, gradients, memory, and what is built on operators."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.distributions import GaussianField
from probneural.errors import ArgumentError, GridError, ReadoutError
from probneural.fields import Field, evaluate, takes_grid
from probneural.grids import Grid, resample
from probneural.heads import Laplace, LastLayerLaplace
from probneural.operators import FNO, Rollout
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from tests.helpers import normal
from tests.operators.cases import smooth

LINE = Grid.uniform(16)
ENDS = Grid.uniform((5, 6), periodic=(False, True), endpoint=(True, False))


class Linear(nn.Module):
    """The sum of all input channels, times a number, for each output channel; it counts how often it is called."""

    def __init__(self, in_channels: int = 1, out_channels: int = 1, *, factor: float = 1.0) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.factor = nn.Parameter(torch.tensor(factor, dtype=torch.float64))
        self.calls = 0

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        return self.factor * values.sum(1, keepdim=True).expand(-1, self.out_channels, *values.shape[2:])


def fno(in_channels: int = 1, out_channels: int = 1, *, periodic: bool = True) -> FNO:
    return FNO(in_channels, out_channels, modes=(3,), width=4, depth=2, projection=4, periodic=periodic, seed=0).double()


def constants(*numbers: float, shape: tuple[int, ...] = (4,)) -> Tensor:
    """One function with so many channels, each of one value."""
    ones = torch.ones(1, len(numbers), *shape, dtype=torch.float64)
    return ones * torch.tensor(numbers, dtype=torch.float64).reshape(-1, *(1,) * len(shape))


class TestRecurrences:
    def test_powers(self) -> None:
        assert Rollout(Linear(factor=2.0), 10)(constants(1.0))[0, 0, 0].item() == 1024.0

    def test_increments(self) -> None:
        assert Rollout(Linear(factor=0.5), 3, residual=True)(constants(8.0))[0, 0, 0].item() == 27.0

    def test_history(self) -> None:
        """Fibonacci numbers."""
        found = [Rollout(Linear(2), steps, history=2)(constants(1.0, 2.0))[0, 0, 0].item() for steps in range(1, 6)]
        assert found == [3.0, 5.0, 8.0, 13.0, 21.0]

    def test_parameters(self) -> None:
        """u_{l+1} = u_l + a."""
        operator = Rollout(Linear(2), 3)
        assert operator.in_channels == 2
        assert operator(constants(1.0, 0.5))[0, :, 0].tolist() == [2.5]

    def test_several_channels(self) -> None:
        found = Rollout(Linear(2, 2), 2)(constants(1.0, 2.0))
        assert found[0, :, 0].tolist() == [6.0, 6.0]

    def test_boundary_values_stay(self) -> None:
        values = normal(2, 1, 5, 6, seed="boundary")
        found = Rollout(Linear(factor=2.0), 3, keeps_boundary=True)(values, grid=ENDS)
        expected = 8.0 * values
        expected[:, :, [0, -1]] = values[:, :, [0, -1]]
        assert torch.equal(found, expected)
        half = Grid.uniform(5, periodic=False, endpoint=False)
        kept = Rollout(Linear(factor=2.0), 1, keeps_boundary=True)(constants(1.0, shape=(5,)), grid=half)
        assert kept[0, 0].tolist() == [1.0, 2.0, 2.0, 2.0, 2.0]


class TestAsAnOperator:
    def test_is_the_composition(self) -> None:
        step, values = fno(), smooth(LINE)
        operator = Rollout(step, 3)
        assert takes_grid(operator)
        expected = step(step(step(values)))
        assert torch.equal(operator(values), expected)
        assert torch.equal(operator(values, grid=LINE), expected)

    @pytest.mark.parametrize("options", [{}, {"residual": True}], ids=["last", "residual"])
    def test_on_a_query(self, options: dict[str, Any]) -> None:
        step, values, fine = fno(), smooth(LINE), LINE.resized(48)
        operator = Rollout(step, 2, **options)
        found = operator(values, grid=LINE, query=fine)
        torch.testing.assert_close(found[..., ::3], operator(values, grid=LINE), atol=1e-12, rtol=0)
        if not options:
            assert torch.equal(found, step(step(values), grid=LINE, query=fine))
        scattered = operator(values, grid=LINE, query=Grid.scattered(fine.points, fine.weights))
        torch.testing.assert_close(scattered, found, atol=1e-12, rtol=0)

    def test_modules_that_take_no_grid(self) -> None:
        values, fine = smooth(LINE), LINE.resized(48)
        found = Rollout(Linear(factor=0.5), 2)(values, grid=LINE, query=fine)
        torch.testing.assert_close(found, resample(0.25 * values, LINE, fine))
        assert torch.equal(evaluate(Rollout(Linear(), 2), Field(values, LINE)), values)

    def test_training_takes_units_of_a_step(self) -> None:
        operator = Rollout(fno(2), 4, residual=True)
        inputs = Field(torch.cat([3.0 * normal(50, 1, 16, seed="u") + 1.0, 100.0 + normal(50, 1, 16, seed="a")], dim=1), LINE)
        outputs = Field(inputs.values[:, :1] + 8.0 * normal(50, 1, 16, seed="v"), LINE)
        operator.fit_normalizers(FieldPairs(inputs, outputs))
        step = operator.operator
        assert isinstance(step, FNO)
        assert operator.has_units
        torch.testing.assert_close(step.input_normalizer.mean, torch.tensor([1.0, 100.0]).double(), atol=0.5, rtol=0)
        torch.testing.assert_close(step.input_normalizer.scale, torch.tensor([3.0, 1.0]).double(), atol=0, rtol=0.1)
        torch.testing.assert_close(step.output_normalizer.scale, torch.tensor([2.0]).double(), atol=0, rtol=0.1)
        whole = Rollout(fno(2), 4)
        whole.fit_normalizers(FieldPairs(inputs, outputs))
        torch.testing.assert_close(whole.operator.output_normalizer.scale, outputs.values.std().reshape(1), atol=0, rtol=0.01)

    def test_learns(self) -> None:
        """Three steps of a multiplication by two."""
        inputs = Field(smooth(LINE, count=16), LINE)
        step = Linear(factor=1.5)
        pairs = FieldPairs(inputs, Field(8.0 * inputs.values, LINE))
        pn.fit(Rollout(step, 3), pairs, epochs=25, learning_rate=1e-1, seed=0, show_progress=False)
        assert abs(step.factor.item() - 2.0) < 0.05

    def test_prints_and_is_copied(self) -> None:
        operator = Rollout(fno(), 2)
        assert "FNO" in repr(operator)
        assert torch.equal(copy.deepcopy(operator)(smooth(LINE)), operator(smooth(LINE)))


class TestGradients:
    @pytest.mark.parametrize("residual", [False, True])
    def test_checkpoints_change_nothing(self, residual: bool) -> None:
        values, gradients = smooth(LINE), []
        for checkpoints in (False, True):
            operator = Rollout(fno(), 5, residual=residual, checkpoints=checkpoints)
            given = values.clone().requires_grad_()
            operator(given).square().sum().backward()
            assert given.grad is not None
            gradients.append([given.grad, *(parameter.grad for parameter in operator.parameters())])
        for first, second in zip(*gradients, strict=True):
            torch.testing.assert_close(first, second, atol=1e-12, rtol=1e-12)

    def test_checkpoints_evaluate_once_more(self) -> None:
        step = Linear(factor=1.1)
        Rollout(step, 7, checkpoints=True)(constants(1.0).requires_grad_()).sum().backward()
        assert step.calls == 14
        with torch.no_grad():
            Rollout(step, 7, checkpoints=True)(constants(1.0))
        assert step.calls == 21
        assert step.factor.grad is not None
        torch.testing.assert_close(step.factor.grad.item(), 4 * 7 * 1.1**6)

    def test_of_all_kinds(self) -> None:
        operator = Rollout(fno(), 2, residual=True, checkpoints=True)
        values = smooth(LINE, count=1)
        assert torch.autograd.gradcheck(operator, values.clone().requires_grad_())
        matrix = torch.func.jacrev(operator)(values)
        direction = torch.ones_like(values)
        forward = torch.func.jvp(operator, (values,), (direction,))[1]
        torch.testing.assert_close((matrix * direction).flatten(3).sum(-1), forward, atol=1e-10, rtol=1e-10)


class TestMemory:
    @staticmethod
    def alive(run: Callable[[nn.Module], None], **options: Any) -> int:
        """The most states of 1,000 steps that are alive at once."""
        counts: list[int] = []
        living: weakref.WeakSet[Tensor] = weakref.WeakSet()

        class Watched(Linear):
            def forward(self, values: Tensor) -> Tensor:
                state = super().forward(values).clone()
                living.add(state)
                counts.append(len(living))
                return state

        gc.collect()
        run(Rollout(Watched(factor=1.0), 1000, **options))
        return max(counts)

    def test_a_thousand_steps_without_gradients(self) -> None:
        def run(operator: nn.Module) -> None:
            with torch.no_grad():
                assert operator(constants(1.0))[0, 0, 0].item() == 1.0

        assert self.alive(run) <= 3

    @staticmethod
    def saved(steps: int, **options: Any) -> int:
        """How many numbers autograd keeps for the backward pass, beside parameters."""
        operator, values = Rollout(fno(), steps, **options), smooth(LINE).requires_grad_()
        known = {parameter.untyped_storage().data_ptr() for parameter in operator.parameters()}
        kept: dict[int, torch.UntypedStorage] = {}  # held, so that no storage takes the place of another one

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                kept[storage.data_ptr()] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            operator(values)
        return sum(storage.nbytes() for storage in kept.values()) // values.element_size()

    @pytest.mark.parametrize("residual", [False, True])
    def test_checkpoints_keep_one_state_per_step(self, residual: bool) -> None:
        """Gradients of more steps keep their states alone; without checkpoints, all that is inside of a step."""
        state = smooth(LINE).numel()
        counts = [self.saved(steps, residual=residual, checkpoints=True) for steps in (3, 4, 40)]
        assert counts == [3 * state, 4 * state, 40 * state]
        plain = [self.saved(steps, residual=residual) for steps in (3, 4)]
        assert plain[1] - plain[0] > 10 * state


class TestUponIt:
    """Heads, files and exports take it as any operator."""

    @staticmethod
    def trained() -> tuple[Rollout, FieldPairs]:
        operator = Rollout(fno(), 3, residual=True)
        inputs = Field(smooth(LINE, count=8, name="pairs"), LINE)
        with torch.no_grad():
            outputs = operator(inputs.values) + 0.01 * normal(8, 1, 16, seed="noise")
        return operator, FieldPairs(inputs, Field(outputs, LINE))

    @pytest.mark.parametrize("structure", [pytest.param("low_rank", marks=pytest.mark.slow), "diagonal"])
    def test_posteriors(self, structure: str, tmp_path: Path) -> None:
        operator, pairs = self.trained()
        predictor = Laplace(structure, noise=1e-4, prior_precision=1.0).fit(operator, pairs)
        u = predictor(pairs.inputs)
        assert isinstance(u, GaussianField)
        torch.testing.assert_close(u.mean, operator(pairs.inputs.values))
        assert bool((u.variance > 0).all())
        save(predictor, tmp_path / "predictor")
        again = load(tmp_path / "predictor")
        assert torch.equal(again(pairs.inputs).variance, u.variance)
        draw = predictor.draw(1)
        moved = evaluate(draw, pairs.inputs[:2])
        total = pn.functionals.integral(LINE)
        exact = u.condition(total, total(pairs.outputs.values), noise=1e-6)
        assert bool((exact.apply(total).variance < u.apply(total).variance).all())
        assert torch.isfinite(moved).all()

    def test_the_covariance_is_that_of_the_unrolled_jacobian(self) -> None:
        operator, pairs = self.trained()
        predictor = Laplace("full", parameters=["operator.readout"], noise=1e-4, prior_precision=1.0).fit(operator, pairs)
        u = predictor(pairs.inputs[:1])
        own, layout = predictor.operator, predictor.layout  # type: ignore[attr-defined]

        def outputs(vector: Tensor) -> Tensor:
            return torch.func.functional_call(own, layout.unflatten(vector), (pairs.inputs.values[:1],)).flatten()

        jacobian = torch.func.jacrev(outputs)(layout.flatten(dict(own.named_parameters())))
        root = jacobian @ predictor.weights.product(torch.eye(predictor.weights.rank).double()).mT  # type: ignore[attr-defined]
        torch.testing.assert_close(u.variance.flatten(), root.square().sum(1), rtol=1e-8, atol=1e-14)

    def test_last_layers_say_why_not(self) -> None:
        operator, pairs = self.trained()
        with pytest.raises(ReadoutError, match="called 3 times"):
            LastLayerLaplace().fit(operator, pairs)

    def test_files(self, tmp_path: Path) -> None:
        operator = Rollout(fno(2), 3, history=2, residual=True).eval()
        save(operator, tmp_path / "operator")
        again = load(tmp_path / "operator")
        values = smooth(LINE, channels=2)
        assert isinstance(again, Rollout)
        assert torch.equal(again(values), operator(values))
        assert again.configuration().keys() == operator.configuration().keys()
        foreign = Rollout(Linear(factor=3.0), 2)
        save(foreign, tmp_path / "foreign")
        filled = load(tmp_path / "foreign", operator=Linear())
        assert isinstance(filled, Rollout)
        assert torch.equal(filled(constants(1.0)), constants(9.0))

    @pytest.mark.slow
    def test_exports(self, tmp_path: Path) -> None:
        operator, pairs = self.trained()
        pn.export.to_torch_export(operator.eval(), tmp_path / "program.pt2", example=pairs.inputs)
        found = torch.export.load(tmp_path / "program.pt2").module()(pairs.inputs.values)
        torch.testing.assert_close(found, operator(pairs.inputs.values), atol=1e-10, rtol=1e-10)


@pytest.mark.bad_input
class TestBadInput:
    def test_operators(self) -> None:
        with pytest.raises(ArgumentError, match="an nn.Module as operator"):
            Rollout(torch.sin, 2)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=r"as operator.out_channels; got None; set operator.out_channels = 1"):
            Rollout(nn.Tanh(), 2)
        with pytest.raises(ArgumentError, match="2 or more input channels of the operator"):
            Rollout(fno(), 2, history=2)

    def test_grids(self) -> None:
        kept = Rollout(Linear(), 2, keeps_boundary=True)
        for grid in (None, LINE, Grid.scattered([[0.1]] * 4, [0.25] * 4)):
            with pytest.raises(GridError, match="an axis that is not periodic"):
                kept(constants(1.0), grid=grid)
        with pytest.raises(GridError, match="the values' grid together with a query"):
            Rollout(fno(), 2, residual=True)(smooth(LINE), query=LINE.resized(32))
        with pytest.raises(GridError, match="the values' grid together with a query"):
            Rollout(Linear(), 2)(smooth(LINE), query=LINE.resized(32))
