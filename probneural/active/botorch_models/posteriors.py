"""BoTorch posteriors over functionals of fields: one Gaussian, one of ensemble members, one of noisy observations.

The first two are joint distributions of the m numbers that a functional reads from q designs. Their draws are draws of the
operator: the same base sample is the same function at every design of a t-batch and, if the predictor's latent is the same from
call to call, in every t-batch and call. The latent of `KernelOperator` belongs to the designs of one t-batch.
"""

from __future__ import annotations

from abc import ABC

import torch
from botorch.posteriors.posterior import Posterior
from jaxtyping import Float
from torch import Tensor

from probneural.active.botorch_models.conditioning import check_noise, design_factor, triangular
from probneural.checks import check_floating, check_shape
from probneural.contexts import Undisturbed
from probneural.errors import ArgumentError, ShapeError, UnsupportedError

_WEIGHT_TOLERANCE = 1e-6
"""Members whose weights differ by less than this fraction of their mean count as equally probable."""
_ONE_DRAW = torch.Size([1])
_NO_DRAWS = torch.Size()


class TensorPosterior(Undisturbed, Posterior, ABC):
    """A distribution of `b x q x m` numbers, drawn from base samples; abstract.

    Args:
        like: A tensor of the mean's shape, dtype and device.
    """

    def __init__(self, like: Float[Tensor, "*b q m"]) -> None:
        self._like = like

    @property
    def mean(self) -> Float[Tensor, "*b q m"]:
        """The mean of the values."""
        return self._like

    @property
    def batch_shape(self) -> torch.Size:
        """The t-batch shape b."""
        return self._like.shape[:-2]

    @property
    def batch_range(self) -> tuple[int, int]:
        """`(0, 0)`: base samples have no t-batch axes that a sampler would have to collapse."""
        return (0, 0)

    @property
    def device(self) -> torch.device:
        """Device of the mean."""
        return self._like.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the mean."""
        return self._like.dtype

    def rsample(
        self, sample_shape: torch.Size | None = None, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... q m"]:
        """Draw, differentiably in the designs.

        Args:
            sample_shape: Shape of the draws; one draw by default, as BoTorch has it.
            generator: Source of the draws; torch's global one by default, because BoTorch's users seed that.

        Returns:
            `sample_shape x b x q x m`.
        """
        shape = _ONE_DRAW if sample_shape is None else sample_shape
        return self.rsample_from_base_samples(shape, self._base_samples(shape, generator))

    def _base_samples(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        device = self.device if generator is None else generator.device
        return torch.randn(shape + self.base_sample_shape, generator=generator, dtype=self.dtype, device=device)

    def _extended_shape(self, sample_shape: torch.Size = _NO_DRAWS) -> torch.Size:
        return sample_shape + self._like.shape


class FieldPosterior(TensorPosterior):
    """The Gaussian y = mean + root xi over q x m numbers per t-batch, with one xi ~ N(0, I_k) for all of them.

    BoTorch's own Gaussian posteriors take a base sample per number and map it through a Cholesky factor, which fails where
    designs repeat or a variance is zero. Here the base sample is xi itself, of the one shape `(k,)`, whatever b, q and m are:
    nothing is factorised, nothing is jittered, no variance is clamped, and equal designs have equal draws.

    With observation noise it is the distribution of noisy observations, y + epsilon. Base samples are then `(k + q m,)`: xi
    followed by the noise of each observation, the same in all t-batches. Their first k numbers are the function that is read.

    Args:
        mean: `b x q x m`, in the functional's units.
        root: `b x q x m x k`, in the functional's units.
        noise: Variances of independent observation noise, broadcastable to the mean, in the functional's units squared.
        latent: The name of xi: posteriors of the same name have the same draws. None where xi belongs to these designs.

    Raises:
        ShapeError: If they do not fit together.

    Examples:
        >>> root = torch.tensor([[[3.0, 4.0]]], dtype=torch.double)
        >>> posterior = FieldPosterior(torch.zeros(1, 1, dtype=torch.double), root)
        >>> posterior.variance.item(), posterior.base_sample_shape
        (25.0, torch.Size([2]))
    """

    def __init__(
        self,
        mean: Float[Tensor, "..."],
        root: Float[Tensor, "..."],
        *,
        noise: Float[Tensor, "..."] | None = None,
        latent: str | None = None,
    ) -> None:
        check_shape(mean, "a mean", "...", "q", "m", remedy="give one of shape b x q x m")
        check_shape(root, "a root", *mean.shape, "k", remedy="append the latent axis to the mean's shape")
        super().__init__(mean)
        self.root = root
        self.latent = latent
        self.noise = None if noise is None else _expanded(noise, mean)

    @property
    def variance(self) -> Float[Tensor, "*b q m"]:
        """The marginal variances, `b x q x m`, in the functional's units squared; zero is legal and stays zero."""
        variance = self.root.square().sum(-1)
        return variance if self.noise is None else variance + self.noise

    @property
    def covariance(self) -> Float[Tensor, "*b qm qm"]:
        """The joint covariance, `b x (q m) x (q m)`, design by design and output by output within a design."""
        flat = self.root.flatten(-3, -2)
        covariance = flat @ flat.mT
        return covariance if self.noise is None else covariance + torch.diag_embed(self.noise.flatten(-2))

    @property
    def base_sample_shape(self) -> torch.Size:
        """`(k,)`, whatever b, q and m are; with observation noise `(k + q m,)`."""
        return torch.Size([self.root.shape[-1] + (0 if self.noise is None else self.mean.shape[-2:].numel())])

    def rsample_from_base_samples(
        self, sample_shape: torch.Size, base_samples: Float[Tensor, "..."]
    ) -> Float[Tensor, "... q m"]:
        """Map latent vectors to draws.

        Args:
            sample_shape: Shape of the draws.
            base_samples: xi, `sample_shape x k`, dimensionless, followed by the q m numbers of the noise if there is any.

        Returns:
            `sample_shape x b x q x m`.

        Raises:
            ShapeError: If the base samples have another shape.
        """
        remedy = "one latent vector per draw serves all designs; take the sampler that botorch's get_sampler returns"
        check_shape(base_samples, "base samples", *sample_shape, *self.base_sample_shape, remedy=remedy)
        latents, errors = base_samples.to(self.root).split(
            [self.root.shape[-1], base_samples.shape[-1] - self.root.shape[-1]], dim=-1
        )
        draws = self.mean + torch.tensordot(latents, self.root, dims=([-1], [-1]))
        if self.noise is None:
            return draws
        batches = [1] * len(self.batch_shape)
        return draws + errors.reshape(*sample_shape, *batches, *self.mean.shape[-2:]) * self.noise.sqrt()

    def scalarize(self, weights: Float[Tensor, " m"], *, offset: float = 0.0) -> FieldPosterior:
        """Return the exact posterior of offset + weights . y, of one output.

        Raises:
            ShapeError: If there is not one weight per output.
        """
        factors = _check_weights(weights, self.mean)
        mean = offset + (self.mean @ factors)[..., None]
        noise = None if self.noise is None else (self.noise @ factors.square())[..., None]
        root = torch.einsum("...mk,m->...k", self.root, factors)[..., None, :]
        return FieldPosterior(mean, root, noise=noise, latent=self.latent)


class MemberPosterior(TensorPosterior):
    """The distribution that takes one of s members with equal probability, for ensembles.

    Base samples are member numbers. The sampler that belongs to it takes every member once, so that expectations over the
    posterior are exact sums and equal designs score equally. Mean and variance are the distribution's own, without a
    small-sample correction.

    Args:
        values: `s x b x q x m`, in the functional's units; member i is one operator at all designs.
        weights: `(s,)`, dimensionless; they must be equal.

    Raises:
        ShapeError: If the shapes do not fit together.
        UnsupportedError: If the weights differ.

    Examples:
        >>> posterior = MemberPosterior(torch.tensor([0.0, 2.0]).reshape(2, 1, 1))
        >>> posterior.mean.item(), posterior.variance.item()
        (1.0, 1.0)
    """

    def __init__(self, values: Float[Tensor, "..."], weights: Float[Tensor, " s"] | None = None) -> None:
        for tensor, name in ((values, "values"), (weights, "weights")):
            if tensor is not None or name == "values":
                check_floating(tensor, name)
        if values.ndim < 3 or values.shape[0] == 0 or (weights is not None and weights.shape != values.shape[:1]):
            raise ShapeError(
                expected="values of shape s x b x q x m, s >= 1, with s weights or none",
                got=f"{tuple(values.shape)}" + ("" if weights is None else f" and {tuple(weights.shape)}"),
                remedy="stack the members in front",
            )
        if weights is not None and bool(((weights - weights.mean()).abs() > _WEIGHT_TOLERANCE * weights.mean().abs()).any()):
            raise UnsupportedError(
                expected="members of equal weight, because Monte Carlo acquisition functions average draws with equal weights",
                got=f"weights from {float(weights.min()):.4g} to {float(weights.max()):.4g}",
                remedy="resample the members by their weights first, or use EmpiricalField.moment_matched()",
            )
        super().__init__(values[0])
        self.values = values

    @property
    def members(self) -> int:
        """Number of members s."""
        return self.values.shape[0]

    @property
    def mean(self) -> Float[Tensor, "*b q m"]:
        """The mean over members, `b x q x m`, in the functional's units."""
        return self.values.mean(0)

    @property
    def variance(self) -> Float[Tensor, "*b q m"]:
        """The variance over members, `b x q x m`, in the functional's units squared."""
        return (self.values - self.mean).square().mean(0)

    @property
    def base_sample_shape(self) -> torch.Size:
        """`()`: the base sample of a draw is the number of a member."""
        return torch.Size()

    def _base_samples(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Members with replacement."""
        device = self.device if generator is None else generator.device
        return torch.randint(self.members, shape, generator=generator, device=device)

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Float[Tensor, "... q m"]:
        """Look members up.

        Args:
            sample_shape: Shape of the draws.
            base_samples: Member numbers, integers of shape `sample_shape`.

        Returns:
            `sample_shape x b x q x m`.

        Raises:
            ArgumentError: If the base samples are no member numbers, or have another shape.
        """
        whole = not base_samples.is_floating_point() and base_samples.shape == sample_shape
        if not whole or not bool(((base_samples >= 0) & (base_samples < self.members)).all()):
            raise ArgumentError(
                expected=f"member numbers from 0 to {self.members - 1} of shape {tuple(sample_shape)}",
                got=f"{base_samples.dtype} of shape {tuple(base_samples.shape)}",
                remedy="give the acquisition function no sampler: the one that enumerates the members is then chosen",
            )
        return self.values[base_samples.to(self.device)]

    def scalarize(self, weights: Float[Tensor, " m"], *, offset: float = 0.0) -> MemberPosterior:
        """Return the posterior of offset + weights . y, of one output.

        Raises:
            ShapeError: If there is not one weight per output.
        """
        return MemberPosterior(offset + (self.values @ _check_weights(weights, self.values))[..., None])


class Measurements(TensorPosterior):
    """The distribution of q x m noisy observations, one base sample per observation: what fantasies are drawn from.

    A `FieldPosterior` has as many base samples as its latent has dimensions, often hundreds, where quasi-random points are no
    better than random ones. Noisy observations have a regular covariance, so its triangular factor takes q m base samples; it
    comes from a QR decomposition, for the covariance itself would lose a noise far below its variances to rounding.

    Args:
        mean: `b x q x m`.
        root: `b x q x m x k`.
        noise: `b x q x m`, positive.
        discrepancy: Root of what each design has of its own, `b x q x m x r`, or None. Conditioning takes it so, too.
    """

    def __init__(
        self,
        mean: Float[Tensor, "..."],
        root: Float[Tensor, "..."],
        noise: Float[Tensor, "..."],
        *,
        discrepancy: Float[Tensor, "..."] | None = None,
    ) -> None:
        super().__init__(mean)
        rows = root.to(torch.float64).flatten(-3, -2)
        misfits = mean.new_zeros(*mean.shape, 0) if discrepancy is None else discrepancy
        factor = design_factor(noise.expand(mean.shape), misfits)  # b q m m, for the blocks on the diagonal
        blocks = torch.diag_embed(factor.movedim(-3, -1)).movedim((-2, -4, -1, -3), (-4, -3, -2, -1))  # b q m q m
        diagonal = blocks.flatten(-4, -3).flatten(-2).mT
        _, self.triangle = triangular(torch.cat([rows.mT, diagonal], dim=-2))

    @property
    def variance(self) -> Float[Tensor, "*b q m"]:
        """The marginal variances, noise included."""
        return self.triangle.square().sum(-1).unflatten(-1, self.mean.shape[-2:]).to(self.mean)

    @property
    def base_sample_shape(self) -> torch.Size:
        """`b x q x m`, as BoTorch's Gaussian posteriors have it; samplers collapse b to ones."""
        return self.mean.shape

    @property
    def batch_range(self) -> tuple[int, int]:
        """`(0, -2)`: base samples are the same in all t-batches, so that equal designs score equally."""
        return (0, -2)

    def rsample_from_base_samples(
        self, sample_shape: torch.Size, base_samples: Float[Tensor, "..."]
    ) -> Float[Tensor, "... q m"]:
        """Map base samples to observations.

        Raises:
            ShapeError: If the base samples have another shape.
        """
        remedy = "fantasies of a Gaussian model take one of botorch's normal samplers"
        check_shape(base_samples, "base samples", *sample_shape, *self.mean.shape, remedy=remedy)
        flat = base_samples.to(self.triangle).flatten(-2)[..., None]
        deviation = (self.triangle @ flat)[..., 0].unflatten(-1, self.mean.shape[-2:])
        return self.mean + deviation.to(self.mean)


def _expanded(noise: Tensor, mean: Tensor) -> Tensor:
    """Return noise variances of the mean's shape and dtype, or raise."""
    variance = check_noise(noise, mean.shape, mean, positive=False).to(mean)
    if torch.broadcast_shapes(variance.shape, mean.shape) != mean.shape:
        raise ShapeError(
            expected=f"noise variances that broadcast to {tuple(mean.shape)}",
            got=str(tuple(noise.shape)),
            remedy="noise has no axes that the designs do not have",
        )
    return variance.expand(mean.shape)


def _check_weights(weights: Tensor, values: Tensor) -> Tensor:
    """Return the weights of a posterior transform in the values' dtype, or raise a ShapeError."""
    check_shape(weights, "weights", values.shape[-1], remedy="the outputs are the functional's values, channel by channel")
    return weights.to(values)
