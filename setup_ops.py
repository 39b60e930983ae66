"""Build the operator library with Paddle's `CppExtension` under setuptools' own `setup`.

`pip install --no-build-isolation [-e] .` runs this file through `tools/build_backend.py`; as a
script it knows setuptools' commands, of which `install` hands over to pip. Paddle must be
importable. Environment: CXX (compiler), MAX_JOBS (parallel compiles; default: the cores) and
FLASHMASK_CXXFLAGS (appended to the compile flags).

`BuildOps` compiles and links by itself. Paddle's own way prints a failed compile and goes on to
link whatever objects lie there, does not see an edited header, and leaves beside the library a stub
module and a file with the builder's paths (read and tried with Paddle 3.3.1). Here every build is
a full one in a fresh temporary folder, and the old library is removed before it starts.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.install import install
from setuptools.errors import CompileError, LinkError, OptionError

try:
    import paddle
    from paddle.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    raise SystemExit(
        f"setup_ops.py: Paddle is needed to build the operators but does not import ({error}); "
        "install paddlepaddle or paddlepaddle-gpu first and use `pip install --no-build-isolation`."
    ) from error

ROOT = Path(__file__).resolve().parent
PACKAGE = "paddle_flashmask"
BUILD_INFO = "_build_info.json"
# The prefix maps keep the builder's folders out of messages and of the library.
CXX_FLAGS = [
    *("-O3", "-g0", "-std=c++17", "-fPIC", "-pthread", "-fvisibility=hidden"),
    # A multiply and an add may become one FMA, under clang as under g++.
    "-ffp-contract=fast",
    # Paddle's headers without Python: faster to compile, and no dependence on Python's version.
    *("-DPADDLE_NO_PYTHON", "-D_GLIBCXX_USE_CXX11_ABI=1"),
    f"-ffile-prefix-map={ROOT}/=",
    f"-ffile-prefix-map={Path(paddle.__file__).parent.parent}/=",
]
LINK_FLAGS = ["-shared", "-pthread", "-Wl,--exclude-libs,ALL", "-s"]


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX, or the first of c++, g++ and clang++."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for command in map(shlex.split, candidates):
        if shutil.which(command[0]):
            return command
    raise CompileError(
        f"no C++ compiler was found (looked for: {', '.join(candidates)}); "
        "install g++ or set CXX to a compiler that knows C++17"
    )


def run(command: list[str], failure: type[Exception], action: str) -> str:
    """Return what `command` prints; raise `failure` with its words if it does not exit with 0."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise failure(f"{action} failed:\n{done.stderr or done.stdout}")
    return done.stdout


def remove_library(folder: Path) -> None:
    """Remove what any build, ours or Paddle's, left in `folder`; the loader wants one library."""
    for path in [*folder.glob("_custom_ops*.so"), folder / BUILD_INFO]:
        path.unlink(missing_ok=True)


class BuildOps(BuildExtension):
    """Compile all sources, link them, and write the build's description beside the library."""

    def run(self) -> None:
        if self.inplace:
            remove_library(ROOT / PACKAGE)
        build_ext.run(self)  # not Paddle's: it adds the stub and renames the library

    def build_extensions(self) -> None:
        compiler = find_compiler()
        for extension in self.extensions:
            library = Path(self.get_ext_fullpath(extension.name)).resolve()
            library.parent.mkdir(parents=True, exist_ok=True)
            remove_library(library.parent)
            with tempfile.TemporaryDirectory(prefix="flashmask-objects-") as folder:
                linked = self.compile_and_link(compiler, extension, Path(folder))
                shutil.move(linked, library)
            version = run([*compiler, "--version"], CompileError, "asking the compiler's version")
            info = {
                "project_version": self.distribution.get_version(),
                "paddle_version": paddle.__version__,
                "with_cuda": False,
                "compiler": version.splitlines()[0],
            }
            text = json.dumps(info, indent=2) + "\n"
            library.with_name(BUILD_INFO).write_text(text, encoding="utf-8")

    def compile_and_link(self, compiler: list[str], extension: Extension, folder: Path) -> Path:
        """Return the library linked from objects that were all compiled just now, in `folder`."""
        flags = [*extension.extra_compile_args, *(f"-I{path}" for path in extension.include_dirs)]
        flags += shlex.split(os.environ.get("FLASHMASK_CXXFLAGS", ""))

        def compile_one(source: str) -> str:
            target = str(folder / (source.replace("/", "__") + ".o"))
            command = [*compiler, *flags, "-c", str(ROOT / source), "-o", target]
            run(command, CompileError, f"compiling {source}")
            return target

        jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
        print(f"compiling {len(extension.sources)} sources, {jobs} at a time", flush=True)
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            objects = list(pool.map(compile_one, extension.sources))
        library = folder / "library.so"
        # No run path: importing Paddle, which comes first, has loaded what is needed.
        searched = [f"-L{path}" for path in extension.library_dirs]
        command = [*compiler, *objects, "-o", str(library), *searched, *extension.extra_link_args]
        run(command, LinkError, "linking the operator library")
        return library

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        shutil.copyfile(Path(self.build_lib, PACKAGE, BUILD_INFO), ROOT / PACKAGE / BUILD_INFO)


class PipInstall(install):
    """Let pip install when a person asks; setuptools' own `install` is left to its other commands.

    Old setuptools makes an egg, new ones files that pip cannot replace or remove.
    """

    def run(self) -> None:
        if self.root is not None:  # bdist_wheel gathers its files this way
            super().run()
            return
        given = self.distribution.get_option_dict("install")
        if any(origin == "command line" for origin, _ in given.values()):
            raise OptionError(f"install takes no options here; call pip instead, not {sys.argv}")
        pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
        subprocess.run([*pip, "--force-reinstall", str(ROOT)], check=True)


def main() -> None:
    """Run setuptools on the project; the metadata is in `pyproject.toml`."""
    os.chdir(ROOT)
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "custom_ops").rglob("*.*")]
    operators = CppExtension(
        sources=sorted(path for path in files if path.endswith(".cc")),
        depends=sorted(path for path in files if path.endswith(".h")),
        include_dirs=[str(ROOT / "custom_ops")],
        extra_compile_args=CXX_FLAGS,
        extra_link_args=LINK_FLAGS,
    )
    operators.name = f"{PACKAGE}._custom_ops"  # as an argument it fails in Paddle 2.6.2
    with tempfile.TemporaryDirectory(prefix="flashmask-build-") as folder:
        setup(
            ext_modules=[operators],
            cmdclass={
                "build_ext": BuildOps.with_options(no_python_abi_suffix=True),
                "install": PipInstall,
            },
            options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}},
        )


if __name__ == "__main__":
    main()
