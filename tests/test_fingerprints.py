from __future__ import annotations

import torch

from probneural.fingerprints import row_fingerprints


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
