"""Predictors of operators that learn in context: fitting and conditioning are forward passes with more example pairs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import check_callable, check_count, check_finite, check_integer, check_module, check_shape, real_tensor
from probneural.contexts import undisturbed
from probneural.distributions import FeatureRoot, FieldDistribution, GaussianField, Latent, Predictor, PredictorTraits
from probneural.distributions.base import noise_variance
from probneural.distributions.latent import digest
from probneural.distributions.predictors.base import with_records
from probneural.errors import UnsupportedError
from probneural.fields import Field
from probneural.functionals import Functional
from probneural.functionals.base import check_functional
from probneural.grids import Grid
from probneural.heads.training_data import NOISE_FLOOR, check_some, in_memory, training_data
from probneural.pairs import Dataset
from probneural.pairs.provenance import operator_record, record_of
from probneural.randomness import stream
from probneural.registry import stored
from probneural.settings import Count, Positive, Seed, Settings


@stored()
@dataclass(frozen=True)
class InContext(Settings):
    """The training pairs become the context of an operator that learns in context; no weight changes.

    Predictions are the operator's own distribution, which includes the noise of its training outputs. `condition` is a forward
    pass with a larger context.

    Predictions of an ordered operator depend on the order of the context. They are averaged over k permutations, the first of
    which is the given order: the result is the Gaussian field with mean and covariance of the mixture,

        mean = 1/k sum_j m_j,    covariance = 1/k sum_j (C_j + (m_j - mean) (m_j - mean)^T).

    The standard error of the mean falls like k^(-1/2). With a tolerance, a sample takes no further permutation once the L2 norm
    of this error is at most the tolerance times that of the predicted standard deviation. By the same rule a sample exits at
    the first layer that changes its mean by no more than that.

    Args:
        permutations: Maximum number of permutations k; more than 1 requires an ordered operator.
        tolerance: Relative tolerance, dimensionless; None for exactly `permutations` of them, and all layers.
        seed: Seed of the permutations.

    Raises:
        ArgumentError: If a setting is out of range.

    Examples:
        >>> from probneural.operators import InContextOperator
        >>> from probneural.pairs import FieldPairs
        >>> fields = Field(torch.randn(5, 1, 8, generator=torch.Generator().manual_seed(0)), Grid.uniform(8))
        >>> predictor = InContext().fit(InContextOperator(1, 1, modes=(3,), seed=0), FieldPairs(fields, fields))
        >>> predictor(fields).mean.shape
        torch.Size([5, 1, 8])
    """

    permutations: Count = 1
    _: KW_ONLY
    tolerance: Positive | None = None
    seed: Seed = 0

    @undisturbed()
    @torch.no_grad()
    def fit(self, operator: nn.Module, data: Dataset) -> InContextPredictor:
        """Make a predictor whose context is the data.

        Args:
            operator: A trained `InContextOperator`, or a module with its methods `coefficients`, `basis` and `predictive`; it
                is not changed.
            data: The context: pairs of one operator of the family that the operator was trained on, any number of them.

        Returns:
            A predictor with its own copy of the operator.

        Raises:
            ArgumentError: If the operator does not learn in context, or there are several permutations, and it is not ordered.
            DataError: If the data are not finite pairs.
            ShapeError: If their channels are not the operator's.
        """
        copied: Any = copy.deepcopy(check_module(operator, "operator")).eval().requires_grad_(False)
        remedy = "train pn.operators.InContextOperator on pn.operators.context_tasks, or fit another head"
        check_callable(getattr(copied, "predictive", None), "operator.predictive", remedy=remedy)
        if not copied.ordered:  # predictions do not depend on the order
            check_integer(self.permutations, "permutations", most=1, remedy="build the operator with ordered=True")
        pairs = training_data(data, copied, is_shared=False)
        sides = [in_memory(side).to(pairs.inputs.dtype) for side in (pairs.inputs, pairs.outputs)]
        for side, channels in zip(sides, (copied.in_channels, copied.out_channels), strict=True):
            check_count(side.channels, channels, "channels of a context", remedy="check its channels")
        predictor = InContextPredictor(
            operator=copied,
            inputs=copied.coefficients(sides[0].values, sides[0].grid),
            outputs=copied.coefficients(sides[1].values, sides[1].grid),
            noise=NOISE_FLOOR * pairs.output_units()[1].square(),
            domain=pairs.inputs.grid,
            settings=self,
        )
        return with_records(predictor, operator_record(operator), record_of(data))


@stored()
class InContextPredictor(Predictor):
    """Predictor of `InContext`: the Gaussian fields of an operator given a context.

    Draws of one seed are functions of the input, but the operator was trained on the distribution of one output at a time: the
    dependence between outputs of different inputs is not learned.

    Args:
        operator: Operator in evaluation mode, with the methods of `InContextOperator`.
        inputs: Coefficients of the context's inputs, `(n, c, F)`, in their units.
        outputs: Coefficients of its outputs, `(n, c', F)`, in their units.
        noise: Observation variance per channel, `(c',)`, in physical units squared.
        domain: Grid of the context's inputs.
        settings: The head.
    """

    def __init__(
        self,
        *,
        operator: nn.Module,
        inputs: Float[Tensor, "n c F"],
        outputs: Float[Tensor, "n c2 F"],
        noise: Float64[Tensor, " c2"],
        domain: Grid,
        settings: InContext,
    ) -> None:
        super().__init__(PredictorTraits(in_channels=inputs.shape[1], noise=noise, domain=domain, like=inputs))
        self.operator: Any = operator
        self.inputs, self.outputs, self.settings = inputs, outputs, settings
        with torch.no_grad():
            rank = self._moments(torch.zeros_like(inputs[:1]))[1].shape[-1]
        self.latent = Latent(id=f"{settings}-{digest(inputs, outputs, *operator.state_dict().values())}", rank=rank)

    def condition(
        self, inputs: Field, functional: Functional, *, values: Float[Tensor, "n c m"], noise: float | Tensor = 0.0
    ) -> Predictor:
        """Return the predictor with measured outputs as further pairs of the context.

        Args:
            inputs: Inputs of the measured outputs, `(n, in_channels, *grid)`.
            functional: Values at all points of a uniform grid, in their order: `pn.functionals.sensors(grid, grid.points)`.
            values: The measured outputs, `(n, c, m)`, with the measurement noise of the training tasks.
            noise: 0: the operator learned the noise from its tasks.

        Raises:
            UnsupportedError: If the functional gives less than the whole output, or noise is not 0.
            ShapeError: If the number of samples, channels or values does not match.
            DataError: If a value is not finite.
        """
        inputs, grid = self._checked(inputs, None), check_functional(functional).grid
        identity = torch.eye(functional.size, dtype=torch.float64, device="cpu")
        is_whole = functional.size == grid.size and torch.allclose(functional.adjoint(identity).flatten(1), identity)
        measured = real_tensor(values, "values", dtype=self.dtype).to(self.device)
        check_shape(measured, "values", len(inputs), self.out_channels, functional.size, remedy="give (n, c, m)")
        check_finite(measured, "values")
        if not is_whole or bool(noise_variance(noise, tuple(measured.shape), measured).any()):
            raise UnsupportedError(
                expected="values of whole outputs at all points of a grid, with noise=0",
                got=f"{functional.size} values on {grid.size} points, noise={noise}",
                remedy="give pn.functionals.sensors(grid, grid.points), or condition predictions: predictor(inputs).condition",
            )
        outputs = measured.detach().unflatten(-1, grid.shape)
        predictor = InContextPredictor(
            operator=self.operator,
            inputs=torch.cat([self.inputs, self.operator.coefficients(inputs.values.detach(), inputs.grid)]),
            outputs=torch.cat([self.outputs, self.operator.coefficients(outputs, grid)]),
            noise=self.noise,
            domain=self.domain,
            settings=self.settings,
        )
        return with_records(predictor, self.trained_on)

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, inputs.grid if query is None else query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid) -> GaussianField:
        check_some(inputs)
        mean, factor = self._moments(self.operator.coefficients(inputs.values, inputs.grid))
        basis = self.operator.basis(query, domain=inputs.grid).to(mean)
        root = FeatureRoot(basis.mT.expand(len(inputs), -1, -1), factor.to(torch.float64))
        return GaussianField((mean @ basis).unflatten(-1, query.shape), root, latent=self.latent, grid=query)

    def _moments(self, queries: Float[Tensor, "q c F"]) -> tuple[Float[Tensor, "q c2 F"], Float[Tensor, "q c2 F k"]]:
        """Mean and root of the mixture over permutations, whose number may differ between samples."""
        generator = stream(self.settings.seed, "permutations of a context")
        rows, means, roots, used = torch.arange(len(queries), device=self.device), [], [], []
        for number in range(self.settings.permutations):
            order = torch.randperm(len(self.inputs), generator=generator) if number else torch.arange(len(self.inputs))
            pairs = {"inputs": self.inputs[order], "outputs": self.outputs[order]}
            mean, root = self.operator.predictive(queries[rows], **pairs, tolerance=self.settings.tolerance or 0.0)
            if self.settings.permutations == 1:
                return mean, root
            means.append(mean.new_zeros(len(queries), *mean.shape[1:]).index_copy(0, rows, mean))
            roots.append(root.new_zeros(len(queries), *root.shape[1:]).index_copy(0, rows, root))
            used.append(mean.new_zeros(len(queries)).index_fill(0, rows, 1.0))
            weights = (torch.stack(used) / torch.stack(used).sum(0))[..., None, None]
            average = (weights * torch.stack(means)).sum(0)
            if self.settings.tolerance is not None and number:
                # squared standard error sum_j |m_j - mean|^2 / (k (k - 1)), against the trace of 1/k sum_j C_j
                error = (weights * (torch.stack(means) - average).square()).sum((0, 2, 3)) / number
                scale = (weights[..., None] * torch.stack(roots).square()).sum((0, 2, 3, 4))
                rows = rows[(error > self.settings.tolerance**2 * scale)[rows]]
                if not len(rows):
                    break
        # root of 1/k sum_j (C_j + (m_j - mean) (m_j - mean)^T): the columns of all permutations
        columns = torch.cat([torch.stack(roots), (torch.stack(means) - average)[..., None]], -1) * weights.sqrt()[..., None]
        absent = (self.settings.permutations - len(means)) * columns.shape[-1]
        return average, nn.functional.pad(columns.movedim(0, -2).flatten(-2), (0, absent))
