"""A simulated GPU: the PyTorch device `simgpu`, with the arithmetic of the CPU and the rules of a GPU.

It refuses tensors of two devices, generators of the CPU and `.numpy()`, and float64 in `without_float64()`. So a tensor that is
left on the CPU fails a test marked `gpu` on a machine without a GPU too. `python -m tests.device.simulated` compiles it into
`build/` with the machine's C++ compiler, in seconds; `tests.helpers.accelerator` finds it there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import torch

NAME = "simgpu"
SOURCE = Path(__file__).with_name("simulated_gpu.cpp")
BUILD = Path(__file__).parents[2] / "build"


def library() -> Path:
    """Path of the compiled library: one for each source, command and version of PyTorch."""
    version = hashlib.sha256(SOURCE.read_bytes() + Path(__file__).read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    return BUILD / f"simulated_gpu-{version}.so"


def build() -> None:
    """Compile the library, unless that is done, or the machine has no compiler."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if library().exists() or compiler is None:
        return
    BUILD.mkdir(exist_ok=True)
    home = Path(torch.__file__).parent
    flags = ["-std=c++20", "-O2", "-w", "-shared", "-fPIC"]
    headers = [f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include"]
    libraries = [f"-L{home}/lib", "-ltorch_cpu", "-lc10"]
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        target = Path(folder) / "simulated_gpu.so"
        subprocess.run([compiler, *flags, *headers, SOURCE, *libraries, "-o", target], check=True)
        target.rename(library())


@functools.cache
def load() -> None:
    """Add the device to this process, for good."""
    torch.ops.load_library(library())
    generator = torch.ops.simulated_gpu.default_generator()
    module = types.ModuleType(f"torch.{NAME}")
    for name, value in {
        "current_device": 0,
        "device_count": 1,
        "get_amp_supported_dtype": [torch.bfloat16, torch.float16],
        "get_device_name": "simulated GPU",
        "init": None,
        "is_available": True,
        "is_initialized": True,
        "_is_in_bad_fork": False,
    }.items():
        setattr(module, name, lambda *_, value=value: value)
    module.default_generators = (generator,)  # type: ignore[attr-defined]
    module.manual_seed_all = generator.manual_seed  # type: ignore[attr-defined]
    module.get_rng_state = lambda *_: generator.get_state()  # type: ignore[attr-defined]
    module.set_rng_state = lambda state, *_: generator.set_state(state)  # type: ignore[attr-defined]
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module)


@contextlib.contextmanager
def without_float64() -> Iterator[None]:
    """Refuse float64 on the device for a while, as MPS does."""
    torch.ops.simulated_gpu.refuse_float64(True)
    try:
        yield
    finally:
        torch.ops.simulated_gpu.refuse_float64(False)


if __name__ == "__main__":
    build()
