"""Run every example when the documentation is built, and show code, output and figures on a page each.

A failing example fails the build. Examples run at their small size, in seconds; `PROBNEURAL_GALLERY=full` runs them in full.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent
SMALL = os.environ.get("PROBNEURAL_GALLERY") != "full"
WORKERS = 2
"""Two single-threaded processes at a time."""


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the gallery's pages and figures to the site."""
    scripts = sorted((ROOT / "examples").glob("*.py"))
    with ThreadPoolExecutor(WORKERS) as pool:
        outputs = list(pool.map(_run, scripts))
    entries = []
    for script, (text, figures) in zip(scripts, outputs, strict=True):
        page, title, intro = _page(script, text, list(figures))
        files.append(File.generated(config, f"gallery/{script.stem}.md", content=page))
        for name, image in figures.items():
            files.append(File.generated(config, f"gallery/{script.stem}-{name}", content=image))
        entries.append(f"* [{title}]({script.stem}.md): {intro}")
    size = (
        "The output shown comes from the quick, small run that `make docs` makes; without `--small` the numbers mean something."
        if SMALL
        else "The output shown comes from the full run of each script."
    )
    index = f"# Gallery\n\nEvery page is a script in `examples/`, run when these pages were built. {size}\n\n"
    files.append(File.generated(config, "gallery/index.md", content=index + "\n".join(entries) + "\n"))
    return files


def _run(script: Path) -> tuple[str, dict[str, bytes]]:
    """What a script prints, and the figures it writes."""
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(script), *(["--small"] if SMALL else [])]
        finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise PluginError(f"examples/{script.name} failed:\n{finished.stderr[-4000:]}")
        return finished.stdout, {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.png"))}


def _page(script: Path, output: str, figures: list[str]) -> tuple[str, str, str]:
    """A page, its title and its first sentence."""
    source = script.read_text(encoding="utf-8")
    description = ast.get_docstring(ast.parse(source)) or ""
    title = script.stem.replace("_", " ").capitalize()
    parts = [f"# {title}", description, f'```python\n--8<-- "examples/{script.name}"\n```']
    if output.strip():
        parts += ["It prints", f"```text\n{output.rstrip()}\n```"]
    parts += [f"![{name}]({script.stem}-{name})" for name in figures]
    return "\n\n".join(parts) + "\n", title, " ".join(description.split("\n\n")[0].split())
