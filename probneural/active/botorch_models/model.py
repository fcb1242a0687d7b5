"""A BoTorch model over any predictor: designs in, functionals of the predicted field out."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from jaxtyping import Float, Float64
from torch import Tensor

from probneural import checks
from probneural.active.botorch_models.conditioning import (
    LatentPosterior,
    Observation,
    OutputMoments,
    broadcast_batches,
    check_noise,
    in_batches,
    observation_variance,
    roots_in_batches,
)
from probneural.active.botorch_models.posteriors import FieldPosterior, Measurements, MemberPosterior
from probneural.contexts import Undisturbed
from probneural.distributions import EmpiricalField, GaussianField, Predictor
from probneural.distributions.latent import in_separate_batches
from probneural.errors import ArgumentError, LatentError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.functionals import Functional
from probneural.functionals.base import check_functional


class OperatorModel(Undisturbed, Model, FantasizeMixin):
    """The BoTorch model of y = A u(encode(x)): numbers that a functional A reads from the field at design x.

    Any acquisition function works on it if the predictor is Gaussian: those of a posterior's mean, variance or draws, those
    that look ahead (`condition_on_observations`, `fantasize`), and those that maximise draws (`OperatorDraws`). An ensemble
    cannot be conditioned on numbers it did not predict, so it cannot look ahead. Several outputs need an objective or a
    posterior transform, as with any BoTorch model. Functionals of one predictor belong in one model: a `ModelList` of two
    models would draw their latents independently.

    A head without a finite number of weights, `KernelOperator`, has a latent for every t-batch: the same base samples are
    another function at other designs. Its observations are predicted again with each t-batch, jointly, so that looking ahead is
    exact too, and costs the cube of the number of observations and designs of a t-batch.

    The discrepancy of a calibrated field is part of every posterior: intervals of the outputs are those of
    `predictor(...).apply(functional)`. In draws its vector is one for all designs, as in `predictor.draw`, so that equal
    designs have equal draws. An observation informs the operator, not the discrepancy there, which counts as noise.

    Conditioning is Bayes' rule on the latent, in closed form and in float64: xi = shift + S xi', where S has one direction per
    observation. It is exact for the Gaussian that the head fitted, at its noise and prior: neither those nor the features are
    trained anew, so looking ahead equals the head's `update`, not retraining.

    One call predicts all b x q designs at once, baseline and pending ones included, since BoTorch appends those to every
    t-batch, and holds their roots, b q m k numbers; the options `batch_limit` and `init_batch_limit` of its optimiser bound b.
    Fantasies share their roots, so f of them cost f b k numbers more.

    Args:
        predictor: Any predictor: a fitted head, or a calibrated one.
        encode: Maps designs `(N, d)` to N input functions, differentiably; `problem.encode` with a grid is one.
        functional: A, on the grid where the field is to be evaluated; it need not be the inputs' grid.
        noise: Variance of the observation noise of the outputs, in their units squared: a number, or one per output `(m,)`; the
            predictor's own by default, as `observation_variance` has it.

    Attributes:
        outputs: Positions of the model's outputs among the functional's values, channel by channel.
        latent: Name of the observed latent; None before an observation.
        latent_posteriors: Updates of that latent, in order.
        observations: Observations for predictors whose latents belong to single calls, in place of latent posteriors.

    Raises:
        ArgumentError: If `predictor` is no predictor, `functional` no functional, `encode` no function, or noise not positive.
        ShapeError: If there is not one noise per output.

    Examples:
        >>> import probneural as pn
        >>> problem = pn.problems.Heat(dimension=1)
        >>> pairs = problem.sample(20, resolution=32, seed=0)
        >>> predictor = pn.heads.LastLayerLaplace(noise=1e-4).fit(pn.operators.LinearRegression.fitted(pairs), pairs)
        >>> probe = pn.functionals.sensors(pairs.outputs.grid, [[0.25], [0.75]])
        >>> encode = lambda designs: problem.encode(designs, grid=pairs.inputs.grid)
        >>> model = OperatorModel(predictor, encode=encode, functional=probe)
        >>> X = torch.full((3, 1, problem.design_dim), 0.5, dtype=torch.double)
        >>> known = model.condition_on_observations(X, torch.zeros(4, 3, 1, 2, dtype=torch.double))
        >>> known.batch_shape, bool((known.posterior(X).variance < model.posterior(X).variance).all())
        (torch.Size([4, 3]), True)
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        encode: Callable[[Tensor], Field],
        functional: Functional,
        noise: float | Float[Tensor, "..."] | None = None,
    ) -> None:
        super().__init__()
        self.predictor = checks.check_instance(
            predictor, Predictor, "predictor", remedy="fit a head: pn.heads.LastLayerLaplace().fit(operator, train)"
        )
        self.encode = checks.check_callable(encode, "encode", remedy="pass lambda designs: problem.encode(designs, grid=grid)")
        self.functional = check_functional(functional)
        size = predictor.out_channels * functional.size
        self.outputs = list(range(size))
        if isinstance(noise, Tensor) and noise.ndim > 1:
            raise ShapeError(
                expected=f"a noise for each of {size} outputs, or one for all",
                got=str(tuple(noise.shape)),
                remedy="noise of single observations goes to condition_on_observations",
            )
        self._noise = (
            None if noise is None else check_noise(noise, torch.Size([1, size]), torch.empty(0)).flatten().expand(size)
        )
        self._derived_noise: Tensor | None = None
        self.latent_posteriors: tuple[LatentPosterior, ...] = ()
        self.latent: str | None = None
        self.observations: tuple[Observation, ...] = ()
        self._batch_shape = torch.Size()

    @property
    def num_outputs(self) -> int:
        """Number of outputs m: channels times the functional's size, channel by channel, unless it is a subset."""
        return len(self.outputs)

    @property
    def batch_shape(self) -> torch.Size:
        """`()` for a model that has observed nothing, else the batches of what it observed: `f x b` after fantasies."""
        return self._batch_shape

    @property
    def noise(self) -> Float64[Tensor, " m"]:
        """Variance of the observation noise of each output, in its units squared."""
        if self._noise is not None:
            return self._noise[self.outputs]
        if self._derived_noise is None:  # of these outputs: that of a subset does not depend on the others
            self._derived_noise = observation_variance(self.predictor, self.functional, outputs=self.outputs)
        return self._derived_noise

    def subset_output(self, idcs: list[int]) -> OperatorModel:
        """Return the model of some of the outputs; its draws are those of this model, and it knows what this one has observed.

        Raises:
            ArgumentError: If an output does not exist.
        """
        return self._copied(outputs=self._select(idcs), _derived_noise=None)

    def posterior(  # type: ignore[override]  # the mixin's *args
        self,
        X: Float[Tensor, "*b q d"],
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Return the joint posterior over q designs and m outputs, for each t-batch.

        Args:
            X: Designs, `b x q x d` with any number of t-batch axes, or none; dimensionless, in the domain of `encode`. If this
                model has a batch shape, b broadcasts against it.
            output_indices: Outputs to return; all by default.
            observation_noise: Whether to add this model's `noise`; or the variances to add, broadcastable to `b x q x m`.
            posterior_transform: Applied to the result. `ScalarizedPosteriorTransform` is exact and keeps the kind of posterior;
                others get the posterior as it is, so those that ask for a gpytorch distribution fail.

        Returns:
            A `FieldPosterior` for a Gaussian predictor, a `MemberPosterior` for an ensemble, in the designs' dtype and on their
            device, differentiable in the designs.

        Raises:
            ShapeError: If X has fewer than two axes, does not broadcast against the batch shape, or `encode` does not return
                one field per design.
            DataError: If X is not a floating point tensor, or `encode` does not return a Field.
            ArgumentError: If an output does not exist, or the noise is no variance.
            LatentError: If this model has observed something, and the predictor has replaced its latent since.
            UnsupportedError: If an ensemble is asked for observation noise, the predictor is neither Gaussian nor an ensemble,
                or members have unequal weights.
        """
        outputs = list(range(self.num_outputs)) if output_indices is None else output_indices
        chosen = self._select(outputs)
        _check_designs(X)
        posterior = self._predicted(X, chosen)
        if not isinstance(observation_noise, bool | Tensor):
            raise ArgumentError(
                expected="observation_noise as True, False or a tensor of variances",
                got=repr(observation_noise),
                remedy="True adds the model's own noise",
            )
        if observation_noise is not False:
            if not isinstance(posterior, FieldPosterior):
                raise self._unsupported("posterior with observation noise")
            model = self if output_indices is None else self.subset_output(outputs)
            noise = model.noise if observation_noise is True else observation_noise
            posterior = FieldPosterior(posterior.mean, posterior.root, noise=noise, latent=posterior.latent)
        return posterior if posterior_transform is None else _transformed(posterior, posterior_transform, X)

    def condition_on_observations(  # type: ignore[override]  # no **kwargs: a misspelt option would pass
        self, X: Float[Tensor, "*b q d"], Y: Float[Tensor, "*fb q m"], *, noise: Tensor | float | None = None
    ) -> OperatorModel:
        """Return the model conditioned on observations Y at X, in closed form; this one does not change.

        Args:
            X: Designs, `b x q x d`, where `posterior` takes them.
            Y: Observations, `f x b x q x m`, in the outputs' units; any axes in front, fantasies first.
            noise: Variances of the observations, broadcastable to Y, in the outputs' units squared; the model's `noise` by
                default.

        Returns:
            A model whose batch shape is `f x b`, broadcast with this model's. Gradients of its posteriors pass through X, Y and
            noise.

        Raises:
            UnsupportedError: If the predictor is an ensemble.
            ShapeError: If the shapes do not fit together.
            DataError: If Y, or what is predicted there, is not finite.
            ArgumentError: If the noise is not positive.
            LatentError: As `posterior`.
        """
        _check_designs(X)
        remedy = "b x q x d designs have f x b x q x m observations"
        checks.check_shape(Y, "Y", "...", X.shape[-2], self.num_outputs, remedy=remedy)
        checks.check_finite(Y, "observations")
        variance = check_noise(self.noise if noise is None else noise, Y.shape, X)
        batch = broadcast_batches(Y.shape[:-2], variance.shape[:-2], X.shape[:-2], self._batch_shape)
        if X.shape[-2] == 0:
            return self._copied(_batch_shape=batch)
        return self._having_observed(X, Y, variance, self._gaussian(X, "model conditioned on observations"))

    def fantasize(  # type: ignore[override]  # as above
        self,
        X: Float[Tensor, "*b q d"],
        sampler: MCSampler,
        observation_noise: Tensor | None = None,
        *,
        propagate_grads: bool = True,
    ) -> OperatorModel:
        """Return the model conditioned on draws of its observations at X, with one batch axis of fantasies in front.

        Fantasies are drawn jointly over the q designs and m outputs of a t-batch, noise included, from q m base samples that
        all t-batches share, so that equal designs have equal fantasies.

        Args:
            X: Designs, `b x q x d`.
            sampler: One of BoTorch's normal samplers, of sample shape f.
            observation_noise: Variances of the noise, broadcastable to `b x q x m`; this model's `noise` by default.
            propagate_grads: For BoTorch's sake; gradients always pass.

        Returns:
            A model of batch shape `f x b`.

        Raises:
            UnsupportedError: If the predictor is an ensemble.
            ShapeError: If the shapes do not fit together.
            ArgumentError: If the sampler is none, or the noise not positive.
            LatentError: As `posterior`.
        """
        remedy = "pass botorch.sampling.normal.SobolQMCNormalSampler(torch.Size([64]), seed=0)"
        checks.check_instance(sampler, MCSampler, "sampler", remedy=remedy, error=ArgumentError)
        _check_designs(X)
        size = torch.Size([X.shape[-2], self.num_outputs])
        variance = check_noise(self.noise if observation_noise is None else observation_noise, size, X)
        if X.shape[-2] == 0:
            batch = broadcast_batches(variance.shape[:-2], X.shape[:-2], self._batch_shape)
            return self._copied(_batch_shape=sampler.sample_shape + batch)
        moments = self._gaussian(X, "fantasy")
        mean, root, misfits = (part.to(torch.float64) for part in moments.expanded(variance.shape[:-2]))
        drawn = sampler(Measurements(mean, root, variance, discrepancy=misfits))
        return self._having_observed(X, drawn, variance, moments)

    def _copied(self, **attributes: Any) -> OperatorModel:
        """Return a copy with other values of some attributes."""
        result = copy.copy(self)
        vars(result).update(attributes)
        return result

    def _select(self, indices: list[int]) -> list[int]:
        """Resolve positions, negative ones too, among this model's outputs."""
        numbers = checks.check_sequence(indices, "outputs", remedy="give a list of positions among the functional's values")
        positions = [
            checks.check_integer(number, "outputs", least=-self.num_outputs, most=self.num_outputs - 1) for number in numbers
        ]
        return [self.outputs[position] for position in positions]

    def encoded(self, X: Float[Tensor, "*b q d"]) -> Field:
        """Return the input functions of all designs, t-batch by t-batch, as the predictor is given them.

        Args:
            X: Designs, where `posterior` takes them.

        Raises:
            ShapeError: If X has fewer than two axes, or `encode` does not return one field per design.
            DataError: If X is not a floating point tensor, or `encode` does not return a Field.
        """
        _check_designs(X)
        return encoded_inputs(self.encode, X.reshape(-1, X.shape[-1]))

    def _read(self, X: Tensor) -> GaussianField | EmpiricalField:
        """Predict at designs, each t-batch by itself, and push through the functional."""
        inputs, where = self.encoded(X), self.functional.grid
        with in_separate_batches(X.shape[:-1].numel(), X.shape[-2]):
            field = self.predictor(inputs, None if inputs.grid == where else where).apply(self.functional)
        if isinstance(field, EmpiricalField | GaussianField):
            return field
        raise UnsupportedError(
            expected="a predictor of Gaussian or empirical fields", got=type(field).__name__, remedy="use an EmpiricalField"
        )

    def _predicted(self, X: Tensor, outputs: list[int]) -> FieldPosterior | MemberPosterior:
        """Return the posterior of some of the functional's values at designs, in their dtype."""
        predicted = self._moments_given_data(X, outputs)
        if isinstance(predicted, EmpiricalField):
            values = predicted.samples.flatten(2)[..., outputs].to(X)
            return MemberPosterior(values.reshape(values.shape[0], *X.shape[:-1], len(outputs)), predicted.weights)
        mean, root = predicted.joined(self._batch_shape)
        return FieldPosterior(mean.to(X), root.to(X), latent=predicted.latent)

    def _gaussian(self, X: Tensor, feature: str) -> OutputMoments:
        """Mean and root of this model's outputs at designs, or an UnsupportedError."""
        moments = self._moments_given_data(X, self.outputs)
        if isinstance(moments, EmpiricalField):
            raise self._unsupported(feature)
        checks.check_finite(moments.mean, "predictions where observations are taken")
        checks.check_finite(moments.root, "roots of predictions where observations are taken")
        return moments

    def _moments_given_data(self, X: Tensor, outputs: list[int]) -> OutputMoments | EmpiricalField:
        """Moments of outputs at designs, given what was observed; or the whole field of an ensemble."""
        if self.observations:
            return self._given_observations(X, outputs)
        field = self._read(X)
        return field if isinstance(field, EmpiricalField) else self._moments(field, X, outputs)

    def _moments(self, field: GaussianField, X: Tensor, outputs: list[int]) -> OutputMoments:
        """Put t-batches back and apply what was observed."""
        if self.latent not in (None, field.latent.id):
            raise LatentError(
                expected="a predictor whose fields share their randomness from call to call",
                got=f"{field.latent!r} after observing {self.latent!r}",
                remedy="mark a latent that belongs to the functions of one call: Latent(..., is_shared_across_calls=False)",
            )
        mean, root = in_batches(field.mean.flatten(1), field.root.dense().flatten(1, 2), X, outputs)
        if self.latent_posteriors:
            broadcast_batches(X.shape[:-2], self._batch_shape)
            for posterior in self.latent_posteriors:
                mean, root = posterior.move(mean, root)
        discrepancy = roots_in_batches(field.discrepancy, X, outputs)
        return OutputMoments(mean, root, field.latent.id if field.latent.is_shared_across_calls else None, discrepancy)

    def _given_observations(self, X: Tensor, outputs: list[int]) -> OutputMoments:
        """Predict each t-batch of designs with its observations, and condition on one observation after the other."""
        broadcast_batches(X.shape[:-2], self._batch_shape)
        parts = [*(observation.designs.to(X) for observation in self.observations), X]
        batch = broadcast_batches(*(part.shape[:-2] for part in parts))
        designs = torch.cat([part.expand(*batch, *part.shape[-2:]) for part in parts], dim=-2)
        field = self._read(designs)
        assert isinstance(field, GaussianField)  # or nothing could have been read
        every = range(self.predictor.out_channels * self.functional.size)
        means, roots = in_batches(field.mean.flatten(1), field.root.dense().flatten(1, 2), designs, every)
        misfits = roots_in_batches(field.discrepancy, designs, every)
        posteriors: list[LatentPosterior] = []
        ends = itertools.accumulate(part.shape[-2] for part in parts)
        for observation, part, end in zip((*self.observations, None), parts, ends, strict=True):
            rows = slice(end - part.shape[-2], end)
            chosen = outputs if observation is None else list(observation.outputs)
            mean, root = means[..., rows, :][..., chosen], roots[..., rows, :, :][..., chosen, :]
            misfit = None if misfits is None else misfits[..., rows, :, :][..., chosen, :]
            for posterior in posteriors:
                mean, root = posterior.move(mean, root)
            if observation is not None:
                residual = observation.values.to(mean.device, torch.float64) - mean.to(torch.float64)
                posteriors.append(LatentPosterior.of(root, residual, noise=observation.noise, discrepancy=misfit))
        return OutputMoments(mean, root, None, misfit)

    def _having_observed(self, X: Tensor, Y: Tensor, variance: Tensor, moments: OutputMoments) -> OperatorModel:
        """Return the model conditioned on Y at X, where `moments` are predicted."""
        batch = broadcast_batches(Y.shape[:-2], variance.shape[:-2], moments.mean.shape[:-2], self._batch_shape)
        if moments.latent is None:
            observation = Observation(designs=X, values=Y, noise=variance, outputs=tuple(self.outputs))
            return self._copied(_batch_shape=batch, observations=(*self.observations, observation))
        residual = Y.to(moments.mean.device, torch.float64) - moments.mean.to(torch.float64)
        learned = LatentPosterior.of(moments.root, residual, noise=variance, discrepancy=moments.discrepancy)
        posteriors = (*self.latent_posteriors, learned)
        return self._copied(_batch_shape=batch, latent=moments.latent, latent_posteriors=posteriors)

    def _unsupported(self, feature: str) -> UnsupportedError:
        return UnsupportedError(
            expected=f"a Gaussian predictor for a {feature}",
            got="an ensemble, whose members are the only functions it knows: noisy observations agree with none of them",
            remedy="use a head of Gaussian fields",
        )


def encoded_inputs(encode: Callable[[Tensor], Field], designs: Float[Tensor, "n d"]) -> Field:
    """Inputs of designs, after a check that there is one for each."""
    inputs = checks.check_instance(
        encode(designs), Field, "what encode returns", remedy="wrap its tensor: pn.Field(values, grid)"
    )
    checks.check_count(
        len(inputs), len(designs), "fields from encode, one per design", remedy="map (N, d) to a Field of N inputs"
    )
    return inputs


def _check_designs(X: Tensor) -> None:
    """Raise a DataError or a ShapeError unless these are designs."""
    checks.check_shape(
        checks.check_floating(X, "designs"), "designs", "...", "q", "d", remedy="one design of d numbers is design[None]"
    )


def _transformed(posterior: FieldPosterior | MemberPosterior, transform: PosteriorTransform, X: Tensor) -> Posterior:
    """Apply a posterior transform; BoTorch's own scalarisation goes through gpytorch, which clamps variances."""
    if isinstance(transform, ScalarizedPosteriorTransform):
        return posterior.scalarize(transform.get_buffer("weights"), offset=transform.offset)
    remedy = "give a transform of BoTorch, or none"
    checks.check_instance(transform, PosteriorTransform, "posterior_transform", remedy=remedy, error=ArgumentError)
    if "X" in inspect.signature(transform.forward).parameters:  # BoTorch 0.16 does not pass the designs
        return transform(posterior=posterior, X=X)
    return transform(posterior)
