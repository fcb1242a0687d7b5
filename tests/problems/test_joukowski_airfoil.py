"""Flow around airfoils: the complex potential, tangency, the Kutta condition, lift by pressure and by circulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from probneural.functionals import boundary_integral
from probneural.problems import JoukowskiAirfoil
from probneural.problems.joukowski_airfoil import _chord, _mapped, _pressure, _velocity
from tests.helpers import uniform

PROBLEM = JoukowskiAirfoil()
COUNT = 6


@dataclass(frozen=True)
class Flow:
    """Angles, centres and chords of some samples, `(n, 1)`, and the potential as a textbook writes it."""

    angle: Tensor
    centre: Tensor

    @property
    def radius(self) -> Tensor:
        return (1.0 - self.centre).abs()

    @property
    def circulation(self) -> Tensor:
        """Γ / U in units of the ζ-plane."""
        return 4.0 * math.pi * self.radius * (self.angle + (self.centre.imag / self.radius).asin()).sin()

    def circle(self, count: int, *, ratio: float = 1.0) -> tuple[Tensor, Tensor]:
        """Points ζ around the centre, the first in the direction of the trailing edge, and dz of each in chords."""
        steps = torch.arange(count, dtype=torch.float64) / count
        offset = ratio * (1.0 - self.centre) * torch.exp(2j * math.pi * steps)
        zeta = self.centre + offset
        return zeta, (1.0 - zeta**-2) / _chord(self.centre) * 2j * math.pi / count * offset

    def potential(self, zeta: Tensor) -> Tensor:
        offset = zeta - self.centre
        turn = torch.exp(1j * self.angle)
        uniform_flow = offset * turn.conj() + self.radius**2 * turn / offset
        return uniform_flow + 1j * self.circulation / (2.0 * math.pi) * offset.log()

    def potential_at(self, z: Tensor) -> Tensor:
        """At points of the plane of the airfoil: of the two ζ, the one outside of the circle."""
        wide = (z - 1.0) * _chord(self.centre) + 2.0
        root = (wide**2 - 4.0).sqrt()
        candidates = torch.stack([0.5 * (wide + root), 0.5 * (wide - root)])
        place = (candidates - self.centre).abs().argmax(0, keepdim=True)
        return self.potential(candidates.gather(0, place)[0])


@pytest.fixture(scope="module")
def flow() -> Flow:
    return Flow(*PROBLEM._drawn(COUNT, seed=0))


def test_velocity_is_the_gradient_of_a_harmonic_function(flow: Flow) -> None:
    """Central differences in the plane of the airfoil; the velocity's formula is the one without the common factor."""
    zeta = flow.centre + (1.0 - flow.centre) * (1.2 + uniform(COUNT, 40)) * torch.exp(2j * math.pi * uniform(COUNT, 40, seed=1))
    z, step = _mapped(zeta, flow.centre), 1e-4
    east, west, north, south = (flow.potential_at(z + step * turn) for turn in (1.0, -1.0, 1j, -1j))
    stream = torch.stack([part.imag for part in (east, west, north, south)])
    laplacian = (stream.sum(0) - 4.0 * flow.potential_at(z).imag) / step**2
    assert float(laplacian.abs().max()) < 1e-4
    slopes = torch.stack([stream[0] - stream[1], stream[2] - stream[3]]) / (2.0 * step) / _chord(flow.centre)
    velocity = _velocity(zeta, flow.centre, flow.angle)
    # dψ/dx = -v and dψ/dy = u, and the formula is u - iv
    torch.testing.assert_close(torch.stack([velocity.imag, velocity.real]), slopes, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(1.0 - slopes.square().sum(0), _pressure(zeta, flow.centre, flow.angle), rtol=1e-5, atol=1e-6)


def test_flow_is_tangent_to_the_surface_and_uniform_far_away(flow: Flow) -> None:
    zeta, dz = (part[:, 1:] for part in flow.circle(101))  # without the trailing edge, where dz = 0
    velocity = _velocity(zeta, flow.centre, flow.angle)
    assert float((velocity * dz / dz.abs()).imag.abs().max()) < 1e-12
    far = _velocity(flow.circle(7, ratio=1e8)[0], flow.centre, flow.angle)
    torch.testing.assert_close(far, torch.exp(-1j * flow.angle).expand_as(far), rtol=0, atol=1e-7)


def test_trailing_edge_has_the_limit_of_the_kutta_condition(flow: Flow) -> None:
    """At ζ = 1 both derivatives vanish, and the velocity is the ratio of the second ones: 2 is z'' there."""
    edge = torch.ones(COUNT, 1, dtype=torch.complex128)
    offset, turn = edge - flow.centre, torch.exp(1j * flow.angle)
    first = turn.conj() - flow.radius**2 * turn / offset**2 + 1j * flow.circulation / (2.0 * math.pi * offset)
    second = 2.0 * flow.radius**2 * turn / offset**3 - 1j * flow.circulation / (2.0 * math.pi * offset**2)
    assert float(first.abs().max()) < 1e-14
    torch.testing.assert_close(_velocity(edge, flow.centre, flow.angle), 0.5 * second, rtol=1e-13, atol=0)


def test_lift_is_that_of_pressure_and_of_circulation(flow: Flow) -> None:
    lift = PROBLEM.lift_coefficients(COUNT, seed=0)
    zeta, dz = flow.circle(400)
    # the mesh's outward normal points into the airfoil: n ds = i dz
    force = (1j * _pressure(zeta, flow.centre, flow.angle) * dz).sum(1, keepdim=True) * torch.exp(-1j * flow.angle)
    torch.testing.assert_close(force.imag[:, 0], lift, rtol=1e-10, atol=1e-12)
    assert float(force.real.abs().max()) < 1e-12  # no drag
    zeta, dz = flow.circle(50, ratio=20.0)
    around = (_velocity(zeta, flow.centre, flow.angle) * dz).sum(1)
    torch.testing.assert_close(-2.0 * around.real, lift, rtol=1e-12, atol=1e-13)
    assert float(around.imag.abs().max()) < 1e-13  # no sources


def test_a_thin_symmetric_airfoil_has_the_lift_of_a_flat_plate() -> None:
    plate = JoukowskiAirfoil(thickness=1e-6, camber=0.0)
    angle = plate.sample(5, resolution=50, seed=2, dtype=torch.float64).inputs.values[:, 0, 0]
    torch.testing.assert_close(plate.lift_coefficients(5, seed=2), 2.0 * math.pi * angle.sin(), rtol=1e-5, atol=0)


def test_lift_is_a_functional_of_the_sampled_pressure() -> None:
    errors: list[float] = []
    for resolution in (400, 1600, 6400):
        pairs = PROBLEM.sample(COUNT, resolution=resolution, seed=0, dtype=torch.float64)
        angle = pairs.inputs.values[:, 0, 0]
        direction = torch.stack([-angle.sin(), angle.cos()], 1)
        functional = boundary_integral(pairs.outputs.grid, PROBLEM.on_surface, direction=direction)
        errors.append(float((functional(pairs.outputs.values)[:, 0, 0] - PROBLEM.lift_coefficients(COUNT, seed=0)).abs().max()))
    assert errors[0] / errors[1] > 3.0
    assert errors[1] / errors[2] > 3.0
    assert errors[2] < 3e-4


@pytest.mark.parametrize("resolution", [50, 300, 3000])
def test_meshes_have_positive_cells_and_two_boundaries(resolution: int) -> None:
    problem = JoukowskiAirfoil(thickness=0.3, camber=0.2)
    pairs = problem.sample(20, resolution=resolution, seed=1, dtype=torch.float64)
    for row, grid in enumerate(pairs.inputs.grid.singles()):
        assert grid.cells is not None
        assert grid.size <= resolution
        corners = grid.points[grid.cells]
        assert float(torch.linalg.det(corners[:, 1:] - corners[:, :1]).max()) < 0.0
        on_boundary, surface = grid.boundary.unique(), pairs.inputs.values[row, 1] > 0.0
        torch.testing.assert_close(problem.on_surface(grid.points[on_boundary]), surface[on_boundary])
        assert bool((pairs.inputs.values[row, 2][~surface] > 0.0).all())
        assert float(grid.points[surface, 0].amax()) == pytest.approx(1.0, abs=0.02)
