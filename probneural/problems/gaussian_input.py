"""Base class of problems with Gaussian random field inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from probneural.checks import check_instance, check_integer
from probneural.errors import ArgumentError
from probneural.grids import Grid
from probneural.problems.base import Problem, shifted_fields
from probneural.problems.input_distributions import InputDistribution
from probneural.problems.random_fields import GaussianRandomField


@dataclass(frozen=True, kw_only=True)
class GaussianInputProblem(Problem):
    """A problem whose inputs are a Gaussian random field or a transformation of one; abstract.

    A subclass says what it is called, how it is solved, and what its field is by default. The dimension and the boundary of
    the default are those of every field that it takes.

    Args:
        random_field: Distribution of the inputs; by default the subclass's own.
        design_dim: Coordinates of the design space, at most the number of coefficients of the inputs.

    Attributes:
        shifted_amplitude: Factor on the field in the shift `"amplitude"`.
    """

    shifted_amplitude: ClassVar[float] = 2.0
    random_field: GaussianRandomField | None = None
    design_dim: int = 8

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_random_field(self._field, "random_field", like=self._default_field)
        check_integer(self.design_dim, "design_dim", most=self.input_distribution.size)

    @property
    def input_distribution(self) -> InputDistribution:
        """The Gaussian random field of the inputs."""
        return self._field

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: fields larger by `shifted_amplitude`; `"roughness"`: α reduced by a quarter at equal mean variance."""
        shifted = shifted_fields(self._field, amplitude=self.shifted_amplitude)
        return {name: replace(self, random_field=field) for name, field in shifted.items()}

    @property
    def _default_field(self) -> GaussianRandomField:
        return GaussianRandomField(1, 31)

    @property
    def _field(self) -> GaussianRandomField:
        return self._default_field if self.random_field is None else self.random_field

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        return self._field.evaluate(coefficients, grid)[:, None]


def check_random_field(field: object, name: str, *, like: GaussianRandomField) -> None:
    """Raise an ArgumentError unless `field` is a Gaussian random field with the dimension and the boundary of another."""
    remedy = f"for instance {like!r}"
    prior = check_instance(field, GaussianRandomField, name, remedy=remedy, error=ArgumentError)
    if (prior.dimension, prior.boundary) != (like.dimension, like.boundary):
        raise ArgumentError(
            expected=f"a {name} of dimension {like.dimension} with boundary {like.boundary!r}", got=repr(prior), remedy=remedy
        )
