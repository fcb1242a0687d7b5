"""Latents: names that follow from contents, and a chain back to what was conditioned."""

from __future__ import annotations

import copy
import hashlib
import pickle
import struct

import pytest
import torch

from probneural.distributions import Latent
from probneural.distributions.latents import digest
from probneural.errors import LatentError
from tests.distributions.cases import normal

ROOT = Latent(id="xi", rank=3)
FIRST = ROOT.conditioned(normal("shift", 3), normal("factor", 3, 3), chi2=1.5)
SECOND = FIRST.conditioned(normal("other shift", 3), normal("other factor", 3, 2), chi2=0.5)


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

    def test_takes_integers_and_gradients(self) -> None:
        assert digest(torch.arange(3)) != digest(torch.arange(3).flip(0))
        assert digest(normal("values", 2).requires_grad_()) == digest(normal("values", 2))


class TestChain:
    def test_a_latent_is_itself_relative_to_itself(self) -> None:
        assert ROOT.relative_to(ROOT) == (None, None)
        assert SECOND.relative_to(SECOND) == (None, None)

    def test_one_step(self) -> None:
        shift, factor = FIRST.relative_to(ROOT)
        assert torch.equal(shift, FIRST.shift)
        assert torch.equal(factor, FIRST.factor)

    def test_two_steps_compose(self) -> None:
        """xi = a + A xi' and xi' = b + B xi'' make xi = (a + A b) + A B xi''."""
        shift, factor = SECOND.relative_to(ROOT)
        assert torch.allclose(shift, FIRST.shift + FIRST.factor @ SECOND.shift)
        assert torch.allclose(factor, FIRST.factor @ SECOND.factor)
        xi = normal("xi", 2)
        assert torch.allclose(shift + factor @ xi, FIRST.shift + FIRST.factor @ (SECOND.shift + SECOND.factor @ xi))

    def test_the_chain_is_brought_to_the_device_of_its_end(self) -> None:
        end = Latent(id="end", rank=2, parent=FIRST, shift=SECOND.shift.to("meta"), factor=SECOND.factor.to("meta"))
        shift, factor = end.relative_to(ROOT)
        assert (shift.device.type, factor.device.type, factor.shape) == ("meta", "meta", (3, 2))

    def test_describes_itself(self) -> None:
        assert repr(ROOT) == "Latent('xi', rank=3)"
        assert (SECOND.rank, SECOND.chi2, SECOND.parent) == (2, 0.5, FIRST)

    @pytest.mark.parametrize("travel", [copy.deepcopy, lambda latent: pickle.loads(pickle.dumps(latent))])  # noqa: S301
    def test_a_name_survives_copies(self, travel: object) -> None:
        copied = travel(SECOND)  # type: ignore[operator]
        assert copied.id == SECOND.id
        assert torch.equal(copied.relative_to(ROOT)[1], SECOND.relative_to(ROOT)[1])
        assert SECOND.relative_to(copied) == (None, None)


class TestNames:
    def test_conditioning_is_named_by_what_was_learned(self) -> None:
        again = ROOT.conditioned(normal("shift", 3), normal("factor", 3, 3), chi2=9.0)
        other = ROOT.conditioned(-normal("shift", 3), normal("factor", 3, 3), chi2=1.5)
        assert again.id == FIRST.id != other.id
        assert FIRST.id.startswith("xi|")

    def test_renaming_cuts_the_chain(self) -> None:
        renamed = SECOND.renamed("calibrated")
        assert (renamed.rank, renamed.parent, renamed.shift, renamed.factor, renamed.chi2) == (2, None, None, None, None)
        assert renamed.id == f"{SECOND.id}~calibrated"


@pytest.mark.bad_input
class TestStrangers:
    @pytest.mark.parametrize(
        ("latent", "ancestor"),
        [
            (ROOT, Latent(id="eta", rank=3)),
            (ROOT, FIRST),  # a parent learned nothing from its child
            (SECOND.renamed("scaled"), ROOT),
            (FIRST, ROOT.renamed("scaled")),
            (ROOT.conditioned(normal("third", 3), normal("third", 3, 3), chi2=1.0), FIRST),  # a sibling
            (FIRST, Latent(id="xi", rank=4)),  # a name used twice
        ],
    )
    def test_do_not_mix(self, latent: Latent, ancestor: Latent) -> None:
        with pytest.raises(LatentError, match="a latent that was conditioned from"):
            latent.relative_to(ancestor)
