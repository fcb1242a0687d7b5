"""Forms of the weights' covariance: each class fits one to a `WeightProblem`."""

from probneural.heads.laplace.structures.closed_form import Diagonal as Diagonal
from probneural.heads.laplace.structures.closed_form import Full as Full
from probneural.heads.laplace.structures.closed_form import Kronecker as Kronecker
from probneural.heads.laplace.structures.low_rank import LowRank as LowRank
from probneural.heads.weight_posterior import Structure as Structure

STRUCTURES: dict[str, type[Structure]] = {each.name: each for each in (LowRank, Kronecker, Diagonal, Full)}
"""Shorthands."""
