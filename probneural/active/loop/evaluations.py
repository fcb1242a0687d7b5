"""Evaluated designs of an optimisation: objectives, constraints, the best design and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

import torch
from botorch.utils.multi_objective.box_decompositions.dominated import DominatedPartitioning
from botorch.utils.multi_objective.hypervolume import infer_reference_point
from botorch.utils.multi_objective.pareto import is_non_dominated
from jaxtyping import Bool, Float64
from torch import Tensor

from probneural.checks import check_count
from probneural.errors import DataError
from probneural.pairs import FieldPairs


@dataclass(frozen=True, eq=False)
class Evaluations:
    """Evaluated designs in the order of choice, without failures.

    Attributes:
        designs: `(n, d)`, in the unit cube.
        objectives: Objectives by name, `(n,)` each; larger is better.
        constraints: Values of the constraints by name, `(n,)` each; feasible where all are at most 0.
        pairs: Inputs and outputs of the simulations.
    """

    designs: Float64[Tensor, "n d"]
    objectives: Mapping[str, Float64[Tensor, " n"]]
    _: KW_ONLY
    constraints: Mapping[str, Float64[Tensor, " n"]]
    pairs: FieldPairs

    @property
    def objective(self) -> Float64[Tensor, " n"]:
        """The objective, if there is one.

        Raises:
            DataError: If there are several.
        """
        remedy = "use objectives, is_optimal and hypervolume"
        check_count(len(self.objectives), 1, "objective", remedy=remedy, error=DataError)
        return next(iter(self.objectives.values()))

    @property
    def is_feasible(self) -> Bool[Tensor, " n"]:
        """Mask of designs that satisfy all constraints."""
        mask = torch.ones(len(self.designs), dtype=torch.bool)
        for values in self.constraints.values():
            mask &= values <= 0
        return mask

    @property
    def is_optimal(self) -> Bool[Tensor, " n"]:
        """Mask of the Pareto front: feasible designs that no other feasible design dominates."""
        mask = self.is_feasible
        mask[mask.clone()] = is_non_dominated(self._values[mask])
        return mask

    @property
    def running_best(self) -> Float64[Tensor, " n"]:
        """Largest feasible objective so far; -inf before the first feasible design."""
        return torch.where(self.is_feasible, self.objective, -torch.inf).cummax(0).values

    @property
    def best(self) -> int:
        """Index of the best feasible design.

        Raises:
            DataError: If no design is feasible, or there are several objectives.
        """
        if not bool(self.is_feasible.any()):
            raise DataError(expected="a feasible design", got="none so far", remedy="evaluate more, or relax the constraints")
        return int(self.running_best.argmax())

    @property
    def reference_point(self) -> Float64[Tensor, " o"]:
        """Point below the Pareto front, by BoTorch's rule; without feasible designs, below the front of all designs."""
        mask = self.is_optimal
        front = self._values[mask if bool(mask.any()) else is_non_dominated(self._values)]
        point: Tensor = infer_reference_point(front)
        return point

    @property
    def hypervolume(self) -> Float64[Tensor, " n"]:
        """Volume that feasible designs dominate so far, above the last reference point, in the objectives' units."""
        point, values, mask = self.reference_point, self._values, self.is_feasible
        counts = range(1, len(self) + 1)
        return torch.stack([DominatedPartitioning(point, values[:n][mask[:n]]).compute_hypervolume() for n in counts])

    @property
    def _values(self) -> Float64[Tensor, "n o"]:
        return torch.stack([*self.objectives.values()], -1)

    def __len__(self) -> int:
        """Number of evaluations n."""
        return len(self.designs)
