"""Draws of operators: samplers of posteriors, and deterministic models for Thompson sampling.

Importing this module registers the samplers with BoTorch's `get_sampler`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.models.deterministic import DeterministicModel
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, NormalMCSampler, SobolQMCNormalSampler
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine

from probneural.active.botorch_models.model import OperatorModel
from probneural.active.botorch_models.posteriors import FieldPosterior, MemberPosterior
from probneural.checks import check_count, check_floating, check_instance, check_integer
from probneural.contexts import Undisturbed
from probneural.distributions.latent import draw_stream
from probneural.distributions.predictors.base import FunctionDraw
from probneural.errors import ArgumentError, LatentError, ShapeError
from probneural.randomness import check_seed, stream_seed


class MemberSampler(MCSampler):
    """Takes every member of an ensemble once, in order.

    BoTorch's `IndexSampler` draws member numbers afresh for each t-batch, so that one design scores differently in different
    restarts of an optimiser. Enumerating is deterministic, and exact: a mean over its draws is the posterior's expectation.

    Args:
        members: Number of members s; the draws have the sample shape `(s,)`.
    """

    def __init__(self, members: int) -> None:
        super().__init__(
            sample_shape=torch.Size([check_integer(members, "members")]), seed=0
        )  # without a seed BoTorch would draw one, for nothing

    def forward(self, posterior: Posterior) -> Float[Tensor, "... q m"]:
        """Return the members, `s x b x q x m`.

        Args:
            posterior: A `MemberPosterior` of s members, or a BoTorch transform of one.

        Raises:
            ArgumentError: If the posterior has another number of members, or none.
        """
        count = self.sample_shape[0]
        if isinstance(posterior, FieldPosterior) or (isinstance(posterior, MemberPosterior) and posterior.members != count):
            raise ArgumentError(
                expected=f"a posterior of {count} members",
                got=f"{posterior.members} members" if isinstance(posterior, MemberPosterior) else "a Gaussian posterior",
                remedy="make a new sampler with botorch's get_sampler, or a new acquisition function",
            )
        return posterior.rsample_from_base_samples(self.sample_shape, torch.arange(count, device=posterior.device))

    def _update_base_samples(self, posterior: Posterior, base_sampler: MCSampler) -> None:
        """Nothing to update: members have no base samples that depend on the designs."""


class _LatentSampler(NormalMCSampler):
    """A normal sampler of latent vectors, which belong to no single designs: equal in all calls of as many dimensions."""

    def _update_base_samples(self, posterior: Posterior, base_sampler: MCSampler) -> None:
        self._construct_base_samples(posterior)


class _SobolLatentSampler(_LatentSampler, SobolQMCNormalSampler):
    """Quasi-random latent vectors."""


class _IIDLatentSampler(_LatentSampler, IIDNormalSampler):
    """Independent latent vectors."""


@GetSampler.register(FieldPosterior)
def _normal_sampler(posterior: FieldPosterior, sample_shape: torch.Size, *, seed: int | None = None) -> NormalMCSampler:
    """Quasi-random latent vectors, or independent ones beyond the dimension that Sobol sequences reach."""
    (rank,) = posterior.base_sample_shape
    kind = _SobolLatentSampler if rank <= SobolEngine.MAXDIM else _IIDLatentSampler
    return kind(sample_shape=sample_shape, seed=seed)


@GetSampler.register(MemberPosterior)
def _member_sampler(posterior: MemberPosterior, sample_shape: torch.Size, *, seed: int | None = None) -> MemberSampler:
    """All members, however many draws were asked for: more would repeat them, and fewer would leave some out."""
    remedy = "members are enumerated along one axis; draw with rsample to have another shape"
    check_count(len(sample_shape), 1, "axis of the sample shape for an ensemble", remedy=remedy, error=ArgumentError)
    return MemberSampler(posterior.members)


class OperatorDraws(Undisturbed, DeterministicModel):
    """The outputs of operators drawn from a model's distribution, as a deterministic model for Thompson sampling.

    Each is one function of the design, the same at every call, differentiable, and exact: nothing is approximated by random
    features. Draws of an ensemble are members, drawn with replacement; those of `KernelOperator` are its own, `predictor.draw`.

    Args:
        model: The model to draw from, observations included.
        count: Number of draws, a batch axis in front of the model's; one without such an axis by default.
        seed: Random seed; from torch's global generator by default, because BoTorch's users seed that. A single draw of a model
            that has observed nothing is `predictor.draw(seed)`, where the predictor's fields have no discrepancy. Those of
            calibrated predictors have one: a model draws what has no correlation, too, and has other numbers.

    Raises:
        ArgumentError: If the count is not positive, or the seed is not a non-negative integer.

    Examples:
        >>> import probneural as pn
        >>> problem = pn.problems.Heat(dimension=1)
        >>> pairs = problem.sample(20, resolution=32, seed=0)
        >>> predictor = pn.heads.LastLayerLaplace(noise=1e-4).fit(pn.operators.LinearRegression.fitted(pairs), pairs)
        >>> encode = lambda designs: problem.encode(designs, grid=pairs.inputs.grid)
        >>> model = OperatorModel(predictor, encode=encode, functional=pn.functionals.integral(pairs.outputs.grid))
        >>> X = torch.full((5, 1, problem.design_dim), 0.5, dtype=torch.double)
        >>> OperatorDraws(model, 4, seed=0)(X[:, None]).shape
        torch.Size([5, 4, 1, 1])
    """

    def __init__(self, model: OperatorModel, count: int | None = None, *, seed: int | None = None) -> None:
        super().__init__()
        self.model = check_instance(model, OperatorModel, "model", remedy="wrap a predictor: OperatorModel(predictor, ...)")
        self.count = None if count is None else check_integer(count, "count of draws")
        self.sample_shape = torch.Size([] if count is None else [count])
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
        return OperatorDraws(self.model.subset_output(idcs), self.count, seed=self.seed)

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
            torch.broadcast_shapes(check_floating(X, "designs").shape[:-2], self.batch_shape)
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
                remedy="mark a latent that belongs to the functions of one call: Latent(..., is_shared_across_calls=False)",
            )
        root = posterior.root.flatten(-3, -2)
        latents = base.to(root).reshape(*self.sample_shape, *[1] * len(self.model.batch_shape), -1, 1)
        return posterior.mean + (root @ latents)[..., 0].unflatten(-1, posterior.mean.shape[-2:])

    def _drawn(self) -> tuple[FunctionDraw, ...]:
        """Functions of a predictor whose latents do not last: it has draws of its own."""
        if self.model.observations or self.model.batch_shape:
            raise LatentError(
                expected="a model that has observed nothing, where the predictor's latents belong to single calls",
                got=f"{len(self.model.observations)} sets of observations and batch shape {tuple(self.model.batch_shape)}",
                remedy="fit the head to what was observed, and draw from that",
            )
        others = [stream_seed(self.seed, "paths", number) for number in range(1, self.sample_shape.numel())]
        return tuple(self.model.predictor.draw(seed) for seed in (self.seed, *others))

    def _evaluated(self, functions: Sequence[FunctionDraw], X: Tensor) -> Tensor:
        """Each draw at its own t-batch, or all at a shared one."""
        model = self.model
        inputs, where = model.encoded(X), model.functional.grid
        query = None if inputs.grid == where else where
        read = [model.functional(function(inputs.values, grid=inputs.grid, query=query)).flatten(1) for function in functions]
        values = torch.stack(read)[..., model.outputs].to(X).reshape(len(functions), *X.shape[:-1], -1)
        return _members(values, torch.arange(len(functions)).reshape(self.sample_shape))

    def _base_samples(self, posterior: FieldPosterior | MemberPosterior) -> Tensor:
        """Latent vectors or member numbers, drawn at the first call: only a posterior says of how many there are."""
        if self._base is not None:
            return self._base
        if isinstance(posterior, MemberPosterior):
            drawn = torch.multinomial(  # as `predictor.draw` has it
                torch.ones(posterior.members),
                self.sample_shape.numel(),
                replacement=True,
                generator=draw_stream(self.seed, self.model.predictor._key),
            )
            self._base = drawn.reshape(self.sample_shape)
        else:
            self._latent = posterior.latent
            shape = self.sample_shape + posterior.base_sample_shape
            generator = draw_stream(self.seed, posterior.latent)
            self._base = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        return self._base


def _members(values: Tensor, numbers: Tensor) -> Tensor:
    """Pick member numbers[i] for t-batch axis i, or one member for all: `s x b x q x m` to `b x q x m`."""
    if numbers.ndim == 0:
        return values[numbers]
    members, *batch, designs, outputs = values.shape
    shape = torch.broadcast_shapes(torch.Size(batch), numbers.shape)
    missing = [1] * (len(shape) - len(batch))
    full = values.reshape(members, *missing, *batch, designs, outputs).expand(members, *shape, designs, outputs)
    last = torch.arange(shape[-1], device=values.device)
    return full[numbers.expand(shape[-1]), ..., last, :, :].movedim(0, -3)
