"""Build the operator library: setuptools' own `setup` with Paddle's `CppExtension`.

`pip install --no-build-isolation [-e] .` runs this file through `tools/build_backend.py`; as a
script it knows setuptools' commands, `install` through pip. The GPU kernels are built too if Paddle
is a CUDA build and a toolkit is found. Environment: FLASHMASK_CUDA (1: build them or fail, 0: do
not), those of `tools/cuda_build.py` (CUDA_HOME, FLASHMASK_ARCHS ...), CXX, MAX_JOBS (compiles at a
time; default: the cores), FLASHMASK_CXXFLAGS (appended to the C++ flags).

Paddle's own `BuildExtension` (3.3.1) prints a failed compile and links what lies there, misses
edited headers, and leaves a stub and the builder's paths behind. Here every build is whole and
afresh.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import setuptools
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
        "install paddlepaddle or paddlepaddle-gpu first, then run "
        "`pip install --no-build-isolation .`"
    ) from error

# pip does not look at pyproject.toml's `requires` when it builds without isolation.
LEAST_SETUPTOOLS = 77
if int(setuptools.__version__.split(".")[0]) < LEAST_SETUPTOOLS:
    raise SystemExit(
        f"setup_ops.py: setuptools {LEAST_SETUPTOOLS} or newer is needed, found "
        f'{setuptools.__version__}: pip install -U "setuptools>={LEAST_SETUPTOOLS}"'
    )

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import cuda_build  # noqa: E402

PACKAGE = "paddle_flashmask"
BUILD_INFO = "_build_info.json"
BUILD_SCRIPTS = ["setup_ops.py", "tools/build_backend.py", "tools/cuda_build.py"]
CXX_FLAGS = [
    *("-O3", "-g0", "-std=c++17", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off"),
    # Paddle's headers without Python: faster to compile, and no dependence on Python's version.
    *("-DPADDLE_NO_PYTHON", "-D_GLIBCXX_USE_CXX11_ABI=1"),
    # Keep the builder's folders out of messages and of the library.
    *(f"-ffile-prefix-map={path}/=" for path in (ROOT, Path(paddle.__file__).parent.parent)),
]


def run(command: list[str], failure: type[Exception], action: str) -> str:
    """Return what `command` prints; raise `failure` with its words if it does not exit with 0."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise failure(f"{action} failed:\n{done.stderr or done.stdout}")
    return done.stdout


@dataclass(frozen=True)
class Plan:
    """What a build makes: the command for each kind of source, more to link, what it is for."""

    commands: dict[str, list[str]]  # by suffix
    link: list[str]
    architectures: list[str]


def make_plan(compiler: list[str], flags: list[str]) -> Plan:
    """Return the plan and say it in one line."""
    try:
        toolkit, reason = cuda_build.choose_toolkit(paddle.is_compiled_with_cuda())
        if toolkit is None:
            print(f"setup_ops.py: building the CPU operator alone: {reason}", flush=True)
            return Plan({".cc": [*compiler, *flags]}, [], [])
        codes = cuda_build.architectures()
        nvcc = cuda_build.compile_command(toolkit, codes)
        runtime = str(toolkit.static_runtime())
    except cuda_build.CudaError as error:
        raise CompileError(f"{error} (FLASHMASK_CUDA=0 builds the CPU operator alone)") from error
    what = f"for the CPU and for {', '.join(codes)} with {toolkit}"
    print(f"setup_ops.py: building the operator {what}", flush=True)
    includes = [f"-isystem{folder}" for folder in toolkit.include_folders()]
    with_cuda = [*compiler, "-DPADDLE_WITH_CUDA", *includes, *flags]
    link = [runtime, "-ldl", "-lrt", "-lpthread"]
    return Plan({".cu": nvcc, ".cc": with_cuda}, link, codes)


def words(variable: str) -> list[str]:
    """Return the words of an environment variable; none if it is unset."""
    text = os.environ.get(variable, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise CompileError(
            f"{variable} must be words as of a shell; got {text!r}: {error}"
        ) from None


def max_jobs() -> int:
    """Return how many compilers may run at a time: MAX_JOBS, or the cores."""
    text = os.environ.get("MAX_JOBS", "").strip()
    if text and not (text.isdecimal() and int(text) > 0):
        raise CompileError(f"MAX_JOBS must be a number of at least 1; got {text!r}")
    return int(text) if text else os.cpu_count() or 1


def remove_library(folder: Path) -> None:
    """Remove what any build, ours or Paddle's, left in `folder`: the loader wants one library."""
    for path in (*folder.glob("_custom_ops*.so"), *folder.glob(BUILD_INFO)):
        path.unlink()


class BuildOps(BuildExtension):
    """Compile all sources, link them, and describe the build beside the library."""

    build_extensions = build_ext.build_extensions  # not Paddle's, which changes the compiler class

    def run(self) -> None:
        """Build, with nothing old left in place if that fails."""
        if self.inplace:
            remove_library(ROOT / PACKAGE)
        build_ext.run(self)  # not Paddle's, which adds the stub and renames the library

    def get_ext_filename(self, fullname: str) -> str:
        """Return one name for every way of building; the library is no Python module."""
        return f"{fullname.replace('.', '/')}.so"

    def build_extension(self, ext: Extension) -> None:
        """Make the library of `ext` and `_build_info.json`, which the loader reads first."""
        compiler = words("CXX") or ["c++"]
        if shutil.which(compiler[0]) is None:
            raise CompileError(f"no C++ compiler {compiler[0]!r} was found; install g++ or set CXX")
        library = Path(self.get_ext_fullpath(ext.name)).resolve()
        library.parent.mkdir(parents=True, exist_ok=True)
        remove_library(library.parent)
        with TemporaryDirectory(prefix="flashmask-objects-") as folder:
            flags = [*ext.extra_compile_args, *(f"-I{path}" for path in ext.include_dirs)]
            flags += words("FLASHMASK_CXXFLAGS")

            plan = make_plan(compiler, flags)
            kernels = sorted(map(str, Path("custom_ops").rglob("*.cu")))
            # Kernels first: they take longest.
            sources = [*(kernels if plan.architectures else []), *ext.sources]

            def compile_one(source: str) -> str:
                target = f"{folder}/{source.replace('/', '__')}.o"
                command = [*plan.commands[Path(source).suffix], "-c", source, "-o", target]
                run(command, CompileError, f"compiling {source}")
                return target

            with ThreadPoolExecutor(max_jobs()) as pool:
                objects = list(pool.map(compile_one, sources))
            # No run path: Paddle, which is imported first, has loaded its own libraries.
            link = [*(f"-L{path}" for path in ext.library_dirs), *ext.extra_link_args]
            link += plan.link
            run([*compiler, *objects, *link, "-o", str(library)], LinkError, "linking")
        version = run([*compiler, "--version"], CompileError, "--version").splitlines()[0]
        built = {
            "project": self.distribution.get_version(),
            "paddle": paddle.__version__,
            "with_cuda": bool(plan.architectures),
            "architectures": plan.architectures,
            "compiler": version,
        }
        library.with_name(BUILD_INFO).write_text(json.dumps(built, indent=2) + "\n")

    def copy_extensions_to_source(self) -> None:
        """Copy the library and its description into the package, for an in-place build."""
        super().copy_extensions_to_source()
        shutil.copyfile(Path(self.build_lib, PACKAGE, BUILD_INFO), ROOT / PACKAGE / BUILD_INFO)


class PipInstall(install):
    """Let pip install for `setup_ops.py install`: setuptools' result cannot be removed by pip."""

    def run(self) -> None:
        """Install, or gather files for a wheel, which is what `root` is set for."""
        if self.root is not None:
            super().run()
            return
        if "command line" in dict(self.distribution.get_option_dict("install").values()):
            raise OptionError("`setup_ops.py install` takes no options; give them to pip install")
        options = ["--no-build-isolation", "--no-deps", "--force-reinstall"]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, str(ROOT)], check=True)


def main() -> None:
    """Run setuptools on the project; the metadata is in `pyproject.toml`."""
    os.chdir(ROOT)
    sources = sorted(map(str, Path("custom_ops").rglob("*.cc")))
    if not sources:
        raise SystemExit("setup_ops.py: no C++ source was found under custom_ops")
    others = [
        path for path in Path("custom_ops").rglob("*") if path.suffix in {".h", ".cu", ".cuh"}
    ]
    extension = CppExtension(
        sources,
        # What the source archive holds besides.
        depends=[*map(str, others), *BUILD_SCRIPTS],
        include_dirs=[str(ROOT / "custom_ops")],
        extra_compile_args=CXX_FLAGS,
        extra_link_args=["-shared", "-pthread", "-Wl,--exclude-libs,ALL", "-s"],
    )
    extension.name = f"{PACKAGE}._custom_ops"  # as an argument it fails in Paddle 2.6.2
    with TemporaryDirectory(prefix="flashmask-build-") as folder:
        setup(
            ext_modules=[extension],
            cmdclass={"build_ext": BuildOps, "install": PipInstall},
            options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}},
        )


if __name__ == "__main__":
    main()
