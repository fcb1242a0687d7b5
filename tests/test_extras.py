"""Extras: calls without one name it; install hints list its packages, whatever index the package itself is on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from probneural.checks import PACKAGES, install_hint
from probneural.errors import MissingPackageError, UnsupportedError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
USERS = re.search(r"\[(.*)\]", EXTRAS["all"][0])[1].split(",")
CALLED = sorted({*USERS} - {"dask"})  # whose executors are the user's own
MODULES = {"mlflow-skinny": "mlflow", "pyro-ppl": "pyro"}
"""Import names that differ from those of the packages."""


def packages(extra: str) -> set[str]:
    """Names of the packages of an extra, those of the extras in it included."""
    names: set[str] = set()
    for requirement in EXTRAS[extra]:
        inner = re.fullmatch(r"probneural\[(.*)\]", requirement)
        if inner:
            names = names.union(*map(packages, inner[1].split(",")))
        else:
            names.add(Requirement(requirement).name)
    return names


def core() -> set[str]:
    """Names of all packages that the core requires, directly or not, without extras; as installed here."""
    names: set[str] = set()
    waiting = [Requirement(text) for text in PROJECT["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in names and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            names.add(name)
            assert not requirement.extras, requirement
            waiting += map(Requirement, metadata.requires(requirement.name) or [])
    return names


def test_the_core_requires_no_package_of_an_extra() -> None:
    """No plotting, no Pyro, no libraries of data: neither directly nor through another package."""
    assert {"torch", "gpytorch", "scipy"} <= core()  # BoTorch requires the second
    assert not core() & ({canonicalize_name(name) for name in packages("all")} | {"pandas", "pyro-api", "jax", "pillow"})


@pytest.fixture(scope="module")
def errors() -> dict[str, list[str]]:
    blocked = [MODULES.get(name, name) for name in packages("all")]
    command = [sys.executable, "tests/optional_calls.py", *sorted(blocked)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-4000:]
    return json.loads(finished.stdout)


def check_errors(errors: dict[str, list[str]], extra: str) -> None:
    """Every call of an extra failed with the typed error that names it and how to install it."""
    calls = {name: rest for name, (of, *rest) in errors.items() if of == extra}
    assert calls
    for name, (kind, message) in calls.items():
        assert kind == MissingPackageError.__name__, (name, kind, message)
        assert f"needs; got an environment without the extra {extra}; {install_hint(extra)}" in message, name


@pytest.mark.parametrize("extra", CALLED)
def test_a_call_without_its_extra_names_it(errors: dict[str, list[str]], extra: str) -> None:
    check_errors(errors, extra)


def test_every_user_of_an_optional_library_is_called(errors: dict[str, list[str]]) -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "probneural").rglob("*.py"))
    users = set(re.findall(r'optional\("[\w.]+", "([^"]+)"', sources))
    messages = " ".join(message for _, _, message in errors.values())
    unreached = {user for user in users if f"which {user} needs" not in messages}
    assert unreached == {"the reader of MED files", "a report"}  # where another library is missing before
    assert issubclass(MissingPackageError, ImportError)
    assert issubclass(MissingPackageError, UnsupportedError)


@pytest.mark.parametrize("extra", CALLED)
def test_a_hint_names_the_packages_of_the_extra(extra: str) -> None:
    assert set(PACKAGES[extra]) == packages(extra)
    assert install_hint(extra) == f"pip install {' '.join(PACKAGES[extra])}"


def test_no_message_needs_the_package_on_an_index() -> None:
    for path in (ROOT / "probneural").rglob("*.py"):
        assert "pip install 'probneural" not in path.read_text(encoding="utf-8"), path
