"""The problem of all-layer posteriors: the operator's weights, its residuals, and their units."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from tqdm import tqdm

from probneural.checks import check_scale, real_tensor
from probneural.curvature import ParameterVector
from probneural.curvature.problem import CurvatureProblem, Minibatches, QuadratureGaussian
from probneural.curvature.products.functions import gauss_newton_vector_product
from probneural.curvature.products.linearisation import Linearisation, gauss_newton_term
from probneural.curvature.rows import GaussNewtonRows
from probneural.errors import ArgumentError, DataError
from probneural.fields import evaluate
from probneural.grids import Grid
from probneural.heads.evidence import Evidence, LayeredEvidence
from probneural.heads.training_data import (
    ResidualSums,
    TrainingData,
    frozen_copy,
    given_noise,
    given_per_channel,
    given_precision,
    residuals_from,
    training_data,
)
from probneural.pairs import FieldPairs

_BATCH_POINTS = 2**16
"""Number of grid points per evaluation."""
_TRACED = 2**27
"""Number of samples times points times parameters from which tracing (about a second) saves time."""


@dataclass(frozen=True, eq=False)
class WeightProblem:
    """A Gaussian approximation in the weights around their trained values, before its curvature is known.

    With noise variance noise_scale * variance_unit_c in channel c and m_c effective observations, the negative log likelihood
    is residual_sum_of_squares / (2 noise_scale) plus a constant, and its Gauss-Newton matrix is G / noise_scale, with G = sum
    over functions and channels of precision_c / |D| * integral of J^T J and precision_c = m_c / variance_unit_c.

    Attributes:
        operator: A copy in evaluation mode.
        layout: The parameters that vary.
        data: Training pairs of this rank, on the operator's device.
        effective_observations: m, `(c,)`, float64 on the CPU.
        variance_unit: Unit of variances, `(c,)`, float64, physical units squared.
        squared_residuals: Sum over all samples of the mean square residual over the domain, `(c,)`, in physical units squared.
        noise: 1 if the observation variance is given (that variance is then the unit), else None: the evidence determines it.
        prior: Prior precision of each parameter, `(P,)`, float64, or None.
        learns_layers: Whether to learn one prior precision per parameter tensor rather than one for all.
    """

    operator: nn.Module
    layout: ParameterVector
    data: TrainingData
    effective_observations: Float64[Tensor, " c"]
    variance_unit: Float64[Tensor, " c"]
    squared_residuals: Float64[Tensor, " c"]
    noise: float | None
    prior: Float64[Tensor, " P"] | None
    learns_layers: bool = False

    @cached_property
    def vector(self) -> Float[Tensor, " P"]:
        """Trained values of the parameters that vary, in the operator's dtype."""
        return self.layout.flatten(dict(self.operator.named_parameters()))

    @property
    def precision(self) -> Float64[Tensor, " c"]:
        """Precision of each channel at noise scale 1, per physical unit squared."""
        return self.effective_observations.to(self.variance_unit) / self.variance_unit

    @cached_property
    def residual_sum_of_squares(self) -> float:
        """Sum of squared residuals in variance units, weighted by effective observations."""
        return float((self.squared_residuals * self.precision).sum())

    @property
    def observations(self) -> float:
        """Total number of effective observations."""
        return float(self.effective_observations.sum()) * self.data.functions

    @property
    def weights(self) -> Float64[Tensor, "*n c p"]:
        """Curvature of the negative log likelihood at noise scale 1 in each output value; one per sample on meshes."""
        return QuadratureGaussian.of(self.data.grid, self.precision).weights

    @property
    def prior_std(self) -> Float64[Tensor, " P"]:
        """Prior standard deviations, zero for fixed parameters; ones for a free prior."""
        if self.prior is None:
            return torch.ones(self.layout.size, dtype=torch.float64, device=self.vector.device)
        return self.prior.to(self.vector.device).rsqrt()

    @property
    def groups(self) -> Tensor:
        """Index of the parameter tensor of each coordinate, `(P,)`."""
        sizes = torch.tensor([shape.numel() for shape in self.layout.shapes])
        return torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(self.vector.device)

    @property
    def whitened_centre(self) -> Float64[Tensor, " P"]:
        """The trained weights in units of their prior standard deviations, zero for fixed parameters."""
        prior_std = self.prior_std
        centre = self.vector.to(torch.float64)
        return torch.where(prior_std > 0, centre / torch.where(prior_std > 0, prior_std, 1.0), 0.0)

    @property
    def offset(self) -> float:
        """Contribution of the variance units to the log evidence, in nats."""
        logarithms = self.effective_observations.to(self.variance_unit) * self.variance_unit.log()
        return 0.5 * self.data.functions * float(logarithms.sum())

    def evidence(self, eigenvalues: Float64[Tensor, " k"], multiplicities: Float64[Tensor, " k"] | None = None) -> Evidence:
        """Evidence of a whitened curvature with these eigenvalues at noise scale 1; see `Evidence`."""
        return Evidence(
            eigenvalues=eigenvalues.cpu(),
            observations=self.observations,
            residual_sum_of_squares=self.residual_sum_of_squares,
            squared_norm=float(self.whitened_centre.square().sum()),
            multiplicities=multiplicities,
        )

    def layered(
        self,
        log_determinant: Callable[[Tensor, Tensor], Tensor],
        *,
        groups: Tensor | None = None,
        names: Sequence[str] | None = None,
    ) -> LayeredEvidence:
        """Evidence with one prior precision per layer, by default per parameter tensor; see `LayeredEvidence`."""
        members = (self.groups if groups is None else groups).cpu()
        count = len(self.layout.names) if names is None else len(names)
        ones = torch.ones(self.layout.size, dtype=torch.float64)
        squares = self.vector.to(torch.float64).square().cpu()
        return LayeredEvidence(
            log_determinant=log_determinant,
            names=self.layout.names if names is None else names,
            sizes=torch.zeros(count, dtype=torch.float64).index_add_(0, members, ones),
            squared_norms=torch.zeros(count, dtype=torch.float64).index_add_(0, members, squares),
            observations=self.observations,
            residual_sum_of_squares=self.residual_sum_of_squares,
        )

    @cached_property
    def curvature(self) -> CurvatureProblem:
        """The data and the likelihood at noise scale 1, for products."""
        return CurvatureProblem(
            self.operator,
            self.data.inputs,
            layout=self.layout,
            likelihood=QuadratureGaussian(self.weights),
            grid=self.data.query,
            batches=Minibatches(is_sharded=self.data.is_sharded),
        )

    @cached_property
    def in_double_precision(self) -> WeightProblem:
        """The same problem in float64, or itself if the operator does not support it.

        In float32, an eigenvalue of 1e7 times the prior precision hides eigenvalues up to a hundred times the prior precision.
        """
        if self.vector.dtype == torch.float64:
            return self
        operator = copy.deepcopy(self.operator)._apply(_doubled)
        data = self.data.with_inputs_of(torch.float64)
        try:
            with torch.no_grad():
                evaluate(operator, data.inputs[:1], self.data.query)
        except (RuntimeError, DataError):  # it creates tensors of a fixed dtype
            return self
        return replace(self, operator=operator, data=data)

    def product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s P"]:
        """The whitened Gauss-Newton matrix at noise scale 1 times s vectors."""
        prior_std = self.prior_std.to(vectors)
        if self._linearisation is not None:
            return self._linearisation.product(vectors * prior_std) * prior_std
        return self.single_product(vectors)

    def single_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s P"]:
        """The same for a few vectors, without tracing."""
        prior_std = self.prior_std.to(vectors)
        return gauss_newton_vector_product(self.curvature, self.vector, vectors * prior_std) * prior_std

    @cached_property
    def _linearisation(self) -> Linearisation | None:
        """Whether the problem is large, so that tracing saves time over a few hundred products."""
        work = self.data.functions * self.data.grid.size * self.layout.size
        return Linearisation(self.curvature, self.vector, term=gauss_newton_term) if work > _TRACED else None

    def residuals(self) -> Iterator[tuple[CurvatureProblem, Float64[Tensor, "b c p"]]]:
        """Read this rank's pairs in the chunks of products: their problems and residuals."""
        for rows in self.curvature.minibatches():
            batch = self.data.pairs[rows]
            likelihood = self.curvature.likelihood.select(rows)
            part = replace(self.curvature, inputs=batch.inputs, likelihood=likelihood, batches=Minibatches())
            yield part, residuals_of(self.operator, batch, self.data.query).flatten(2)

    def rows(
        self, *, probes: int | Sequence[Tensor] | None = None, seed: int = 0, show_progress: bool = False
    ) -> Callable[[], Iterator[Float[Tensor, "r P"]]]:
        """Rows of the Gauss-Newton matrix, whitened by the prior, of this rank's samples; see `GaussNewtonRows`.

        The progress bar's description names the memory of a chunk of rows and their gradients.
        """
        rows = GaussNewtonRows(
            self.operator,
            self.layout,
            inputs=self.data.inputs,
            query=self.data.query,
            weights=self.weights,
            prior_std=None if self.prior is None else self.prior_std,
            probes=probes,
            seed=seed,
        )
        each = probes if isinstance(probes, int) else math.prod(self.weights.shape[-2:])
        total = len(self.data.inputs) * each
        gigabytes = 2 * min(64, total) * self.layout.size * self.vector.element_size() / 1e9
        description = f"curvature of {self.layout.size:,} weights, {gigabytes:.1g} GB"

        def watched() -> Iterator[Tensor]:
            with tqdm(total=total, desc=description, unit="row", disable=not show_progress, leave=False) as bar:
                for piece in rows(first=self.data.first):
                    yield piece
                    bar.update(len(piece))

        return watched


def _doubled(tensor: Tensor) -> Tensor:
    """A tensor in double precision; complex tensors stay complex, integers unchanged."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def prepare(
    operator: nn.Module,
    data: object,
    *,
    parameters: Sequence[str] | None,
    noise: float | Tensor | None,
    prior_precision: float | Tensor | Mapping[str, Tensor | float] | str | None,
    effective_observations: float | Tensor | None,
    is_shared: bool = True,
) -> WeightProblem:
    """Validate the user's settings, evaluate the residuals, and choose units.

    With `is_shared`, the data are divided among ranks; otherwise each rank uses all data.

    Raises:
        ArgumentError: If a setting is out of range, or a name matches no parameter.
        ShapeError: If the operator's outputs do not fit the data's, or a prior its parameters.
        DataError: If the data are not finite pairs.
    """
    evaluated = frozen_copy(operator)
    pairs = training_data(data, evaluated, is_shared=is_shared)
    layout = ParameterVector.of(evaluated, parameters)
    residuals = ResidualSums(pairs, channels=pairs.outputs.channels)
    for batch in pairs.batches(max(1, _BATCH_POINTS // pairs.grid.size)):
        residuals.add(residuals_of(evaluated, batch, pairs.query), grid=batch.outputs.grid)
    residuals.finish()
    channels = pairs.outputs.channels
    observations = given_per_channel(effective_observations, channels, name="effective_observations")
    if observations is None:
        observations = residuals.effective_observations()
    scale = pairs.output_units()[1]
    dtype = layout.flatten(dict(evaluated.named_parameters())).dtype
    check_scale(scale, "training outputs", dtype=dtype, power=2)  # products weigh squares of them
    given = given_noise(noise, channels, dtype=dtype)
    return WeightProblem(
        operator=evaluated,
        layout=layout,
        data=pairs,
        effective_observations=observations,
        variance_unit=scale.square() if given is None else given.to(scale),
        squared_residuals=residuals.squares,
        noise=None if given is None else 1.0,
        prior=_prior(prior_precision, layout),
        learns_layers=isinstance(prior_precision, str),
    )


@torch.no_grad()
def residuals_of(operator: nn.Module, batch: FieldPairs, query: Grid | None) -> Float64[Tensor, "b c *grid"]:
    """Residuals of some pairs, outputs minus predictions, in float64.

    Raises:
        ShapeError: If the operator's outputs do not fit the data's.
        DataError: If one is not finite.
    """
    return residuals_from(evaluate(operator, batch.inputs, query), batch.outputs.values)


def _prior(
    given: float | Tensor | Mapping[str, Tensor | float] | str | None, layout: ParameterVector
) -> Float64[Tensor, " P"] | None:
    """Expand a given prior precision to all parameters; None if it is learned."""
    if given is None or isinstance(given, str):
        return None
    if isinstance(given, Mapping):
        mismatch = set(layout.names) ^ set(given)
        if mismatch:
            raise ArgumentError(
                expected=f"prior_precision for each of {', '.join(layout.names)}", got=f"not {mismatch}", remedy="name all"
            )
        named = {name: real_tensor(value, f"prior_precision of {name}", error=ArgumentError) for name, value in given.items()}
        full = {
            name: named[name].expand(shape) if named[name].ndim == 0 else named[name]
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        }
        given = layout.flatten(full)
    return given_precision(given, ((layout.size,),), remedy="one per real parameter").expand(layout.size)
