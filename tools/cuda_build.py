"""CUDA for the builds and checks: the toolkit, the architectures, the command line of nvcc.

Environment: CUDA_HOME names the toolkit; else nvcc on PATH says where it lives, else it is
/usr/local/cuda. FLASHMASK_CUDA: 1 wants CUDA or a failure, 0 none, unset what Paddle and the
machine allow. FLASHMASK_ARCHS lists architectures, as "80 90a" or "8.0 9.0a compute_90" (the last
is PTX, compiled by the driver for newer GPUs); PADDLE_CUDA_ARCH_LIST counts where it is unset, and
a 9.0 there, which is all of Hopper to Paddle, is our 90a. CXX names the host compiler. No GPU is
asked: the build machine need not have one.

As a script it prints nvcc and its options, for tools/build_capi.sh.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ARCHS = "80 90a compute_90"
OLDEST_ARCH = 80  # cp.async and bfloat16 in mma.sync
HOPPER = "sm_90a"  # wgmma and setmaxnreg exist there alone
OLDEST_TOOLKIT = (12, 0)  # the first that knows sm_90a
USUAL_HOME = Path("/usr/local/cuda")
PADDLES_LIST = "PADDLE_CUDA_ARCH_LIST"
LIBRARY_FOLDERS = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
NVCC_FLAGS = ("-O3", "-std=c++17", "-Icustom_ops", "-Xcompiler", "-fPIC,-fvisibility=hidden")
ARCH = re.compile(r"(?P<ptx>compute_)?(?P<number>\d+\.?\d)(?P<features>a?)")


class CudaError(Exception):
    """CUDA cannot be used, in words for whoever builds."""


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: its compiler, its folder, its version."""

    nvcc: str
    home: Path
    version: tuple[int, int]

    def __str__(self) -> str:
        return f"nvcc {self.version[0]}.{self.version[1]} of {self.home}"

    def include_folders(self) -> list[Path]:
        """Return the folders of its headers; CUDA 13 moved thrust's."""
        folders = (self.home / "include", self.home / "include" / "cccl")
        return [folder for folder in folders if folder.is_dir()]

    def static_runtime(self) -> Path:
        """Return its runtime as an archive: Paddle brings another version as a shared library."""
        for folder in LIBRARY_FOLDERS:
            if (self.home / folder / "libcudart_static.a").is_file():
                return self.home / folder / "libcudart_static.a"
        raise CudaError(f"{self.home} has no libcudart_static.a in {', '.join(LIBRARY_FOLDERS)}")


def find_toolkit() -> Toolkit | None:
    """Return the toolkit of this machine, or None; raise CudaError if what is named is wrong."""
    home = os.environ.get("CUDA_HOME")
    if home:
        if not Path(home, "bin", "nvcc").is_file():
            raise CudaError(f"CUDA_HOME is {home}, but there is no {home}/bin/nvcc")
        return _toolkit_of(f"{home}/bin/nvcc")
    for nvcc in (shutil.which("nvcc"), f"{USUAL_HOME}/bin/nvcc"):
        if nvcc is not None and Path(nvcc).is_file():
            return _toolkit_of(nvcc)
    return None


def choose_toolkit(paddle_has_cuda: bool) -> tuple[Toolkit | None, str]:
    """Return the toolkit that FLASHMASK_CUDA, Paddle and the machine allow, or None and why."""
    wanted = os.environ.get("FLASHMASK_CUDA", "").strip()
    if wanted not in ("", "0", "1"):
        raise CudaError(f"FLASHMASK_CUDA must be 0, 1 or unset; got {wanted!r}")
    if wanted == "0":
        return None, "FLASHMASK_CUDA is 0"
    if wanted == "" and not paddle_has_cuda:
        return None, "this Paddle is a CPU build"
    toolkit = find_toolkit()
    if toolkit is None and wanted == "1":
        raise CudaError(
            "FLASHMASK_CUDA is 1, but no CUDA toolkit was found: set CUDA_HOME or put nvcc on PATH"
        )
    return toolkit, f"no CUDA toolkit was found (CUDA_HOME, nvcc on PATH, {USUAL_HOME})"


def _toolkit_of(nvcc: str) -> Toolkit:
    # The nvcc that was found may be a script that calls another, so nvcc itself is asked.
    plan = _output([nvcc, "--dryrun", "-x", "cu", "-E", "/dev/null"])
    top = re.search(r"^#\$ TOP=(.+)$", plan, re.MULTILINE)
    home = (Path(top[1]) if top else Path(nvcc).resolve().parent.parent).resolve()
    if not (home / "include" / "cuda_runtime.h").is_file():
        raise CudaError(f"{nvcc} belongs to {home}, which has no include/cuda_runtime.h")
    release = re.search(r"release (\d+)\.(\d+)", _output([nvcc, "--version"]))
    if release is None:
        raise CudaError(f"{nvcc} --version does not say which release it is")
    version = (int(release[1]), int(release[2]))
    if version < OLDEST_TOOLKIT:
        raise CudaError(f"CUDA {OLDEST_TOOLKIT[0]}.0 or newer is needed; {nvcc} is {release[0]}")
    return Toolkit(nvcc, home, version)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise CudaError(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def architectures() -> list[str]:
    """Return what to build for, as nvcc's names of code: sm_80, sm_90a, compute_90."""
    ours = os.environ.get("FLASHMASK_ARCHS", "").strip()
    paddles = os.environ.get(PADDLES_LIST, "").strip()
    variable = PADDLES_LIST if paddles and not ours else "FLASHMASK_ARCHS"
    names = re.split(r"[\s,;]+", (ours or paddles or DEFAULT_ARCHS).strip(" ,;"))
    codes = list(dict.fromkeys(_code_name(name, variable) for name in names))
    if {"sm_90", "sm_90a"} <= set(codes):
        raise CudaError(
            "90 and 90a must not both be named: a GPU of 9.0 could load code of the former, which "
            f"lacks what the latter's kernels need; got {', '.join(codes)}"
        )
    return codes


def _code_name(name: str, variable: str) -> str:
    match = ARCH.fullmatch(name.removeprefix("sm_"))
    hint = " (FLASHMASK_ARCHS, if set, comes first)" if variable == PADDLES_LIST else ""
    if match is None:
        raise CudaError(
            f"architectures are written 80, 8.0, 90a or compute_90; {variable} names {name!r}{hint}"
        )
    number = match["number"].replace(".", "")
    if int(number) < OLDEST_ARCH:
        raise CudaError(
            f"the kernels need compute capability 8.0 or newer; {variable} names {name!r}{hint}"
        )
    code = f"{match['ptx'] or 'sm_'}{number}{match['features']}"
    return HOPPER if code == "sm_90" and variable == PADDLES_LIST else code


def architecture_flags(codes: list[str]) -> Iterator[str]:
    """Yield nvcc's options for codes such as sm_80."""
    for code in codes:
        yield "-gencode"
        yield f"arch=compute_{code.split('_')[1]},code={code}"


def compile_command(toolkit: Toolkit, codes: list[str]) -> list[str]:
    """Return nvcc with all options but the source and its target; to be run from the checkout."""
    told = f"-DFLASHMASK_CODE={'+'.join(codes)}"  # what the library says of its kernels
    command = [toolkit.nvcc, *NVCC_FLAGS, *architecture_flags(codes), told]
    if HOPPER in codes:
        command.append("-DFLASHMASK_SM90A")  # else kernels/sm90a is left out
    compiler = shlex.split(os.environ.get("CXX", ""))
    return [*command, "-ccbin", compiler[0]] if len(compiler) == 1 else command


def main() -> None:
    """Print the command on one line, or why there is none."""
    try:
        toolkit = find_toolkit()
        if toolkit is None:
            raise CudaError("no CUDA toolkit was found: set CUDA_HOME, or put nvcc on PATH")
        print(shlex.join(compile_command(toolkit, architectures())))
    except CudaError as error:
        raise SystemExit(f"cuda_build: {error}") from None


if __name__ == "__main__":
    main()
