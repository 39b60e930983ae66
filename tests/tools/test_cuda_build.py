"""Where CUDA is found, what it is built for, what is refused: with a toolkit made of scripts."""

from __future__ import annotations

import re
from pathlib import Path

import cuda_build
import pytest

VARIABLES = ("CUDA_HOME", "CXX", "FLASHMASK_ARCHS", "FLASHMASK_CUDA", "PADDLE_CUDA_ARCH_LIST")
NVCC = """#!/bin/sh
case "$*" in
*--version*) echo "Cuda compilation tools, release {release}, V{release}.1" ;;
*--dryrun*) echo '#$ TOP={home}/bin/..' >&2 ;;
esac
"""


def make_toolkit(home: Path, release: str = "13.0") -> Path:
    for folder in ("bin", "include/cccl", "lib"):
        (home / folder).mkdir(parents=True)
    (home / "include" / "cuda_runtime.h").touch()
    (home / "lib" / "libcudart_static.a").touch()
    write_script(home / "bin" / "nvcc", NVCC.format(release=release, home=home))
    return home


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch, tmp_path):
    """No toolkit anywhere; the shell can be found."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(cuda_build, "USUAL_HOME", tmp_path / "usual")


def test_bare_machine_has_no_toolkit():
    assert cuda_build.find_toolkit() is None


def test_wrapper_on_path_leads_to_the_toolkit_it_calls(tmp_path):
    home = make_toolkit(tmp_path / "cuda-13.0")
    wrapper = tmp_path / "path" / "nvcc"
    write_script(wrapper, f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n')
    toolkit = cuda_build.find_toolkit()
    assert toolkit == cuda_build.Toolkit(str(wrapper), home, (13, 0))
    assert toolkit.static_runtime() == home / "lib" / "libcudart_static.a"
    assert toolkit.include_folders() == [home / "include", home / "include" / "cccl"]


def test_cuda_home_comes_before_path_and_path_before_the_usual_folder(monkeypatch, tmp_path):
    usual = make_toolkit(tmp_path / "usual")
    assert cuda_build.find_toolkit().home == usual
    on_path = make_toolkit(tmp_path / "on_path")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert cuda_build.find_toolkit().home == on_path
    named = make_toolkit(tmp_path / "named")
    monkeypatch.setenv("CUDA_HOME", str(named))
    assert cuda_build.find_toolkit().home == named


def test_wrong_cuda_home_raises(monkeypatch, tmp_path):
    make_toolkit(tmp_path / "usual")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(cuda_build.CudaError, match=r"but there is no .*/bin/nvcc"):
        cuda_build.find_toolkit()


def test_old_toolkit_raises(tmp_path):
    make_toolkit(tmp_path / "usual", release="11.8")
    with pytest.raises(
        cuda_build.CudaError, match=r"CUDA 12\.0 or newer is needed; .* is release 11\.8"
    ):
        cuda_build.find_toolkit()


def test_toolkit_without_headers_raises(tmp_path):
    home = make_toolkit(tmp_path / "usual")
    (home / "include" / "cuda_runtime.h").unlink()
    with pytest.raises(cuda_build.CudaError, match=r"has no include/cuda_runtime\.h"):
        cuda_build.find_toolkit()


@pytest.mark.parametrize(
    ("wanted", "paddle_has_cuda", "found"),
    [("", True, True), ("", False, False), ("0", True, False), ("1", False, True)],
)
def test_variable_and_paddle_decide_whether_cuda_is_built(
    wanted, paddle_has_cuda, found, monkeypatch, tmp_path
):
    make_toolkit(tmp_path / "usual")
    monkeypatch.setenv("FLASHMASK_CUDA", wanted)
    toolkit, reason = cuda_build.choose_toolkit(paddle_has_cuda)
    assert (toolkit is not None) == found
    assert reason


def test_cuda_that_is_wanted_but_missing_raises(monkeypatch):
    assert cuda_build.choose_toolkit(paddle_has_cuda=True)[0] is None
    monkeypatch.setenv("FLASHMASK_CUDA", "1")
    with pytest.raises(cuda_build.CudaError, match="no CUDA toolkit was found: set CUDA_HOME"):
        cuda_build.choose_toolkit(paddle_has_cuda=True)


@pytest.mark.parametrize("wanted", ["yes", "2"])
def test_unknown_wish_raises(wanted, monkeypatch):
    monkeypatch.setenv("FLASHMASK_CUDA", wanted)
    with pytest.raises(cuda_build.CudaError, match=f"must be 0, 1 or unset; got '{wanted}'"):
        cuda_build.choose_toolkit(paddle_has_cuda=True)


@pytest.mark.parametrize(
    ("variable", "text", "codes"),
    [
        ("FLASHMASK_ARCHS", "", ["sm_80", "sm_90a", "compute_90"]),
        ("FLASHMASK_ARCHS", "80 90a", ["sm_80", "sm_90a"]),
        ("FLASHMASK_ARCHS", "8.6, 9.0a;sm_90a", ["sm_86", "sm_90a"]),
        ("FLASHMASK_ARCHS", "100 compute_90", ["sm_100", "compute_90"]),
        ("FLASHMASK_ARCHS", "80 90", ["sm_80", "sm_90"]),
        ("PADDLE_CUDA_ARCH_LIST", "8.0;8.6;9.0", ["sm_80", "sm_86", "sm_90a"]),
        ("PADDLE_CUDA_ARCH_LIST", "9.0 9.0a", ["sm_90a"]),
    ],
)
def test_architectures_are_read(variable, text, codes, monkeypatch):
    monkeypatch.setenv(variable, text)
    assert cuda_build.architectures() == codes


@pytest.mark.parametrize("variable", ["FLASHMASK_ARCHS", "PADDLE_CUDA_ARCH_LIST"])
@pytest.mark.parametrize("text", ["75", "7.5", "compute_70", "hopper", "9", "90b", "9.0+PTX"])
def test_wrong_architecture_raises(text, variable, monkeypatch):
    monkeypatch.setenv(variable, f"80 {text}")
    with pytest.raises(cuda_build.CudaError, match=re.escape(f"{variable} names '{text}'")):
        cuda_build.architectures()


@pytest.mark.parametrize("text", ["90 90a", "90a;80;9.0"])
def test_code_that_lacks_what_hopper_kernels_need_is_not_built_beside_them(text, monkeypatch):
    monkeypatch.setenv("FLASHMASK_ARCHS", text)
    with pytest.raises(cuda_build.CudaError, match="90 and 90a must not both be named"):
        cuda_build.architectures()


def test_our_list_of_architectures_comes_before_that_of_paddle(monkeypatch):
    monkeypatch.setenv("FLASHMASK_ARCHS", "80 90")
    monkeypatch.setenv("PADDLE_CUDA_ARCH_LIST", "7.0;8.0")
    assert cuda_build.architectures() == ["sm_80", "sm_90"]


def test_command_has_code_for_each_architecture_and_the_host_compiler(monkeypatch, tmp_path):
    make_toolkit(tmp_path / "usual")
    monkeypatch.setenv("CXX", "g++-12")
    toolkit = cuda_build.find_toolkit()
    command = cuda_build.compile_command(toolkit, ["sm_90a", "compute_90"])
    assert command[0] == toolkit.nvcc
    assert "arch=compute_90a,code=sm_90a" in command
    assert "arch=compute_90,code=compute_90" in command
    assert "-DFLASHMASK_CODE=sm_90a+compute_90" in command
    assert command[-2:] == ["-ccbin", "g++-12"]
