"""Problems refuse arguments outside their ranges, with errors that name them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from probneural.errors import ArgumentError
from probneural.problems import (
    AdvectionDiffusion,
    Antiderivative,
    Darcy2D,
    GaussianRandomField,
    Heat,
    Helmholtz,
    KortewegDeVries,
    NavierStokesShell,
    Problem,
    ShallowWater,
    VariableSpeedAdvection,
    Wave,
)

ARGUMENTS: dict[type[Problem], list[dict[str, Any]]] = {
    AdvectionDiffusion: [
        {"diffusivity": 0.0},
        {"time": -1.0},
        {"dimension": 4},
        {"velocity": (1.0, 2.0)},
        {"velocity": math.nan},
        {"velocity": "fast"},
        {"design_dim": 10**6},
    ],
    Antiderivative: [{"equation": "cubic"}, {"random_field": 3}, {"design_dim": 63}],
    Darcy2D: [{"degree": 0}, {"spread": 0.0}, {"random_field": GaussianRandomField(2, 3)}, {"design_dim": 10**4}],
    Heat: [{"diffusivity": 0.0}, {"diffusivity": math.nan}, {"time": -1.0}, {"dimension": 4}, {"boundary": "neumann"}],
    Helmholtz: [
        {"wavenumber": 0.0},
        {"wavenumber": math.sqrt(2.0) * math.pi},
        {"random_field": 3},
        {"design_dim": 0},
    ],
    KortewegDeVries: [
        {"time": 0.0},
        {"integrator": 1e-8},
        {"lower": (0.7, 1.0)},
        {"lower": (0.0, 1.0, -4.0, -12.0)},
        {"lower": (0.7, 0.8, -4.0, -12.0)},
        {"lower": (0.7, 1.0, 3.0, -12.0)},
        {"design_dim": 5},
    ],
    NavierStokesShell: [
        {"shell": 3},
        {"shell": 0},
        {"viscosity": 0.0},
        {"time": -1.0},
        {"drift": (0.0, math.nan)},
        {"drift": (1.0,)},
        {"sigma": 0.0},
        {"design_dim": 13},
    ],
    ShallowWater: [
        {"time": 0.0},
        {"rotation": -1.0},
        {"gravity": math.inf},
        {"depth": 0.0},
        {"random_field": 3},
        {"design_dim": 865},
    ],
    VariableSpeedAdvection: [{"time": 0.0}, {"slowness_field": GaussianRandomField(2, 3)}, {"random_field": 0}],
    Wave: [
        {"speed": 0.0},
        {"time": -1.0},
        {"velocity_scale": 0.0},
        {"dimension": 4},
        {"boundary": "neumann"},
        {"random_field": 3},
        {"design_dim": 10**6},
    ],
}


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("kind", "arguments"), [(kind, arguments) for kind in ARGUMENTS for arguments in ARGUMENTS[kind]], ids=str
)
def test_bad_arguments(kind: type[Problem], arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"expected .*{next(iter(arguments))}"):
        kind(**arguments)
