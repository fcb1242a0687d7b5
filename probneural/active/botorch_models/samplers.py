"""Samplers for the posteriors of this package, and their registration with BoTorch's `get_sampler`.

Acquisition functions that are given no sampler ask `get_sampler` for one, so importing this module is all the set-up.
"""

from __future__ import annotations

import torch
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, NormalMCSampler, SobolQMCNormalSampler
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine

from probneural.active.botorch_models.posteriors import FieldPosterior, MemberPosterior
from probneural.checks import check_integer
from probneural.errors import ArgumentError


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


@GetSampler.register(FieldPosterior)
def _normal_sampler(posterior: FieldPosterior, sample_shape: torch.Size, *, seed: int | None = None) -> NormalMCSampler:
    """Quasi-random latent vectors, or independent ones beyond the dimension that Sobol sequences reach."""
    (rank,) = posterior.base_sample_shape
    kind = SobolQMCNormalSampler if rank <= SobolEngine.MAXDIM else IIDNormalSampler
    return kind(sample_shape=sample_shape, seed=seed)


@GetSampler.register(MemberPosterior)
def _member_sampler(posterior: MemberPosterior, sample_shape: torch.Size, *, seed: int | None = None) -> MemberSampler:
    """All members, however many draws were asked for: more would repeat them, and fewer would leave some out."""
    if len(sample_shape) != 1:
        raise ArgumentError(
            expected="a sample shape of one axis for an ensemble",
            got=str(tuple(sample_shape)),
            remedy="members are enumerated along one axis; draw with rsample to have another shape",
        )
    return MemberSampler(posterior.members)
