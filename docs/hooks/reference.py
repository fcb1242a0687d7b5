"""Fail the build if a public name is missing from the reference."""

from __future__ import annotations

import importlib
import zlib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

MODULES = ("active", "calibration", "curvature", "distributions", "heads", "metrics", "operators", "problems", "training")
"""Parts of the package that say in `__all__` what is public."""


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Compare the inventory of the site with what the package exports."""
    inventory = (Path(config.site_dir) / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    wanted = [
        f"probneural.{module}.{name}" for module in MODULES for name in importlib.import_module(f"probneural.{module}").__all__
    ]
    # A function that shares the name of its module is listed under both.
    missing = [name for name in wanted if not {name, f"{name}.{name.rsplit('.', 1)[1]}"} & known]
    if missing:
        raise PluginError(f"not in the reference: {', '.join(missing)}")
