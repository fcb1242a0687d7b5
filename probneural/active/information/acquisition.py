"""Acquisition functions that observe whole fields: what simulating input functions teaches about the operator.

BoTorch's own look at the numbers that a model's functional reads. These look at the field behind them, observed as a simulator
returns it, and differentiate in the designs, that is, in the coefficients of the input functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.utils.transforms import t_batch_mode_transform
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.active.botorch_models.model import OperatorModel
from probneural.active.information.latent_information import observation_moments, target_moments
from probneural.active.information.latent_observation import LatentObservation, Recomputed, independent_rows
from probneural.active.information.leading_rows import Directions, leading_rows
from probneural.active.information.observation import observation_weights, whitened_rows
from probneural.checks import check_finite, check_instance, real_tensor
from probneural.distributions import DenseRoot, EmpiricalField, FeatureRoot, GaussianField
from probneural.errors import ArgumentError, DataError, LatentError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid, check_grid

_POINTS = 2**14
"""Grid points of inputs predicted at once; t-batches beyond them are taken one after the other."""
_ENTRIES = 2**23
"""Entries of roots formed at once (64 MiB in float64)."""
_FORMED = 256
"""Rows or columns of a function's root, whichever are fewer, beyond which it is found from products and not formed."""
_TARGET_ROWS = 1024
"""Rows of targets beyond which linearly dependent ones are dropped."""


class FieldAcquisition(AcquisitionFunction, ABC):
    """The value of observing the output fields at q designs together; abstract.

    Observing a field is as `observation_weights` has it: all its values on a grid, with the noise
    and the effective observations of the predictor, so that the grid's resolution hardly matters. An ensemble counts as the
    Gaussian of its mean and covariance, whose rank is the number of members: with noise, the mutual information of a mixture
    has no closed form.

    Designs of a t-batch are predicted together, t-batches a few at a time, and predictions are made again for the gradient
    rather than kept. So memory hardly grows with the number of t-batches. Where a root would take many passes to form, as those
    of posteriors over weights do on fine grids, products find the few combinations of its rows that say all but 1e-10 of it.
    Gradients are of first order, and in the designs
    alone: what the model has observed is taken as fixed.

    Args:
        model: Its predictor, its map from designs to input functions, and what it has observed; its functional gives the grid.
        grid: Where fields are observed; that of the model's functional by default. For posteriors over all weights of a
            network, whose latent has a dimension for each weight, a coarse grid saves work and loses little.
        noise: Variance of the noise of one value, in physical units squared, one or one per channel; by default the
            predictor's.

    Raises:
        ArgumentError: If the model is no `OperatorModel`, or the noise is not positive.
        ShapeError: If there is not one noise per channel.
        LatentError: If the model has observed something, and the predictor's latents belong to single calls, as those of
            `KernelOperator` do.
        UnsupportedError: If the model holds a batch of posteriors, as fantasies do; in the backward pass, if second derivatives
            are asked for.
    """

    model: OperatorModel

    def __init__(self, model: OperatorModel, *, grid: Grid | None, noise: float | Float[Tensor, " c"] | None) -> None:
        if not isinstance(model, OperatorModel):
            raise ArgumentError(
                expected="an OperatorModel, which knows the field behind its numbers",
                got=type(model).__name__,
                remedy="wrap the predictor: OperatorModel(predict, encode=..., functional=...)",
            )
        if model.batch_shape:
            raise UnsupportedError(
                expected="a model of one posterior",
                got=f"a batch of them, {tuple(model.batch_shape)}",
                remedy="observe one set of outputs, q x m, not a batch; to look ahead use BoTorch's knowledge gradient",
            )
        if model.observations:
            raise LatentError(
                expected="a model that has observed nothing, where the predictor's latents belong to single calls",
                got=f"{len(model.observations)} sets of observations",
                remedy="fit the head to what was observed, or wrap predict.sampled(members, seed=...), whose members are "
                "functions that last",
            )
        if grid is not None:
            check_grid(grid)
        super().__init__(model=model)
        self.grid = model.functional.grid if grid is None else grid
        self._latent = self._shared_latent = model.latent
        self._rank: int | None = None
        self._weights = observation_weights(model.predictor, self.grid, noise=noise)
        self.X_pending: Tensor | None = None  # type: ignore[assignment]
        self._pending: LatentObservation | None = None
        self._pending_value: Tensor | float = 0.0

    @abstractmethod
    def _value(self, observation: LatentObservation) -> Tensor:
        """The value of a batch of b observations, `(b,)`, differentiable in the designs; larger is better."""

    @t_batch_mode_transform()  # type: ignore[arg-type]
    def forward(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b"]:
        """Return the value of observing the fields at q designs, beyond that of the pending ones.

        Args:
            X: Designs, `b x q x d`.

        Raises:
            LatentError: If the predictor's randomness is another in every call, and targets or pending designs tie them.
            UnsupportedError: If the predictor is neither Gaussian nor an ensemble.
            DataError: If predictions are not finite.
        """
        inputs, count = self.model.encoded(X), X.shape[-2]
        directions = Directions()

        def value(values: Tensor) -> Tensor:
            observation = self._observed(Field(values.flatten(0, 1), inputs.grid), directions).grouped(count)
            return self._value(observation if self._pending is None else observation.cat(self._pending))

        batches = inputs.values.unflatten(0, (-1, count))
        total: Tensor = Recomputed.apply(batches, value, self._at_once(inputs, count))
        return (total - self._pending_value).reshape(X.shape[:-2]).to(X)

    def set_X_pending(self, X_pending: Float[Tensor, "pending d"] | None = None) -> None:  # noqa: N802 (BoTorch's name)
        """Say which designs are being simulated, `(pending, d)`; none by default. If it fails, those before stay in force."""
        before = self._latent
        self._latent = self._shared_latent
        try:
            pending, value = self._pended(X_pending)
        except BaseException:
            self._latent = before
            raise
        super().set_X_pending(X_pending)
        self._pending, self._pending_value = pending, value

    def _pended(self, X_pending: Tensor | None) -> tuple[LatentObservation | None, Tensor | float]:
        """What observing pending designs says, and its value."""
        if X_pending is None or not check_instance(X_pending, Tensor, "X_pending", remedy="give designs (q, d)").numel():
            return None, 0.0
        with torch.no_grad():
            inputs = self.model.encoded(X_pending)
            step = self._at_once(inputs, 1)
            parts = [
                self._observed(inputs[start : start + step], Directions(), pins=True) for start in range(0, len(inputs), step)
            ]
            if parts[0].are_moments:
                pending = LatentObservation(torch.cat([part.values for part in parts]), True).grouped(len(inputs))
            else:  # rows of all designs together: those of one run may be more than those of another
                rows = torch.cat([part.values.flatten(0, 1) for part in parts])
                pending = LatentObservation(rows[None], False)
            return pending, self._value(pending)[0]

    def _at_once(self, inputs: Field, count: int) -> int:
        """How many t-batches of `count` designs fit into memory together."""
        if self._rank is None:
            with torch.no_grad():
                self._rank = self._field(inputs[:1]).latent.rank
        entries = self.model.predictor.out_channels * self.grid.size * max(1, self._rank)
        points = max(inputs.grid.size, self.grid.size)
        return max(1, min(_POINTS // max(1, count * points), _ENTRIES // max(1, count * entries)))

    def _field(self, inputs: Field, *, pins: bool = False) -> GaussianField:
        """Predict; with `pins` later predictions have to be of the same latent."""
        field = self.model.predictor(inputs, None if inputs.grid == self.grid else self.grid)
        if isinstance(field, EmpiricalField):
            matched = field.moment_matched()  # its latent has one number per member, the same members in every call
            field = GaussianField(matched.mean, matched.root, latent=self.model.predictor._identity, grid=matched.grid)
        if not isinstance(field, GaussianField):
            raise UnsupportedError(
                expected="a predictor of Gaussian or empirical fields",
                got=type(field).__name__,
                remedy="draw samples and wrap them in an EmpiricalField",
            )
        if self._latent not in (None, field.latent.id):
            raise LatentError(
                expected="a predictor whose fields share their randomness from call to call",
                got=f"{field.latent!r} after {self._latent!r}",
                remedy="wrap predict.sampled(members, seed=...), whose members are functions that last, or fit a head with a "
                "finite number of weights: LastLayerLaplace, Laplace, or an ensemble",
            )
        if pins:
            self._latent = field.latent.id
        return field

    def _observed(self, inputs: Field, directions: Directions, *, pins: bool = False) -> LatentObservation:
        """What observing each of n functions says, `(n, r, k)`, given what the model has observed."""
        field = self._field(inputs, pins=pins)
        are_moments = False
        if _takes_products(field):
            values = leading_rows(
                lambda part: self._field(Field(part, inputs.grid)), inputs.values, self._weights, directions=directions
            )
        else:
            are_moments = field.latent.rank <= self.model.predictor.out_channels * self.grid.size
            values = (observation_moments if are_moments else whitened_rows)(field, self._weights)
        check_finite(values, "predictions of the fields to be observed")
        return self._given(LatentObservation(values, are_moments))

    def _given(self, observation: LatentObservation) -> LatentObservation:
        """Take what the model has observed into account."""
        for posterior in self.model.latent_posteriors:
            observation = observation.condition_on(posterior)
        return observation


class FieldInformationGain(FieldAcquisition):
    """Expected information gain about the operator from observing the whole output fields at q designs, jointly: BALD.

    The mutual information between the operator's latent xi and the observations,

        I(X) = (log det(I + R Rᵀ)) / 2,

    with R the rows of all q fields in units of the observation's standard deviation. It does not depend on what will be seen,
    and is small where designs repeat each other. It asks what is uncertain, not whether that matters: directions of the weights
    that no input of interest excites count as much as others. `FieldIntegratedVariance` knows the inputs of interest.

    Args:
        model: See [`FieldAcquisition`][probneural.active.FieldAcquisition], as for what follows.
        grid: Where fields are observed.
        noise: Variance of the noise of one value.
        X_pending: Designs that are being simulated, `(pending, d)`: the value is what others add to them.

    Reference:
        MacKay (1992b), total information gain; Houlsby et al. (2011).

    Examples:
        >>> import probneural as pn
        >>> heat = pn.problems.Heat(dimension=1)
        >>> pairs = heat.sample(20, resolution=64, seed=0)
        >>> predictor = pn.heads.LastLayerLaplace(noise=1e-4).fit(pn.operators.LinearRegression.fitted(pairs), pairs)
        >>> encode = lambda designs: heat.encode(designs, grid=pairs.inputs.grid)
        >>> model = OperatorModel(predictor, encode=encode, functional=pn.functionals.integral(pairs.outputs.grid))
        >>> score = FieldInformationGain(model)
        >>> X = torch.rand(3, 2, heat.design_dim, generator=torch.Generator().manual_seed(0), dtype=torch.double)
        >>> together, alone = score(X), score(X[:, :1]) + score(X[:, 1:])
        >>> bool((together > 0).all() and (together <= alone).all())
        True
    """

    def __init__(
        self,
        model: OperatorModel,
        *,
        grid: Grid | None = None,
        noise: float | Float[Tensor, " c"] | None = None,
        X_pending: Float[Tensor, "pending d"] | None = None,
    ) -> None:
        super().__init__(model, grid=grid, noise=noise)
        self.set_X_pending(X_pending)

    def _value(self, observation: LatentObservation) -> Tensor:
        return observation.gain()


class FieldIntegratedVariance(FieldAcquisition):
    """Variance that observing the whole output fields at q designs takes off the fields at target inputs.

    With the distribution of the targets sum over i of p_i delta(a - a_i) and the domain D, it is the reduction of

        V = sum over i, c of p_i w_c / |D| * integral over D of Var u_c(x; a_i) dx,

    the mean squared error that the posterior expects. It is V(now) - V(X): more is better, and values per cost make sense.
    Without pending designs small values keep their digits; with them it is a difference of two reductions. BoTorch's
    `qNegIntegratedPosteriorVariance` would be this minus `variance`.

    Args:
        model: See [`FieldAcquisition`][probneural.active.FieldAcquisition], as for what has no unit here.
        targets: Input functions a_i, draws from the distribution of inputs or quadrature points of it, on any grid the
            predictor takes.
        target_weights: p, `(n,)`, not negative; normalised here, equal by default.
        channel_weights: w, `(c,)`, not negative, in inverse physical units squared. By default 1 for a single channel;
            of several, each is divided by the mean square, as predicted, of its values at the targets about their average, so
            that units do not matter.
        grid: Where fields are observed and where targets are predicted.
        noise: Variance of the noise of one value.
        X_pending: Designs that are being simulated, `(pending, d)`: the value is what others add to them.

    Raises:
        DataError: If there are no targets, or predictions for them are not finite.
        ArgumentError: If weights are negative, not finite, or all zero.
        ShapeError: If there is not one weight per target, or per channel.
        LatentError: If the predictor's randomness is another in every call.

    Reference:
        Cohn (1996); Seo et al. (2000).

    Examples:
        >>> import probneural as pn
        >>> heat = pn.problems.Heat(dimension=1)
        >>> pairs = heat.sample(20, resolution=64, seed=0)
        >>> predictor = pn.heads.LastLayerLaplace(noise=1e-4).fit(pn.operators.LinearRegression.fitted(pairs), pairs)
        >>> encode = lambda designs: heat.encode(designs, grid=pairs.inputs.grid)
        >>> model = OperatorModel(predictor, encode=encode, functional=pn.functionals.integral(pairs.outputs.grid))
        >>> score = FieldIntegratedVariance(model, targets=heat.sample(8, resolution=64, seed=1).inputs)
        >>> X = torch.rand(3, 2, heat.design_dim, generator=torch.Generator().manual_seed(0), dtype=torch.double)
        >>> bool((score(X) > 0).all() and (score(X) < score.variance).all())
        True
    """

    def __init__(
        self,
        model: OperatorModel,
        *,
        targets: Field,
        target_weights: Float[Tensor, " n"] | None = None,
        channel_weights: Float[Tensor, " c"] | None = None,
        grid: Grid | None = None,
        noise: float | Float[Tensor, " c"] | None = None,
        X_pending: Float[Tensor, "pending d"] | None = None,
    ) -> None:
        super().__init__(model, grid=grid, noise=noise)
        if not isinstance(targets, Field) or len(targets) == 0:
            raise DataError(
                expected="targets as a Field of at least one input function",
                got=repr(targets),
                remedy="draw them: problem.sample(n, resolution=..., seed=...).inputs",
            )
        weighting = _checked(target_weights, len(targets), "target")
        with torch.no_grad():
            if channel_weights is None and model.predictor.out_channels > 1:
                channels = self._mean_squares(targets, weighting / weighting.sum()).reciprocal()
            else:
                channels = _checked(channel_weights, model.predictor.out_channels, "channel")
            field_weights = channels[:, None] * self.grid.mean_weights
            self._targets = self._target(targets, weighting / weighting.sum(), field_weights)
        self._shared_latent = self._latent
        self.set_X_pending(X_pending)

    @property
    def variance(self) -> Float64[Tensor, ""]:
        """V given pending designs, in physical units squared times those of the channels' weights."""
        values = self._targets.values
        total = values.diagonal().sum() if self._targets.are_moments else values.square().sum(dtype=torch.float64)
        return total - self._pending_value

    def _value(self, observation: LatentObservation) -> Tensor:
        return observation.reduction(self._targets)

    def _mean_squares(self, targets: Field, weighting: Tensor) -> Float64[Tensor, " c"]:
        """Mean square of each channel's values at the targets about its average, as predicted: spread and variance."""
        step, average = self._at_once(targets, 1), self.grid.mean_weights
        means, variances = [], []
        for start in range(0, len(targets), step):
            field = self._field(targets[start : start + step], pins=True)
            means.append(field.mean.flatten(2).cpu().to(torch.float64))
            variances.append(field.variance.flatten(2).cpu().to(torch.float64))
        mean, variance = torch.cat(means), torch.cat(variances)
        check_finite(mean, "predictions for the targets")
        centre = torch.einsum("n,ncp,p->c", weighting, mean, average)
        between = torch.einsum("n,ncp,p->c", weighting, (mean - centre[:, None]).square(), average)
        total = between + torch.einsum("n,ncp,p->c", weighting, variance, average)
        return torch.where(total > 0, total, 1.0)  # a channel known to be constant has no variance to take off

    def _target(self, targets: Field, weighting: Tensor, field_weights: Tensor) -> LatentObservation:
        """Weighted rows of the targets' fields or, where those outnumber the latent's dimensions, their moments."""
        step = self._at_once(targets, 1)
        total: Tensor | None = None
        are_moments = False
        for start in range(0, len(targets), step):
            field = self._field(targets[start : start + step], pins=True)
            weights = weighting[start : start + step]
            if _takes_products(field):
                chunk = targets.values[start : start + step]
                rows = leading_rows(
                    lambda part: self._field(Field(part, targets.grid)), chunk, field_weights, directions=Directions()
                )
                total = _independent(total, (rows * weights.sqrt().to(rows)[:, None, None]).flatten(0, 1))
                continue
            are_moments = field.latent.rank <= len(targets) * field_weights.numel()
            if are_moments:
                moments = target_moments(field, weights[:, None, None] * field_weights)
                check_finite(moments, "predictions for the targets")
                total = moments if total is None else total + moments
                continue
            rows = (whitened_rows(field, field_weights) * weights.sqrt().to(field.root.device)[:, None, None]).flatten(0, 1)
            total = _independent(total, rows)
        assert total is not None
        return self._given(LatentObservation(total if are_moments else independent_rows(total), are_moments))


def _takes_products(field: GaussianField) -> bool:
    """Whether forming a function's root would take many passes: then products find what it says."""
    _, channels, points, rank = field.root.shape
    return min(channels * points, rank) > _FORMED and not isinstance(field.root, DenseRoot | FeatureRoot)


def _independent(total: Tensor | None, rows: Float64[Tensor, "t k"]) -> Float64[Tensor, "r k"]:
    """Add rows of targets to those before; many are replaced by those that are linearly independent."""
    check_finite(rows, "predictions for the targets")
    joined = rows if total is None else torch.cat([total, rows])
    return independent_rows(joined) if len(joined) > _TARGET_ROWS else joined


def _checked(weights: Tensor | None, count: int, name: str) -> Float64[Tensor, " count"]:
    """Weights in float64, ones by default, or an error."""
    if weights is None:
        return torch.ones(count, dtype=torch.float64)
    weights = real_tensor(weights, f"{name} weights")
    if tuple(weights.shape) != (count,):
        raise ShapeError(
            expected=f"a weight for each {name}, ({count},)",
            got=str(tuple(weights.shape)),
            remedy="leave them out for equal ones",
        )
    checked = weights.detach().to("cpu", torch.float64)
    if not bool((torch.isfinite(checked) & (checked >= 0)).all() and checked.sum() > 0):
        raise ArgumentError(
            expected=f"{name} weights >= 0 that are not all zero",
            got=str(checked.tolist()),
            remedy="leave them out for equal ones",
        )
    return checked
