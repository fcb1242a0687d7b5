from __future__ import annotations

import pytest
import torch

from probneural.fingerprints import content_of, fingerprint_of, row_fingerprints


def test_equal_rows_have_equal_names_and_no_others() -> None:
    values = torch.arange(12.0).reshape(4, 3)
    names = row_fingerprints(values, 2.0 * values)
    assert len(set(names.tolist())) == 4
    assert torch.equal(row_fingerprints(values[2:], 2.0 * values[2:]), names[2:])
    assert torch.equal(row_fingerprints(values.clone().mT.contiguous().mT, 2.0 * values), names)
    others = [
        (values, values),
        (values.double(), 2.0 * values),
        (values.reshape(4, 3, 1), 2.0 * values),
        (2.0 * values, values),
    ]
    for other in others:
        assert not torch.isin(row_fingerprints(*other)[1:], names).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.int8])
def test_contents_do_not_depend_on_layout(dtype: torch.dtype) -> None:
    block = torch.arange(-6, 6).reshape(3, 4).to(dtype)
    for tensor in (block.mT.contiguous().mT, torch.stack([block, block], -1)[..., 0], block[:, 1:][:1, ::3]):
        assert content_of(tensor) == content_of(tensor.clone(memory_format=torch.contiguous_format))
        assert fingerprint_of(tensor) != fingerprint_of(tensor.logical_not())
    assert len(content_of(block)) == block.numel() * block.itemsize


def test_contents_of_conjugates_are_their_values() -> None:
    numbers = torch.tensor([1.0 + 2.0j, -3.0j])
    assert content_of(numbers.conj()) == content_of(numbers.conj().resolve_conj()) != content_of(numbers)
