"""Build the library of the C door with the kernels as C++ for this processor; see emulator.h.

    python tests/emulator/build.py [--races] OUTPUT [SOURCE ...]

Sources are compiled as they are, but for launches, which become calls, and dynamic shared memory,
which is asked for. Needs g++ and the headers of CUDA; SOURCE names instantiations (like
kernels/sm80/instantiations/hdim64.cu, default: all). With --races accesses that nothing orders are
reported while they happen, by gcc's ThreadSanitizer, to which each thread of a block is a thread;
test_races.py says how to load such a library.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "tools"))

import cuda_build  # noqa: E402

SOURCES = ROOT / "custom_ops"
DYNAMIC = re.compile(r"extern __shared__ __align__\(\d+\) unsigned char memory\[\];")
STATIC = re.compile(r"__shared__ (alignas\(\d+\))")
KERNEL = re.compile(r"[\w:]+(?:<[\w:, ]+>)?$")
FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-w",
    "-Wno-psabi",
    "-fvisibility=hidden",
    "-DFLASHMASK_SM90A",
    f"-DFLASHMASK_SECTION_BYTES={1 << 17}",  # sections of heads, though sequences are short
)
# So that sums are the same on every processor.
FLAGS += ("-ffp-contract=off", "-fno-strict-aliasing", "-mf16c")


def translate(text: str) -> str:
    """Return a CUDA source as C++."""
    text = STATIC.sub(r"\1 static", text)
    text = DYNAMIC.sub("unsigned char* memory = ::emulator::DynamicShared();", text)
    parts = text.split("<<<")
    result = parts[0]
    for part in parts[1:]:
        configuration, _, rest = part.partition(">>>")
        kernel = KERNEL.search(result.rstrip())
        assert kernel is not None, result[-100:]
        result = result[: kernel.start()]
        assert rest.startswith("("), rest[:40]
        empty = rest[1:].lstrip().startswith(")")
        arguments = rest[1:] if empty else f", {rest[1:]}"
        result += f"::emulator::Launch({configuration})({kernel[0]}{arguments}"
    return result


def write_sources(folder: Path) -> None:
    """Write translated copies of what nvcc compiles."""
    for path in sorted((SOURCES / "kernels").rglob("*.cu*")):
        target = folder / path.relative_to(SOURCES)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(translate(path.read_text(encoding="utf-8")), encoding="utf-8")


def sources(folder: Path, instantiations: list[str]) -> list[Path]:
    """Return what is compiled: all but instantiations that are not asked for."""
    found = [*(SOURCES / "core").rglob("*.cc"), *(SOURCES / "capi").rglob("*.cc")]
    for path in (folder / "kernels").rglob("*.cu"):
        name = str(path.relative_to(folder))
        if "/instantiations/" not in name or not instantiations or name in instantiations:
            found.append(path)
    return [*found, HERE / "runtime.cc"]


def build(output: Path, instantiations: list[str], *, races: bool = False) -> None:
    """Compile and link; subprocess.CalledProcessError if that fails."""
    toolkit = cuda_build.find_toolkit()
    assert toolkit is not None, "the headers of CUDA were not found"
    folder = output.parent / "emulated_sources"
    shutil.rmtree(folder, ignore_errors=True)
    write_sources(folder)
    includes = [HERE / "include", folder, SOURCES, *toolkit.include_folders()[:1]]
    common = [*FLAGS, "-include", "emulator.h", *(f"-I{path}" for path in includes)]
    common += ["-DFLASHMASK_EMULATOR_RACES", "-g1"] if races else []
    sanitized = ["-fsanitize=thread"] if races else []

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}_{abs(hash(source))}.o"
        watched = sanitized if source.suffix == ".cu" else []  # not what emulates
        command = [os.environ.get("CXX", "g++"), *common, *watched]
        command += ["-x", "c++", "-c", source, "-o", target]
        subprocess.run(command, check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources(folder, instantiations)))
    link = [os.environ.get("CXX", "g++"), "-shared", *sanitized, "-o", output, *objects]
    subprocess.run(link, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--races", action="store_true")
    options = parser.parse_args()
    build(options.output.resolve(), options.sources, races=options.races)
