"""Optional libraries: the packages of each extra, and errors that say how to install them, from an index or not."""

from __future__ import annotations

import importlib
from typing import Any

from probneural.errors import UnsupportedError

_PLOTS = ("matplotlib",)
_DATA = ("h5netcdf", "h5py", "numcodecs", "xarray", "zarr")
PACKAGES: dict[str, tuple[str, ...]] = {
    "cli": ("tyro", *_PLOTS, *_DATA),
    "data": _DATA,
    "ode": ("torchdiffeq",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "plots": _PLOTS,
    "pyro": ("pyro-ppl",),
    "xarray": ("xarray",),
}
"""Packages of the extras that messages name, as in pyproject.toml; the package itself may be on no index."""


def install_hint(extra: str) -> str:
    """The command that installs the packages of an extra.

    Examples:
        >>> install_hint("plots")
        'pip install matplotlib'
    """
    return f"pip install {' '.join(PACKAGES[extra])}"


def missing(user: str, error: ModuleNotFoundError, extra: str) -> ImportError:
    """The error for a user who lacks a library of an extra.

    Args:
        user: Name of the class, function or subpackage that needs it.
        error: Import error, which names the module.
        extra: Extra that the module is part of.
    """
    return ImportError(f"{user} needs {error.name}: {install_hint(extra)}")


def optional(module: str, user: str, *, extra: str) -> Any:
    """Import a library of an extra.

    Args:
        module: Name of the module.
        user: What needs it, in words.
        extra: Extra that the module is part of.

    Raises:
        UnsupportedError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            expected=f"{module}, which {user} needs", got="an environment without it", remedy=install_hint(extra)
        ) from error
