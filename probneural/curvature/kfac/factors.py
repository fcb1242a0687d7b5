"""Curvature in the eigenbasis of Kronecker products, and the root of the weights' posterior covariance made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64, jaxtyped
from torch import Tensor

from probneural.curvature.kfac.blocks import BlockBases, MatrixBlocks, PairMixing
from probneural.curvature.weights import WeightRoot
from probneural.errors import ArgumentError, ShapeError
from probneural.registry import stored

_MIXING = ("first", "second", "cosine", "sine", "sign")


@dataclass(frozen=True, eq=False, kw_only=True)
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
        target = self.eigenvalues.device if device is None else torch.device(device)
        return KroneckerFactors(
            bases=tuple(bases.to(kind, target) for bases in self.bases),
            mixing=self.mixing.to(kind, target),
            eigenvalues=self.eigenvalues.to(target, kind),
            layers=self.layers.to(target),
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
        required = ["eigenvalues", "layers", *(f"mixing.{name}" for name in _MIXING)]
        required += [
            f"blocks.{number}.{part}" for number in range(count) for part in ("positions", "layers", "rows", "columns")
        ]
        missing = [name for name in required if name not in tensors]
        if missing or not count:
            raise ArgumentError(
                expected="what tensors() returned",
                got=f"no {', '.join(missing) or 'blocks'} among {', '.join(tensors)}",
                remedy="was the file written by KroneckerFactors or KroneckerWeights?",
            )
        _check_tensors(tensors, count)
        rebuilt = []
        for number in range(count):
            blocks = MatrixBlocks(tensors[f"blocks.{number}.positions"], tensors[f"blocks.{number}.layers"])
            sides = [tensors[f"blocks.{number}.{side}"] for side in ("rows", "columns")]
            rows, columns = (torch.view_as_complex(side) if blocks.is_complex else side for side in sides)
            rebuilt.append(BlockBases(blocks, rows, columns))
        mixing = PairMixing(*(tensors[f"mixing.{name}"] for name in _MIXING))
        return cls(bases=tuple(rebuilt), mixing=mixing, eigenvalues=tensors["eigenvalues"], layers=tensors["layers"])


@stored(parts="tensors", build="from_tensors")
@dataclass(frozen=True, eq=False)
class KroneckerWeights(WeightRoot):
    """R = diag(prior_std) U diag(eigenvalues / noise_scale + scale)^(-1/2): a root of the posterior covariance of the weights.

    With rows that the prior's standard deviations have whitened, `scale` 1 stands for that prior; other values, one for each
    layer for example, for priors `scale` times as precise. The latent vector lives in eigen-coordinates.

    Args:
        factors: U and the eigenvalues.
        prior_std: Factor on each parameter, `(P,)`: the one of the rows. Zero fixes a parameter.
        noise_scale: Noise variance that divides the curvature; 1 if the rows hold it already.
        scale: Prior precision of each eigen-coordinate in whitened units, `(P,)`; `precisions[factors.layers]`.

    Raises:
        ShapeError: If prior_std or scale is not `(P,)`.
        ArgumentError: If the noise scale or a scale is not positive, or a standard deviation is negative.
    """

    factors: KroneckerFactors
    _: KW_ONLY
    prior_std: Float[Tensor, " P"]
    noise_scale: float
    scale: Float[Tensor, " P"]

    def __post_init__(self) -> None:
        """Check shapes and signs."""
        for name in ("prior_std", "scale"):
            shape = tuple(getattr(self, name).shape)
            if shape != (self.factors.size,):
                raise ShapeError(
                    expected=f"{name} ({self.factors.size},)", got=str(shape), remedy="give one number per parameter"
                )
        if not (self.noise_scale > 0 and bool((self.scale > 0).all()) and bool((self.prior_std >= 0).all())):
            raise ArgumentError(
                expected="a positive noise scale, positive scales, and prior standard deviations of at least 0",
                got=f"{self.noise_scale}, {float(self.scale.min())} and {float(self.prior_std.min())} at least",
                remedy="fix a parameter by a prior standard deviation of 0",
            )

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.factors.eigenvalues

    @property
    def std(self) -> Float[Tensor, " P"]:
        """Posterior standard deviation of each eigen-coordinate, in whitened units."""
        return (self.factors.eigenvalues / self.noise_scale + self.scale.to(self.factors.eigenvalues)).rsqrt()

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """Scale each eigen-coordinate, rotate back, scale by the prior."""
        std = self.std
        return self.factors.rotate_back(latents.to(std) * std) * self.prior_std.to(std)

    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """The same in reverse order."""
        std = self.std
        return self.factors.rotate(vectors.to(std) * self.prior_std.to(std)) * std

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> KroneckerWeights:
        """The same root in another real dtype, or on another device."""
        factors = self.factors.to(dtype, device)
        return replace(
            self, factors=factors, prior_std=self.prior_std.to(factors.eigenvalues), scale=self.scale.to(factors.eigenvalues)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Real tensors by name, all that `from_tensors` needs."""
        noise_scale = torch.tensor(self.noise_scale, dtype=torch.float64, device="cpu")
        return {"prior_std": self.prior_std, "scale": self.scale, "noise_scale": noise_scale, **self.factors.tensors()}

    @classmethod
    def from_tensors(cls, **tensors: Tensor) -> KroneckerWeights:
        """Rebuild the root from `tensors()`.

        Raises:
            ArgumentError: If one is missing.
        """
        factors = KroneckerFactors.from_tensors(tensors)
        missing = [name for name in ("prior_std", "scale", "noise_scale") if name not in tensors]
        if missing:
            raise ArgumentError(
                expected="what tensors() returned", got=f"no {', '.join(missing)}", remedy="add them, or keep only the factors"
            )
        if tensors["noise_scale"].numel() != 1:
            raise ShapeError(expected="one noise scale", got=str(tuple(tensors["noise_scale"].shape)), remedy="use tensors()")
        noise_scale = float(tensors["noise_scale"])
        return cls(factors, prior_std=tensors["prior_std"], noise_scale=noise_scale, scale=tensors["scale"])


def _check_tensors(tensors: Mapping[str, Tensor], count: int) -> None:
    """Raise a ShapeError unless the factors' tensors have the shapes and dtypes of `count` bases and their mixing."""
    forms: dict[str, Any] = {"eigenvalues": Float[Tensor, " P"], "layers": Int64[Tensor, " P"]}
    forms |= {f"mixing.{name}": (Int64 if name in ("first", "second") else Float)[Tensor, " t"] for name in _MIXING}
    for number in range(count):
        b, m, n, pair = (f"{axis}{number}" for axis in ("b", "m", "n", "*pair"))
        forms |= {
            f"blocks.{number}.positions": Int64[Tensor, f"{b} {m} {n} {pair}"],
            f"blocks.{number}.layers": Int64[Tensor, b],
            f"blocks.{number}.rows": Float[Tensor, f"{b} {m} {m} {pair}"],
            f"blocks.{number}.columns": Float[Tensor, f"{b} {n} {n} {pair}"],
        }
    with jaxtyped("context"):  # where axes remember their sizes from one tensor to the next
        misfits = [name for name, form in forms.items() if not isinstance(tensors[name], form)]
    dtype, size = tensors["eigenvalues"].dtype, len(tensors["layers"])
    misfits += [name for name in forms if tensors[name].is_floating_point() and tensors[name].dtype != dtype]
    misfits += [name for name in forms if name.endswith("positions") and tensors[name].shape[3:] not in ((), (2,))]
    places = [name for name in ("mixing.first", "mixing.second") if name not in misfits]
    misfits += [name for name in places if not bool(((tensors[name] >= 0) & (tensors[name] < size)).all())]
    if misfits:
        raise ShapeError(
            expected=f"factors of one dtype that cover each of {size} parameters, in shapes that fit together",
            got=f"others of {', '.join(misfits[:5])}",
            remedy="use what tensors() returned",
        )
