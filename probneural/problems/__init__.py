"""Operator-learning problems with exact solutions."""

from probneural.problems.advection import Advection, AdvectionDiffusion, VariableSpeedAdvection
from probneural.problems.antiderivative import Antiderivative
from probneural.problems.base import Evolution, GaussianInputProblem, Problem
from probneural.problems.burgers import Burgers
from probneural.problems.darcy import Darcy1D, Darcy2D
from probneural.problems.heat import Heat, SphereHeat
from probneural.problems.helmholtz import Helmholtz
from probneural.problems.input_distributions import (
    IndependentDistributions,
    InputDistribution,
    StateDistribution,
    UniformParameters,
)
from probneural.problems.joukowski_airfoil import JoukowskiAirfoil
from probneural.problems.korteweg_de_vries import KortewegDeVries
from probneural.problems.kuramoto_sivashinsky import KuramotoSivashinsky
from probneural.problems.method_of_lines import MethodOfLines
from probneural.problems.navier_stokes import NavierStokesShell
from probneural.problems.poisson_on_shapes import PoissonOnShapes
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.shallow_water import ShallowWater
from probneural.problems.spectral import dealias, spectral_derivative
from probneural.problems.time_integration import TimeIntegrator
from probneural.problems.wave import Wave

__all__ = [
    "Advection",
    "AdvectionDiffusion",
    "Antiderivative",
    "Burgers",
    "Darcy1D",
    "Darcy2D",
    "Evolution",
    "GaussianInputProblem",
    "GaussianRandomField",
    "Heat",
    "Helmholtz",
    "IndependentDistributions",
    "InputDistribution",
    "JoukowskiAirfoil",
    "KortewegDeVries",
    "KuramotoSivashinsky",
    "MethodOfLines",
    "NavierStokesShell",
    "PoissonOnShapes",
    "Problem",
    "ShallowWater",
    "SphereHeat",
    "StateDistribution",
    "TimeIntegrator",
    "UniformParameters",
    "VariableSpeedAdvection",
    "Wave",
    "dealias",
    "spectral_derivative",
]

__dir__ = __all__.copy
