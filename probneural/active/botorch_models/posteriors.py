"""BoTorch posteriors over functionals of fields: one Gaussian, one of ensemble members.

Both answer the same question: what are the m numbers that a functional reads from q designs, jointly? Their draws are draws
of the operator, so that the same base sample is the same function at every design, in every t-batch and, where the predictor's
latent is the same from call to call, in every call. All heads' are but that of `KernelOperator`, whose latent belongs to the
designs of one call.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.active.botorch_models.conditioning import check_noise
from probneural.active.botorch_models.tensor_posterior import TensorPosterior
from probneural.checks import check_floating
from probneural.errors import ArgumentError, ShapeError, UnsupportedError

_WEIGHT_TOLERANCE = 1e-6
"""Members whose weights differ by less than this fraction of their mean count as equally probable."""


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
        if mean.ndim < 2 or root.ndim != mean.ndim + 1 or root.shape[:-1] != mean.shape:
            raise ShapeError(
                expected="a mean of shape b x q x m and a root of shape b x q x m x k",
                got=f"{tuple(mean.shape)} and {tuple(root.shape)}",
                remedy="append the latent axis to the mean's shape",
            )
        super().__init__(mean)
        self.root = root
        self.latent = latent
        self.noise = None if noise is None else _expanded(noise, mean)

    @property
    def mean(self) -> Float[Tensor, "*b q m"]:
        """The mean, `b x q x m`, in the functional's units."""
        return self._like

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
        return torch.Size([self._rank + (0 if self.noise is None else self.mean.shape[-2:].numel())])

    @property
    def _rank(self) -> int:
        return self.root.shape[-1]

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
        if base_samples.shape != sample_shape + self.base_sample_shape:
            raise ShapeError(
                expected=f"base samples of shape {tuple(sample_shape + self.base_sample_shape)}",
                got=str(tuple(base_samples.shape)),
                remedy="one latent vector per draw serves all designs; take the sampler that botorch's get_sampler returns",
            )
        latents, errors = base_samples.to(self.root).split([self._rank, base_samples.shape[-1] - self._rank], dim=-1)
        draws = self.mean + torch.tensordot(latents, self.root, dims=([-1], [-1]))
        if self.noise is None:
            return draws
        batches = [1] * len(self.batch_shape)
        return draws + errors.reshape(*sample_shape, *batches, *self.mean.shape[-2:]) * self.noise.sqrt()

    def select(self, outputs: list[int]) -> FieldPosterior:
        """Return the posterior of some of the outputs."""
        noise = None if self.noise is None else self.noise[..., outputs]
        return FieldPosterior(self.mean[..., outputs], self.root[..., outputs, :], noise=noise, latent=self.latent)

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

    def select(self, outputs: list[int]) -> MemberPosterior:
        """Return the posterior of some of the outputs."""
        return MemberPosterior(self.values[..., outputs])

    def scalarize(self, weights: Float[Tensor, " m"], *, offset: float = 0.0) -> MemberPosterior:
        """Return the posterior of offset + weights . y, of one output.

        Raises:
            ShapeError: If there is not one weight per output.
        """
        return MemberPosterior(offset + (self.values @ _check_weights(weights, self.values))[..., None])


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
    if weights.shape != values.shape[-1:]:
        raise ShapeError(
            expected=f"one weight for each of {values.shape[-1]} outputs",
            got=f"shape {tuple(weights.shape)}",
            remedy="the outputs are the functional's values, channel by channel",
        )
    return weights.to(values)
