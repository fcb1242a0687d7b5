"""The classes that files know, and what each is made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import Any, get_type_hints

from jaxtyping import Bool, Float64
from torch import Size, Tensor

from probneural.calibration.calibrate import CalibratedPredictor, CalibrationReport
from probneural.calibration.novelty.detector import NoveltyMeasure
from probneural.calibration.novelty.inflation import InflatedPredictor, Inflation
from probneural.calibration.novelty.scores import FittedScores, InputScores, LeadingComponents, MahalanobisDistance
from probneural.calibration.variance.discrepancy import Decomposition
from probneural.calibration.variance.local_scale import LocalScale, VarianceCurve
from probneural.calibration.variance.scale_mixture import ScaleMixturePredictor
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.calibration.variance.stationary_process import StationaryProcess
from probneural.curvature.jacobian_root import VarianceEstimation
from probneural.curvature.kfac.factors import KroneckerWeights
from probneural.curvature.parameters import ParameterVector
from probneural.curvature.weights import (
    DenseWeights,
    DiagonalWeights,
    IterativeWeights,
    LowRankPlusDiagonalWeights,
    LowRankWeights,
)
from probneural.distributions.predictors.base import FunctionDraw, Predictor
from probneural.distributions.predictors.conditioned import ConditionedPredictor
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import FileError, GridError, ProbneuralError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.grids.axes import Axis
from probneural.heads.ensembles.masked_operator import MaskedOperator
from probneural.heads.kernel.gaussian_processes import Covariance, Process
from probneural.heads.kernel.inducing_points import InducingProcess
from probneural.heads.kernel.kernel_operator import KernelPaths, KernelPredictor
from probneural.heads.kernel.principal_components import PredictedComponents, PrincipalComponents
from probneural.heads.laplace.laplace import LaplacePredictor
from probneural.heads.last_layer.heteroscedastic_predictor import HeteroscedasticPredictor
from probneural.heads.last_layer.laplace import LastLayerPredictor
from probneural.heads.last_layer.predictors import SampledLastLayerPredictor, VariationalLastLayerPredictor
from probneural.heads.last_layer.readout import Readout
from probneural.heads.noise_conditioning import NoiseConditionedPredictor
from probneural.heads.weight_posterior import Hyperparameters
from probneural.heads.weight_samples import WeightSampledPredictor
from probneural.operators import (
    FNO,
    DeepONet,
    HiddenLayers,
    LinearRegression,
    NeuralODEOperator,
    NoiseConditionedOperator,
    NoiseField,
    ODESolver,
    Operator,
    PODDeepONet,
    RecurrentLayers,
    RecurrentOperator,
    Rollout,
    SpectralEncoder,
)
from probneural.pairs.provenance import TrainingRecord
from probneural.training import schema

_RECORD = inspect.Parameter("trained_on", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TrainingRecord | None)
_DISCREPANCY = inspect.Parameter(
    "discrepancy_variance", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=tuple[float, ...] | None
)
"""Parts of every predictor beside its constructor's arguments."""


@dataclass(frozen=True)
class Kind:
    """How instances of a class are taken apart and put together.

    Attributes:
        cls: The class.
        parts: From an instance to what a file must hold, by name; by default its constructor's arguments.
        build: From the parts to an instance; by default the constructor. Its annotations say what the parts are.
        on_cpu: Parts that stay on the CPU, wherever the rest goes.
        state: From the parts of a module to the tensors that bound what its constructor makes; None if that makes no tensors.
        mixes_precisions: Whether its tensors may have different dtypes; it converts them itself.
    """

    cls: type
    parts: Callable[[Any], Mapping[str, Any]] | None = None
    build: Callable[..., Any] | None = None
    on_cpu: tuple[str, ...] = ()
    state: Callable[[Mapping[str, Any]], Mapping[str, Tensor]] | None = None
    mixes_precisions: bool = False

    @property
    def name(self) -> str:
        """Of the class, and in files."""
        return self.cls.__name__

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """What it is built from, by name, with annotations that are evaluated."""
        make = self.cls if self.build is None else self.build
        hints = get_type_hints(self.build or self.cls.__init__)  # type: ignore[misc]
        arguments = inspect.signature(make).parameters
        found = {name: parameter.replace(annotation=hints[name]) for name, parameter in arguments.items()}
        of_predictors = {one.name: one for one in (_RECORD, _DISCREPANCY)}
        return found | of_predictors if issubclass(self.cls, Predictor) else found

    def taken_apart(self, thing: object) -> Mapping[str, Any]:
        """The parts of an instance."""
        if self.parts is not None:
            return self.parts(thing)
        return {name: getattr(thing, name) for name in self.parameters}

    def put_together(self, parts: Mapping[str, Any]) -> Any:
        """Build an instance from parts that have passed the schema.

        Raises:
            FileError: If the class refuses their values.
        """
        try:
            arguments = dict(parts)
            record, discrepancy = (arguments.pop(one.name, None) for one in (_RECORD, _DISCREPANCY))
            built = (self.cls if self.build is None else self.build)(**arguments)
            if isinstance(built, Predictor):
                _check_inputs(built)
                built._with_records(record)
                if discrepancy is not None:  # older files leave it out
                    built._with_discrepancy_variance(discrepancy)
            self._check_settings(parts, self.taken_apart(built))
            return built
        except FileError:
            raise
        except (ProbneuralError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise FileError(
                expected=f"parts of a {self.name} that fit together",
                got=f"{error.got}, not {error.expected}" if isinstance(error, ProbneuralError) else repr(error)[:200],
                remedy="the file is damaged, or of another version",
            ) from error

    def _check_settings(self, parts: Mapping[str, Any], built: Mapping[str, Any]) -> None:
        """Raise a FileError unless an instance has the numbers, texts and flags that it was built from."""
        for name, value in parts.items():
            if _is_setting(value) and value != built[name] and value == value:  # NaN is NaN
                schema.refuse(repr(built[name])[:80], value, where=f"{name} of a {self.name}")


def _is_setting(value: object) -> bool:
    """Whether a part is None, a number, text or flag, or a tuple of those."""
    return all(map(_is_setting, value)) if isinstance(value, tuple) else isinstance(value, bool | int | float | str | None)


def _check_inputs(predictor: Predictor) -> None:
    """Raise a ShapeError unless a predictor has as many input channels as an operator of ours that it holds."""
    operator = getattr(getattr(predictor, "readout", predictor), "operator", None)
    wanted = operator.in_channels if isinstance(operator, Operator) else max(1, predictor.in_channels)
    if predictor.in_channels != wanted:
        raise ShapeError(expected=f"{wanted} input channels", got=str(predictor.in_channels), remedy="use the operator's")


def _layout(names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], is_complex: tuple[bool, ...]) -> ParameterVector:
    return ParameterVector(names=names, shapes=tuple(map(Size, shapes)), is_complex=is_complex)


def _kronecker_weights(**tensors: Tensor) -> KroneckerWeights:
    return KroneckerWeights.from_tensors(tensors)


def _grid(
    shape: tuple[int, ...],
    axes: tuple[Axis, ...],
    _points: Float64[Tensor, "p d"] | None,
    _weights: Float64[Tensor, " p"] | None,
    _observed: Bool[Tensor, " p"] | Bool[Tensor, "n p"] | None = None,
) -> Grid:
    grid = Grid.of_axes(axes) if _points is None or _weights is None else Grid.scattered(_points, _weights)
    if grid.shape != shape or grid.axes != axes or (_points is None) != (_weights is None):
        raise GridError(
            expected="the axes of a uniform grid, or points and weights",
            got=f"a mixture of shape {shape}",
            remedy="make it anew",
        )
    return grid if _observed is None else grid.masked(_observed.reshape(*_observed.shape[:-1], *grid.shape))


def _by_name(*kinds: Kind) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds}


OPERATORS: dict[str, Kind] = _by_name(
    *(
        Kind(cls, parts=methodcaller("configuration"))
        for cls in (DeepONet, FNO, LinearRegression, NeuralODEOperator, PODDeepONet, RecurrentOperator)
    )
)
"""Operators that are rebuilt from their configuration."""

KINDS: dict[str, Kind] = _by_name(
    Kind(LastLayerPredictor, on_cpu=("prior_precision", "effective_observations")),
    Kind(LaplacePredictor),
    Kind(KernelPredictor),
    Kind(KernelPaths),
    Kind(PrincipalComponents),
    Kind(PredictedComponents),
    Kind(Process),
    Kind(InducingProcess),
    Kind(Covariance),
    Kind(SampledLastLayerPredictor, on_cpu=("prior_factors", "prior_precision", "effective_observations")),
    Kind(VariationalLastLayerPredictor, on_cpu=("history",)),
    Kind(WeightSampledPredictor, on_cpu=("effective_observations",)),
    Kind(NoiseConditionedPredictor),
    Kind(HeteroscedasticPredictor),
    Kind(ScaledPredictor, on_cpu=("scale", "noise_scale", "decomposition", "calibrated_on", "local")),
    Kind(MixturePredictor, on_cpu=("weights", "calibrated_on")),
    Kind(ScaleMixturePredictor, on_cpu=("scales", "weights", "calibrated_on")),
    Kind(CalibratedPredictor, on_cpu=("report", "measure", "scores", "groups", "calibrated_on")),
    Kind(CalibrationReport),
    Kind(ConditionedPredictor, on_cpu=("matrix", "values", "measurement_noise")),
    Kind(Field),
    Kind(LocalScale, on_cpu=("slopes", "amplitudes", "units", "standards", "coefficients", "limits")),
    Kind(VarianceCurve, on_cpu=("knots", "heights")),
    Kind(InflatedPredictor, on_cpu=("inflation", "measure", "calibrated_on")),
    Kind(Inflation, on_cpu=("knots", "exponents")),
    Kind(NoveltyMeasure, on_cpu=("fitted",)),
    Kind(InputScores, on_cpu=("units", "components", "least_power", "spectrum")),
    Kind(FittedScores, on_cpu=("inputs", "channels", "features", "variance")),
    Kind(LeadingComponents, on_cpu=("center", "directions", "variances")),
    Kind(MahalanobisDistance, on_cpu=("center", "whitening")),
    Kind(Decomposition),
    Kind(StationaryProcess, on_cpu=("modes", "amplitudes", "lower", "lengths")),
    Kind(TrainingRecord, on_cpu=("row_keys", "input_keys")),
    Kind(FunctionDraw),
    Kind(Rollout),
    Kind(
        NoiseConditionedOperator,
        parts=NoiseConditionedOperator.parts,
        build=NoiseConditionedOperator.from_parts,
        state=lambda parts: {**parts["operator"].state_dict(), **(parts["weights"] or {})},
    ),
    Kind(NoiseField),
    Kind(MaskedOperator),
    Kind(Readout),
    Kind(Hyperparameters, on_cpu=("prior_precision", "effective_observations")),
    Kind(ParameterVector, build=_layout),
    Kind(VarianceEstimation),
    Kind(DenseWeights),
    Kind(DiagonalWeights),
    Kind(LowRankWeights, mixes_precisions=True),
    Kind(LowRankPlusDiagonalWeights),
    Kind(KroneckerWeights, parts=KroneckerWeights.tensors, build=_kronecker_weights),
    Kind(IterativeWeights, parts=IterativeWeights.tensors),  # which says why not
    Kind(Grid, build=_grid, on_cpu=("_points", "_weights", "_observed")),
    Kind(Axis),
    Kind(HiddenLayers),
    Kind(ODESolver),
    Kind(RecurrentLayers),
    Kind(SpectralEncoder),
)
"""Predictors and what they are made of."""
