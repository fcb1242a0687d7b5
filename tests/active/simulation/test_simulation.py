"""Simulations that lose no result and repeat none, whatever happens to the processes."""

from __future__ import annotations

import errno
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from probneural.active import ResultStore, simulate
from probneural.active.simulation import workers
from probneural.active.simulation.store_files import locked
from probneural.active.simulation.worker_pools import SimulationOptions
from probneural.active.simulation.workers import packed, unpacked
from probneural.errors import ArgumentError, DataError, FileError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import Burgers

fcntl = pytest.importorskip("fcntl")
GRID = Grid.uniform((8,), periodic=False)

quiet = functools.partial(SimulationOptions, show_progress=False)


def functions(count: int) -> Field:
    return Field(torch.arange(count)[:, None, None] + torch.linspace(0, 1, 8).square(), GRID)


class Counting:
    """A simulator that knows how often it was called for each function; the first `failing` calls raise."""

    def __init__(self, *, failing: int = 0) -> None:
        self.calls: Counter[int] = Counter()
        self.failing = failing

    def __call__(self, inputs: Field) -> Field:
        number = int(inputs.values[0, 0, 0])
        self.calls[number] += 1
        if self.calls[number] <= self.failing:
            raise RuntimeError(f"call {self.calls[number]}")
        return Field(inputs.values.double().exp(), Grid.scattered(GRID.points, GRID.weights))


def isolated(folder: Path, *jobs: str, limit: float) -> dict[str, dict[str, object]]:
    script = Path(__file__).with_name("isolated_runs.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run(
        [sys.executable, str(script), str(folder), *jobs],
        capture_output=True,
        text=True,
        timeout=limit,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, dict[str, object]]:
    """All that needs processes that die, in one process that imports the package once."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork to start runs quickly")
    return isolated(tmp_path_factory.mktemp("runs"), "mixed:6", "parent:3", "faults", "together", "troubles", limit=300)


def check_killed(found: dict[str, object], kills: int) -> None:
    """No result is lost, none is simulated again once it is stored, and the data are those of a run left in peace.

    What a killed worker had in hand has no result, and is simulated again: at most one function per worker and kill.
    """
    assert found["status"] == 0
    assert sum(found["kills"].values()) == kills
    assert (found["lost"], found["repeated"], found["failures"], found["broken"]) == (0, 0, 0, 0)
    assert found["equal"]
    assert found["exact"]
    assert found["results"] == found["count"]
    assert found["left"] == 0
    in_hand = 2 * found["kills"].get("tree", 0)
    assert found["count"] <= found["ends"] <= found["starts"] <= found["count"] + in_hand


def test_killed_six_times_nothing_is_lost_or_repeated(runs):
    check_killed(runs["mixed:6"], 6)
    assert len(set(runs["mixed:6"]["kills"])) == 2
    assert runs["mixed:6"]["moments"][-1] > 0


def test_where_only_parents_are_killed_every_simulation_runs_exactly_once(runs):
    check_killed(runs["parent:3"], 3)
    assert runs["parent:3"]["starts"] == runs["parent:3"]["count"]


@pytest.mark.slow
def test_killed_fifty_times_nothing_is_lost_or_repeated(tmp_path):
    if not hasattr(os, "fork"):
        pytest.skip("needs fork to start runs quickly")
    report = isolated(tmp_path, "mixed:50", "spawned:4", limit=900)
    check_killed(report["mixed:50"], 50)
    check_killed(report["spawned:4"], 4)


def test_what_goes_wrong_in_simulators_is_reported(runs):
    report = runs["faults"]
    assert report["succeeded"] == [number in (0, 9, 10, 12) for number in range(13)]
    assert (report["simulated"], report["reused"]) == (2, 2)
    reasons = report["failures"]
    assert reasons["1"].startswith("RuntimeError: no convergence (isolated_runs.py, line ")
    assert reasons["2"] == "no result within 0.3 s"
    assert reasons["3"].startswith("DataError: expected finite output functions; got 16 values")
    assert reasons["4"] == "the worker process died"
    assert "got Field(2 x 1 on" in reasons["5"]
    assert "got <class 'torch.Tensor'>" in reasons["6"]
    assert reasons["8"].startswith("SystemExit: 2")
    assert report["children"] == 0


def test_failed_simulations_are_tried_a_number_of_times_in_all(runs):
    report = runs["faults"]
    assert report["attempts"][:10] == [0, 3, 2, 2, 2, 2, 2, 2, 2, 0]
    assert report["again"][:3] == [4, 0, True]
    assert report["more"] == [1, 0, 1]


def test_two_processes_use_one_store_at_once(runs):
    report = runs["together"]
    assert report["statuses"] == [0, 0]
    assert report["equal"]
    assert (report["results"], report["attempts"], report["same"]) == (30, 40, [1, 2])
    assert sorted(report["contested"]) == [0, 10]
    assert report["left"] == []


def test_a_broken_executor_is_reported_and_not_the_simulations_fault(runs):
    succeeded, reasons, attempts = runs["troubles"]["broken"]
    assert succeeded == [True, False, False]
    assert len(reasons) == 1
    assert reasons[0].startswith("the executor is broken")
    assert attempts == 0


def test_workers_that_cannot_start_are_an_error(runs):
    assert "worker processes that start and can load the simulator" in runs["troubles"]["message"]


def test_closing_ends_workers_at_work(runs):
    """The simulation would have slept for ten minutes."""
    seconds, error, at_work, left = runs["troubles"]["closing"]
    assert seconds < 30
    assert (error, at_work, left) == ("the worker process died", 1, 0)
    assert runs["troubles"]["closing early"] == [0, True]


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory):
    """A problem solved by own processes, as they are by default."""
    problem = Burgers(viscosity=0.05)
    inputs = problem.sample(5, resolution=64, seed=3).inputs
    store = ResultStore(tmp_path_factory.mktemp("by processes"))
    return (problem, inputs, store, simulate(problem.solve, inputs, store=store, options=quiet(workers=1)))


def test_a_problem_is_solved_by_own_processes(by_processes):
    problem, inputs, store, report = by_processes
    pairs = store.pairs(report.keys)
    assert torch.equal(pairs.inputs.values, inputs.values)
    one_by_one = torch.cat([problem.solve(inputs[row]).values for row in range(5)])
    torch.testing.assert_close(pairs.outputs.values, one_by_one, rtol=0, atol=1e-6)
    assert (report.simulated, report.reused, report.failures, set(report.succeeded)) == (5, 0, {}, {True})


def test_dask_gives_the_same_data_as_processes(by_processes, tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs Dask: pip install 'probneural[dask]'")
    problem, inputs, other, report = by_processes
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    store = ResultStore(tmp_path / "by Dask")
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        executor = client.get_executor()
        ours = simulate(problem.solve, inputs, store=store, options=quiet(executor=executor))
        failing = simulate(_bad, functions(2), store=store, options=quiet(executor=executor))
    assert ours.keys == report.keys
    one, two = store.pairs(ours.keys), other.pairs(report.keys)
    assert torch.equal(one.inputs.values, two.inputs.values)
    assert torch.equal(one.outputs.values, two.outputs.values)
    assert one.outputs.grid == two.outputs.grid
    assert [reason.split(" (")[0] for reason in failing.failures.values()] == ["ZeroDivisionError: division by zero"] * 2


def _bad(inputs: Field) -> Field:
    return Field(inputs.values * (1 / 0), inputs.grid)


def test_equal_functions_are_simulated_once(tmp_path):
    store, simulator = ResultStore(tmp_path), Counting()
    inputs = functions(4)
    with ThreadPoolExecutor(3) as executor:
        first = simulate(simulator, inputs[[2, 0, 2, 2]], store=store, options=quiet(executor=executor))
        second = simulate(simulator, inputs, store=store, options=quiet(executor=executor))
        assert executor.submit(int, "3").result() == 3  # it was not shut down
    assert (first.simulated, first.reused) == (2, 2)
    assert (second.simulated, second.reused) == (2, 2)
    assert first.keys == tuple(store.key(inputs[row]) for row in (2, 0, 2, 2))
    assert simulator.calls == dict.fromkeys(range(4), 1)
    assert torch.equal(store.pairs(second.keys).outputs.values, inputs.values.double().exp())


def test_what_fails_once_may_succeed(tmp_path):
    store, simulator = ResultStore(tmp_path), Counting(failing=2)
    with ThreadPoolExecutor(2) as executor:
        first = simulate(simulator, functions(2), store=store, options=quiet(executor=executor))
        assert first.succeeded == (False, False)
        assert [reason.split(" (")[0] for reason in first.failures.values()] == ["RuntimeError: call 2"] * 2
        again = simulate(simulator, functions(2), store=store, options=quiet(executor=executor))
        assert again.failures == first.failures
        assert simulator.calls == {0: 2, 1: 2}
        more = simulate(simulator, functions(2), store=store, options=quiet(executor=executor, attempts=3))
    assert more.succeeded == (True, True)
    assert len(store.failures()) == 4


SHELL = (
    "import sys; print('mesh: 3 cells', file=sys.stderr); "
    "print('solver: CFL number 7.2 exceeds 1 in cell 2', file=sys.stderr); sys.exit(3)"
)


class Shell:
    """A simulator that is a program, which fails; it may be run by bytes or text, and its error raised as another."""

    def __init__(self, *, text: bool = True, wraps: bool = False, script: str = SHELL) -> None:
        self.text, self.wraps, self.script = text, wraps, script

    def __call__(self, inputs: Field) -> Field:
        try:
            subprocess.run([sys.executable, "-c", self.script], check=True, capture_output=True, text=self.text)
        except subprocess.CalledProcessError as error:
            if self.wraps:
                raise RuntimeError("the solver failed") from error
            raise
        return inputs


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("wraps", [True, False])
def test_what_a_failing_program_wrote_to_stderr_is_kept(tmp_path, text, wraps):
    store = ResultStore(tmp_path)
    with ThreadPoolExecutor(1) as executor:
        report = simulate(
            Shell(text=text, wraps=wraps), functions(1), store=store, options=quiet(executor=executor, attempts=1)
        )
    (reason,) = report.failures.values()
    assert reason.startswith("RuntimeError: the solver failed" if wraps else "subprocess.CalledProcessError: Command ")
    assert reason.endswith("; stderr: mesh: 3 cells | solver: CFL number 7.2 exceeds 1 in cell 2")
    assert [failure.reason for failure in ResultStore(tmp_path).failures()] == [reason]


def test_of_a_long_stderr_the_end_is_kept(tmp_path):
    script = "import sys; print(*range(2000), file=sys.stderr); print('the reason', file=sys.stderr); sys.exit(1)"
    with ThreadPoolExecutor(1) as executor:
        report = simulate(
            Shell(script=script), functions(1), store=ResultStore(tmp_path), options=quiet(executor=executor, attempts=1)
        )
    (reason,) = report.failures.values()
    assert reason.endswith(" 1998 1999 | the reason")
    assert "; stderr: ... " in reason
    assert len(reason.split("stderr: ")[1]) == 1004


@pytest.mark.parametrize("ends", ["stores", "dies"])
def test_what_another_process_is_simulating_is_waited_for(tmp_path, ends):
    store, simulator, inputs = ResultStore(tmp_path), Counting(), functions(2)
    held = threading.Event()

    def other() -> None:
        with locked(tmp_path, f"simulate-{store.key(inputs[0])}"):
            held.set()
            time.sleep(0.2)
            if ends == "stores":
                store.add(inputs[0], inputs[0], seconds=0.2)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(10)
    with ThreadPoolExecutor(2) as executor:
        report = simulate(simulator, inputs, store=store, options=quiet(executor=executor))
    thread.join()
    assert report.succeeded == (True, True)
    assert (report.reused, report.simulated) == ((1, 1) if ends == "stores" else (0, 2))
    assert simulator.calls == ({1: 1} if ends == "stores" else {0: 1, 1: 1})


def test_workers_must_see_the_store(tmp_path, monkeypatch):
    store = ResultStore(tmp_path)
    monkeypatch.setattr(workers, "store_identity", lambda folder: None)
    with ThreadPoolExecutor(1) as executor, pytest.raises(FileError, match="a folder that all workers share"):
        simulate(Counting(), functions(2), store=store, options=quiet(executor=executor))
    assert len(store) == 0


@pytest.mark.parametrize("simulator", [Counting(), _bad])
def test_a_worker_that_cannot_write_raises_the_error(tmp_path, monkeypatch, simulator):
    def full(*arguments: object, **settings: object) -> None:
        raise FileError(expected="space", got="none", remedy="make some")

    monkeypatch.setattr(workers, "write_result", full)
    monkeypatch.setattr(workers, "write_failure", full)
    with ThreadPoolExecutor(1) as executor, pytest.raises(FileError, match="make some"):
        simulate(simulator, functions(2), store=ResultStore(tmp_path), options=quiet(executor=executor))


def test_a_result_that_is_damaged_after_it_was_written_is_simulated_again(tmp_path, monkeypatch):
    store, simulator, written = ResultStore(tmp_path), Counting(), []
    write = workers.write_result

    def careless(folder: Path, *arguments: object, **settings: object) -> None:
        key = write(folder, *arguments, **settings)
        written.append(key)
        if len(written) == 1:
            os.truncate(folder / "results" / f"{key}.safetensors", 100)

    monkeypatch.setattr(workers, "write_result", careless)
    with ThreadPoolExecutor(1) as executor, pytest.warns(RuntimeWarning, match="cannot be used"):
        report = simulate(simulator, functions(2), store=store, options=quiet(executor=executor))
    assert report.succeeded == (True, True)
    assert sorted(simulator.calls.values()) == [1, 2]


class Strange(Executor):
    """Returns futures that have ended as it was told."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def submit(self, function, /, *arguments, **settings):
        future: Future[object] = Future()
        if self.error is None:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(self.error)
        return future


def test_an_executors_own_troubles_are_reported(tmp_path):
    store = ResultStore(tmp_path)
    report = simulate(Counting(), functions(1), store=store, options=quiet(executor=Strange(OSError("no route to host"))))
    assert list(report.failures.values()) == ["the executor's own OSError: no route to host"]
    assert store.attempts(report.keys[0]) == 0  # which says nothing about the simulation
    assert report.lost == {report.keys[0]}
    full = FileError(expected="space", got="none", remedy="make some")
    with pytest.raises(FileError, match="make some"):  # the store's trouble ends the call
        simulate(Counting(), functions(1), store=store, options=quiet(executor=Strange(full)))
    assert store.failures() == []
    report = simulate(Counting(), functions(2)[1:], store=store, options=quiet(executor=Strange(None)))
    assert list(report.failures.values()) == ["the executor cancelled it"]
    assert store.attempts(report.keys[0]) == 0


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_ends_the_call_and_leaves_no_descriptor(code, tmp_path, monkeypatch):
    store, descriptors = ResultStore(tmp_path), len(os.listdir("/proc/self/fd"))

    def refuse(*arguments: object) -> None:
        raise OSError(code, "No locks available")

    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as executor:
        patch.setattr(fcntl, "flock", refuse)
        with pytest.raises(FileError, match="a file system that knows flock; got .*No locks available"):
            simulate(Counting(), functions(1), store=store, options=quiet(executor=executor))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert store.failures() == []


def test_functions_travel_alone_and_as_they_are():
    """Without the others of a field, whose memory they share."""
    scattered = Grid.scattered(torch.linspace(0, 1, 14).reshape(7, 2), torch.linspace(0.1, 0.7, 7))
    field = Field(torch.randn(10000, 2, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64), scattered)
    data = packed(field[3])
    again = unpacked(data)
    assert torch.equal(again.values, field.values[3:4])
    assert (again.grid, again.dtype) == (scattered, torch.float64)
    assert len(data) < 5000


@pytest.mark.parametrize("executor", [None, ProcessPoolExecutor])
def test_simulators_that_cannot_travel_are_refused(tmp_path, executor):
    made, store = None if executor is None else executor(1), ResultStore(tmp_path)
    with pytest.raises(ArgumentError, match="that can be sent to worker processes.*ThreadPoolExecutor"):
        simulate(lambda inputs: inputs, functions(1), store=store, options=quiet(executor=made))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 2, "executor": Strange(None)}, "an executor, or workers"),
        ({"timeout": 1.0, "executor": Strange(None)}, "an executor, or workers"),
    ],
)
@pytest.mark.bad_input
def test_arguments_are_checked(tmp_path, settings, message):
    with pytest.raises(ArgumentError, match=message):
        simulate(Counting(), functions(1), store=ResultStore(tmp_path), options=SimulationOptions(**settings))


@pytest.mark.bad_input
def test_inputs_are_checked(tmp_path):
    store = ResultStore(tmp_path)
    for inputs in (functions(1).values, functions(1)[:0]):
        with pytest.raises(DataError, match="a Field of one function or more"):
            simulate(Counting(), inputs, store=store)
    with pytest.raises(DataError, match="finite input functions"):
        simulate(Counting(), Field(functions(1).values * torch.nan, GRID), store=store)


def test_an_executor_that_is_shut_down_is_refused(tmp_path):
    with ThreadPoolExecutor(1) as executor:
        pass
    with pytest.raises(ArgumentError, match="an executor that takes work"):
        simulate(Counting(), functions(1), store=ResultStore(tmp_path), options=quiet(executor=executor))


def _forking(inputs: Field, *, kind: str) -> Field:
    """A simulator of which two processes return, or one stays."""
    if os.fork() == 0:
        if kind == "stays":
            time.sleep(600.0)
        if kind == "raises":
            raise ValueError("the copy")
    return inputs


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", ["stays", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("returns", "raises"))])
def test_a_simulator_that_forks_ends(kind: str, tmp_path: Path) -> None:
    report = simulate(functools.partial(_forking, kind=kind), functions(2), store=ResultStore(tmp_path), options=quiet())
    assert report.succeeded == (True, True)
