"""Compile every C++ source for its warnings alone, all of them errors; exit 1 if there is one.

    python tools/check_warnings.py [--tidy] [--jobs N] [--compiler NAME] [SOURCE ...]

The build itself shows no warning, for Paddle puts -w on each of its compile lines. Paddle's folders
are system includes here, so only our own lines are judged. With --tidy, clang-tidy (.clang-tidy)
runs over the same sources.
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

ROOT = Path(__file__).resolve().parent.parent
LANGUAGE = ["-std=c++17", "-pthread", "-DPADDLE_NO_PYTHON", "-I", str(ROOT / "custom_ops")]
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


def main() -> int:
    """Run the compiler, and clang-tidy if asked, over the sources."""
    parser = argparse.ArgumentParser(description="Compile for warnings only.")
    parser.add_argument("--tidy", action="store_true", help="run clang-tidy as well")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="sources at a time")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("sources", nargs="*", type=Path, help="default: all of custom_ops")
    options = parser.parse_args()
    sources = options.sources or sorted((ROOT / "custom_ops").rglob("*.cc"))
    if not sources:
        raise SystemExit("check_warnings: no source was found under custom_ops")
    flags = [*LANGUAGE, *paddle_includes()]
    compiler = find_tool(options.compiler)
    commands = [[compiler, "-fsyntax-only", *WARNINGS, *flags, str(path)] for path in sources]
    if options.tidy:
        tidy = find_tool("clang-tidy")
        commands += [[tidy, "--quiet", str(path), "--", *flags] for path in sources]

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(options.jobs) as pool:
        failed = [done for done in pool.map(run, commands) if done.returncode != 0]
    for done in failed:
        print(done.stdout + done.stderr)
    print(f"check_warnings: {len(sources)} sources, {len(failed)} of {len(commands)} runs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
