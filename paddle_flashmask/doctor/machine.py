"""What the machine offers to a build and to kernels: compilers and GPUs.

Standard library alone. CXX and CUDA_HOME are read as the build reads them.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

USUAL_TOOLKIT = Path("/usr/local/cuda")
QUERY = ("--query-gpu=name,compute_cap", "--format=csv,noheader")
QUERY_SECONDS = 30


@dataclass(frozen=True)
class Gpu:
    """A GPU, as the driver knows it.

    Attributes:
        name: the product's name.
        capability: compute capability, 90 for 9.0.
    """

    name: str
    capability: int


@dataclass(frozen=True)
class Machine:
    """Compilers and GPUs.

    Attributes:
        python: version and path of this Python.
        system: system and processor.
        compiler_name: C++ compiler that a build would call.
        compiler: where it is, or None.
        nvcc: where nvcc is, or None.
        gpus: all GPUs of the driver; empty without nvidia-smi.
    """

    python: str
    system: str
    compiler_name: str
    compiler: str | None
    nvcc: str | None
    gpus: tuple[Gpu, ...]


def look() -> Machine:
    """Return what the machine offers."""
    name = _compiler_name(os.environ.get("CXX", ""))
    return Machine(
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{platform.system()} {platform.machine()}",
        compiler_name=name,
        compiler=shutil.which(name),
        nvcc=_find_nvcc(),
        gpus=_find_gpus(),
    )


def capability_text(capability: int) -> str:
    """Return 90 as "9.0"."""
    return f"{capability // 10}.{capability % 10}"


def _compiler_name(text: str) -> str:
    try:
        return (shlex.split(text) or ["c++"])[0]
    except ValueError:  # a quotation that does not end: no program is called so
        return text


def _find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME")
    places = [Path(home, "bin", "nvcc")] if home else [USUAL_TOOLKIT / "bin" / "nvcc"]
    on_path = None if home else shutil.which("nvcc")
    return on_path or next((str(place) for place in places if place.is_file()), None)


def _find_gpus() -> tuple[Gpu, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        done = subprocess.run(
            [program, *QUERY],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=QUERY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = []
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        name, _, capability = line.rpartition(",")
        digits = capability.strip().replace(".", "")
        if name and digits.isdigit():
            found.append(Gpu(name.strip(), int(digits)))
    return tuple(found)
