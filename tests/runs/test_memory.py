"""A run whose parts are too large for memory: the same numbers as in memory, and never all functions at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from probneural import runs
from probneural.data.fields import StoredFields
from probneural.fields import Field
from probneural.runs import folder
from tests.runs.files import cheap, written


def test_pairs_on_disk_give_the_numbers_of_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, reads = cheap(written(tmp_path)), []
    one = runs.score(config, tmp_path / "memory", show_progress=False)
    read = StoredFields.__getitem__

    def counted(fields: StoredFields, index: object) -> Field:
        reads.append(len(found := read(fields, index)))  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(StoredFields, "__getitem__", counted)
    runs.fit(config, tmp_path / "again", show_progress=False)
    in_memory = len(reads)
    monkeypatch.setattr(folder, "IN_MEMORY", 0)
    reads.clear()
    assert runs.score(config, tmp_path / "disk", show_progress=False) == one
    assert len(reads) > in_memory + 20
    assert max(reads) < 40  # never all of them
    for name in ("operator", "head", "predictor"):
        first, second = (load_file(tmp_path / place / f"{name}.safetensors") for place in ("memory", "disk"))
        assert all(bool((first[key] == second[key]).all()) for key in first)
