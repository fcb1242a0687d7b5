"""Poisson's equation on random plane domains, with exact solutions and one mesh per sample."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Complex128, Float64, Int64
from torch import Tensor

from probneural.checks import check_flag, check_integer
from probneural.contexts import Undisturbed
from probneural.fields import Field
from probneural.grids import Grid
from probneural.grids.mesh import triangulated
from probneural.pairs import FieldPairs
from probneural.problems.input_distributions import check_sample_dtype
from probneural.randomness import check_seed, stream
from probneural.settings import Count, Index, ProperFraction, Settings


@dataclass(frozen=True)
class PoissonOnShapes(Settings, Undisturbed):
    """-Δu = f on random domains, with u = 0 on the boundary or harmonic boundary data; two-dimensional, exact.

    A domain is the image of the unit disk under the polynomial φ(z) = z + Σ_k c_k z^(k+1), which is one-to-one where
    Σ (k+1)|c_k| < 1. The source is a polynomial on the disk, f(φ(z)) = Σ_ab F_ab z^a z̄^b with Hermitian F. With R the
    coefficients of |φ'|² f,

        u(φ(z)) = Σ_ab R_ab (h_ab(z) - z^(a+1) z̄^(b+1)) / (4 (a+1) (b+1)),  h_ab = z^(a-b) if a >= b, else z̄^(b-a),

    plus Re Σ_k g_k z^k for boundary data. The map from source and shape to u is linear in f and nonlinear in the shape. Inputs
    are f, and with boundary data their values on the boundary (0 elsewhere); all dimensionless.

    Args:
        degree: Largest degree of f in z and in z̄.
        terms: Number of coefficients c_k.
        distortion: Largest Σ (k+1)|c_k|, below 1; 0 for the unit disk.
        boundary_data: Whether random harmonic functions are added.

    Raises:
        ArgumentError: If a number is out of range.

    Examples:
        >>> pairs = PoissonOnShapes().sample(2, resolution=100, seed=0)
        >>> pairs.inputs.values.shape, pairs.inputs.grid.points.shape
        (torch.Size([2, 1, 100]), torch.Size([2, 100, 2]))
    """

    _: KW_ONLY
    degree: Index = 3
    terms: Count = 3
    distortion: ProperFraction = 0.6
    boundary_data: bool = False

    out_channels = 1

    @property
    def name(self) -> str:
        """Name of the problem in tables."""
        return "Poisson on shapes" + (", boundary data" if self.boundary_data else "")

    @property
    def in_channels(self) -> int:
        """One for the source, one more for boundary data."""
        return 1 + self.boundary_data

    def sample(
        self, n: int, *, resolution: int, seed: int, graded: bool = False, dtype: torch.dtype = torch.float32
    ) -> FieldPairs:
        """Draw shapes and sources and solve for each, on one mesh per sample.

        Args:
            n: Number of pairs.
            resolution: Number of points of each mesh.
            seed: Seed of the draws: the same seed and n give the same functions on every mesh.
            graded: Whether points are dense near the boundary, in place of about uniform on the disk.
            dtype: Dtype of the returned values; the arithmetic is float64.

        Raises:
            ArgumentError: If n or the resolution is too small.
        """
        n, resolution = check_integer(n, "n"), check_integer(resolution, "resolution", least=16)
        graded = check_flag(graded, "graded")
        check_sample_dtype(dtype)
        generator = stream(check_seed(seed), "shapes")
        shapes, sources, harmonics = self._shapes(n, generator), self._sources(n, generator), self._harmonics(n, generator)
        disk, cells, is_boundary = triangulated_disk(resolution, graded=graded)
        turns = torch.rand(n, 1, generator=generator, dtype=torch.float64)
        z = torch.view_as_complex(disk) * torch.exp(2j * math.pi * turns)
        grid = Grid.batch([Grid.mesh(torch.view_as_real(points), cells) for points in _mapped(shapes, z)])
        inputs, outputs = _polynomial(sources, z), _solution(shapes, sources, z) + _harmonic(harmonics, z)
        channels = [inputs] + ([_harmonic(harmonics, z) * is_boundary] if self.boundary_data else [])
        return FieldPairs(Field(torch.stack(channels, 1).to(dtype), grid), Field(outputs[:, None].to(dtype), grid))

    def _shapes(self, n: int, generator: torch.Generator) -> Complex128[Tensor, "n k"]:
        """Coefficients c_k with a total distortion that is uniform up to the largest."""
        raw = torch.randn(n, self.terms, 2, generator=generator, dtype=torch.float64)
        size = self.distortion * torch.rand(n, 1, generator=generator, dtype=torch.float64)
        coefficients = torch.view_as_complex(raw)
        factors = torch.arange(2, self.terms + 2, dtype=torch.float64)
        return coefficients * size / (factors * coefficients.abs()).sum(1, keepdim=True)

    def _sources(self, n: int, generator: torch.Generator) -> Complex128[Tensor, "n a b"]:
        """Hermitian matrices of coefficients that fall like 1 / (1 + a + b)."""
        size = self.degree + 1
        raw = torch.view_as_complex(torch.randn(n, size, size, 2, generator=generator, dtype=torch.float64))
        decay = 1.0 / (1.0 + torch.arange(size)[:, None] + torch.arange(size)).to(torch.float64)
        return 0.5 * (raw + raw.mH) * decay

    def _harmonics(self, n: int, generator: torch.Generator) -> Complex128[Tensor, "n k"]:
        """Coefficients g_k of degrees 0 to 3; zeros without boundary data."""
        raw = torch.view_as_complex(torch.randn(n, 4, 2, generator=generator, dtype=torch.float64))
        return raw / 8.0 if self.boundary_data else torch.zeros_like(raw)


def triangulated_disk(
    count: int, *, graded: bool = False
) -> tuple[Float64[Tensor, "p 2"], Int64[Tensor, "m 3"], Float64[Tensor, " p"]]:
    """Return points of the unit disk, their triangulation, and 1 at points of the boundary, 0 elsewhere.

    Points inside follow Vogel's spiral, about uniformly; graded ones lie at r^(1/2) of its radii, dense near the boundary.
    """
    rim = round(2.0 * math.sqrt(math.pi * count) * 0.9)
    inner = count - rim
    radii = ((torch.arange(inner, dtype=torch.float64) + 0.5) / inner).sqrt() * (1.0 - math.sqrt(math.pi / count) * 0.8)
    radii = radii.sqrt() if graded else radii
    angles = torch.arange(inner, dtype=torch.float64) * math.pi * (3.0 - math.sqrt(5.0))
    around = 2.0 * math.pi * torch.arange(rim, dtype=torch.float64) / rim
    radii, angles = torch.cat([radii, torch.ones(rim, dtype=torch.float64)]), torch.cat([angles, around])
    points = torch.stack([radii * angles.cos(), radii * angles.sin()], 1)
    cells = triangulated(points)
    return points, cells, (torch.arange(count) >= inner).to(torch.float64)


def _powers(z: Complex128[Tensor, "n p"], count: int) -> Complex128[Tensor, "n p k"]:
    """1, z, ..., z^(count - 1)."""
    return z[..., None] ** torch.arange(count)


def _mapped(shapes: Complex128[Tensor, "n k"], z: Complex128[Tensor, "n p"]) -> Complex128[Tensor, "n p"]:
    """φ(z) = z + Σ_k c_k z^(k+1)."""
    return z + (_powers(z, shapes.shape[1] + 2)[..., 2:] * shapes[:, None]).sum(-1)


def _polynomial(coefficients: Complex128[Tensor, "n a b"], z: Complex128[Tensor, "n p"]) -> Float64[Tensor, "n p"]:
    """Σ_ab F_ab z^a z̄^b."""
    powers = _powers(z, coefficients.shape[1])
    return torch.einsum("nab,npa,npb->np", coefficients, powers, powers.conj()).real


def _harmonic(coefficients: Complex128[Tensor, "n k"], z: Complex128[Tensor, "n p"]) -> Float64[Tensor, "n p"]:
    """Re Σ_k g_k z^k."""
    return (_powers(z, coefficients.shape[1]) * coefficients[:, None]).sum(-1).real


def _solution(
    shapes: Complex128[Tensor, "n k"], sources: Complex128[Tensor, "n a b"], z: Complex128[Tensor, "n p"]
) -> Float64[Tensor, "n p"]:
    """u(φ(z)) that vanishes on the boundary."""
    n, terms = shapes.shape
    size = sources.shape[1] + terms
    # φ'(z) = Σ_i p_i z^i, and R_ab = Σ_ij p_i conj(p_j) F_(a-i)(b-j)
    slope = torch.cat([torch.ones(n, 1, dtype=shapes.dtype), shapes * torch.arange(2, terms + 2)], 1)
    products = torch.zeros(n, size, size, dtype=shapes.dtype)
    for i in range(terms + 1):
        for j in range(terms + 1):
            factor = (slope[:, i] * slope[:, j].conj())[:, None, None]
            products[:, i : i + sources.shape[1], j : j + sources.shape[1]] += factor * sources
    powers = _powers(z, size + 1)
    degrees = torch.arange(size)
    scaled = products / (4.0 * (degrees[:, None] + 1) * (degrees + 1))
    particular = torch.einsum("nab,npa,npb->np", scaled, powers[..., 1:], powers[..., 1:].conj())
    # h_ab depends on a - b only
    total = torch.zeros_like(z)
    for difference in range(1 - size, size):
        diagonal = scaled.diagonal(-difference, 1, 2).sum(-1)[:, None]
        power = powers[..., abs(difference)]
        total = total + diagonal * (power if difference >= 0 else power.conj())
    return (total - particular).real
