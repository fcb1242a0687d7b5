"""Gaussian processes between principal components: the kernel method for operators, with its exact posterior."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Annotated

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from probneural.checks import check_choice, check_finite, check_least, check_real
from probneural.contexts import copy_for_call, undisturbed
from probneural.distributions import FieldDistribution, GaussianField, Latent, Predictor, PredictorTraits
from probneural.distributions.latent import digest, draw_keys, separate_batches
from probneural.errors import DataError
from probneural.fields import Field, check_field, evaluate
from probneural.grids import Grid
from probneural.heads.kernel.component_root import BlockCoordinates, ComponentRoot
from probneural.heads.kernel.gaussian_processes import KERNELS, LEAST_NOISE, SMOOTHNESS, InducingProcess, Process
from probneural.heads.kernel.principal_components import PrincipalComponents, left_out, rounding_errors
from probneural.heads.kernel.search import Fitted, Search
from probneural.heads.training_data import NOISE_FLOOR, check_some, frozen_copy, in_memory, recorded, training_data
from probneural.heads.weight_problem import residuals_of
from probneural.pairs import Dataset
from probneural.randomness import stream
from probneural.registry import stored
from probneural.settings import Count, Settings


@dataclass(frozen=True, eq=False)
class Path:
    """One draw of the f functions of a process, given its data: evaluated anywhere at the cost of a mean.

    f(z) = g(z) + k(z, Z) (k + nugget)^-1 (y - g(Z) - e), with g a draw from the prior and e one of the noise.

    Args:
        process: Where it is drawn from.
        frequencies: Of the prior draw's cosines, `(m, r)`.
        phases: `(m,)`, in radians.
        weights: `(m, f)`, in the units of the values.
        slopes: The prior draw's linear part, `(r, f)`.
        multipliers: Of the correction, `(n, f)`, or a row for each inducing point.
    """

    process: Process | InducingProcess
    frequencies: Float64[Tensor, "m r"]
    phases: Float64[Tensor, " m"]
    weights: Float64[Tensor, "m f"]
    slopes: Float64[Tensor, "r f"]
    multipliers: Float64[Tensor, "n f"]

    @classmethod
    @torch.no_grad()
    def drawn(cls, process: Process | InducingProcess, *, generator: torch.Generator, features: int) -> Path:
        """Draw one.

        Args:
            process: Where from.
            generator: Of the randomness, on the CPU.
            features: Number m of cosines.

        Reference:
            Wilson et al. (2020), equation 13; Rahimi & Recht (2007), algorithm 1, for the cosines.
        """
        covariance, amplitude = process.covariance, process.amplitude
        coordinates, outputs = process.basis.shape[1], len(amplitude)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(process.basis.device)

        count = features if covariance.stationary is not None else 0
        precision = _precisions(covariance.stationary, float(covariance.alpha), count, generator).to(process.basis.device)
        phases = 2.0 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
        frequencies = normal(count, coordinates) * precision.sqrt()[:, None] * covariance.relevance
        slopes = normal(coordinates, outputs) * covariance.linear[:, None] * amplitude * float(covariance.has_linear_part)
        prior = cls(
            process=process,
            frequencies=frequencies,
            phases=phases.to(process.basis.device),
            weights=normal(count, outputs) * amplitude * math.sqrt(2.0 / max(1, count)),
            slopes=slopes,
            multipliers=torch.zeros(len(process.basis), outputs, dtype=torch.float64, device=amplitude.device),
        )
        return replace(prior, multipliers=process.correction(prior._prior, normal))

    def __call__(self, queries: Float64[Tensor, "q r"]) -> Float64[Tensor, "q f"]:
        """Evaluate, differentiably."""
        return self._prior(queries) + self.process.covariance(queries, self.process.basis) @ self.multipliers

    def _prior(self, queries: Tensor) -> Tensor:
        return (queries @ self.frequencies.mT + self.phases).cos() @ self.weights + queries @ self.slopes


def _precisions(kernel: str | None, alpha: float, count: int, generator: torch.Generator) -> Tensor:
    """What a kernel's frequencies are normal given: squared length scales are mixed by a gamma distribution, or are one.

    (1 + d²/2α)^-α is the mean of exp(-t d²/2) over t ~ Gamma(α, rate α). The spectral density of Matérn's kernel is Student's t
    with 2ν degrees of freedom: normal with variance 1/t, t ~ Gamma(ν, rate ν).
    """
    if kernel == "rational_quadratic":
        return _gamma(alpha, count, generator)
    if kernel in SMOOTHNESS:
        return 1.0 / _gamma(SMOOTHNESS[kernel], count, generator)
    return torch.ones(count, dtype=torch.float64, device="cpu")


def _gamma(shape: float, count: int, generator: torch.Generator) -> Tensor:
    """Draws from Gamma(shape, rate shape), of mean one."""
    parameter = torch.full((count,), shape, dtype=torch.float64, device="cpu")
    return torch._standard_gamma(parameter, generator=generator) / shape


_TOLERANCES = {"inputs": 1e-8, "outputs": 1e-12}
"""Fraction of the training variance that is left out by default: noise takes the outputs' part."""
_LARGEST = {"inputs": 512, "outputs": 256}
"""The most components by default."""
_PRECISIONS = {"single": torch.float32, "double": torch.float64}
_EXACT = 8000
"""The most pairs whose posterior is exact by default."""
_INDUCING = 4000
"""Inducing points by default where there are more pairs."""
_BATCH_POINTS = 2**16
"""Grid points at which the operator is evaluated at once."""
_KEPT_PATHS = 128
"""Draws of functions that a predictor keeps for later calls, some megabytes each."""
_FEATURES = 2048
"""Random features of a draw's prior part."""
_SAME = 1e-12
"""Differences between coordinates that are rounding, as a fraction of the largest coordinate."""


@dataclass(frozen=True)
class KernelOperator(Settings):
    """Gaussian processes from principal components of the inputs to those of the outputs, conditioned on the training data.

    With z(a) the coordinates of an input, f_k ~ GP(0, amplitude_k² k(z, z')) for each output component psi_k, independent:

        u = operator(a) + mean + sum over k of f_k(z(a)) psi_k.

    Output components are put into groups in the order of their variance; those of a group share the kernel's hyper-parameters
    and noise, each with an amplitude of its own. All of them maximise the evidence of the training data. The default kernel is
    the one of largest evidence on Burgers' equation and Darcy flow; the linear part makes linear maps easy.

    Up to 8,000 pairs the posterior is exact, at n³ operations. Beyond, 4,000 inducing points carry it, at 4,000² operations for
    each pair; hyper-parameters are learned from 2,048 of the pairs. What inputs contain outside the span of the training inputs
    it cannot see; where there are few pairs, this is much, and the posterior does not know. Amplitudes are
    estimates, so with some ten pairs deviations are too small. Components are global: of translation it knows nothing.

    Args:
        kernel: `"rbf"`, `"matern12"`, `"matern32"`, `"matern52"` or `"rational_quadratic"`, by itself or with `"+linear"`; or
            `"linear"`, which is Bayesian linear regression about the mean functions. These are taken as known: the field has no
            uncertainty of the intercept, so with some ten pairs it is far too certain at inputs near the mean.
        input_components: Number of coordinates of the inputs; by default what explains all but 1e-8 of the training
            inputs' variance, at most 512.
        output_components: The same of the outputs; by default all but 1e-12, at most 256.
        groups: Into how many groups to put the output components, each with hyper-parameters of its own.
        min_noise: The least noise variance that the evidence may choose, in units of each process's prior variance at the
            training inputs; from 1e-12, which is as little as double precision resolves, up to 1. With an operator this is
            the variance of what the operator leaves.
        iterations: Steps of the optimiser on all pairs, at most.
        inducing_points: Through the values at how many of the training inputs the posterior is seen, at most; by default all
            of up to 8,000 pairs, and 4,000 of more.

    Raises:
        ArgumentError: If there is no such kernel, a number is not a positive integer, or `min_noise` is out of range.

    Reference:
        Batlle, Darcy, Hosseini & Owhadi (2024), Kernel methods are competitive for operator learning, sections 2 and 3.
        Deviations: the posterior covariance is used, by evidence rather than cross-validation; kernels are sums with a linear
        one; and length scales follow the spectrum of the inputs.

    Examples:
        >>> from probneural.pairs import FieldPairs
        >>> grid = Grid.uniform((8,))
        >>> waves = torch.stack([torch.sin(6.283185307179586 * grid.points[:, 0]), torch.ones(8, dtype=torch.float64)])
        >>> numbers = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> inputs = Field((numbers @ waves)[:, None], grid)
        >>> predictor = KernelOperator("linear").fit(None, FieldPairs(inputs, Field(2.0 * inputs.values, grid)))
        >>> predictor(Field(waves[1:, None], grid)).mean.mean().round(decimals=4).item()
        2.0
    """

    kernel: str = "rational_quadratic+linear"
    _: KW_ONLY
    input_components: Count | None = None
    output_components: Count | None = None
    groups: Count = 4
    min_noise: Annotated[float, partial(check_real, least=LEAST_NOISE, most=1.0)] = LEAST_NOISE
    iterations: Count = 20
    inducing_points: Count | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_choice(self.kernel, KERNELS, "kernel")

    @recorded
    @undisturbed()
    @torch.no_grad()
    def fit(self, operator: nn.Module | None, data: Dataset) -> KernelPredictor:
        """Fit components and hyper-parameters, and condition on the data.

        All pairs are read into memory, by every process where torch.distributed is initialised: principal components are those
        of all functions at once. Ten thousand functions, not a million.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`, whose residuals are learned then; None to learn the
                outputs themselves. Neither it nor the data are changed.
            data: Training pairs, at least three. With an operator that has learned its own by heart, take others: what it
                leaves of them is larger.

        Returns:
            A predictor with its own copy of the operator.

        Raises:
            DataError: If the data are not finite, fewer than three pairs, or inputs or outputs do not vary.
            ShapeError: If the operator's outputs do not fit the data's.
        """
        copied = None if operator is None else frozen_copy(operator)
        pairs = training_data(data, copied, is_shared=False)
        check_least(pairs.functions, 3, "pairs", remedy="give more data")
        variances = pairs.output_units()[1].square()
        inputs, outputs = in_memory(pairs.inputs), in_memory(pairs.outputs)
        rounding = rounding_errors(outputs)
        if copied is not None:
            step = max(1, _BATCH_POINTS // pairs.grid.size)
            rounding = torch.maximum(rounding, rounding_errors(outputs, dtype=inputs.dtype))  # the operator's dtype
            outputs = Field(
                torch.cat([residuals_of(copied, batch, pairs.query) for batch in pairs.batches(step)]), outputs.grid
            )
        components = {}
        for name, functions, count, errors in (
            ("inputs", inputs, self.input_components, None),
            ("outputs", outputs, self.output_components, rounding),
        ):
            components[name] = PrincipalComponents.of(
                functions, components=count, tolerance=_TOLERANCES[name], largest=_LARGEST[name], rounding=errors
            )
            if not components[name].count:
                raise DataError(expected=f"{name} that vary", got="a constant", remedy="a constant has nothing to learn")
        input_components, output_components = components["inputs"], components["outputs"]
        points, std = input_components.scores(inputs), output_components.std
        values = output_components.scores(outputs) / std
        most = self.inducing_points or (len(inputs) if len(inputs) <= _EXACT else _INDUCING)
        processes, evidence, converged, evaluations = [], 0.0, True, 0
        noise = left_out(outputs, output_components, groups=getattr(pairs.pairs, "groups", None))
        fitted: Fitted | None = None
        for start, end in _edges(output_components.count, self.groups):
            search = Search(
                kernel=self.kernel,
                points=points,
                std=input_components.std,
                values=values[:, start:end],
                min_noise=self.min_noise,
                iterations=self.iterations,
                like=fitted.vector if fitted is not None else None,
            )
            fitted = search.run(inducing_points=None if most >= len(inputs) else most)
            process = fitted.process.scaled(std[start:end])
            processes.append(process)
            noise = noise + process.nugget * process.amplitude.square() @ output_components.mean_squares()[start:end]
            evidence += fitted.log_evidence - len(inputs) * float(std[start:end].log().sum())
            converged = converged and fitted.converged
            evaluations += fitted.evaluations
        return KernelPredictor(
            operator=copied,
            inputs=input_components,
            outputs=output_components,
            processes=processes,
            noise=noise.maximum(NOISE_FLOOR * torch.minimum(variances, output_components.unit.square())),
            log_evidence=evidence,
            report={"converged": float(converged), "evaluations": float(evaluations)},
            precision="single" if inputs.dtype == torch.float32 else "double",
        )


def _edges(count: int, groups: int) -> list[tuple[int, int]]:
    """Split a falling sequence of components into groups that grow geometrically."""
    marks = sorted({0, *(round(count ** (number / groups)) for number in range(1, groups)), count})
    return list(pairwise(marks))


@stored()
class KernelPredictor(Predictor):
    """What `KernelOperator` fits.

    The fields of one call share a latent; two calls do not, unless their inputs are the same: the posterior has a dimension for
    every input. Function draws are coherent across calls, and `condition` carries measurements of some functions to all later
    calls.

    Attributes:
        operator: The predictor's own copy of the operator, or None.
        inputs: Principal components of the training inputs, the arguments of the processes.
        outputs: Those of the training outputs, or of the operator's residuals.
        processes: One per group of output components.
        noise: Observation variance per channel, `(c,)`, in physical units squared: the processes' learned noise, and what the
            output components leave out of held-out training outputs, at least 1e-12 of their variance (1e-12 where that is 0).
        log_evidence: In nats, a lower bound with inducing points; of the training coordinates, which have the units of the
            outputs divided by the channels' scale.
        precision: `"single"` or `"double"`: of predictions.
        report: `"converged"` is 1 if the optimiser met its tolerance in every group; `"evaluations"` of the evidence.
    """

    def __init__(
        self,
        *,
        operator: nn.Module | None,
        inputs: PrincipalComponents,
        outputs: PrincipalComponents,
        processes: Sequence[Process | InducingProcess],
        noise: Float64[Tensor, " c"],
        log_evidence: float,
        report: Mapping[str, float],
        precision: str,
    ) -> None:
        like = outputs.modes.new_empty(0, dtype=_PRECISIONS[check_choice(precision, _PRECISIONS, "precision")])
        super().__init__(PredictorTraits(in_channels=len(inputs.unit), noise=noise, domain=inputs.grid, like=like))
        self.operator = operator
        self.inputs = inputs
        self.outputs = outputs
        self.processes = tuple(processes)
        self.log_evidence = log_evidence
        self.report = dict(report)
        self.precision = precision
        tensors = [part for process in self.processes for part in process.fingerprint()]
        self._drawn_paths: dict[tuple[int, ...], list[Path]] = {}
        self._name = f"kernel-{digest(inputs.modes, outputs.modes, *tensors)}"

    @property
    def converged(self) -> bool:
        """Whether the optimiser met its tolerance in every group."""
        return self.report["converged"] == 1.0

    @property
    def _identity(self) -> str:
        return self._name

    def coordinates(self, inputs: Field) -> Float64[Tensor, "n r"]:
        """Principal components of the inputs, dimensionless."""
        return self.inputs.scores(check_field(inputs, "inputs"))

    def centre(self, inputs: Field, query: Grid | None) -> Float[Tensor, "n c *grid"]:
        """What the processes are added to: the operator's outputs and the mean of the training residuals, physical units."""
        where = inputs.grid if query is None else query
        offset = self.outputs.mean_on(where)
        if self.operator is None:
            return offset.expand(len(inputs), *offset.shape)
        return evaluate(copy_for_call(self.operator), inputs, query).to(torch.float64) + offset

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        points = []
        for inputs, _ in sets:
            check_some(inputs)
            points.append(self.coordinates(inputs))
            check_finite(points[-1], "coordinates of inputs", remedy="inputs may be far outside the training data")
        everywhere, batches = torch.cat(points), separate_batches()
        count, size = (0, 0) if batches is None else batches
        rows = torch.arange(len(everywhere), device=everywhere.device)
        if batches is None:
            everywhere, rows = _distinct(everywhere)
        coordinates = BlockCoordinates(
            std=torch.cat([process.amplitude for process in self.processes]),
            sizes=tuple(len(process.amplitude) for process in self.processes),
            variances=cache(partial(_variances, self.processes, everywhere)),
            factors=cache(partial(_factors, self.processes, everywhere, batches)),
            joint=len(everywhere) - count + size,
            rows=torch.arange(len(everywhere), device=everywhere.device),
            paths=partial(self._path_values, everywhere),
        )
        name = f"{self._name}-{digest(everywhere, torch.tensor([count, size]))}"
        whose = rows.split([len(one) for one in points])
        return [
            self._field(inputs, query, coordinates.select(which), points=own, name=name)
            for (inputs, query), own, which in zip(sets, points, whose, strict=True)
        ]

    def _field(
        self, inputs: Field, query: Grid | None, coordinates: BlockCoordinates, *, points: Float64[Tensor, "n r"], name: str
    ) -> GaussianField:
        """The field at some of the points that share a latent."""
        where = inputs.grid if query is None else query
        modes = self.outputs.modes_on(where)
        weights = torch.cat([process.mean(points) for process in self.processes], dim=1)
        mean = self.centre(inputs, query) + torch.einsum("nf,fcp->ncp", weights, modes).unflatten(-1, where.shape)
        latent = Latent(id=name, rank=coordinates.shape[3], is_shared_across_calls=False, source=self._key)
        return GaussianField(mean.to(self.dtype), ComponentRoot(modes, coordinates), latent=latent, grid=where)

    def _path_values(self, points: Float64[Tensor, "N r"], seed: int, rows: Int64[Tensor, " m"]) -> Float64[Tensor, "m f"]:
        """Deviations from the mean of the draw of this seed at some of the points, in units of the coordinates' deviations."""
        queries = points[rows]
        deviations = [path(queries) - path.process.mean(queries) for path in self._paths_of(seed)]
        amplitudes = torch.cat([process.amplitude for process in self.processes])
        return torch.cat(deviations, dim=1) / torch.where(amplitudes > 0, amplitudes, torch.ones_like(amplitudes))

    def _paths_of(self, seed: int) -> list[Path]:
        """One function of each Gaussian process for a seed, kept for the draws that were used last."""
        keys = (seed, *draw_keys(self._key))
        if keys not in self._drawn_paths:
            generator = stream(seed, "kernel paths", *keys[1:])
            with torch.inference_mode(False), torch.no_grad():  # functions outlive inference mode
                paths = [Path.drawn(process, generator=generator, features=_FEATURES) for process in self.processes]
            while len(self._drawn_paths) >= _KEPT_PATHS:
                self._drawn_paths.pop(next(iter(tuple(self._drawn_paths))), None)
            self._drawn_paths[keys] = paths
        return self._drawn_paths[keys]


def _distinct(points: Float64[Tensor, "n r"]) -> tuple[Float64[Tensor, "m r"], Int64[Tensor, " n"]]:
    """The different points in their order, and which of them each is: a function that comes twice is one.

    Coordinates of one function depend on the functions beside it by rounding. Where derivatives are asked for, points that
    coincide now are still different ones.
    """
    numbers = torch.arange(len(points), device=points.device)
    if points.requires_grad:
        return points, numbers
    rounding = _SAME * points.abs().max()
    values, classes = points.unique(dim=0, return_inverse=True)
    first = torch.full((len(values),), len(points), device=points.device).scatter_reduce(0, classes, numbers, "amin")
    # Points within rounding of each other are within a multiple of it along any direction w: |w (a - b)| <= |w|_1 max|a - b|.
    direction = torch.linspace(1.0, 2.0, points.shape[1], dtype=points.dtype, device=points.device).sqrt()
    along, order = (values @ direction).sort()
    same = first.clone()
    for shift in range(1, len(values)):
        is_near = along[shift:] - along[:-shift] <= 2.0 * rounding * direction.sum()
        if not bool(is_near.any()):
            break
        left, right = order[:-shift][is_near], order[shift:][is_near]
        equal = (values[left] - values[right]).abs().amax(1) <= rounding
        left, right = left[equal], right[equal]
        same.scatter_reduce_(0, left, first[right], "amin").scatter_reduce_(0, right, first[left], "amin")
    earliest = same[classes]
    kept = earliest.unique()
    return points[kept], torch.searchsorted(kept, earliest)


def _variances(processes: Sequence[Process | InducingProcess], points: Tensor) -> Tensor:
    return torch.stack([process.variance(points) for process in processes])


def _factors(processes: Sequence[Process | InducingProcess], points: Tensor, batches: tuple[int, int] | None) -> Tensor:
    """Rows of the factors, `(g, n, N)`: of all points, or of each batch of the last ones together with those before."""
    if batches is None:
        return torch.stack([process.joint_factor(points) for process in processes])
    shared, separate = points[: -batches[0]], points[-batches[0] :].unflatten(0, (-1, batches[1]))
    joint = torch.cat([shared.expand(len(separate), *shared.shape), separate], dim=1)
    factors = torch.stack([process.joint_factor(joint) for process in processes])
    return torch.cat([factors[:, 0, : len(shared)], factors[:, :, len(shared) :].flatten(1, 2)], dim=1)
