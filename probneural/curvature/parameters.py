"""Parameters of any module as one real vector, complex ones included."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_count, check_instance, check_sequence, check_shape, validated
from probneural.errors import ArgumentError
from probneural.registry import stored


@stored(build="_from_parts")
@validated
@dataclass(frozen=True, kw_only=True)
class ParameterVector:
    """The layout of chosen parameters in one real vector; complex ones are laid out as (real, imaginary) pairs.

    A linear map of complex parameters that is only real-linear is not Hermitian in complex coordinates, so everything
    downstream works in this real space.

    Attributes:
        names: Parameter names, in the module's order.
        shapes: Their shapes as real tensors; a complex parameter has a last axis of 2.
        is_complex: Mask of the complex parameters.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    is_complex: tuple[bool, ...]

    def __post_init__(self) -> None:
        """Check that there is one shape and one flag per name."""
        for things, entries in (("shapes", self.shapes), ("flags", self.is_complex)):
            remedy = "give one per name; ParameterVector.of(module) lays out a module's parameters"
            check_count(len(entries), len(self.names), things, remedy=remedy, error=ArgumentError)

    @classmethod
    def _from_parts(
        cls, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], is_complex: tuple[bool, ...]
    ) -> ParameterVector:
        """Build the layout from the parts in a file."""
        return cls(names=names, shapes=tuple(map(torch.Size, shapes)), is_complex=is_complex)

    @classmethod
    def of(cls, module: nn.Module, chosen: Sequence[str] | None = None) -> ParameterVector:
        """Lay out a module's parameters, or those chosen.

        Args:
            module: Any module.
            chosen: Names of parameters, or of submodules, which stand for all parameters below them; all by default.

        Raises:
            ArgumentError: If a name matches no parameter, or there are no parameters.
        """
        named = dict(module.named_parameters())
        if chosen is None:
            selected = list(named)
        else:
            chosen = check_sequence(chosen, "parameters", remedy="give a list of names")
            for name in chosen:
                check_instance(name, str, "one of the parameters", remedy="give names", error=ArgumentError)
                if not any(full_name == name or full_name.startswith(f"{name}.") for full_name in named):
                    raise ArgumentError(
                        expected=f"parameters among {', '.join(named)}", got=repr(name), remedy="see named_parameters()"
                    )
            selected = [
                full_name
                for full_name in named
                if any(full_name == name or full_name.startswith(f"{name}.") for name in chosen)
            ]
        if not selected:
            raise ArgumentError(expected="a module with parameters", got="none", remedy="choose some")
        flags = tuple(named[name].is_complex() for name in selected)
        shapes = tuple(
            torch.view_as_real(named[name]).shape if flag else named[name].shape
            for name, flag in zip(selected, flags, strict=True)
        )
        return cls(names=tuple(selected), shapes=shapes, is_complex=flags)

    def check(self, module: nn.Module) -> None:
        """Raise an ArgumentError unless the layout matches the parameters of a module."""
        if not self.names or ParameterVector.of(module, self.names) != self:
            raise ArgumentError(
                expected="a layout of the module's parameters in their order",
                got=f"{', '.join(self.names[:5])} of shapes {[tuple(shape) for shape in self.shapes[:5]]}",
                remedy="ParameterVector.of(module, names) lays them out",
            )

    def check_size(self, name: str, size: int) -> None:
        """Raise a ShapeError unless the named tensor has one entry, or row, per real coordinate."""
        check_count(size, self.size, f"parameters in {name}", remedy="ParameterVector.flatten")

    @property
    def size(self) -> int:
        """Number of real coordinates P."""
        return sum(math.prod(shape) for shape in self.shapes)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Float[Tensor, " P"]:
        """Gather tensors by name into one real vector.

        Raises:
            ShapeError: If a tensor has neither the parameter's shape nor that of its real pairs.
            ArgumentError: If a tensor is missing.
        """
        pieces = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in tensors:
                raise ArgumentError(expected=f"a tensor for {name}", got=f"{', '.join(tensors)}", remedy="name all of them")
            tensor = tensors[name]
            real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
            check_shape(real, name, *shape, remedy="see named_parameters")
            pieces.append(real.reshape(-1))
        return torch.cat(pieces)

    def unflatten(self, vector: Float[Tensor, " P"]) -> dict[str, Tensor]:
        """Spread a real vector into tensors by name, complex where the parameters are.

        Raises:
            ShapeError: If the vector does not have one entry per real coordinate.
        """
        check_shape(vector, "a vector", self.size, remedy="flatten makes one")
        # one split for all: its transpose is one `cat`, where slices would each write a vector of zeros
        pieces = vector.split([math.prod(shape) for shape in self.shapes])
        tensors = {}
        for name, piece, shape, flag in zip(self.names, pieces, self.shapes, self.is_complex, strict=True):
            part = piece.reshape(shape)
            tensors[name] = torch.complex(part[..., 0], part[..., 1]) if flag else part
        return tensors
