"""Compile every source for its warnings alone, all of them errors; exit 1 if there is one.

    python tools/check_warnings.py [--tidy] [--jobs N] [--compiler NAME] [SOURCE ...]

The build itself shows no warning, for Paddle puts -w on each of its compile lines. Paddle's folders
are system includes here, so only our own lines are judged. With --tidy, clang-tidy (.clang-tidy)
runs over the C++ sources. Where nvcc is found it compiles the .cu files, and the sources of ops are
compiled a second time as for a CUDA build of Paddle; where not, a line says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import cuda_build

ROOT = Path(__file__).resolve().parent.parent
LANGUAGE = ["-std=c++17", "-pthread", "-DPADDLE_NO_PYTHON", "-I", str(ROOT / "custom_ops")]
ONE_CODE = "sm_90a"
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Werror"]


def paddle_includes() -> list[str]:
    """Return the flags for Paddle's headers, without importing Paddle."""
    spec = importlib.util.find_spec("paddle")
    if spec is None or spec.origin is None:
        raise SystemExit("check_warnings: Paddle is not installed; its headers are needed")
    include = Path(spec.origin).parent / "include"
    return ["-isystem", str(include), "-isystem", str(include / "third_party")]


def find_tool(name: str) -> str:
    """Return the path of a program: beside this Python, or on PATH."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise SystemExit(f"check_warnings: {name} was not found; see tools/requirements-test.txt")
    return found


def cuda_commands(sources: list[Path], flags: list[str], compiler: str) -> list[list[str]]:
    """Return what checks CUDA: the .cu files, for one architecture, and the CUDA branch of ops."""
    toolkit = cuda_build.find_toolkit()
    if toolkit is None:
        print("check_warnings: nvcc was not found; .cu files and ops with CUDA are not checked")
        return []
    nvcc = cuda_build.compile_command(toolkit, [ONE_CODE])
    nvcc += ["-O1", "-Werror", "all-warnings", "-Xcompiler", ",".join(WARNINGS)]
    branch = ["-DPADDLE_WITH_CUDA", *(f"-isystem{path}" for path in toolkit.include_folders())]
    commands = []
    for source in sources:
        if source.suffix == ".cu":
            commands.append([*nvcc, "-c", str(source), "-o"])
        elif source.parent.name == "ops":
            commands.append([compiler, "-fsyntax-only", *WARNINGS, *branch, *flags, str(source)])
    return commands


def main() -> int:
    """Run the compilers, and clang-tidy if asked, over the sources."""
    parser = argparse.ArgumentParser(description="Compile for warnings only.")
    parser.add_argument("--tidy", action="store_true", help="run clang-tidy as well")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="sources at a time")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("sources", nargs="*", type=Path, help="default: all of custom_ops")
    options = parser.parse_args()
    found = (path for path in (ROOT / "custom_ops").rglob("*") if path.suffix in (".cc", ".cu"))
    sources = [path.resolve() for path in options.sources] or sorted(found)
    if not sources:
        raise SystemExit("check_warnings: no source was found under custom_ops")
    flags = [*LANGUAGE, *paddle_includes()]
    compiler = find_tool(options.compiler)
    plain = [str(path) for path in sources if path.suffix == ".cc"]
    commands = cuda_commands(sources, flags, compiler)
    commands += [[compiler, "-fsyntax-only", *WARNINGS, *flags, source] for source in plain]
    if options.tidy:
        tidy = find_tool("clang-tidy")
        commands += [[tidy, "--quiet", source, "--", *flags] for source in plain]

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        with TemporaryDirectory() as folder:
            target = [f"{folder}/object"] if command[-1] == "-o" else []
            return subprocess.run(
                [*command, *target], cwd=ROOT, capture_output=True, text=True, check=False
            )

    with ThreadPoolExecutor(options.jobs) as pool:
        failed = [done for done in pool.map(run, commands) if done.returncode != 0]
    for done in failed:
        print(done.stdout + done.stderr)
    print(f"check_warnings: {len(sources)} sources, {len(failed)} of {len(commands)} runs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
