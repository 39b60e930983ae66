"""The build: what must fail fails, nothing stale stays, and each way of installing works.

Every test builds a copy of the project. The installs go to fresh virtual environments that see
this interpreter's packages, Paddle among them, but not the plugin installed there. All builds here
are at -O0, since only their making is under test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import cuda_build
import paddle
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "paddle_flashmask"
LIBRARY = "_custom_ops.so"
BUILD_INFO = "_build_info.json"
BUILD_IN_PLACE = ("setup_ops.py", "build_ext", "--inplace")
PIP_INSTALL = ("-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "-q")
WAYS = {
    "regular": (*PIP_INSTALL, "."),
    "editable": (*PIP_INSTALL, "-e", "."),
    "script": ("setup_ops.py", "install"),
}
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
    "FLASHMASK_CXXFLAGS": "-O0",
    "FLASHMASK_CUDA": "0",
    "PYTHONWARNINGS": "ignore",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
# A small operator of the plugin's name, for the tests that are only about the build.
SMALL_SOURCES = {
    "custom_ops/core/factor.h": "#pragma once\ninline constexpr float kFactor = 2.0f;\n",
    "custom_ops/core/factor.cc": '#include "core/factor.h"\nfloat Factor() { return kFactor; }\n',
    "custom_ops/ops/flashmask_attention.cc": """
#include "paddle/extension.h"
float Factor();
std::vector<paddle::Tensor> Forward(const paddle::Tensor& x) {
  return {paddle::full(x.shape(), Factor(), x.dtype(), x.place())};
}
PD_BUILD_OP(paddle_flashmask_attention)
    .Inputs({"X"})
    .Outputs({"Out"})
    .SetKernelFn(PD_KERNEL(Forward));
""",
}
# A kernel besides, whose host function the operator calls.
CUDA_SOURCES = {
    "custom_ops/kernels/common/factor.cuh": "#pragma once\nconstexpr float kFactor = 2.0f;\n",
    "custom_ops/kernels/common/factor.cu": """
#include "kernels/common/factor.cuh"
__global__ void Multiply(float* x) { x[threadIdx.x] *= kFactor; }
float Factor() { return kFactor; }
cudaError_t Launch(float* x) {
  Multiply<<<1, 1>>>(x);
  return cudaGetLastError();
}
""",
}
RUN_OPERATOR = """
import sys, paddle
from paddle.utils.cpp_extension import load_op_meta_info_and_register_op
load_op_meta_info_and_register_op(sys.argv[1])
out, = paddle._C_ops._run_custom_op("paddle_flashmask_attention", paddle.zeros([2]))
assert out.tolist() == [2.0, 2.0], out
"""
LOAD_TWICE = """
import multiprocessing, pathlib, sys, warnings

def load():
    import paddle_flashmask
    paddle_flashmask.load_ops()
    return str(pathlib.Path(paddle_flashmask.__file__).parent)

if __name__ == "__main__":
    first = load()
    load()
    del sys.modules["paddle_flashmask"]
    load()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(load) == first
    print(first)
"""


def run(python: Path | str, arguments: tuple[str, ...], folder: Path, **environment: str):
    """Run `python` in `folder`; return the finished process with its output as one text."""
    return subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def copy_project(target: Path) -> Path:
    """Copy what git knows or would add, which leaves build products out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def make_environment(folder: Path) -> Path:
    """Return the Python of a new environment that sees our packages but no plugin.

    A .pth line adds our site-packages behind the new ones; .pth files found there, such as an
    editable install of the plugin, are not followed.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    query = ("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    packages = Path(run(python, query, folder).stdout.strip())
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture
def project(tmp_path):
    """A copy of the project with the small operator in place of ours."""
    folder = copy_project(tmp_path / "project")
    shutil.rmtree(folder / "custom_ops", ignore_errors=True)
    for name, text in SMALL_SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def products(project: Path) -> set[str]:
    """Return the names in the package folder that git does not keep."""
    kept = {path.name for path in (ROOT / PACKAGE).iterdir()} - {LIBRARY, BUILD_INFO}
    return {path.name for path in (project / PACKAGE).iterdir()} - kept


def test_in_place_build_leaves_library_and_description_only(project):
    before = {path for path in project.rglob("*") if path.is_file()}
    (project / PACKAGE / "_custom_ops_pd_.so").touch()
    done = run(sys.executable, BUILD_IN_PLACE, project)
    assert done.returncode == 0, done.stdout
    made = {path for path in project.rglob("*") if path.is_file()} - before
    assert made == {project / PACKAGE / LIBRARY, project / PACKAGE / BUILD_INFO}
    info = json.loads((project / PACKAGE / BUILD_INFO).read_text())
    assert set(info) == {"project", "paddle", "with_cuda", "architectures", "compiler"}
    assert info["paddle"] == paddle.__version__
    assert info["with_cuda"] is False
    assert info["architectures"] == []
    assert "setup_ops.py: building the CPU operator alone: FLASHMASK_CUDA is 0\n" in done.stdout


@pytest.mark.parametrize("command", [BUILD_IN_PLACE, WAYS["editable"]], ids=["script", "pip"])
def test_broken_source_fails_with_compiler_text_and_leaves_no_library(project, command):
    (project / PACKAGE / LIBRARY).touch()
    (project / PACKAGE / BUILD_INFO).touch()
    (project / "custom_ops/core/factor.cc").write_text("int Broken() { return missing_name; }\n")
    done = run(sys.executable, command, project)
    assert done.returncode != 0
    assert "compiling custom_ops/core/factor.cc failed" in done.stdout
    assert "missing_name" in done.stdout
    assert products(project) == set()


def test_edited_header_and_changed_flags_each_give_a_new_library(project):
    library = project / PACKAGE / LIBRARY
    header = project / "custom_ops/core/factor.h"
    built = []
    for text, flags in (("2.0f", "-O0"), ("3.0f", "-O0"), ("3.0f", "-O0 -DkFactor=4.0f")):
        header.write_text(SMALL_SOURCES["custom_ops/core/factor.h"].replace("2.0f", text))
        if "kFactor" in flags:
            header.write_text("")
        os.utime(header, (0, 0))  # an old time stamp must not hide the edit
        done = run(sys.executable, BUILD_IN_PLACE, project, FLASHMASK_CXXFLAGS=flags)
        assert done.returncode == 0, done.stdout
        built.append(library.read_bytes())
    assert len(set(built)) == len(built)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"CXX": "no-such-compiler"}, "error: no C++ compiler 'no-such-compiler' was found"),
        ({"PYTHONPATH": "hidden"}, "setup_ops.py: Paddle is needed to build the operators"),
        ({"MAX_JOBS": "0"}, "error: MAX_JOBS must be a number of at least 1; got '0'"),
        ({"MAX_JOBS": "two"}, "error: MAX_JOBS must be a number of at least 1; got 'two'"),
        ({"FLASHMASK_CXXFLAGS": "'-O1"}, "error: FLASHMASK_CXXFLAGS must be words as of a shell"),
    ],
    ids=["compiler", "paddle", "no jobs", "jobs in words", "quotation"],
)
def test_what_is_wrong_is_named_in_one_line(project, environment, message):
    hidden = project / "hidden" / "paddle"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden by the test')\n")
    done = run(sys.executable, BUILD_IN_PLACE, project, **environment)
    assert done.returncode != 0
    assert message in done.stdout
    assert "Traceback" not in done.stdout


def test_wheel_holds_sources_library_and_description_only(project, tmp_path):
    (project / PACKAGE / "_custom_ops_pd_.so").touch()
    command = ("-m", "pip", "wheel", *PIP_INSTALL[3:], "-w", str(tmp_path), ".")
    done = run(sys.executable, command, project)
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        content = {name: wheel.read(name) for name in wheel.namelist()}
    expected = {path.relative_to(project) for path in (project / PACKAGE).rglob("*.py")}
    expected |= {path.relative_to(project) for path in (project / PACKAGE).rglob("*.md")}
    expected |= {Path(PACKAGE, name) for name in (LIBRARY, BUILD_INFO, "py.typed")}
    assert {Path(name) for name in content if ".dist-info/" not in name} == expected
    for name, data in content.items():
        for builder in (str(project), sysconfig.get_path("purelib"), str(Path.home())):
            assert builder.encode() not in data, f"{name} names {builder}"


def test_small_operator_runs_from_library(project):
    assert run(sys.executable, BUILD_IN_PLACE, project).returncode == 0
    check_operator(project)


def check_operator(project: Path) -> None:
    library = str(project / PACKAGE / LIBRARY)
    done = run(sys.executable, ("-c", RUN_OPERATOR, library), project)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def cuda_project(project):
    """The small project with a kernel; skips without nvcc."""
    if cuda_build.find_toolkit() is None:
        pytest.skip("needs nvcc")
    (project / "custom_ops/core/factor.cc").unlink()
    for name, text in CUDA_SOURCES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    return project


WITH_CUDA = {"FLASHMASK_CUDA": "1", "FLASHMASK_ARCHS": "80 90a"}


def test_cuda_build_says_what_it_is_for_and_runs_on_the_cpu(cuda_project):
    done = run(sys.executable, BUILD_IN_PLACE, cuda_project, **WITH_CUDA)
    assert done.returncode == 0, done.stdout
    assert "building the operator for the CPU and for sm_80, sm_90a with nvcc" in done.stdout
    info = json.loads((cuda_project / PACKAGE / BUILD_INFO).read_text())
    assert info["with_cuda"] is True
    assert info["architectures"] == ["sm_80", "sm_90a"]
    library = (cuda_project / PACKAGE / LIBRARY).read_bytes()
    for builder in (str(cuda_project), sysconfig.get_path("purelib"), str(Path.home())):
        assert builder.encode() not in library, f"the library names {builder}"
    check_operator(cuda_project)


def test_edited_cuda_header_gives_a_new_library(cuda_project):
    built = []
    for number in ("2.0f", "3.0f"):
        header = cuda_project / "custom_ops/kernels/common/factor.cuh"
        header.write_text(header.read_text().replace("2.0f", number))
        os.utime(header, (0, 0))
        done = run(sys.executable, BUILD_IN_PLACE, cuda_project, **WITH_CUDA)
        assert done.returncode == 0, done.stdout
        built.append((cuda_project / PACKAGE / LIBRARY).read_bytes())
    assert built[0] != built[1]


def test_broken_kernel_fails_with_compiler_text_and_leaves_no_library(cuda_project):
    (cuda_project / "custom_ops/kernels/common/factor.cu").write_text("int f() { return lost; }\n")
    done = run(sys.executable, BUILD_IN_PLACE, cuda_project, **WITH_CUDA)
    assert done.returncode != 0
    assert "compiling custom_ops/kernels/common/factor.cu failed" in done.stdout
    assert "lost" in done.stdout
    assert products(cuda_project) == set()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FLASHMASK_CUDA": "maybe"}, "FLASHMASK_CUDA must be 0, 1 or unset; got 'maybe'"),
        ({"FLASHMASK_CUDA": "1", "CUDA_HOME": "/nowhere"}, "CUDA_HOME is /nowhere, but there is"),
    ],
    ids=["variable", "toolkit"],
)
def test_wrong_cuda_settings_fail_in_one_line(project, environment, message):
    done = run(sys.executable, BUILD_IN_PLACE, project, **environment)
    assert done.returncode != 0
    assert f"error: {message}" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("way", WAYS)
def test_installed_plugin_loads_from_another_folder(tmp_path, way):
    project = copy_project(tmp_path / "project")
    python = make_environment(tmp_path / "environment")
    done = run(python, WAYS[way], project)
    assert done.returncode == 0, done.stdout
    script = tmp_path / "load_twice.py"
    script.write_text(LOAD_TWICE)
    done = run(python, (str(script),), tmp_path)
    assert done.returncode == 0, done.stdout
    found = Path(done.stdout.splitlines()[-1])
    assert found.is_relative_to(project if way == "editable" else tmp_path / "environment")
    assert [path.name for path in found.glob("_custom_ops*")] == [LIBRARY]
    assert (found / BUILD_INFO).is_file()


def test_library_built_for_another_paddle_is_refused_in_one_line(tmp_path):
    project = copy_project(tmp_path / "project")
    (project / PACKAGE / BUILD_INFO).write_text(json.dumps({"paddle": "0.0.1"}))
    (project / PACKAGE / LIBRARY).write_bytes(b"no library: it must not be opened")
    code = "import paddle_flashmask; paddle_flashmask.load_ops()"
    done = run(sys.executable, ("-c", code), project)
    assert done.returncode != 0
    last = done.stdout.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "built for Paddle 0.0.1" in last
    assert paddle.__version__ in last
