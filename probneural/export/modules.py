"""Operators and moments of predictors as modules of plain tensors on a fixed grid, for tracing."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.calibration.bands.conformal import Band
from probneural.calibration.calibrate import CalibratedPredictor
from probneural.calibration.variance.scale_mixture import ScaleMixturePredictor
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.distributions import Predictor
from probneural.distributions.predictors.base import FunctionDraw
from probneural.errors import UnsupportedError
from probneural.fields import Field, takes_grid
from probneural.grids import Grid, resample
from probneural.heads.kernel.kernel_operator import KernelPredictor
from probneural.heads.laplace.laplace import LaplacePredictor
from probneural.heads.last_layer.laplace import LastLayerPredictor
from probneural.heads.last_layer.readout import Readout, with_factor
from probneural.heads.weight_samples import WeightSampledPredictor
from probneural.randomness import stream

_REASONS: dict[type, tuple[str, str]] = {
    LaplacePredictor: (
        "one whose variances take derivatives in the operator's weights at every input",
        "export predictor.sampled(members, seed=0), or fit LastLayerLaplace; predictor.operator has the mean alone",
    ),
    KernelPredictor: (
        "one whose moments take a Gaussian process and all its training inputs",
        "export the operator, or predict with pn.load where this library is installed",
    ),
    FunctionDraw: (
        "a function draw",
        "export the predictor's mean and standard deviation, or draw where this library is installed",
    ),
    Band: (
        "a band alone",
        "export predictor = pn.calibration.calibrate(band.predictor, held_out), whose file has the edges of its band",
    ),
}
"""Objects that cannot be exported, with a description and a remedy."""


def moments(predictor: Predictor, grid: Grid, query: Grid, *, units: Float64[Tensor, " c"]) -> nn.Module:
    """Return a module from input values to mean and standard deviation of a predictor, and the edges of its band if it has one.

    The module has copies of the predictor's tensors.

    Args:
        predictor: Predictor of a head or a calibrator.
        grid: Where inputs live.
        query: Where to evaluate.
        units: Unit in which standard deviations are squared, per channel: their size, so that squares stay in range.

    Raises:
        UnsupportedError: If there is no such module.
    """
    if isinstance(predictor, CalibratedPredictor):
        inner = moments(predictor.inner, grid, query, units=units)
        return inner if predictor.quantile is None else BandMoments(predictor.band, inner, query, units=units)
    if isinstance(predictor, ScaleMixturePredictor):
        inner = moments(predictor.inner, grid, query, units=units)
        return MixtureMoments(inner, factor=predictor.variance_factor**0.5)
    if isinstance(predictor, ScaledPredictor):
        return ScaledMoments(predictor, moments(predictor.inner, grid, query, units=units), query, units=units)
    if isinstance(predictor, LastLayerPredictor):
        features = PlacedFeatures(predictor.readout, grid, query, in_channels=predictor.in_channels)
        return LastLayerMoments(features, factor=predictor.factor[0], shift=predictor.shift, units=units)
    if isinstance(predictor, WeightSampledPredictor):
        members = [Evaluation(member, grid, query) for member in predictor.operators()]
        return SampleMoments(members, units=units)
    raise unsupported(predictor)


def unsupported(thing: object) -> UnsupportedError:
    """The error for an object that cannot be exported."""
    got, remedy = _REASONS.get(type(thing), (type(thing).__name__, "export the operator, or the predictor it was made of"))
    return UnsupportedError(
        expected="an nn.Module, or a predictor of a last layer or of weight samples, calibrated or not", got=got, remedy=remedy
    )


class Evaluation(nn.Module):
    """An operator on fixed grids.

    Args:
        operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`; it is copied.
        grid: Where inputs live.
        query: Where to evaluate.
    """

    def __init__(self, operator: nn.Module, grid: Grid, query: Grid) -> None:
        super().__init__()
        self.operator = copy.deepcopy(operator).eval().requires_grad_(False)
        self.grid, self.query = grid.unmasked, query.unmasked
        self.takes_grid = takes_grid(operator)

    def forward(self, values: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c2 *query"]:
        """Map `(n, c, *grid)` to `(n, c', *query)`."""
        query = None if self.query == self.grid else self.query
        if self.takes_grid:
            result: Tensor = self.operator(values, grid=self.grid, query=query)
            return result
        return resample(self.operator(values), self.grid, self.query)


class PlacedFeatures(nn.Module):
    """An operator on fixed grids, and the features of its read-out.

    Args:
        readout: The operator split into features and last layer.
        grid: Where inputs live.
        query: Where to evaluate.
        in_channels: Of the inputs.
    """

    factor: Tensor | None

    def __init__(self, readout: Readout, grid: Grid, query: Grid, *, in_channels: int) -> None:
        super().__init__()
        like = next(readout.operator.parameters())
        dtype, device = like.dtype.to_real(), like.device
        self.evaluation = Evaluation(readout.operator, grid, query)
        self.name, self.channel_axis, self.has_bias = readout.name, readout.channel_axis, readout.has_bias
        example = torch.randn(1, in_channels, *grid.shape, generator=stream(0, "placed features"))
        self.home, factor = readout.home_and_factor(Field(example.to(device, dtype), grid), query)
        if factor is not None and not bool(factor.isfinite().all()):
            raise UnsupportedError(
                expected="an operator that is finite on standard normal inputs, where it keeps boundary values",
                got="NaN or infinite factors of its read-out",
                remedy="export the operator without kept boundary values",
            )
        self.register_buffer("factor", None if factor is None else factor.to(device, dtype))

    def forward(self, values: Float[Tensor, "n c *grid"]) -> tuple[Tensor, Float[Tensor, "n p f"]]:
        """Map values to the operator's, `(n, c', *query)`, and features, a constant 1 among them left out."""
        caught: list[Tensor] = []
        layer = self.evaluation.operator.get_submodule(self.name)
        handle = layer.register_forward_hook(lambda module, arguments, output: caught.append(arguments[0]))
        try:
            mean = self.evaluation(values)
        finally:
            handle.remove()
        features = caught[-1].movedim(self.channel_axis, 1)
        features = with_factor(features, self.factor, has_bias=self.has_bias)
        return mean, resample(features, self.home, self.evaluation.query).flatten(2).mT


class LastLayerMoments(nn.Module):
    """u_c(x) = sum over j of w_cj phi_j(x) with Gaussian weights: mean and standard deviation |R_c^T phi(x)|.

    Pointwise moments need no correlation between channels, so a root R_c of each channel's own weights, `(f, r)` with r up to
    f, stands for the factor.

    Args:
        features: The operator and phi.
        factor: Root of the weights' covariance, `(c, f, k)`, in physical units.
        shift: How far the mean weights are from the trained ones, `(c, f)`, in physical units, or None.
        units: Unit of standard deviations, `(c,)`.
    """

    roots: Tensor
    units: Tensor
    shift: Tensor | None

    def __init__(
        self,
        features: PlacedFeatures,
        *,
        factor: Float64[Tensor, "c f k"],
        shift: Float64[Tensor, "c f"] | None,
        units: Float64[Tensor, " c"],
    ) -> None:
        super().__init__()
        like = next(features.parameters())
        dtype, device = like.dtype.to_real(), like.device
        self.features = features
        relative = factor / units.to(factor)[:, None, None]
        if factor.shape[2] > factor.shape[1]:
            relative = torch.linalg.qr(relative.mT, mode="r")[1].mT
        self.register_buffer("roots", relative.to(device, dtype))
        self.register_buffer("units", units.to(device, dtype))
        self.register_buffer("shift", None if shift is None else shift.to(device, dtype))

    def forward(self, values: Float[Tensor, "n c *grid"]) -> tuple[Tensor, Tensor]:
        """Map values to mean and standard deviation, `(n, c', *query)` each."""
        mean, rows = self.features(values)
        if self.shift is not None:
            mean = mean + self._applied(rows, self.shift[..., None])[..., 0].reshape(mean.shape)
        size = self._applied(rows, self.roots).square().sum(-1).sqrt()
        return mean, (size * self.units[:, None]).reshape(mean.shape)

    def _applied(self, rows: Float[Tensor, "n p columns"], maps: Float[Tensor, "c f r"]) -> Float[Tensor, "n c p r"]:
        """Apply a matrix per channel to features, of which a constant one, the last, has no column in `rows`."""
        weights, count = maps.movedim(0, 1), rows.shape[-1]
        bias = weights[-1].flatten() if count < len(weights) else None
        applied = nn.functional.linear(rows, weights[:count].flatten(1).mT, bias)
        return applied.unflatten(-1, weights.shape[1:]).movedim(2, 1)


class SampleMoments(nn.Module):
    """Mean and standard deviation of operators, each weighing the same.

    Args:
        members: The operators on fixed grids.
        units: Unit of standard deviations, `(c,)`.
    """

    units: Tensor

    def __init__(self, members: Sequence[Evaluation], *, units: Float64[Tensor, " c"]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("units", units)

    def forward(self, values: Float[Tensor, "n c *grid"]) -> tuple[Tensor, Tensor]:
        """Map values to mean and standard deviation, `(n, c', *query)` each."""
        samples = torch.stack([member(values) for member in self.members])
        mean = samples.mean(0)
        units = _spread(self.units, mean)
        return mean, ((samples - mean) / units).square().mean(0).sqrt() * units


class ScaledMoments(nn.Module):
    """Mean, and the root of h (a v + b n) less measurement noise: the moments of a predictor of `VarianceScale`.

    Args:
        predictor: The calibrated predictor.
        inner: Moments of the wrapped predictor.
        query: Where they are.
        units: Unit of standard deviations, `(c,)`.

    Raises:
        UnsupportedError: If variances have a local scale, and the query is no uniform grid of the whole domain or mesh.
    """

    factor: Tensor
    variance: Tensor
    noise: Tensor
    units: Tensor

    def __init__(self, predictor: ScaledPredictor, inner: nn.Module, query: Grid, *, units: Float64[Tensor, " c"]) -> None:
        super().__init__()
        self.inner = inner
        parts, local = predictor.decomposition, predictor.local
        if local is not None and not local.covers(query):
            raise UnsupportedError(
                expected="a uniform grid of the whole domain, or a mesh, along which variances are scaled locally",
                got=repr(query),
                remedy="export on such a grid, or calibrate with VarianceScale(local=False)",
            )
        self.local = None if local is None else local.on(query)
        scale, variance = predictor.scale * parts.root_fraction, torch.zeros_like(predictor.scale)
        noise = torch.zeros_like(variance)
        if parts.process is not None:  # the pointwise variance has a shared and a per-sample part
            noise, inner_noise = (part.detach().to(variance) for part in (predictor.noise, predictor.inner.noise))
            scale, variance = predictor.scale, predictor.noise_scale * inner_noise
        self.register_buffer("factor", scale.sqrt() / units.to(scale))
        self.register_buffer("variance", variance / units.to(scale).square())
        self.register_buffer("noise", noise / units.to(scale).square())
        self.register_buffer("units", units)

    def forward(self, values: Float[Tensor, "n c *grid"]) -> tuple[Tensor, Tensor]:
        """Map values to mean and standard deviation, `(n, c', *query)` each."""
        mean, deviation = self.inner(values)
        factor, variance, noise, units = (
            _spread(numbers, mean) for numbers in (self.factor, self.variance, self.noise, self.units)
        )
        total = (deviation * factor).square() + variance
        if self.local is not None:
            exact = total.to(torch.float64) * units.to(torch.float64).square()
            total = total * self.local(mean, exact).to(total).reshape(total.shape)
        return mean, (total - noise).clamp_min(0.0).sqrt() * units


class MixtureMoments(nn.Module):
    """Moments of a scale mixture: the standard deviation is multiplied by the root of the sum of w_k s_k².

    Args:
        inner: Moments of the wrapped predictor.
        factor: The root, dimensionless.
    """

    def __init__(self, inner: nn.Module, *, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = inner, factor

    def forward(self, values: Float[Tensor, "n c *grid"]) -> tuple[Tensor, Tensor]:
        """Map values to mean and standard deviation, `(n, c', *query)` each."""
        mean, deviation = self.inner(values)
        return mean, self.factor * deviation


class BandMoments(nn.Module):
    """Moments with the edges mean ± q max(s, floor * rms of s) of a simultaneous band, s² the variance of field and noise.

    Args:
        band: The band.
        inner: Moments of the band's predictor.
        query: Where they are.
        units: Unit of standard deviations, `(c,)`.

    Raises:
        GridError: If the domain differs from sample to sample.
    """

    weights: Tensor
    noise: Tensor
    units: Tensor

    def __init__(self, band: Band, inner: nn.Module, query: Grid, *, units: Float64[Tensor, " c"]) -> None:
        super().__init__()
        self.inner, self.quantile, self.floor = inner, band.quantile, band.method.floor
        self.register_buffer("weights", query.mean_weights)
        self.register_buffer("noise", band.predictor.noise.detach().to(units) / units.square())
        self.register_buffer("units", units)

    def forward(self, values: Float[Tensor, "n c *grid"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Map values to mean, standard deviation, lower and upper edge, `(n, c', *query)` each."""
        mean, deviation = self.inner(values)
        noise, units = (_spread(numbers, mean) for numbers in (self.noise, self.units))
        variance = (deviation / units).square() + noise
        least = self.floor * (variance.flatten(2) @ self.weights.to(mean)).sqrt()
        scale = torch.maximum(variance.sqrt(), least.reshape(*least.shape, *(1,) * (mean.ndim - 2)))
        half_width = self.quantile * scale * units
        return mean, deviation, mean - half_width, mean + half_width


def _spread(numbers: Float[Tensor, " c"], values: Tensor) -> Tensor:
    return numbers.to(values).reshape(-1, *(1,) * (values.ndim - 2))
