"""Operator-learning problems whose solutions are known exactly."""

from probneural.problems.base import Problem
from probneural.problems.burgers import Burgers
from probneural.problems.darcy import Darcy1D
from probneural.problems.heat import Heat
from probneural.problems.laws import IndependentLaws, Law, UniformParameters
from probneural.problems.random_fields import GaussianRandomField

__all__ = ["Burgers", "Darcy1D", "GaussianRandomField", "Heat", "IndependentLaws", "Law", "Problem", "UniformParameters"]
