"""`import probneural` loads no other module; its names load their modules, but no library that only some users need."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import probneural

ROOT = Path(__file__).parents[1]
LIST_MODULES = """
import sys, probneural
loaded = [name for name in sys.modules if name.startswith("probneural")]
from probneural import *
print(len(loaded), *{name.partition(".")[0] for name in sys.modules})
"""


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    finished = subprocess.run([sys.executable, "-c", LIST_MODULES], capture_output=True, text=True, check=True)
    return set(finished.stdout.split())


def test_an_import_loads_one_module_and_all_names_load_the_rest(loaded: set[str]) -> None:
    assert {"1", "probneural", "torch", "jaxtyping"} <= loaded


# gpytorch belongs here because it imports pyro wherever pyro is installed; SciPy takes half a second.
@pytest.mark.parametrize(
    "package",
    [
        "botorch",
        "dask",
        "gpytorch",
        "lightning",
        "matplotlib",
        "mlflow",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "pandas",
        "pydantic",
        "pyro",
        "scipy",
        "sklearn",
        "tensorboard",
        "torchdiffeq",
        "wandb",
        "xarray",
    ],
)
def test_import_leaves_out(package: str, loaded: set[str]) -> None:
    assert package not in loaded


def test_unknown_names_are_no_attributes() -> None:
    for name in {"Feild", "__main__", "_private"} - vars(probneural).keys():  # another test may import the program
        with pytest.raises(AttributeError, match=f"module 'probneural' has no attribute '{name}'"):
            getattr(probneural, name)
    assert probneural.__getattr__("storage") is importlib.import_module("probneural.storage")


def test_star_import_needs_no_extra() -> None:
    assert not {"active", "plots", "runs"} & set(probneural.__all__)
    assert {"active", "plots", "runs"} <= set(dir(probneural))


def test_the_program_without_its_extra_says_so_in_one_line() -> None:
    code = "import runpy, sys; sys.modules['pydantic'] = None; runpy.run_module('probneural', run_name='__main__')"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert re.fullmatch("probneural: expected pydantic, which pn.runs needs; .* extra cli; pip install .*\n", finished.stderr)


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of every `from ... import` of this project in a file, those inside functions among them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ("probneural", "benchmarks"):
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "probneural"])
def test_every_name_imported_late_exists(folder: str) -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for module, name in imported_names(path)
        if not hasattr(importlib.import_module(module), name) and importlib.util.find_spec(f"{module}.{name}") is None
    ]
    assert not missing
