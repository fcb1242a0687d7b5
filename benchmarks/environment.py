"""Provenance of results, and atomic writes of files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import probneural
from probneural import atomic

PACKAGES = ("torch", "gpytorch", "botorch", "scipy", "numpy")


def machine(device: str = "cpu") -> dict[str, Any]:
    """Processor, cores, memory, system, and the accelerator if one was used."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device not in ("cpu", "meta"):
        facts["accelerator"] = torch.get_device_module(device).get_device_name(device)
    return facts


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages on which numbers depend."""
    return {
        "python": sys.version.split()[0],
        "probneural": probneural.__version__,
        **{name: version(name) for name in PACKAGES},
    }


def installed(names: Iterable[str]) -> dict[str, str]:
    """Versions of the installed ones among some distributions."""
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def commit() -> str:
    """Commit of the checkout, marked if files were modified; `unknown` outside a repository."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("-modified" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def is_clean(commit: str) -> bool:
    """Whether results of a commit can be stored: it must be known and unmodified."""
    return not commit.endswith(("-modified", "unknown"))


def file_name(name: str, *follows_from: object, suffix: str = "") -> str:
    """Readable file name with a hash of everything that determines the contents, including versions."""
    digest = hashlib.sha256(repr([*follows_from, versions()]).encode()).hexdigest()[:12]
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{digest}{suffix}"


def write_json(data: dict[str, Any], path: Path) -> None:
    """Write standard JSON atomically; NaN and infinities become strings."""
    write_text(json.dumps(_plain(data), indent=1, allow_nan=False) + "\n", path)


def keep(data: dict[str, Any], path: Path) -> None:
    """Write intermediate results in Python's JSON, which has NaN and infinities."""
    write_text(json.dumps(data, indent=1) + "\n", path)


def kept(path: Path) -> dict[str, Any]:
    """Read the data of `keep`, bit for bit."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_text(text: str, path: Path) -> None:
    """Write a text file atomically."""
    write_bytes(text.encode(), path)


def write_bytes(content: bytes, path: Path) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, content)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
