"""Deep ensembles: the same recipe from different initial weights."""

from __future__ import annotations

import copy
from concurrent.futures import Executor
from dataclasses import KW_ONLY, dataclass

from torch import nn
from tqdm.auto import tqdm

from probneural.checks import assign, check_callable, check_flag, check_integer, check_module
from probneural.contexts import undisturbed
from probneural.curvature import ParameterVector
from probneural.errors import ArgumentError
from probneural.heads.ensembles.members import (
    MemberTask,
    State,
    TrainFunction,
    copied_operator,
    exchanged,
    predictor_of_members,
    state_of,
    train_members,
)
from probneural.heads.ensembles.reinitialisation import Build, Initialisation, Reinitialise
from probneural.heads.training_data import owned, recorded, training_data
from probneural.heads.weight_problem import residuals_of
from probneural.heads.weight_samples import WeightSampledPredictor
from probneural.pairs import Dataset
from probneural.processes import alone, own_rows
from probneural.randomness import check_seed, stream_seed

TRAIN_REMEDY = "pass train=functools.partial(pn.fit, epochs=50): it is called as train(operator, data, seed=seed)"


@dataclass(frozen=True)
class DeepEnsemble:
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

    members: int = 5
    _: KW_ONLY
    train: TrainFunction
    reinitialise: Reinitialise | None = None
    build: Build | None = None
    keeps_operator: bool = False
    seed: int = 0
    workers: int | Executor = 1
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        assign(self, members=check_integer(self.members, "members", most=2**20), seed=check_seed(self.seed))
        check_callable(self.train, "train", remedy=TRAIN_REMEDY)
        if self.reinitialise is not None:
            check_callable(self.reinitialise, "reinitialise", remedy="give a function of a module, or leave it out")
        if self.build is not None:
            remedy = "write build=lambda seed: FNO(...); torch's generator is seeded around the call"
            check_callable(self.build, "build", remedy=remedy)
        if self.reinitialise is not None and self.build is not None:
            raise ArgumentError(
                expected="reinitialise= or build=", got="both", remedy="build= makes new operators; drop reinitialise="
            )
        if not isinstance(self.workers, Executor):
            assign(self, workers=check_integer(self.workers, "workers", most=2**10))
        for name in ("keeps_operator", "show_progress"):
            assign(self, **{name: check_flag(getattr(self, name), name)})

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
