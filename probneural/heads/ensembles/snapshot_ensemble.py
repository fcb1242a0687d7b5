"""Snapshot ensembles: the ends of the cycles of one training."""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass

from torch import nn

from probneural.checks import assign, check_callable, check_flag, check_integer, check_module
from probneural.contexts import undisturbed
from probneural.curvature import ParameterVector
from probneural.heads.ensembles.members import (
    TrainFunction,
    copied_operator,
    predictor_of_members,
    state_of,
    training_trajectory,
)
from probneural.heads.training_data import recorded, training_data
from probneural.heads.weight_problem import residuals_of
from probneural.heads.weight_samples import WeightSampledPredictor
from probneural.pairs import Dataset
from probneural.randomness import check_seed


@dataclass(frozen=True)
class SnapshotEnsemble:
    """M operators for the price of one training: its learning rate falls to zero M times, and each end is a member.

    The training function is called M times, each time on the weights that the last call left. A call is a cycle, so its
    schedule starts anew by itself: `functools.partial(pn.fit, epochs=10, optimization=pn.training.Optimization(
    schedule="cosine"))` begins each cycle at the full learning rate, which throws the weights out of the minimum that they
    were in, and ends it at zero. `fit` may be given an operator that is not trained: the first cycle then is its training.

    Members come from one path, so they are more alike than those of `DeepEnsemble`, and the first ones may be worse than the
    last. Their spread depends on length and learning rate of a cycle and is no posterior: calibrate it on held-out fields.
    To leave out early cycles, run them by `train` before, and give the operator.

    Args:
        members: M, one per cycle.
        train: One cycle, called as `train(operator, data, seed=seed)`; trains in place from the weights that it finds.
        keeps_operator: Whether the operator, already trained, is member 0 as it is, so that M - 1 cycles follow.
        seed: Random seed of the cycles.
        show_progress: Whether to show a progress bar over the cycles.

    Raises:
        ArgumentError: If a setting is out of range, or `train` is no function.

    Reference:
        Huang, Li, Pleiss, Liu, Hopcroft and Weinberger (2017), Snapshot ensembles: train 1, get M for free, section 3.
        Deviations: the optimiser's moments start anew with each cycle; all members count, not the last few.

    Examples:
        >>> import torch
        >>> from probneural.fields import Field
        >>> from probneural.grids import Grid
        >>> from probneural.pairs import FieldPairs
        >>> def halve(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
        ...     operator.weight.data.mul_(0.5)
        >>> operator = nn.Conv1d(1, 1, 1, bias=False)
        >>> operator.weight.data.fill_(1.0).flatten()
        tensor([1.])
        >>> fields = Field(torch.ones(4, 1, 8), Grid.uniform((8,)))
        >>> predictor = SnapshotEnsemble(3, train=halve, show_progress=False).fit(operator, FieldPairs(fields, fields))
        >>> predictor(fields).samples[:, 0, 0, 0]
        tensor([0.5000, 0.2500, 0.1250])
    """

    members: int = 5
    _: KW_ONLY
    train: TrainFunction
    keeps_operator: bool = False
    seed: int = 0
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        remedy = 'pass train=functools.partial(pn.fit, epochs=10, optimization=pn.training.Optimization(schedule="cosine"))'
        check_callable(self.train, "train", remedy=remedy)
        assign(
            self,
            members=check_integer(self.members, "members", least=2, most=2**20),
            keeps_operator=check_flag(self.keeps_operator, "keeps_operator"),
            seed=check_seed(self.seed),
            show_progress=check_flag(self.show_progress, "show_progress"),
        )

    @recorded
    @undisturbed()
    def fit(self, operator: nn.Module, data: Dataset) -> WeightSampledPredictor:
        """Run the cycles.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`, trained or not; neither it nor the data are
                changed.
            data: Training pairs.

        Returns:
            A predictor of empirical fields, one sample per member, in the order of the cycles.

        Raises:
            TrainingError: If a cycle fails, or leaves the weights as they were.
            ArgumentError: If the operator is no module.
            UnsupportedError: If parameters differ in dtype.
            DataError: If the data are not finite pairs.
            ShapeError: If the operator's outputs do not fit the data's.
        """
        copied = copied_operator(check_module(operator, "operator"))
        layout = ParameterVector.of(copied)
        given = training_data(data, copied, is_shared=False)
        first = given.some(1)
        residuals_of(copy.deepcopy(copied).eval(), first, given.query)  # outputs that do not fit cost no training
        kept = [state_of(copied)] if self.keeps_operator else []
        states = training_trajectory(
            copied, given, self.train, calls=self.members - len(kept), seed=self.seed, show_progress=self.show_progress
        )
        return predictor_of_members(copied, layout, [*kept, *states], training_data(data, copied))
