"""Latents: names that follow from contents, and a chain back to what was conditioned."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch

from probneural.distributions import Latent
from probneural.distributions.latent import digest
from probneural.errors import LatentError
from probneural.heads import KernelOperator
from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.problems import Heat
from tests.distributions.cases import normal, transform

ROOT = Latent(id="xi", rank=5)
(S1, DENSE1), (S2, DENSE2), (S3, DENSE3) = (transform(name, rows, 5) for name, rows in (("S1", 2), ("S2", 3), ("S3", 5)))
FIRST = ROOT.conditioned(normal("shift", 5), S1, chi2=1.5)
SECOND = FIRST.conditioned(normal("other shift", 5), S2, chi2=0.5)
THIRD = SECOND.conditioned(normal("third shift", 5), S3, chi2=0.5)


class TestDigest:
    def test_follows_from_contents(self) -> None:
        values = normal("values", 2, 3)
        assert digest(values) == digest(values.clone()) == digest(values.mT.contiguous().mT)
        expected = hashlib.blake2b(b"(2,)" + struct.pack("=2d", 1.5, -2.0), digest_size=8).hexdigest()
        assert digest(torch.tensor([1.5, -2.0])) == digest(torch.tensor([1.5, -2.0], dtype=torch.float64)) == expected

    def test_sees_every_difference(self) -> None:
        values = normal("values", 2, 3)
        bumped = values.clone()
        bumped[1, 2] = torch.nextafter(bumped[1, 2], torch.tensor(torch.inf, dtype=torch.float64))
        others = [values.reshape(3, 2), values.flatten(), -values, bumped, values[:1]]
        names = [digest(values), digest(values, values), *(digest(other) for other in others)]
        assert len(set(names)) == len(names)


class TestChain:
    def test_a_latent_is_itself_relative_to_itself(self) -> None:
        assert ROOT.relative_to(ROOT) == (None, ())
        assert SECOND.relative_to(SECOND) == (None, ())

    def test_one_step(self) -> None:
        shift, transforms = FIRST.relative_to(ROOT)
        assert shift is not None
        assert FIRST.shift is not None
        assert torch.equal(shift, FIRST.shift)
        assert [torch.equal(one.directions, S1.directions) for one in transforms] == [True]
        assert torch.equal(transforms[0].factors, S1.factors)

    def test_steps_compose(self) -> None:
        """xi = a + A xi1, xi1 = b + B xi2 and xi2 = c + C xi3 make xi = (a + A (b + B c)) + A B C xi3."""
        shift, transforms = THIRD.relative_to(ROOT)
        a, b, c = normal("shift", 5), normal("other shift", 5), normal("third shift", 5)
        assert torch.allclose(shift, a + DENSE1 @ (b + DENSE2 @ c), rtol=0, atol=1e-14)
        expected = (DENSE1, DENSE2, DENSE3)
        for one, dense in zip(transforms, expected, strict=True):
            assert torch.allclose(one.dense(), dense, rtol=0, atol=1e-14)
        partly, rest = THIRD.relative_to(FIRST)
        assert torch.allclose(partly, b + DENSE2 @ c, rtol=0, atol=1e-14)
        assert len(rest) == 2

    def test_the_chain_is_brought_to_the_device_of_its_end(self) -> None:
        end = Latent(id="end", rank=5, parent=FIRST, shift=normal("end", 5).to("meta"), transform=S2)
        shift, transforms = end.relative_to(ROOT)
        assert shift is not None
        assert {shift.device.type, *(one.directions.device.type for one in transforms)} == {"meta"}


class TestNames:
    def test_conditioning_is_named_by_what_was_learned(self) -> None:
        again = ROOT.conditioned(normal("shift", 5), transform("S1", 2, 5)[0], chi2=9.0)
        others = [
            ROOT.conditioned(-normal("shift", 5), S1, chi2=1.5),
            ROOT.conditioned(normal("shift", 5), LowRankUpdate(S1.directions.flip(1), S1.factors), chi2=1.5),
            ROOT.conditioned(normal("shift", 5), LowRankUpdate(S1.directions, S1.factors + 0.1), chi2=1.5),
        ]
        assert again.id == FIRST.id
        assert len({FIRST.id, *(other.id for other in others)}) == 4
        assert FIRST.id.startswith("xi|")

    def test_renaming_cuts_the_chain(self) -> None:
        renamed = SECOND.renamed("calibrated")
        assert (renamed.rank, renamed.parent, renamed.shift, renamed.transform, renamed.chi2) == (5, None, None, None, None)
        assert renamed.id == f"{SECOND.id}~calibrated"


@pytest.mark.bad_input
class TestStrangers:
    @pytest.mark.parametrize(
        ("latent", "ancestor"),
        [
            (ROOT, Latent(id="eta", rank=5)),
            (ROOT, FIRST),  # a parent learned nothing from its child
            (SECOND.renamed("scaled"), ROOT),
            (FIRST, ROOT.renamed("scaled")),
            (ROOT.conditioned(normal("third", 5), S3, chi2=1.0), FIRST),  # a sibling
            (FIRST, Latent(id="xi", rank=4)),  # a name used twice
        ],
    )
    def test_do_not_mix(self, latent: Latent, ancestor: Latent) -> None:
        with pytest.raises(LatentError, match="a latent that was conditioned from"):
            latent.relative_to(ancestor)


def test_a_latent_of_a_single_call_stays_one() -> None:
    """However a field is conditioned, renamed, scaled, selected from or looked at alone."""
    single = Latent(id="of a call", rank=5, is_shared_across_calls=False)
    assert not single.conditioned(normal("shift", 5), S1, chi2=1.5).is_shared_across_calls
    assert not single.renamed("scaled").is_shared_across_calls
    assert FIRST.is_shared_across_calls
    pairs = Heat(dimension=1).sample(6, resolution=32, seed=0)
    head = KernelOperator("rbf", output_components=2, groups=1, iterations=1)
    field = head.fit(None, pairs)(pairs.inputs)
    assert field.marginal(2).latent.rank < field.latent.rank
    for found in (field, field.marginal(2), field[1:3], field.scale(torch.tensor([2.0]))):
        assert not found.latent.is_shared_across_calls
