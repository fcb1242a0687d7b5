"""Bayesian optimisation: it finds known optima, respects constraints, resumes to the same bits, and takes told results."""

from __future__ import annotations

import math
import multiprocessing
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from torch import Tensor

import probneural as pn
from probneural.active import LearningPlan, Optimizer, SimulationOptions
from probneural.errors import ArgumentError, DataError, FileError, SimulationError
from probneural.fields import Field
from probneural.grids import Grid

# a search whose line search fails, "ABNORMAL", warns so
pytestmark = pytest.mark.filterwarnings("error:Optimization failed")

GRID = Grid.uniform(8)
OPTIMUM = torch.tensor([0.3, 0.6], dtype=torch.float64)


def encode(designs: Tensor) -> Field:
    """Two parameters as constant channels."""
    return Field(designs[:, :, None].expand(-1, -1, 8), GRID)


def solve(inputs: Field) -> Field:
    """A wave whose amplitude and phase are the parameters."""
    a, b = inputs.values.double().unbind(1)
    return Field((a * torch.sin(2 * math.pi * (GRID.points.T + 0.25 * b)))[:, None], GRID)


TARGET = solve(encode(OPTIMUM[None])).values.flatten()


def closeness(numbers: Tensor) -> Tensor:
    return -(numbers - TARGET).square().sum(-1)


def made(path: Path, simulator: Any = solve, **options: Any) -> Optimizer:
    settings: dict[str, Any] = {
        "encode": encode,
        "dimension": 2,
        "objective": closeness,
        "plan": LearningPlan(initial=4, batch=2, seed=0),
        "simulation": SimulationOptions(executor=ThreadPoolExecutor(1), show_progress=False),
    }
    return Optimizer(simulator, pn.heads.KernelOperator(min_noise=1e-8), store=path, **settings | options)


def test_it_finds_a_design_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole").run(evaluations=8)
    assert -float(whole.running_best[-1]) < 1e-3 < -float(whole.running_best[3])
    made(tmp_path / "parts").run(evaluations=6)
    resumed = made(tmp_path / "parts").run(evaluations=8)
    assert torch.equal(resumed.designs, whole.designs)
    assert torch.equal(resumed.objective, whole.objective)
    torch.testing.assert_close(whole.designs[whole.best], OPTIMUM, atol=0.05, rtol=0)
    assert len(whole.designs.unique(dim=0)) == len(whole) == 8
    with pytest.raises(FileError, match="goal|candidates"):
        made(tmp_path / "whole", objective=lambda numbers: numbers.sum(-1))


def test_constraints_hold_at_the_best_design(tmp_path: Path) -> None:
    amplitude = {"amplitude": lambda numbers: numbers.abs().amax(-1) - 0.25}
    result = made(tmp_path, constraints=amplitude).run(evaluations=8)
    assert bool(result.is_feasible[result.best])
    assert float(result.designs[result.best, 0]) <= 0.27
    nowhere = made(tmp_path / "nowhere", constraints={"positive": lambda numbers: numbers[..., 0] ** 2 + 1.0}).run(
        evaluations=4
    )
    with pytest.raises(DataError, match="a feasible design"):
        _ = nowhere.best


def test_the_acquisition_function_gets_objective_constraints_and_evaluated_designs(tmp_path: Path) -> None:
    received: dict[str, Any] = {}

    def acquisition(model: Any, baseline: Tensor, **options: Any) -> Any:
        received.update(baseline=baseline, **options)
        return qLogNoisyExpectedImprovement(model, X_baseline=baseline, **options)

    def amplitude(numbers: Tensor) -> Tensor:
        return numbers.abs().amax(-1) - 0.25

    result = made(tmp_path, acquisition=acquisition, constraints={"amplitude": amplitude}).run(evaluations=6)
    assert torch.equal(received["baseline"], result.designs[:4])
    assert received["constraints"] == [amplitude]
    numbers = result.pairs.outputs.values.flatten(1)
    torch.testing.assert_close(received["objective"](numbers), result.objective)


def test_batches_have_good_designs_only_and_their_search_converges(tmp_path: Path) -> None:
    result = made(tmp_path, plan=LearningPlan(initial=5, batch=4, seed=2)).run(evaluations=13)
    sample = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    random_values = closeness(solve(encode(sample)).values.flatten(1))
    for batch in (result.objective[5:9], result.objective[9:]):  # all better than three of four random designs
        assert float(batch.min()) > float(random_values.quantile(0.75))
    assert float(torch.pdist(result.designs).min()) > 1e-9


def test_several_objectives_give_a_pareto_front(tmp_path: Path) -> None:
    other = solve(encode(torch.tensor([[0.8, 0.6]], dtype=torch.float64))).values.flatten()
    goals = {"first": closeness, "second": lambda numbers: -(numbers - other).square().sum(-1)}
    result = made(tmp_path, objective=goals, plan=LearningPlan(initial=5, batch=4, seed=0)).run(evaluations=13)
    front = result.designs[result.is_optimal]
    assert len(front) >= 5
    torch.testing.assert_close(front[:, 1], torch.full((len(front),), 0.6, dtype=torch.float64), atol=0.06, rtol=0)
    volume = result.hypervolume
    assert bool((volume.diff() >= 0).all())
    assert float(volume[-1]) > 1.5 * float(volume[5])
    sample = torch.rand(500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    numbers = solve(encode(sample)).values.flatten(1)
    every = torch.stack([goal(numbers) for goal in goals.values()], -1)
    at_front = torch.stack([*result.objectives.values()], -1)[result.is_optimal]
    assert (
        float((every[:, None] > at_front).all(-1).double().mean()) < 0.02
    )  # hardly a random design dominates one of the front
    with pytest.raises(DataError, match="1 objective"):
        _ = result.best


def test_no_feasible_design_has_no_hypervolume(tmp_path: Path) -> None:
    goals = {"first": lambda numbers: numbers[..., 0], "second": lambda numbers: -numbers[..., 0]}
    result = made(tmp_path, objective=goals, constraints={"never": lambda numbers: numbers[..., 0] ** 2 + 1.0}).run(
        evaluations=6
    )
    assert not result.is_optimal.any()
    assert torch.equal(result.hypervolume, torch.zeros(6, dtype=torch.float64))


def work(folder: Path, started: Any) -> None:
    """Optimise in another process."""
    torch.set_num_threads(1)
    optimizer = made(folder)
    started.set()
    optimizer.run(evaluations=8)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_random_moments_lose_nothing(tmp_path: Path, kills: int) -> None:
    whole = made(tmp_path / "whole")
    whole.run(evaluations=8)
    context, moments = multiprocessing.get_context("forkserver"), random.Random(kills)
    context.set_forkserver_preload(["tests.active.loop.test_optimizer"])
    killed, runs = 0, 0
    while killed < kills:
        folder, results = tmp_path / f"{runs}", set[str]()
        while killed < kills:
            started = context.Event()
            process = context.Process(target=work, args=(folder, started))
            process.start()
            started.wait()
            process.join(moments.uniform(0.0, 3.0))
            process.kill()
            process.join()
            if process.exitcode == 0:
                break
            killed += 1
            names = {path.name for path in (folder / "results").glob("[!.]*.safetensors")}
            assert results <= names
            results = names
        again = made(folder)
        again.run(evaluations=8)
        assert again.history == whole.history
        assert torch.equal(again.evaluations.designs, whole.evaluations.designs)
        assert torch.equal(again.evaluations.objective, whole.evaluations.objective)
        runs += 1


def test_a_network_is_trained_by_schedule(tmp_path: Path) -> None:
    sizes: list[int] = []

    def train(operator: Any, pairs: Any, *, seed: int) -> None:
        sizes.append(len(pairs))

    training = pn.active.OperatorTraining(
        pn.operators.FNO(1 + 1, 1, modes=(3,), width=4, depth=1, seed=0), train=train, every=2
    )
    optimizer = Optimizer(
        solve,
        pn.heads.LastLayerLaplace(noise=1e-4),
        encode=encode,
        dimension=2,
        objective=closeness,
        store=tmp_path,
        training=training,
        plan=LearningPlan(initial=4, batch=1, seed=0),
        simulation=SimulationOptions(executor=ThreadPoolExecutor(1), show_progress=False),
    )
    optimizer.run(evaluations=8)
    assert sizes == [4, 6, 8]
    assert len(optimizer.history) == 5


def test_asking_and_telling_equals_running(tmp_path: Path) -> None:
    expected = made(tmp_path / "run").run(evaluations=6)
    asked = made(tmp_path / "ask", simulator=None)
    with pytest.raises(ArgumentError, match="a simulator to run"):
        asked.run(evaluations=6)
    while True:
        designs = asked.ask()
        assert torch.equal(designs, asked.ask())  # pending until told
        if len(asked.history) and len(asked.evaluations) == 6:
            break
        asked.tell(designs[:1], solve(encode(designs[:1])))
    assert torch.equal(asked.evaluations.designs, expected.designs)


def test_a_functional_is_an_objective(tmp_path: Path) -> None:
    probe = pn.functionals.sensors(GRID, [[0.0]])
    result = made(tmp_path, objective=probe).run(evaluations=6)
    assert float(result.running_best[-1]) == pytest.approx(1.0, abs=0.05)  # a = b = 1
    with pytest.raises(ArgumentError, match="a functional of one value"):
        made(tmp_path / "two", objective=pn.functionals.sensors(GRID, [[0.0], [0.5]]))


def test_a_plan_with_candidates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="a plan without candidates"):
        made(tmp_path, plan=LearningPlan(initial=4, candidates=lambda predictor: encode(torch.rand(2, 2))))


def test_a_dead_simulator_ends_the_loop(tmp_path: Path) -> None:
    def dead(inputs: Field) -> Field:
        raise RuntimeError("no licence")

    with pytest.raises(SimulationError, match="no licence"):
        made(tmp_path, simulator=dead).run(evaluations=8)
