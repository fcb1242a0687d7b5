"""Function draws as deterministic BoTorch models, for Thompson sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from botorch.models.deterministic import DeterministicModel
from jaxtyping import Float
from torch import Tensor, nn

from probneural.active.models.posteriors import FieldPosterior, MemberPosterior
from probneural.distributions import FunctionDraw
from probneural.distributions.base import draw_stream
from probneural.errors import LatentError, ShapeError
from probneural.randomness import check_seed, stream_seed

if TYPE_CHECKING:
    from probneural.active.models.model import OperatorModel


class OperatorDraws(DeterministicModel):
    """The outputs of operators drawn from a model's distribution; see `OperatorModel.draw_paths`.

    Each is one function of the design, the same at every call, differentiable, and exact: nothing is approximated by random
    features. Draws of an ensemble are members, drawn with replacement; those of `KernelOperator` are its own, `predict.draw`.

    Args:
        model: Where they are drawn from; what it has observed they agree with.
        sample_shape: How many, `()` or `(count,)`; the batch shape is that followed by the model's.
        seed: Names the draws; from torch's global generator by default.
    """

    def __init__(self, model: OperatorModel, sample_shape: torch.Size, *, seed: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.sample_shape = sample_shape
        self.seed = int(torch.randint(2**62, ())) if seed is None else check_seed(seed)
        self._base: Tensor | None = None
        self._latent: str | None = None
        self._functions: tuple[FunctionDraw, ...] | None = None

    @property
    def num_outputs(self) -> int:
        """Number of outputs m of the model."""
        return self.model.num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """The number of draws, followed by the model's batch shape."""
        return self.sample_shape + self.model.batch_shape

    def subset_output(self, idcs: list[int]) -> OperatorDraws:
        """Return some of the outputs of the same draws."""
        return OperatorDraws(self.model.subset_output(idcs), self.sample_shape, seed=self.seed)

    def forward(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "... q m"]:
        """Evaluate the draws.

        Args:
            X: Designs, `b x q x d`, where b broadcasts against the batch shape: each draw has its own t-batch, or shares it.

        Returns:
            `b x q x m`, b broadcast with the batch shape, in the designs' dtype.

        Raises:
            ShapeError: If b does not broadcast against the batch shape.
            LatentError: If the predictor has replaced its latent between calls; or its latents belong to single calls, as those
                of `KernelOperator` do, and the model has observed something.
        """
        try:
            torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
        except RuntimeError as error:
            raise ShapeError(
                expected=f"t-batches that broadcast against {tuple(self.batch_shape)}, the draws",
                got=str(tuple(X.shape[:-2])),
                remedy="insert an axis: designs b x 1 x q x d are evaluated by every draw",
            ) from error
        if self._functions is not None:
            return self._evaluated(self._functions, X)
        posterior = self.model.posterior(X)
        assert isinstance(posterior, FieldPosterior | MemberPosterior)  # what a model without a transform returns
        if isinstance(posterior, FieldPosterior) and posterior.latent is None:
            self._functions = self._drawn()
            return self._evaluated(self._functions, X)
        base = self._base_samples(posterior).to(X.device)
        if isinstance(posterior, MemberPosterior):
            return _members(posterior.values, base)
        if posterior.latent != self._latent:
            raise LatentError(
                expected=f"a predictor whose fields share their randomness from call to call, {self._latent!r}",
                got=repr(posterior.latent),
                remedy="mark a latent that belongs to the functions of one call: Latent(..., is_lasting=False)",
            )
        root = posterior.root.flatten(-3, -2)
        latents = base.to(root).reshape(*self.sample_shape, *[1] * len(self.model.batch_shape), -1, 1)
        return posterior.mean + (root @ latents)[..., 0].unflatten(-1, posterior.mean.shape[-2:])

    def _drawn(self) -> tuple[FunctionDraw, ...]:
        """Functions of a predictor whose latents do not last: it has draws of its own."""
        if self.model._readings or self.model.batch_shape:
            raise LatentError(
                expected="a model that has observed nothing, where the predictor's latents belong to single calls",
                got=f"{len(self.model._readings)} sets of readings and batch shape {tuple(self.model.batch_shape)}",
                remedy="fit the head to what was observed, and draw from that",
            )
        others = [stream_seed(self.seed, "paths", number) for number in range(1, self.sample_shape.numel())]
        return tuple(self.model.predict.draw(seed) for seed in (self.seed, *others))

    def _evaluated(self, functions: Sequence[FunctionDraw], X: Tensor) -> Tensor:
        """Each draw at its own t-batch, or all at a shared one."""
        model, X = self.model, self.model._transformed_designs(X)
        inputs, where = model._inputs(X), model.functional.grid
        query = None if inputs.grid == where else where
        read = [model.functional(function(inputs.values, grid=inputs.grid, query=query)).flatten(1) for function in functions]
        values = torch.stack(read)[..., model._outputs].to(X).reshape(len(functions), *X.shape[:-1], -1)
        return _members(values, torch.arange(len(functions)).reshape(self.sample_shape))

    def _base_samples(self, posterior: FieldPosterior | MemberPosterior) -> Tensor:
        """Latent vectors or member numbers, drawn at the first call: only a posterior says of how many there are."""
        if self._base is not None:
            return self._base
        generator = draw_stream(self.seed)
        if isinstance(posterior, MemberPosterior):
            drawn = torch.multinomial(  # as `predict.draw` has it
                torch.ones(posterior.members), self.sample_shape.numel(), replacement=True, generator=generator
            )
            self._base = drawn.reshape(self.sample_shape)
        else:
            self._latent = posterior.latent
            shape = self.sample_shape + posterior.base_sample_shape
            self._base = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        return self._base


class MatheronPath(nn.Module):
    """Draws in the layout of `botorch.sampling.pathwise`: a single output has no axis, several come before the designs.

    Args:
        draws: The draws.
    """

    def __init__(self, draws: OperatorDraws) -> None:
        super().__init__()
        self.draws = draws

    def forward(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "..."]:
        """Evaluate: `b x q` for one output; for several, designs are `b x 1 x q x d` and values `b x m x q`."""
        if self.draws.num_outputs == 1:
            return self.draws(X)[..., 0]
        return self.draws(X.squeeze(-3)).mT

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing to set: draws of an ensemble are members already."""


def _members(values: Tensor, numbers: Tensor) -> Tensor:
    """Pick member numbers[i] for t-batch axis i, or one member for all: `s x b x q x m` to `b x q x m`."""
    if numbers.ndim == 0:
        return values[numbers]
    members, *batch, designs, outputs = values.shape
    shape = torch.broadcast_shapes(torch.Size(batch), numbers.shape)
    missing = [1] * (len(shape) - len(batch))
    full = values.reshape(members, *missing, *batch, designs, outputs).expand(members, *shape, designs, outputs)
    places = torch.arange(shape[-1], device=values.device)
    return full[numbers.expand(shape[-1]), ..., places, :, :].movedim(0, -3)


def draw_matheron_paths(
    model: OperatorModel, *, sample_shape: torch.Size, prior_sampler: object = None, update_strategy: object = None
) -> MatheronPath:
    """What BoTorch's function of this name does for an `OperatorModel`, and with it `PathwiseThompsonSampling`.

    Args:
        model: What to draw from.
        sample_shape: How many, `()` or `(count,)`.
        prior_sampler: Of no use here: BoTorch passes its way of drawing from kernels.
        update_strategy: Of no use here: the draws agree with what was observed already.
    """
    return MatheronPath(OperatorDraws(model, sample_shape))
