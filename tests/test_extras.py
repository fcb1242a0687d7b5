"""Install hints: the packages of an extra, whatever index the package itself is on."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import probneural as pn
from probneural.checks import PACKAGES, install_hint
from probneural.errors import UnsupportedError

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def packages(extra: str) -> set[str]:
    """Names of the packages of an extra, those of the extras in it included."""
    names: set[str] = set()
    for requirement in EXTRAS[extra]:
        inner = re.fullmatch(r"probneural\[(.*)\]", requirement)
        if inner:
            names = names.union(*map(packages, inner[1].split(",")))
        else:
            names.add(re.split(r"[<>=~!\[; ]", requirement)[0])
    return names


@pytest.mark.parametrize("extra", PACKAGES)
def test_a_hint_names_the_packages_of_the_extra(extra: str) -> None:
    assert set(PACKAGES[extra]) == packages(extra)
    assert install_hint(extra) == f"pip install {' '.join(PACKAGES[extra])}"


def test_no_message_needs_the_package_on_an_index() -> None:
    for path in (ROOT / "probneural").rglob("*.py"):
        assert "pip install 'probneural" not in path.read_text(encoding="utf-8"), path


def test_tables_without_xarray(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = pn.Grid.uniform(4)
    field = pn.Field(torch.zeros(2, 1, 4), grid)
    monkeypatch.setitem(sys.modules, "xarray", None)
    message = "expected xarray, which to_xarray needs; got an environment without it; pip install xarray"
    for table in (field, pn.FieldPairs(field, field), pn.distributions.EmpiricalField(field.values[:, None], grid=grid)):
        with pytest.raises(UnsupportedError, match=message):
            table.to_xarray()
    with pytest.raises(UnsupportedError, match="xarray, which from_xarray needs"):
        pn.FieldPairs.from_xarray(object(), object(), periodic=True)  # type: ignore[arg-type]
