"""Laplace posteriors over all or selected parameters of any operator."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import check_choice, check_integer
from probneural.contexts import copy_for_call, undisturbed
from probneural.curvature import ParameterVector
from probneural.curvature.jacobian_root import JacobianRoot, VarianceEstimation
from probneural.curvature.lanczos import top_eigenpairs
from probneural.curvature.products.functions import jacobian_vector_product, vector_jacobian_product
from probneural.curvature.weights import DenseWeights, LowRankWeights, WeightRoot
from probneural.distributions import FieldDistribution, GaussianField, Latent, Predictor, PredictorTraits
from probneural.distributions.latent import digest, draw_keys
from probneural.distributions.predictors.base import with_records
from probneural.distributions.roots.base import FormedRoot, RecordedMaps
from probneural.errors import UnsupportedError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads.laplace.structures import STRUCTURES, Kronecker, Structure
from probneural.heads.laplace.structures.low_rank import LARGEST_RANK, TOLERANCE
from probneural.heads.training_data import check_some, recorded
from probneural.heads.weight_posterior import FitSummary
from probneural.heads.weight_problem import WeightProblem, prepare
from probneural.heads.weight_samples import WeightSampledPredictor
from probneural.linear_algebra.conditioning import posterior_root
from probneural.pairs import Dataset, check_dataset
from probneural.pairs.provenance import record_of
from probneural.randomness import check_seed, stream
from probneural.registry import stored
from probneural.settings import Seed, Settings


def update(
    problem: WeightProblem, root: DenseWeights | LowRankWeights, *, shift: Float64[Tensor, " P"] | None
) -> tuple[DenseWeights | LowRankWeights, Float64[Tensor, " P"], float, float]:
    """Condition a posterior on the pairs of a problem: see `LaplacePredictor.update`.

    With new rows J, noise S and residuals r at the old mean, the covariance becomes C' = (C^-1 + J^T S^-1 J)^-1, the mean
    moves by C' J^T S^-1 r, and log p(new | old) = -(1/2) [log det(2 pi S) + log det(C C'^-1) + r^T S^-1 r - g^T C' g] with
    g = J^T S^-1 r.

    Args:
        problem: The new pairs, with the noise of the posterior.
        root: Root of the posterior's covariance.
        shift: Its mean minus the trained weights.

    Returns:
        Root of the new covariance; its mean minus the trained weights, `(P,)`; log evidence of the new pairs given the old,
        in nats; and the whitened precision along the first direction that a low-rank root omits, 0 for a dense root.
    """
    old = torch.zeros_like(problem.vector) if shift is None else shift.to(problem.vector)
    gradient, squares = _misfit(problem, old)
    weights, log_ratio, next_value = _dense(root, problem) if isinstance(root, DenseWeights) else _low_rank(root, problem)
    step = weights.product(weights.transposed_product(gradient[None]))[0].to(torch.float64)
    explained = squares - float(gradient @ step)
    gain = -0.5 * (problem.observations * math.log(2 * math.pi) + log_ratio + explained) - problem.offset
    return weights, old.to(torch.float64) + step, gain, next_value


@torch.no_grad()
def _misfit(problem: WeightProblem, old: Tensor) -> tuple[Float64[Tensor, " P"], float]:
    """J^T S^-1 r and r^T S^-1 r with the residuals r at the old mean, in chunks."""
    total = torch.zeros(len(old) + 1, dtype=torch.float64, device=old.device)
    for part, residuals in problem.residuals():
        left = residuals - jacobian_vector_product(part, problem.vector, old).to(torch.float64)
        weighted = left * part.likelihood.weights
        total[:-1] += vector_jacobian_product(part, problem.vector, weighted.to(old)).to(torch.float64)
        total[-1] += (left * weighted).sum()
    problem.data.summed(total)
    return total[:-1], float(total[-1])


def _dense(root: DenseWeights, problem: WeightProblem) -> tuple[DenseWeights, float, float]:
    """R (I + R^T G R)^(-1/2), log det(I + R^T G R), and 0: no direction is omitted."""
    factor = root.factor.to(torch.float64)
    gain = torch.zeros(root.rank, root.rank, dtype=torch.float64, device=root.device)
    for rows in problem.rows()():
        latent_rows = rows.to(torch.float64) @ factor
        gain += latent_rows.mT @ latent_rows
    problem.data.summed(gain)
    factor, log_determinant = posterior_root(factor, gain)
    return DenseWeights(factor), float(log_determinant), 0.0


def _low_rank(root: LowRankWeights, problem: WeightProblem) -> tuple[LowRankWeights, float, float]:
    """Eigenpairs of the old directions plus the new curvature, with a rank for both up to the maximum."""
    dtype, problem = root.dtype, problem.in_double_precision
    directions, ratios = root.directions, (root.factors.to(torch.float64).reciprocal().square() - 1.0)
    prior_std = root.prior_std

    def product(vectors: Tensor) -> Tensor:
        along = (vectors @ directions.to(vectors)) * ratios.to(vectors)
        return along @ directions.mT.to(vectors) + problem.product(vectors * prior_std.to(vectors)) * prior_std.to(vectors)

    new = problem.data.functions * math.prod(problem.weights.shape[-2:])
    rank = min(root.size, len(ratios) + new, max(len(ratios), LARGEST_RANK))
    pairs = top_eigenpairs(
        product, root.size, rank=rank, seed=0, start=directions, tolerance=TOLERANCE[dtype], like=problem.vector
    )
    values = pairs.values.clamp_min(0.0).to(torch.float64)
    weights = LowRankWeights(prior_std, pairs.vectors.to(dtype), factors=(1.0 + values).rsqrt())
    return weights, float(values.log1p().sum() - ratios.log1p().sum()), max(pairs.next_value, 0.0)


_MATERIALISED = 2**25
"""Maximum number of entries of a dense root; larger roots are matrix-free (128 MiB in float32)."""

VARIATIONAL = "variational"
"""Name of the structure of variational posteriors."""
_VARIANCE_ESTIMATION = VarianceEstimation()
_STRUCTURE = Kronecker(probes=16)
"""Default structure, for operators of any size; the fit takes about as long as training."""


@dataclass(frozen=True)
class Laplace(Settings):
    """The linearised Laplace posterior: weights N(theta, (G + T)^-1), mapped to fields by the Jacobian.

    u(x) = f(x; theta) + J(x) (w - theta), with G the Gauss-Newton matrix of the quadrature likelihood and T the prior
    precision. The structure is the approximation of G:

    * `LowRank()` or `"low_rank"`: leading eigenpairs, those whose curvature exceeds the prior precision.
    * `Full()` or `"full"`: exact and dense; at most 5,000 parameters.
    * `Kronecker()` or `"kronecker"`: a Kronecker product for every linear layer and every mode of a spectral convolution.
    * `Diagonal()` or `"diagonal"`: independent parameters.

    It is exact if the operator is linear in the selected parameters and the trained ones are the posterior mode; otherwise
    it is the linearisation.

    Args:
        structure: One of the above: an object with its settings, or its name for default settings. By default
            `Kronecker(probes=16)`, which suits operators of any size, and overestimates variances.
        parameters: Names of parameters or submodules; all by default. Other parameters are fixed.
        noise: Observation variance, in physical units squared: one number or one per channel. Learned noise is the same
            fraction of every channel's training variance.
        prior_precision: Precision of the parameters around zero, per parameter unit squared: one number, a vector `(P,)` in
            the order of `ParameterVector`, or a mapping from names to numbers or real tensors; infinity fixes a parameter.
            By default one number is learned for all; `"per_layer"` learns one per parameter tensor.
        effective_observations: Independent observations per field, dimensionless, one number or one per channel; by
            default from the training residuals.
        variance_estimation: Settings of exact and estimated marginal variances.
        seed: Random seed of starts and projections.
        show_progress: Whether to show progress bars.

    Raises:
        UnsupportedError: If the structure is unknown.
        ArgumentError: If a setting is out of range.

    Reference:
        Immer, Korzepa & Bauer (2021), Improving predictions of Bayesian neural nets via local linearization. Deviations:
        quadrature instead of sums over points, effective observations, complex parameters as real pairs.
    """

    structure: str | Structure = _STRUCTURE
    _: KW_ONLY
    parameters: Sequence[str] | None = None
    noise: float | Tensor | None = None
    prior_precision: float | Tensor | Mapping[str, Tensor | float] | str | None = None
    effective_observations: float | Tensor | None = None
    variance_estimation: VarianceEstimation = _VARIANCE_ESTIMATION
    seed: Seed = 0
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if not isinstance(self.structure, Structure):
            check_choice(self.structure, STRUCTURES, "structure", remedy="or use LastLayerLaplace", error=UnsupportedError)
        if isinstance(self.prior_precision, str):
            check_choice(self.prior_precision, ("per_layer",), "prior_precision", remedy="or give a number")

    @recorded
    @undisturbed()
    def fit(self, operator: nn.Module, data: Dataset) -> LaplacePredictor:
        """Fit the posterior, in chunks of the data.

        With torch.distributed, every rank calls it with the same data and reads a part of them.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed.
            data: Training pairs.

        Returns:
            A predictor with a copy of the operator.

        Raises:
            UnsupportedError: If there are too many parameters for the structure, or the prior does not suit it.
            EvidenceError: If the evidence determines no noise or prior.
            ArgumentError: If a setting is out of range, or a name matches no parameter.
            ShapeError: If the operator's outputs do not fit the data's, or a prior its parameters.
            DataError: If the data are not finite.
        """
        structure = self.structure if isinstance(self.structure, Structure) else STRUCTURES[self.structure]()
        problem = prepare(
            operator,
            data,
            parameters=self.parameters,
            noise=self.noise,
            prior_precision=self.prior_precision,
            effective_observations=self.effective_observations,
        )
        posterior = structure.fit(problem, seed=self.seed, show_progress=self.show_progress)
        estimation = self.variance_estimation
        return LaplacePredictor(
            operator=problem.operator,
            layout=problem.layout,
            weights=posterior.root,
            summary=FitSummary(
                structure=structure.name,
                noise=posterior.noise * problem.variance_unit,
                prior_precision=posterior.prior_precision.cpu(),
                effective_observations=problem.effective_observations,
                log_evidence=posterior.log_evidence - problem.offset,
                log_evidence_error=posterior.evidence_error,
                report=posterior.report,
            ),
            domain=problem.data.inputs.grid,
            in_channels=problem.data.inputs.channels,
            variance_estimation=replace(estimation, exact_passes=10**9) if structure.name == "full" else estimation,
        )


@stored()
class LaplacePredictor(Predictor):
    """Linearised Gaussian posterior of weights, the predictor of `Laplace` and `BayesianOperator`.

    Attributes:
        operator: The predictor's copy of the operator.
        layout: The parameters that vary, and their positions in the vector.
        weights: Root of the weights' covariance.
        summary: Record of the following attributes.
        structure: Form of the covariance.
        noise: Observation variance per channel, `(c,)`, in physical units squared.
        prior_precision: `(P,)`, per parameter unit squared.
        effective_observations: Independent observations per field and channel, `(c,)`, dimensionless.
        log_evidence: Log evidence of the training outputs in physical units, in nats; NaN without a prior.
        log_evidence_error: Standard error of an estimated log evidence, in nats.
        report: Diagnostics of the structure by name.
        latent: Latent vector of the weights.
    """

    effective_observations: Float64[Tensor, " c"]  # known to this head

    def __init__(
        self,
        *,
        operator: nn.Module,
        layout: ParameterVector,
        weights: WeightRoot,
        summary: FitSummary,
        domain: Grid,
        in_channels: int,
        variance_estimation: VarianceEstimation,
        shift: Float[Tensor, " P"] | None = None,
    ) -> None:
        layout.check(operator)
        check_choice(summary.structure, (*STRUCTURES, VARIATIONAL), "structure")
        layout.check_size("weights", weights.size)
        layout.check_size("shift", layout.size if shift is None else len(shift))
        self._vector = layout.flatten(dict(operator.named_parameters()))
        traits = PredictorTraits(in_channels=in_channels, noise=summary.noise, domain=domain, like=self._vector)
        super().__init__(traits)
        self.operator = operator
        self.layout = layout
        self.weights = weights
        self.summary = summary
        self.structure = summary.structure
        self.prior_precision = summary.prior_precision
        self.effective_observations = summary.effective_observations
        self.log_evidence = summary.log_evidence
        self.log_evidence_error = summary.log_evidence_error
        self.report = dict(summary.report)
        self.variance_estimation = variance_estimation
        self.shift = shift
        moved = () if shift is None else (shift,)
        name = f"laplace-{self.structure}-{digest(self._vector, *moved)}{weights.fingerprint()}"
        self.latent = Latent(id=name, rank=weights.rank)
        self._narrow_tensors: dict[Hashable, Tensor] = {}

    @property
    def weight_covariance(self) -> Float[Tensor, "P P"]:
        """Dense covariance of the parameters, in parameter units squared."""
        return self.weights.covariance()

    def variance_bounds(
        self, inputs: Field, query: Grid | None = None
    ) -> tuple[Float[Tensor, "n c *grid"], Float[Tensor, "n c *grid"]]:
        """Lower and upper bounds of the pointwise variance for a low-rank structure, in physical units squared.

        The upper bound, used in predictions, keeps the prior variance along omitted directions; the lower bound divides it by
        1 + `report["next_ratio"]`, with the largest ratio of curvature to prior precision along those directions, and the
        remainder by 1 + `report["lost_ratio"]`, with the largest ratio of curvature omitted by the projection of outputs to
        the posterior's precision.

        Args:
            inputs: n inputs.
            query: Grid of the outputs; the inputs' grid by default.

        Raises:
            UnsupportedError: If the structure is not low rank.
        """
        if not isinstance(self.weights, LowRankWeights):
            raise UnsupportedError(
                expected="a low-rank structure, which leaves directions out", got=self.structure, remedy="use .variance"
            )
        field = self(inputs, query)
        upper = field.variance
        root = self._root(Field(inputs.values.to(self.device, self.dtype), inputs.grid), query)
        kept = self.weights.factors.to(self.dtype)
        columns = (self.weights.directions * kept).mT * self.weights.prior_std.to(self.weights.directions)
        span = sum(
            root.push_tangents(piece.to(self.dtype)).square().sum(0) for piece in columns.split(self.variance_estimation.chunk)
        )
        inside = torch.as_tensor(span).unflatten(-1, field.grid.shape)
        rest = (upper - inside).clamp_min(0.0)  # an estimate of the whole may fall short of an exact part of it
        lower = inside / (1.0 + self.report.get("lost_ratio", 0.0)) + rest / (1.0 + self.report["next_ratio"])
        return lower, upper

    def update(self, data: Dataset) -> LaplacePredictor:
        """Condition on more pairs in closed form, at the same noise, prior and effective observations: equal to refitting.

        The mean moves along the Jacobian, u = f + J (shift + R xi), by exact Bayesian linear regression.

        Args:
            data: New pairs, on the grids of the training pairs or other ones.

        Returns:
            A new predictor with a new latent.

        Raises:
            UnsupportedError: If the structure cannot be updated; refit then.
            DataError: If the data are not finite pairs.
            ShapeError: If they do not fit the operator.
        """
        if not isinstance(self.weights, DenseWeights | LowRankWeights):
            raise UnsupportedError(
                expected="a full or low-rank structure, with closed-form updates", got=self.structure, remedy="fit on all data"
            )
        problem = prepare(
            self.operator,
            data,
            parameters=self.layout.names,
            noise=self.noise,
            prior_precision=None,
            # at most one observation per point of a coarse grid
            effective_observations=self.effective_observations.clamp_max(float(check_dataset(data).outputs.grid.size)),
        )
        weights, shift, gain, next_value = update(problem, self.weights, shift=self.shift)
        report = dict(self.report)
        if isinstance(weights, LowRankWeights):
            # omitted curvature of the old data and that of the new span may add up along one direction
            report |= {"rank": float(len(weights.factors)), "next_ratio": report["next_ratio"] + next_value}
        predictor = LaplacePredictor(
            operator=self.operator,
            layout=self.layout,
            weights=weights,
            summary=replace(self.summary, log_evidence=self.log_evidence + gain, report=report),
            domain=self.domain,
            in_channels=self.in_channels,
            variance_estimation=self.variance_estimation,
            shift=shift,
        )
        return with_records(predictor, self.trained_on, record_of(data))

    def sampled(self, members: int, *, seed: int) -> WeightSampledPredictor:
        """Return the predictor without linearisation: `members` operators with weights drawn from the posterior.

        Args:
            members: Number of operators.
            seed: Random seed.

        Raises:
            ArgumentError: If `members` is not a positive integer.
        """
        members = check_integer(members, "members")
        generator = stream(check_seed(seed), "sampled weights", *draw_keys(self.latent.key))
        latents = torch.randn(members, self.weights.rank, generator=generator, dtype=torch.float64, device="cpu")
        vectors = self._vector + self.weights.product(latents.to(self.device)).to(self._vector)
        if self.shift is not None:
            vectors = vectors + self.shift.to(vectors)
        predictor = WeightSampledPredictor(
            operator=self.operator,
            layout=self.layout,
            vectors=vectors,
            noise=self.noise,
            domain=self.domain,
            in_channels=self.in_channels,
            effective_observations=self.effective_observations,
        )
        return with_records(predictor, self.trained_on)

    def _root(self, inputs: Field, query: Grid | None) -> JacobianRoot:
        return JacobianRoot(
            self.operator,
            self.layout,
            vector=self._vector,
            inputs=inputs,
            query=query,
            weights=self.weights,
            recorded=RecordedMaps(self._vector.new_ones(self.out_channels)),
            variance_estimation=self.variance_estimation,
        ).sharing(self._narrow_tensors)

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        check_some(inputs)
        where = inputs.grid if query is None else query
        mean = evaluate(copy_for_call(self.operator), inputs, query)
        root = self._root(inputs, query)
        if self.shift is not None:
            mean = mean + root.push_tangents(self.shift.to(mean)[None])[0].unflatten(-1, where.shape)
        small = root.is_exact and len(inputs) * self.out_channels * where.size * root.shape[3] <= _MATERIALISED
        return GaussianField(mean, FormedRoot(root) if small else root, latent=self.latent, grid=where)
