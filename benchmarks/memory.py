"""Memory of this process in bytes (Linux only).

The peak of `resource.getrusage` is not usable: a new process inherits that of its parent.
"""

from __future__ import annotations

from pathlib import Path


def reset_peak_memory() -> int:
    """Reset the peak of the resident memory, and return the present memory."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_memory() -> int:
    """Peak memory since the last reset or the start of the process, with pages of files."""
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}: memory is measured on Linux")
