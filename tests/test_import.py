"""`import probneural` stays light: what only some users need is loaded when they need it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import probneural

LIST_MODULES = "import sys, probneural; print(*{name.partition('.')[0] for name in sys.modules})"


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    finished = subprocess.run([sys.executable, "-c", LIST_MODULES], capture_output=True, text=True, check=True)
    return set(finished.stdout.split())


def test_the_listing_sees_what_an_import_pulls(loaded: set[str]) -> None:
    assert {"probneural", "torch", "jaxtyping"} <= loaded


# gpytorch belongs here because it imports pyro wherever pyro is installed; linear_operator is cheap and may be loaded.
@pytest.mark.parametrize(
    "package",
    [
        "botorch",
        "gpytorch",
        "matplotlib",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "pyro",
        "torchdiffeq",
        "xarray",
        "pandas",
        "sklearn",
    ],
)
def test_import_leaves_out(package: str, loaded: set[str]) -> None:
    assert package not in loaded


def test_star_import_needs_no_extra() -> None:
    assert not {"active", "plots"} & set(probneural.__all__)
    assert {"active", "plots"} <= set(dir(probneural))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name}", name="matplotlib")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ImportError, match=r"pn.plots needs matplotlib: pip install 'probneural\[all\]'"):
        probneural.__getattr__("plots")
