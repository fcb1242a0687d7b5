"""Deep ensembles: the same recipe from different initial weights."""

from __future__ import annotations

import copy
import functools
import io
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from tqdm.auto import tqdm

from probneural.checks import check_callable, check_integer, check_module, takes_show_progress
from probneural.contexts import undisturbed
from probneural.curvature import ParameterVector
from probneural.errors import ArgumentError, TrainingError, UnsupportedError
from probneural.fields import Field
from probneural.heads.ensembles.reinitialisation import Build, Initialisation, Reinitialise
from probneural.heads.training_data import HALF, NOISE_FLOOR, TrainingData, owned, recorded, training_data
from probneural.heads.weight_problem import residuals_of
from probneural.heads.weight_samples import WeightSampledPredictor, with_state
from probneural.pairs import Dataset
from probneural.processes import alone, gathered, own_rows, rank, world_size
from probneural.randomness import seeded, stream_seed
from probneural.settings import Seed, Settings

State = dict[str, Tensor]
"""Parameters and buffers of one member by name."""
TrainFunction = Callable[..., object]
"""Called as train(operator, data, seed=seed); trains the operator in place."""
Job = tuple[int, int]
"""Index and seed of a member."""


@dataclass(frozen=True)
class MemberTask:
    """Arguments of the training of a member, except for its index and seed.

    Attributes:
        operator: The operator; it is copied, never changed.
        data: Training pairs, in the operator's dtype.
        train: The training function.
        initialisation: Source of a member's initial weights.
        members: Number of members, for messages.
        device: Training device.
    """

    operator: nn.Module
    data: Dataset
    train: TrainFunction
    initialisation: Initialisation
    members: int
    device: torch.device

    def run(self, number: int, seed: int) -> State:
        """Train one member.

        Raises:
            TrainingError: If training fails, yields values that are not finite, or does not change the module in place.
        """
        options = {"show_progress": False} if takes_show_progress(self.train) else {}
        with torch.enable_grad(), seeded(seed, "member training", devices=[self.device]):
            module = self.initialisation.member(self.operator, seed, self.device)
            start = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
            try:
                self.train(module, self.data.to(self.device), seed=seed, **options)
            except Exception as error:  # name the member for any exception of the training function
                raise self.failed(number, f"{type(error).__name__}: {error}") from error
        state = state_of(module)
        self._check(number, start, state)
        return state

    def _check(self, number: int, start: State, state: State) -> None:
        changed = set(state) ^ set(state_of(self.operator))
        if changed:
            raise self.failed(number, f"other parameters or buffers than before it was trained: {sorted(changed)[0]}")
        for name, value in state.items():
            if not bool(torch.isfinite(value).all()):
                raise self.failed(number, f"values that are NaN or infinite in {name}")
        if all(torch.equal(value, state[name]) for name, value in start.items()):
            raise self.failed(number, "weights as they were: train(operator, data, seed=...) has to train in place")

    def failed(self, number: int, got: str) -> TrainingError:
        """The error of a member whose training failed."""
        return TrainingError(
            expected=f"member {number} (of 0 to {self.members - 1}) to train",
            got=got,
            remedy="try the training function on one operator with the same data",
        )


def state_of(module: nn.Module) -> State:
    """Copies of all parameters and buffers by name, including non-persistent buffers."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def exchanged(states: dict[int, State], jobs: Sequence[Job], *, like: State) -> dict[int, State]:
    """Gather the trained members on all ranks.

    Args:
        states: Members of this rank.
        jobs: All jobs; each rank has trained a block of them.
        like: A member with the names, shapes and dtypes of all members.
    """
    for index, (number, _) in enumerate(jobs if world_size() > 1 else ()):
        source = next(process for process in range(world_size()) if index < len(jobs) * (process + 1) // world_size())
        is_own = source == rank()
        states[number] = {
            name: gathered(states[number][name] if is_own else torch.empty_like(tensor))[source]
            for name, tensor in like.items()
        }
    return states


def train_members(
    task: MemberTask, jobs: Sequence[Job], *, workers: int | Executor, tick: Callable[[], object]
) -> dict[int, State]:
    """Train members sequentially in this process, in single-threaded worker processes, or on an executor.

    Worker processes live for this call only; an executor is not shut down.

    Raises:
        UnsupportedError: If the training function, the reinitialisation, the factory or the operator is not picklable.
        TrainingError: If the training of a member fails, or its process dies.
    """
    states: dict[int, State] = {}
    if workers == 1:
        for number, seed in jobs:
            states[number] = task.run(number, seed)
            tick()
        return states
    sent = replace(task, operator=copy.deepcopy(task.operator).cpu(), data=task.data.to("cpu"))
    with _one_thread_each(min(workers, len(jobs))) if isinstance(workers, int) else nullcontext(workers) as executor:
        # other executors, such as Dask's, serialise functions of scripts and notebooks by value
        call = (
            functools.partial(_trained_pickled, _pickled(sent))
            if isinstance(executor, ProcessPoolExecutor)
            else functools.partial(_trained, sent)
        )
        futures = {executor.submit(call, *job): job[0] for job in jobs}
        try:
            for future in as_completed(futures):
                answer = _result(task, futures[future], future)
                states[futures[future]] = torch.load(io.BytesIO(answer), weights_only=True, map_location=task.device)
                tick()
        finally:
            for future in futures:
                future.cancel()
    return states


@contextmanager
def _one_thread_each(workers: int) -> Iterator[Executor]:
    """Processes whose numerical libraries have one thread."""
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads of the parent hold
    processes = ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield processes
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        processes.shutdown(cancel_futures=True)


def _result(task: MemberTask, number: int, future: Future[bytes]) -> bytes:
    """The result of a worker, or a TrainingError with the cause of its failure."""
    try:
        return future.result()
    except BrokenExecutor as error:
        got = "the end of its worker process: out of memory, or a script without `if __name__ == '__main__':`"
        raise task.failed(number, got) from error


def _pickled(task: MemberTask) -> bytes:
    """The task pickled in memory; no file is written or read.

    Raises:
        UnsupportedError: If it is not picklable.
    """
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UnsupportedError(
            expected="a training function, a factory or reinitialisation, and an operator that can be sent to other processes",
            got=f"{type(error).__name__}: {error}",
            remedy="define them at the top of a module; or train here, with workers=1; or give an executor that sends "
            "functions as their code, loky's or Dask's",
        ) from error


def _trained_pickled(payload: bytes, number: int, seed: int) -> bytes:
    """Run a pickled task of the parent process."""
    task: MemberTask = pickle.loads(payload)  # noqa: S301 (from our own parent's memory)
    return _trained(task, number, seed)


def _trained(task: MemberTask, number: int, seed: int) -> bytes:
    """Train one member in a worker, and return its tensors without pickle.

    The worker inherits the parent's environment but is not a torchrun rank.
    """
    buffer = io.BytesIO()
    with alone():
        state = task.run(number, seed)
    torch.save({name: tensor.cpu() for name, tensor in state.items()}, buffer)
    return buffer.getvalue()


_BATCH_ELEMENTS = 2**22
"""Number of members times output values in memory during the noise estimate."""


def copied_operator(operator: nn.Module) -> nn.Module:
    """A copy without gradients.

    Raises:
        UnsupportedError: If parameters differ in precision, or have half precision.
    """
    copied = copy.deepcopy(operator)
    for parameter in copied.parameters():
        parameter.grad = None
    dtypes = {(value.real if value.is_complex() else value).dtype for value in copied.parameters()}
    if len(dtypes) > 1 or dtypes & HALF:
        got, expected = ", ".join(sorted(map(str, dtypes))), "parameters of one precision, float32 or float64"
        raise UnsupportedError(expected=expected, got=got, remedy="convert it with .to(dtype)")
    return copied


def predictor_of_members(
    operator: nn.Module, layout: ParameterVector, states: Sequence[State], data: TrainingData
) -> WeightSampledPredictor:
    """Stack the parameters and buffers that differ between members, and estimate the noise."""
    names = [name for name, _ in operator.named_buffers()]
    differ = [name for name in names if not all(torch.equal(state[name], states[0][name]) for state in states)]
    shapes = {name: {tuple(state[name].shape) for state in states} for name in names}
    uneven = [name for name in names if len(shapes[name]) > 1]
    if uneven:
        raise UnsupportedError(
            expected="members with buffers of one shape", got=f"{uneven[0]} of {shapes[uneven[0]]}", remedy="fix its shape"
        )
    operator = with_state(operator, states[0]).eval().requires_grad_(False)
    units = data.output_units()[1].square()

    def built(noise: Float64[Tensor, " c"]) -> WeightSampledPredictor:
        return WeightSampledPredictor(
            operator=operator,
            layout=layout,
            vectors=torch.stack([layout.flatten(state) for state in states]),
            noise=noise,
            domain=data.inputs.grid,
            in_channels=data.inputs.channels,
            buffers={name: torch.stack([state[name] for state in states]) for name in differ},
        )

    return built(torch.maximum(_mean_square_residual(built(units), data), NOISE_FLOOR * units))


@torch.no_grad()
def _mean_square_residual(predictor: WeightSampledPredictor, data: TrainingData) -> Float64[Tensor, " c"]:
    """Residual sums of the members' mean, by quadrature, per channel, in chunks."""
    step = max(1, _BATCH_ELEMENTS // (predictor.members * predictor.out_channels * data.grid.size))
    total = torch.zeros(predictor.out_channels, dtype=torch.float64, device=predictor.device)
    for batch in data.batches(step):
        mean = predictor(batch.inputs, data.query).mean.to(torch.float64)
        total += Field(batch.outputs.values.to(torch.float64) - mean, batch.outputs.grid).mean_square().sum(0)
    return data.summed(total) / data.functions


TRAIN_REMEDY = "pass train=functools.partial(pn.fit, epochs=50): it is called as train(operator, data, seed=seed)"
_REINITIALISE = "give a function of a module, or leave it out"
_BUILD = "write build=lambda seed: FNO(...); torch's generator is seeded around the call"


def _check_workers(value: object, name: str) -> int | Executor:
    return value if isinstance(value, Executor) else check_integer(value, name, most=2**10)


MemberCount = Annotated[int, functools.partial(check_integer, most=2**20)]
CheckedTrainFunction = Annotated[TrainFunction, functools.partial(check_callable, remedy=TRAIN_REMEDY)]
CheckedBuild = Annotated[Build, functools.partial(check_callable, remedy=_BUILD)]
Workers = Annotated[int | Executor, _check_workers]
"""Settings that all ensembles have."""


@dataclass(frozen=True)
class DeepEnsemble(Settings):
    """M operators of one architecture, trained by the same function on the same data from different initial weights.

    The prediction is the empirical field of the members. The training function is called as `train(operator, data, seed=seed)`
    and trains the module in place, as `functools.partial(pn.fit, epochs=50)` does. Its argument `show_progress`, if it has
    one, is `False` unless you set it. torch's global generators are seeded before each call and restored afterwards.

    The spread of the members reflects initial weights and the order of batches; it is not a posterior. If data determine the
    weights, converged members agree even with few data: see `LaplaceEnsemble`. Calibrate the spread on held-out fields.

    Training time is M times that of `train`, divided by the number of workers. Starting processes takes seconds; workers save
    time from half a minute per member. Results depend on the number of threads: members trained in this process and in
    single-threaded workers are bit-equal under `torch.set_num_threads(1)`.

    Args:
        members: Number of members M.
        train: The training function.
        reinitialise: Draws new weights of a module, in place and from torch's global generator. By default every submodule's
            `reset_parameters`, which together must cover all trainable parameters; frozen ones keep their values.
        build: Factory of members: called as `build(seed)`, returns an untrained operator of this architecture. It replaces
            `reinitialise` for modules without `reset_parameters`, as of other libraries. Units and other buffers are those of
            the returned operator.
        keeps_operator: Whether the trained operator is member 0, so that only M - 1 are trained. By default all are trained
            from new weights, with the units and other buffers of the operator.
        seed: Random seed. Member i is equal in ensembles of any size.
        workers: Number of single-threaded processes that train members in parallel; by default members are trained
            sequentially in this process. Or a `concurrent.futures.Executor` of processes, local or remote. Functions must be
            defined at module level, and a script's main code under `if __name__ == "__main__":`.
        show_progress: Whether to show one progress bar over the members.

    Raises:
        ArgumentError: If a setting is out of range, or `train` is not callable.

    Reference:
        Lakshminarayanan, Pritzel & Blundell (2017), Simple and scalable predictive uncertainty estimation using deep
        ensembles. Deviations: members predict fields, not means and variances; no adversarial training; one noise variance
        per channel, the mean squared residual of the ensemble's mean.

    Examples:
        >>> import torch
        >>> from probneural.fields import Field
        >>> from probneural.grids import Grid
        >>> from probneural.pairs import FieldPairs
        >>> def damp(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
        ...     for parameter in operator.parameters():
        ...         parameter.data.mul_(0.5)
        >>> fields = Field(torch.ones(4, 1, 8), Grid.uniform((8,)))
        >>> head = DeepEnsemble(3, train=damp, show_progress=False)
        >>> predictor = head.fit(nn.Conv1d(1, 1, 1), FieldPairs(fields, fields))
        >>> predictor(fields).samples.shape
        torch.Size([3, 4, 1, 8])
    """

    members: MemberCount = 5
    _: KW_ONLY
    train: CheckedTrainFunction
    reinitialise: Annotated[Reinitialise, functools.partial(check_callable, remedy=_REINITIALISE)] | None = None
    build: CheckedBuild | None = None
    keeps_operator: bool = False
    seed: Seed = 0
    workers: Workers = 1
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.reinitialise is not None and self.build is not None:
            raise ArgumentError(
                expected="reinitialise= or build=", got="both", remedy="build= makes new operators; drop reinitialise="
            )

    @recorded
    @undisturbed()
    def fit(self, operator: nn.Module, data: Dataset) -> WeightSampledPredictor:
        """Train the members.

        With torch.distributed, every rank calls it with the same data and trains some of the members on all data.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed. With `build`,
                an example of the factory's operators, and member 0 if `keeps_operator`.
            data: Training pairs.

        Returns:
            A predictor of empirical fields, one sample per member.

        Raises:
            ArgumentError: If weights cannot be reinitialised, or the operator is not a module.
            TrainingError: If the training of a member fails.
            UnsupportedError: If the training function is not picklable for the workers, or parameters differ in dtype.
            DataError: If the data are not finite pairs.
            ShapeError: If the operator's outputs do not fit the data's.
        """
        copied = copied_operator(check_module(operator, "operator"))
        layout = ParameterVector.of(copied)
        given = training_data(data, copied, is_shared=False)
        pairs = owned(given)
        residuals_of(copy.deepcopy(copied).eval(), pairs[:1], given.query)  # outputs that do not fit cost no training
        kept = 1 if self.keeps_operator else 0
        jobs = [(number, stream_seed(self.seed, "ensemble member", number)) for number in range(kept, self.members)]
        device = given.inputs.device
        states: dict[int, State] = {0: state_of(copied)} if self.keeps_operator else {}
        if jobs:
            initialisation = Initialisation(reinitialise=self.reinitialise, build=self.build)
            initialisation.check(copied, device=device)
            task = MemberTask(copied, pairs, self.train, initialisation, self.members, device)
            own = own_rows(len(jobs))
            with tqdm(total=len(own), desc="ensemble", unit="member", disable=not self.show_progress) as bar, alone():
                trained = train_members(task, jobs[own.start : own.stop], workers=self.workers, tick=bar.update)
            states |= exchanged(trained, jobs, like=state_of(copied))
        members = [states[number] for number in range(self.members)]
        return predictor_of_members(copied, layout, members, training_data(data, copied))
