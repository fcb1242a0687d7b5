"""Forms of the weights' covariance: each class fits one to a `WeightProblem`."""

from probneural.heads.laplace.structures.base import Structure
from probneural.heads.laplace.structures.diagonal import Diagonal
from probneural.heads.laplace.structures.full import Full
from probneural.heads.laplace.structures.iterative import Iterative
from probneural.heads.laplace.structures.kronecker import Kronecker
from probneural.heads.laplace.structures.low_rank import LowRank

STRUCTURES: dict[str, type[Structure]] = {each.name: each for each in (LowRank, Kronecker, Diagonal, Full, Iterative)}
"""Shorthands."""

__all__ = ["STRUCTURES", "Diagonal", "Full", "Iterative", "Kronecker", "LowRank", "Structure"]
