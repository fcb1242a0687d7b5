"""A BoTorch model over any predictor: designs in, functionals of the predicted field out."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.posterior import Posterior
from jaxtyping import Float
from torch import Tensor

from probneural.active.posteriors import FieldPosterior, MemberPosterior
from probneural.distributions import EmpiricalField, GaussianField, Predictor
from probneural.errors import ArgumentError, DataError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.functionals import Functional


class OperatorModel(Model):
    """The BoTorch model of y = A u(encode(x)): numbers that a functional A reads from the field at design x.

    Any acquisition function that asks for a posterior's mean, variance or draws works on it; several outputs need an objective
    or a posterior transform, as with any BoTorch model. Functionals of one predictor belong in one model, side by side: a
    `ModelList` of two models would draw their latents independently.

    It cannot be conditioned on observations (`condition_on_observations`, and with it knowledge gradients and look-ahead), nor
    does it take input transforms, for `encode` is one: refit the head or wrap the predictor, and build a new model. One call
    predicts all b x q designs at once, baseline and pending ones included, for BoTorch appends those to every t-batch; the
    options `batch_limit` and `init_batch_limit` of its optimiser bound b.

    Args:
        predict: Any predictor: a fitted head, or a calibrated one.
        encode: Maps designs `(N, d)` to N input functions, differentiably; `problem.encode` with a grid is one.
        functional: A, on the grid where the field is to be evaluated; it need not be the inputs' grid.

    Raises:
        ArgumentError: If `predict` is no predictor or `functional` no functional.
    """

    def __init__(self, predict: Predictor, *, encode: Callable[[Tensor], Field], functional: Functional) -> None:
        super().__init__()
        for name, value, kind in (("predict", predict, Predictor), ("functional", functional, Functional)):
            if not isinstance(value, kind):
                raise ArgumentError(
                    expected=f"{name} to be a {kind.__name__}",
                    got=str(type(value)),
                    remedy="fit a head to get a predictor; put functionals side by side with pn.functionals.stack",
                )
        self.predict = predict
        self.encode = encode
        self.functional = functional
        self._outputs = list(range(predict.out_channels * functional.size))

    @property
    def num_outputs(self) -> int:
        """Number of outputs m: channels times the functional's size, channel by channel, unless it is a subset."""
        return len(self._outputs)

    @property
    def batch_shape(self) -> torch.Size:
        """`()`: one model, not a batch of them."""
        return torch.Size()

    def subset_output(self, idcs: list[int]) -> OperatorModel:
        """Return the model of some of the outputs; its draws are those of this model.

        Raises:
            ArgumentError: If an output does not exist.
        """
        subset = OperatorModel(self.predict, encode=self.encode, functional=self.functional)
        subset._outputs = self._select(idcs)
        return subset

    def posterior(
        self,
        X: Float[Tensor, "*b q d"],
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Return the joint posterior over q designs and m outputs, for each t-batch.

        Args:
            X: Designs, `b x q x d` with any number of t-batch axes, or none; dimensionless, in whatever set `encode` takes.
            output_indices: Which outputs to return; all by default.
            observation_noise: Only `False` is supported.
            posterior_transform: Applied to the result. `ScalarizedPosteriorTransform` is exact and keeps the kind of posterior;
                others get the posterior as it is, so those that ask for a gpytorch distribution fail.

        Returns:
            A `FieldPosterior` for a Gaussian predictor, a `MemberPosterior` for an ensemble, in the designs' dtype and on their
            device, differentiable in the designs.

        Raises:
            ShapeError: If X has fewer than two axes, or `encode` does not return one field per design.
            DataError: If X is not a floating point tensor, or `encode` does not return a Field.
            ArgumentError: If an output does not exist.
            UnsupportedError: If observation noise is asked for, the predictor is neither Gaussian nor an ensemble, or members
                have unequal weights.
        """
        if observation_noise is not False:
            raise UnsupportedError(
                expected="observation_noise=False, for how noise enters a functional depends on the measurement",
                got=f"observation_noise={'a tensor' if isinstance(observation_noise, Tensor) else observation_noise!r}",
                remedy="add the variance of your measurement to the posterior's",
            )
        outputs = self._outputs if output_indices is None else self._select(output_indices)
        posterior = self._predicted(self._inputs(X), X)
        if outputs != list(range(posterior.mean.shape[-1])):
            posterior = posterior.select(outputs)
        return posterior if posterior_transform is None else _transformed(posterior, posterior_transform, X)

    def _select(self, indices: list[int]) -> list[int]:
        """Resolve positions, negative ones too, among this model's outputs."""
        if any(not -self.num_outputs <= index < self.num_outputs for index in indices):
            raise ArgumentError(
                expected=f"outputs from 0 to {self.num_outputs - 1}",
                got=str(indices),
                remedy="outputs are the functional's values, channel by channel",
            )
        return [self._outputs[index] for index in indices]

    def _inputs(self, X: Tensor) -> Field:
        """Encode designs, flattened over t-batches."""
        if not isinstance(X, Tensor) or not X.is_floating_point():
            raise DataError(
                expected="designs as a floating point tensor",
                got=str(X.dtype if isinstance(X, Tensor) else type(X)),
                remedy="pass torch.as_tensor(designs, dtype=torch.double)",
            )
        if X.ndim < 2:
            raise ShapeError(
                expected="designs of shape b x q x d",
                got=str(tuple(X.shape)),
                remedy="a single design of d numbers is design[None]",
            )
        designs = X.reshape(-1, X.shape[-1])
        inputs = self.encode(designs)
        if not isinstance(inputs, Field):
            raise DataError(
                expected="encode to return a Field", got=str(type(inputs)), remedy="wrap its tensor: pn.Field(values, grid)"
            )
        if len(inputs) != len(designs):
            raise ShapeError(
                expected=f"encode to return {len(designs)} fields for {len(designs)} designs",
                got=str(len(inputs)),
                remedy="encode maps (N, d) to a Field of N inputs",
            )
        return inputs

    def _predicted(self, inputs: Field, X: Tensor) -> FieldPosterior | MemberPosterior:
        """Predict, push through the functional, and put the t-batches back."""
        where = self.functional.grid
        field = self.predict(inputs, None if inputs.grid == where else where).apply(self.functional)
        shape = (*X.shape[:-1], field.mean.shape[1] * field.mean.shape[2])
        if isinstance(field, GaussianField):
            mean, root = field.mean.to(X), field.root.dense().to(X)
            return FieldPosterior(mean.reshape(shape), root.reshape(*shape, root.shape[-1]))
        if isinstance(field, EmpiricalField):
            values = field.samples.to(X)
            return MemberPosterior(values.reshape(values.shape[0], *shape), field.weights)
        raise UnsupportedError(
            expected="a predictor of Gaussian or empirical fields",
            got=type(field).__name__,
            remedy="draw samples and wrap them in an EmpiricalField",
        )


def _transformed(posterior: FieldPosterior | MemberPosterior, transform: PosteriorTransform, X: Tensor) -> Posterior:
    """Apply a posterior transform; BoTorch's own scalarisation goes through gpytorch, which clamps variances."""
    if isinstance(transform, ScalarizedPosteriorTransform):
        return posterior.scalarize(transform.get_buffer("weights"), offset=transform.offset)
    if "X" in inspect.signature(transform.forward).parameters:  # BoTorch 0.16 does not pass the designs
        return transform(posterior=posterior, X=X)
    return transform(posterior)
