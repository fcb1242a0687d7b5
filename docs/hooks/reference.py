"""Fail the build if a public name, or a hook that subclasses override, is missing from the reference."""

from __future__ import annotations

import importlib
import inspect
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

MODULES = (
    "active",
    "calibration",
    "curvature",
    "data",
    "distributions",
    "export",
    "forecasts",
    "functionals",
    "heads",
    "inverse",
    "metrics",
    "operators",
    "plots",
    "problems",
    "runs",
    "storage",
    "training",
)
"""Parts of the package that say in `__all__` what is public."""


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Compare the inventory of the site with what the package exports."""
    inventory = (Path(config.site_dir) / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    # A function that shares the name of its module is listed under both.
    missing = [name for name in _wanted() if not {name, f"{name}.{name.rsplit('.', 1)[1]}"} & known]
    if missing:
        raise PluginError(f"not in the reference: {', '.join(missing)}")


def _wanted() -> Iterator[str]:
    """What is exported, and the hooks of exported classes, which docs/reference/extending.md lists."""
    for module in MODULES:
        for name in importlib.import_module(f"probneural.{module}").__all__:
            yield f"probneural.{module}.{name}"
    exported: dict[type, str] = {}
    for module in MODULES:
        package = importlib.import_module(f"probneural.{module}")
        named = {name: getattr(package, name) for name in package.__all__}
        exported |= {thing: f"probneural.{module}.{name}" for name, thing in named.items() if inspect.isclass(thing)}
    for cls, path in exported.items():
        if inspect.isabstract(cls):
            yield from (f"{path}.{hook}" for hook in _hooks(cls))


def _hooks(cls: type) -> Iterator[str]:
    """Methods with a leading underscore that a class defines and a subclass of the package overrides."""
    below = {other for other in _subclasses(cls) if other.__module__.startswith("probneural.")}
    for name, member in vars(cls).items():
        is_method = inspect.isfunction(member) and name.startswith("_") and not name.startswith("__")
        if is_method and any(name in vars(other) for other in below):
            yield name


def _subclasses(cls: type) -> Iterator[type]:
    for other in cls.__subclasses__():
        yield other
        yield from _subclasses(other)
