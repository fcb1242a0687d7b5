"""What a result must say about where it comes from, and how it reaches the disk."""

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
from probneural.training import atomic

PACKAGES = ("torch", "gpytorch", "botorch", "scipy", "numpy")


def machine(device: str = "cpu") -> dict[str, Any]:
    """Processor, cores, memory, system, and the accelerator that was used, if one was."""
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
    """Python and the packages that numbers depend on."""
    return {
        "python": sys.version.split()[0],
        "probneural": probneural.__version__,
        **{name: version(name) for name in PACKAGES},
    }


def installed(names: Iterable[str]) -> dict[str, str]:
    """Versions of those distributions that are installed."""
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def commit() -> str:
    """The checkout's commit, marked if files differ from it; `unknown` outside a repository."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("-modified" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def is_clean(commit: str) -> bool:
    """Whether what a commit made may be trusted to come from this very code, and so be kept."""
    return not commit.endswith(("-modified", "unknown"))


def file_name(name: str, *follows_from: object, suffix: str = "") -> str:
    """A file's name that readers can tell, with a hash of all that its contents follow from, the versions included."""
    digest = hashlib.sha256(repr([*follows_from, versions()]).encode()).hexdigest()[:12]
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{digest}{suffix}"


def write_json(data: dict[str, Any], path: Path) -> None:
    """Write JSON atomically; numbers that JSON does not know become strings."""
    write_text(json.dumps(_plain(data), indent=1, allow_nan=False) + "\n", path)


def keep(data: dict[str, Any], path: Path) -> None:
    """Write what a later run reads again: as JSON of Python, which has NaN and infinities, for numbers to stay numbers."""
    write_text(json.dumps(data, indent=1) + "\n", path)


def kept(path: Path) -> dict[str, Any]:
    """What `keep` wrote, to the last bit."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_text(text: str, path: Path) -> None:
    """Write a text file so that a reader sees the old one or the new one."""
    write_bytes(text.encode(), path)


def write_bytes(content: bytes, path: Path) -> None:
    """Write a file so that a reader sees the old one or the new one."""
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
