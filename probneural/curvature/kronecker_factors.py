"""Curvature in the eigenbasis of Kronecker products, and the root of the weights' posterior covariance made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probneural.curvature.kronecker_blocks import BlockBases, MatrixBlocks, PairMixing
from probneural.curvature.weight_roots import WeightRoot
from probneural.errors import ArgumentError, ShapeError

_MIXING = ("first", "second", "cosine", "sine", "sign")


@dataclass(frozen=True, eq=False)
class KroneckerFactors:
    """G ~= U diag(eigenvalues) U^T with an orthogonal U made of Kronecker products, one per block of parameters.

    Coordinates of rotated vectors keep their blocks' places, so `layers` holds for parameters and coordinates alike. All are
    real numbers: a complex coordinate of a complex block counts as two.

    Attributes:
        bases: Bases of the blocks of each parameter tensor.
        mixing: Rotations of coupled modes, done first.
        eigenvalues: `(P,)`, in units of the rows squared; zero along null directions.
        layers: Which of the layout's names each coordinate belongs to, `(P,)`: a bias goes with its weight, and tensors with
            coupled modes with the first of them. Names without coordinates can occur.

    Raises:
        ShapeError: If the blocks do not cover every coordinate exactly once.
    """

    bases: tuple[BlockBases, ...]
    mixing: PairMixing
    eigenvalues: Float[Tensor, " P"]
    layers: Int64[Tensor, " P"]

    def __post_init__(self) -> None:
        """Check the cover."""
        places = torch.cat([bases.blocks.positions.flatten() for bases in self.bases])
        if not torch.equal(places.sort().values, torch.arange(len(self.eigenvalues), device=places.device)):
            raise ShapeError(
                expected=f"blocks that cover each of {len(self.eigenvalues)} coordinates once",
                got=f"{len(places)} places",
                remedy="build factors by kronecker() or from_tensors()",
            )

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return self.eigenvalues.shape[0]

    def rotate(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s P"]:
        """U^T w: from parameters to eigen-coordinates."""
        mixed = self.mixing.forward(vectors.to(self.eigenvalues))
        rotated = torch.empty_like(mixed)
        for bases in self.bases:
            bases.blocks.scatter(bases.forward(bases.blocks.gather(mixed)), into=rotated)
        return rotated

    def rotate_back(self, coordinates: Float[Tensor, "s P"]) -> Float[Tensor, "s P"]:
        """U z: from eigen-coordinates to parameters."""
        coordinates = coordinates.to(self.eigenvalues)
        mixed = torch.empty_like(coordinates)
        for bases in self.bases:
            bases.blocks.scatter(bases.backward(bases.blocks.gather(coordinates)), into=mixed)
        return self.mixing.backward(mixed)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> KroneckerFactors:
        """The same factors in another real dtype, or on another device."""
        kind = self.eigenvalues.dtype if dtype is None else dtype
        place = self.eigenvalues.device if device is None else torch.device(device)
        return KroneckerFactors(
            bases=tuple(bases.to(kind, place) for bases in self.bases),
            mixing=self.mixing.to(kind, place),
            eigenvalues=self.eigenvalues.to(place, kind),
            layers=self.layers.to(place),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Real tensors by name, all that `from_tensors` needs."""
        named = {"eigenvalues": self.eigenvalues, "layers": self.layers}
        named |= {f"mixing.{name}": part for name, part in zip(_MIXING, self.mixing.parts(), strict=True)}
        for number, bases in enumerate(self.bases):
            named[f"blocks.{number}.positions"] = bases.blocks.positions
            named[f"blocks.{number}.layers"] = bases.blocks.layers
            for side, basis in (("rows", bases.rows), ("columns", bases.columns)):
                named[f"blocks.{number}.{side}"] = torch.view_as_real(basis.resolve_conj()) if basis.is_complex() else basis
        return {name: tensor.contiguous() for name, tensor in named.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> KroneckerFactors:
        """Rebuild the factors from `tensors()`.

        Raises:
            ArgumentError: If one is missing.
            ShapeError: If the blocks do not cover every coordinate exactly once.
        """
        count = sum(name.endswith(".positions") for name in tensors)
        wanted = ["eigenvalues", "layers", *(f"mixing.{name}" for name in _MIXING)]
        wanted += [f"blocks.{number}.{part}" for number in range(count) for part in ("positions", "layers", "rows", "columns")]
        missing = [name for name in wanted if name not in tensors]
        if missing or not count:
            raise ArgumentError(
                expected="what tensors() returned",
                got=f"no {', '.join(missing) or 'blocks'} among {', '.join(tensors)}",
                remedy="was the file written by KroneckerFactors or KroneckerWeights?",
            )
        found = []
        for number in range(count):
            blocks = MatrixBlocks(tensors[f"blocks.{number}.positions"], tensors[f"blocks.{number}.layers"])
            sides = [tensors[f"blocks.{number}.{side}"] for side in ("rows", "columns")]
            rows, columns = (torch.view_as_complex(side) if blocks.is_complex else side for side in sides)
            found.append(BlockBases(blocks, rows, columns))
        mixing = PairMixing(*(tensors[f"mixing.{name}"] for name in _MIXING))
        return cls(bases=tuple(found), mixing=mixing, eigenvalues=tensors["eigenvalues"], layers=tensors["layers"])


@dataclass(frozen=True, eq=False)
class KroneckerWeights(WeightRoot):
    """R = diag(spread) U diag(eigenvalues / level + scale)^(-1/2): a root of the posterior covariance of the weights.

    With rows that the prior's standard deviations have whitened, `scale` 1 stands for that prior; other values, one for each
    layer for example, for priors `scale` times as precise. The latent vector lives in eigen-coordinates.

    Args:
        factors: U and the eigenvalues.
        spread: Factor on each parameter, `(P,)`: the one of the rows. Zero fixes a parameter.
        level: Noise variance that divides the curvature; 1 if the rows hold it already.
        scale: Prior precision of each eigen-coordinate in whitened units, `(P,)`; `precisions[factors.layers]`.

    Raises:
        ShapeError: If spread or scale is not `(P,)`.
        ArgumentError: If the level or a scale is not positive, or a spread is negative.
    """

    factors: KroneckerFactors
    spread: Float[Tensor, " P"]
    level: float
    scale: Float[Tensor, " P"]

    def __post_init__(self) -> None:
        """Check shapes and signs."""
        for name in ("spread", "scale"):
            shape = tuple(getattr(self, name).shape)
            if shape != (self.factors.size,):
                raise ShapeError(
                    expected=f"{name} ({self.factors.size},)", got=str(shape), remedy="give one number per parameter"
                )
        if not (self.level > 0 and bool((self.scale > 0).all()) and bool((self.spread >= 0).all())):
            raise ArgumentError(
                expected="a positive level, positive scales, and spreads of at least 0",
                got=f"level {self.level}, scales from {float(self.scale.min())}, spreads from {float(self.spread.min())}",
                remedy="fix a parameter by a spread of 0",
            )

    @property
    def size(self) -> int:
        """P."""
        return self.factors.size

    @property
    def rank(self) -> int:
        """P again."""
        return self.factors.size

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the factors."""
        return self.factors.eigenvalues.dtype

    @property
    def device(self) -> torch.device:
        """Device of the factors."""
        return self.factors.eigenvalues.device

    @property
    def deviations(self) -> Float[Tensor, " P"]:
        """Posterior standard deviation of each eigen-coordinate, in whitened units."""
        return (self.factors.eigenvalues / self.level + self.scale.to(self.factors.eigenvalues)).rsqrt()

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """Shrink each eigen-coordinate, rotate back, scale by the spread."""
        deviations = self.deviations
        return self.factors.rotate_back(latents.to(deviations) * deviations) * self.spread.to(deviations)

    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """The same in reverse order."""
        deviations = self.deviations
        return self.factors.rotate(vectors.to(deviations) * self.spread.to(deviations)) * deviations

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> KroneckerWeights:
        """The same root in another real dtype, or on another device."""
        factors = self.factors.to(dtype, device)
        return replace(
            self, factors=factors, spread=self.spread.to(factors.eigenvalues), scale=self.scale.to(factors.eigenvalues)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Real tensors by name, all that `from_tensors` needs."""
        level = torch.tensor(self.level, dtype=torch.float64, device="cpu")
        return {"spread": self.spread, "scale": self.scale, "level": level, **self.factors.tensors()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> KroneckerWeights:
        """Rebuild the root from `tensors()`.

        Raises:
            ArgumentError: If one is missing.
        """
        factors = KroneckerFactors.from_tensors(tensors)
        missing = [name for name in ("spread", "scale", "level") if name not in tensors]
        if missing:
            raise ArgumentError(
                expected="what tensors() returned", got=f"no {', '.join(missing)}", remedy="add them, or keep only the factors"
            )
        return cls(factors, tensors["spread"], float(tensors["level"]), tensors["scale"])
