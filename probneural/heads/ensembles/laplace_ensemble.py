"""Ensembles of posteriors: several trained operators, each with a posterior around its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, runtime_checkable

from torch import nn

from probneural.checks import check_callable, check_instance, check_least, check_module
from probneural.distributions import MixturePredictor, Predictor
from probneural.heads.ensembles.deep_ensemble import (
    TRAIN_REMEDY,
    CheckedBuild,
    CheckedTrainFunction,
    DeepEnsemble,
    MemberCount,
    Workers,
)
from probneural.heads.last_layer.laplace import LastLayerLaplace
from probneural.pairs import Dataset
from probneural.settings import Seed, Settings


@runtime_checkable
class Head(Protocol):
    """A head: turns a trained operator into a predictor."""

    def fit(self, operator: nn.Module, data: Dataset) -> Predictor:
        """Fit a posterior around the operator."""


_LAST_LAYER = LastLayerLaplace()


@dataclass(frozen=True)
class LaplaceEnsemble(Settings):
    """M trained operators of one architecture, each with a posterior: a mixture of Laplace approximations.

    A Laplace posterior describes one mode of the weights; an ensemble finds several modes, but not their widths. The mixture
    combines both: its variance is the mean of the members' variances plus the variance of their means. Members equal those
    of `DeepEnsemble` with the same seed; the head is fitted M times.

    Raw variances of Laplace heads are inaccurate, so calibrate: `VarianceScale` scales each member, and then the mean and
    covariance of the mixture.

    Args:
        members: Number of members M.
        train: The training function, called as `train(operator, data, seed=seed)`; see
            [`DeepEnsemble`][probneural.heads.DeepEnsemble]. Not needed if `fit` gets trained operators.
        head: Head of each member: any object with `fit(operator, data)` that returns a predictor.
        build: Factory of members: called as `build(seed)`, returns an untrained operator. By default every submodule's
            `reset_parameters` draws new weights.
        keeps_operator: Whether the trained operator is member 0.
        seed: Random seed. Member i is equal in ensembles of any size.
        workers: Number of processes that train members, or an executor.
        show_progress: Whether to show one progress bar over the members.

    Raises:
        ArgumentError: If a setting is out of range, or the head has no `fit`.

    Reference:
        Eschenhagen, Daxberger, Hennig and Kristiadi (2021), Mixtures of Laplace approximations for improved post-hoc
        uncertainty in deep learning. Deviation: `VarianceScale` makes a Gaussian field of the mixture.

    Examples:
        >>> import torch
        >>> from probneural.fields import Field
        >>> from probneural.grids import Grid
        >>> from probneural.pairs import FieldPairs
        >>> fields = Field(torch.randn(4, 1, 8, generator=torch.Generator().manual_seed(0)), Grid.uniform((8,)))
        >>> operators = [nn.Sequential(nn.Conv1d(1, 3, 1), nn.Tanh(), nn.Conv1d(3, 1, 1)) for _ in range(2)]
        >>> predictor = LaplaceEnsemble().fit(operators, FieldPairs(fields, fields))
        >>> len(predictor(fields).components)
        2
    """

    members: MemberCount = 2
    _: KW_ONLY
    train: CheckedTrainFunction | None = None
    head: Head = _LAST_LAYER
    build: CheckedBuild | None = None
    keeps_operator: bool = False
    seed: Seed = 0
    workers: Workers = 1
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        remedy = "for example head=pn.heads.LastLayerLaplace()"
        check_callable(getattr(self.head, "fit", None), "fit of the head", remedy=remedy)

    def fit(self, operator: nn.Module | Sequence[nn.Module], data: Dataset) -> MixturePredictor:
        """Train the members, and fit the head to each.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`, the architecture of all members; or a list of
                trained operators of any architectures, which are the members (`members` is then ignored).
            data: Training pairs; neither they nor the operators are changed.

        Returns:
            The mixture of the members' predictors, equally weighted.

        Raises:
            ArgumentError: If there is no training function for untrained members, or weights cannot be reinitialised.
            TrainingError: If the training of a member fails.
            DataError: If the head does not return a predictor, the list is empty, or the data are not finite pairs.
            ShapeError: If the operators' outputs do not fit the data's.
        """
        if isinstance(operator, nn.Module) or not isinstance(operator, Sequence):
            trained: Sequence[nn.Module] = self._trained(check_module(operator, "operator"), data)
        else:
            trained = [check_module(one, "operator") for one in operator]
        check_least(len(trained), 1, "trained operators", remedy="give an operator to train")
        remedy = "a head's fit(operator, data) returns a predictor"
        return MixturePredictor(
            [check_instance(self.head.fit(one, data), Predictor, "what the head returns", remedy=remedy) for one in trained]
        )

    def _trained(self, operator: nn.Module, data: Dataset) -> list[nn.Module]:
        """The members of the deep ensemble of these settings."""
        train = check_callable(self.train, "train", remedy=f"{TRAIN_REMEDY}; or fit to a list of trained operators")
        ensemble = DeepEnsemble(
            self.members,
            train=train,
            build=self.build,
            keeps_operator=self.keeps_operator,
            seed=self.seed,
            workers=self.workers,
            show_progress=self.show_progress,
        )
        members = ensemble.fit(operator, data).operators()
        for member in members:
            for own, given in zip(member.parameters(), operator.parameters(), strict=True):
                own.requires_grad_(given.requires_grad)
        return members
