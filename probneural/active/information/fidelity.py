"""Resolution as fidelity: what coarse simulations cost, how far off they are, and value per cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.cost_aware import CostAwareUtility, InverseCostWeightedUtility
from botorch.models.deterministic import DeterministicModel
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.checks import check_positive, check_sequence, check_variances
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.functionals import Functional
from probneural.grids import Grid, along_axis

_SLACK = 1e-6
"""How far a fidelity may be from one of the values: float32 keeps eight digits of it."""


@dataclass(frozen=True, eq=False)
class Fidelity:
    """Resolutions that a simulator can be run at.

    A simulation on a coarse grid shows the values of the fine field there, which is a linear functional of it, plus a
    discretisation error. The error is taken for noise that is independent from one simulation to the next, of a variance that
    adds to the observation noise. What coarse simulations have in common, numerical diffusion for one, is no such noise: the
    model believes that many of them average it away, and they do not.

    Designs get one more coordinate, the last: points of the grid over points of the finest. So the target fidelity is 1, as
    BoTorch has it.

    Args:
        grids: From coarse to fine, uniform and on one domain; the last is the field's own, where no error is left to add.
        costs: Of one simulation on each, positive, in any unit.
        variances: Discretisation variance on each, `(r,)` or `(r, c)`, in physical units squared, 0 for the last; see
            [`discretisation_variance`][probneural.active.discretisation_variance].

    Raises:
        GridError: If grids are not uniform, on one domain, and of increasing size.
        ArgumentError: If costs are not positive, variances negative, or those of the last grid not 0.
        ShapeError: If there is not one of each per grid.

    Examples:
        >>> fine = Grid.uniform((64,))
        >>> fidelity = Fidelity((fine.resized((16,)), fine), costs=(1.0, 5.0), variances=(0.01, 0.0))
        >>> fidelity.values.tolist(), fidelity.fixed_features(3)
        ([0.25, 1.0], [{3: 0.25}, {3: 1.0}])
    """

    grids: Sequence[Grid]
    costs: Sequence[float]
    variances: Sequence[float] | Float[Tensor, "..."]

    def __post_init__(self) -> None:
        """Check that grids refine one domain, with a cost and a variance each."""
        grids = check_sequence(self.grids, "grids", remedy="take fine.resized((n,)) for several n", error=GridError)
        if not grids or not all(isinstance(grid, Grid) and grid.is_uniform for grid in grids):
            raise GridError(expected="uniform grids", got=str(grids), remedy="take fine.resized((n,)) for several n")
        if any(_domain(grid) != _domain(grids[0]) for grid in grids):
            raise GridError(
                expected="grids of one domain", got=", ".join(map(repr, grids)), remedy="take fine.resized((n,)) for several n"
            )
        if any(coarse.size >= fine.size for coarse, fine in itertools.pairwise(grids)):
            raise GridError(
                expected="grids of increasing size",
                got=", ".join(str(grid.size) for grid in grids),
                remedy="sort them from coarse to fine, each once",
            )
        variances = self.discretisation
        if len(self.costs) != len(grids) or variances.ndim != 2 or len(variances) != len(grids):
            raise ShapeError(
                expected=f"a cost and a variance for each of {len(grids)} grids",
                got=f"{len(self.costs)} costs and variances of shape {tuple(torch.as_tensor(self.variances).shape)}",
                remedy="the finest grid has variance 0",
            )
        for cost in self.costs:
            check_positive(cost, "costs")
        check_variances(variances, "variances")
        if bool((variances[-1] != 0).any()):
            raise ArgumentError(
                expected="variance 0 on the finest grid, where fields are as they are",
                got=str(variances[-1].tolist()),
                remedy="discretisation variances are differences from the finest grid",
            )

    @property
    def discretisation(self) -> Float64[Tensor, "r c"]:
        """Discretisation variances, `(r, c)`, or `(r, 1)` where channels share one; in physical units squared."""
        given = torch.as_tensor(self.variances, dtype=torch.float64, device="cpu")
        return given[:, None] if given.ndim == 1 else given

    @property
    def finest(self) -> Grid:
        """The grid of the field."""
        return self.grids[-1]

    @property
    def values(self) -> Float64[Tensor, " r"]:
        """The last coordinate of designs at each resolution, from coarse to fine; the last is 1."""
        return torch.tensor([grid.size / self.finest.size for grid in self.grids], dtype=torch.float64)

    def levels(self, values: Float[Tensor, "*b"]) -> Int64[Tensor, "*b"]:
        """Return the number of the grid, from 0, that a fidelity belongs to.

        Raises:
            ArgumentError: If it is none of `values`.
        """
        known = self.values.to(values.device)
        distances = (values.detach().to(torch.float64)[..., None] - known).abs()
        if not bool((distances.amin(-1) <= _SLACK).all()):
            worst = values.detach().flatten()[distances.amin(-1).flatten().argmax()]
            raise ArgumentError(
                expected=f"fidelities out of {known.tolist()} in the last coordinate of the designs",
                got=f"{float(worst):.6g}",
                remedy="optimise with botorch's optimize_acqf_mixed(..., fixed_features_list=fidelity.fixed_features(d))",
            )
        return distances.argmin(-1)

    def fixed_features(self, design_dim: int) -> list[dict[int, float]]:
        """What `optimize_acqf_mixed` has to try in turn, for designs of d coordinates and the fidelity behind them."""
        return [{design_dim: float(value)} for value in self.values]

    def functional(self, level: int) -> Functional:
        """The map from fields on the finest grid to their values on another."""
        return Resampling(self.finest, self.grids[level])

    def cost_model(self) -> FidelityCost:
        """Costs as a BoTorch model, for its cost-aware utilities; `AffineFidelityCostModel` serves where they are affine."""
        return FidelityCost(self)


class FidelityCost(DeterministicModel):
    """The cost of simulating at each design, by the fidelity in its last coordinate.

    Args:
        fidelity: The resolutions and their costs.
    """

    def __init__(self, fidelity: Fidelity) -> None:
        super().__init__()
        self.fidelity = fidelity
        self._num_outputs = 1

    def forward(self, X: Float[Tensor, "*b d"]) -> Float[Tensor, "*b 1"]:
        """Return costs, `b x q x 1`, of designs `b x q x (d + 1)`.

        Raises:
            ArgumentError: If a fidelity is none of the resolutions'.
        """
        costs = torch.tensor(tuple(self.fidelity.costs), dtype=X.dtype, device=X.device)
        return costs[self.fidelity.levels(X[..., -1])][..., None]


class CostAware(AcquisitionFunction):
    """Value per cost of another acquisition function: alpha(X) / (sum over the q designs of their costs).

    It is for values that are not negative and of which more is better, such as `FieldInformationGain` and
    `FieldIntegratedVariance`. The ratio is greedy: it finds the cheapest nat, not the best use of a whole budget.

    Args:
        acquisition: alpha.
        cost: A BoTorch model of costs, `b x q x d` to `b x q x 1`, such as `Fidelity.cost_model()` and BoTorch's
            `AffineFidelityCostModel`; or a cost-aware utility of BoTorch, which then says how costs enter.

    Raises:
        ArgumentError: If either is of another kind.

    Examples:
        >>> from botorch.acquisition import AnalyticAcquisitionFunction
        >>> class Best(AnalyticAcquisitionFunction):
        ...     def forward(self, X):
        ...         return X[..., 0, 0] * 12.0
        >>> from botorch.models.cost import AffineFidelityCostModel
        >>> score = CostAware(Best(model=AffineFidelityCostModel()), AffineFidelityCostModel({1: 2.0}, fixed_cost=1.0))
        >>> score(torch.tensor([[[1.0, 0.5]]])).item()
        6.0
    """

    def __init__(self, acquisition: AcquisitionFunction, cost: DeterministicModel | CostAwareUtility) -> None:
        if not isinstance(acquisition, AcquisitionFunction) or not isinstance(cost, DeterministicModel | CostAwareUtility):
            raise ArgumentError(
                expected="an acquisition function and a deterministic cost model or a cost-aware utility",
                got=f"{type(acquisition).__name__} and {type(cost).__name__}",
                remedy="take fidelity.cost_model(), or botorch's AffineFidelityCostModel",
            )
        super().__init__(model=acquisition.model)
        self.acquisition = acquisition
        self.utility = cost if isinstance(cost, CostAwareUtility) else InverseCostWeightedUtility(cost_model=cost)

    @property
    def X_pending(self) -> Float[Tensor, "pending d"] | None:  # type: ignore[override]  # noqa: N802 (BoTorch's name)
        """Designs whose simulation is under way: those of the acquisition function."""
        pending: Tensor | None = getattr(self.acquisition, "X_pending", None)
        return pending

    def set_X_pending(self, X_pending: Float[Tensor, "pending d"] | None = None) -> None:  # noqa: N802 (BoTorch's name)
        """Pass pending designs on; they have been paid for, so they add nothing to the cost."""
        self.acquisition.set_X_pending(X_pending)

    def forward(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, " *b"]:
        """Return value per cost.

        Args:
            X: Designs, `b x q x d`, as acquisition function and cost model both take them.
        """
        value: Tensor = self.utility(X=X, deltas=self.acquisition(X))
        return value


@dataclass(frozen=True, eq=False)
class Resampling(Functional):
    """Values of a field's interpolant at the points of another grid of the domain, axis by axis.

    Args:
        grid: The field's grid, uniform.
        target: Where to read, uniform, on the same domain.

    Raises:
        GridError: If they are not.

    Examples:
        >>> grid = Grid.uniform((4,))
        >>> Resampling(grid, grid.resized((2,)))(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
        [1.0, 3.0]
    """

    grid: Grid
    target: Grid

    def __post_init__(self) -> None:
        """Check that both span one domain."""
        if not (self.grid.is_uniform and self.target.is_uniform) or _domain(self.grid) != _domain(self.target):
            raise GridError(
                expected=f"a uniform grid on the domain of {self.grid!r}",
                got=repr(self.target),
                remedy="use grid.resized(shape); for single points use functionals.sensors",
            )

    @property
    def size(self) -> int:
        """Points of the target."""
        return self.target.size

    def _forward(self, values: Tensor) -> Tensor:
        for axis, matrix in enumerate(self._matrices()):
            values = along_axis(values, matrix, axis - self.grid.dimension)
        return values.flatten(values.ndim - self.grid.dimension)

    def _adjoint(self, numbers: Tensor) -> Tensor:
        values = numbers.unflatten(-1, self.target.shape)
        for axis, matrix in enumerate(self._matrices()):
            values = along_axis(values, matrix.mT, axis - self.grid.dimension)
        return values

    def _matrices(self) -> list[Tensor]:
        return [have.matrix(want.coordinates) for have, want in zip(self.grid.axes, self.target.axes, strict=True)]


def discretisation_variance(coarse: Field, fine: Field) -> Float64[Tensor, " c"]:
    """Mean square difference, over functions and domain, of coarse solutions from fine ones of the same inputs.

    It includes what coarse solutions have in common, their bias, as `Fidelity` needs it.

    Args:
        coarse: Solutions on a coarse grid, `(n, c, *grid)`, in physical units.
        fine: Solutions for the same inputs on a finer grid of the domain.

    Returns:
        Per channel, in physical units squared.

    Raises:
        DataError: If they are not equally many functions of equally many channels.
        GridError: If they live on different domains, or the coarse grid is the finer.

    Examples:
        >>> grid = Grid.uniform((4,))
        >>> fine = Field(torch.ones(3, 1, 4), grid)
        >>> variance = discretisation_variance(Field(torch.full((3, 1, 2), 1.5), grid.resized((2,))), fine)
        >>> round(variance.item(), 12)
        0.25
    """
    if not len(coarse) == len(fine) > 0 or coarse.channels != fine.channels:
        raise DataError(
            expected="solutions of the same inputs, at least one",
            got=f"{len(coarse)} functions of {coarse.channels} channels and {len(fine)} of {fine.channels}",
            remedy="pass solve(inputs) at two resolutions",
        )
    if coarse.grid.size > fine.grid.size:
        raise GridError(
            expected="coarse solutions on at most as many points as fine ones",
            got=f"{coarse.grid.size} and {fine.grid.size}",
            remedy="pass the coarse ones first",
        )
    reference = Resampling(fine.grid, coarse.grid)(fine.values.to(coarse.device, torch.float64))
    difference = Field(coarse.values.to(torch.float64) - reference.unflatten(-1, coarse.grid.shape), coarse.grid)
    return difference.mean_square().mean(0).cpu()


def _domain(grid: Grid) -> list[tuple[float, float, bool]]:
    return [(axis.origin, axis.length, axis.periodic) for axis in grid.axes]
