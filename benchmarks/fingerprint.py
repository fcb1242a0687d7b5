"""Fingerprint of a benchmark's code; results with another fingerprint are older than the code."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("benchmarks", "probneural")


def fingerprint(module: str) -> str:
    """Hash of a module and of all modules of this repository that it imports, without comments and docstrings.

    Args:
        module: Dotted name, such as `benchmarks.exact`.
    """
    pending, seen = [module], set()
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += _parsed(name)[1]
    return hashlib.sha256("".join(_parsed(name)[0] for name in sorted(seen)).encode()).hexdigest()[:16]


@functools.cache
def _parsed(module: str) -> tuple[str, list[str]]:
    """Hash of a module's syntax tree, and its imported modules; of the package, those behind `pn.NAME`."""
    if not _path(module).exists():
        return "", []
    tree = ast.parse(_path(module).read_bytes())
    imported = [name for node in ast.walk(tree) for name in _imports(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    empty = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    dump = ast.dump(tree, **empty).replace(", type_params=[]", "")
    return hashlib.sha256(dump.encode()).hexdigest(), imported


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.partition(".")[0] in PACKAGES:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if "." in node.module:
            yield node.module
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("pn", "probneural"):
        yield f"probneural.{node.attr}"


def _path(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
