"""Every sentence of the doctor, from an installation that really has the fault.

Each test copies the package with its library into an environment of its own, whose packages are
links to ours, and breaks one thing there. Stand-ins are used for what a machine without a GPU
cannot have: a Paddle that says it has CUDA, an nvidia-smi that names a GPU.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import paddle
import pytest

import paddle_flashmask
from paddle_flashmask.doctor import children, probes
from paddle_flashmask.doctor.diagnosis import _architectures
from paddle_flashmask.doctor.machine import Gpu

PACKAGE = Path(paddle_flashmask.__file__).parent
VERSION = paddle_flashmask.__version__
PADDLE = paddle.version.full_version
FAKE_PADDLE = """
from types import SimpleNamespace as Names
__version__ = "{version}"
version = Names(full_version="{version}", cuda=lambda: "12.6")
device = Names(
    is_compiled_with_cuda=lambda: {with_cuda}, cuda=Names(device_count=lambda: {count})
)
"""
WRONG_OPERATOR = """
_right = run
def run(*arguments, **options):
    out, lse = _right(*arguments, **options)
    return out * 1.001, lse
"""
DYING_OPERATOR = """
def run(*arguments, **options):
    os.abort()
"""
REGISTER_ANOTHER = """
import warnings
warnings.simplefilter("ignore")
from paddle.utils.cpp_extension.extension_utils import load_op_meta_info_and_register_op
load_op_meta_info_and_register_op({library!r})
"""


class Site:
    """An environment with the package in it, and the doctor run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv = [sys.executable, "-m", "venv", "--without-pip", str(folder / "environment")]
        subprocess.run(venv, check=True)
        self.python = folder / "environment" / "bin" / "python"
        self.packages = next((folder / "environment" / "lib").glob("python*")) / "site-packages"
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if "paddle_flashmask" not in path.name and path.suffix != ".pth":
                (self.packages / path.name).symlink_to(path)
        self.package = self.copy_package(self.packages)
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.variables: dict[str, str] = {}

    def copy_package(self, target: Path) -> Path:
        return shutil.copytree(
            PACKAGE,
            target / "paddle_flashmask",
            ignore=shutil.ignore_patterns("__pycache__", "*.pyc"),
        )

    def record(self, **changes: object) -> None:
        """Change what is recorded of the build."""
        file = self.package / "_build_info.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    def replace_paddle(self, text: str) -> None:
        (self.packages / "paddle").unlink()
        (self.packages / "paddle").mkdir()
        (self.packages / "paddle" / "__init__.py").write_text(text)

    def add_program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)

    def doctor(self) -> tuple[int, list[str], str]:
        """Run the doctor; return exit code, sentences and all output."""
        kept = ("PYTHON", "FLASHMASK_", "CUDA_", "CXX")
        clean = {name: text for name, text in os.environ.items() if not name.startswith(kept)}
        place = self.folder / "elsewhere"
        place.mkdir(exist_ok=True)
        done = subprocess.run(
            [self.python, "-m", "paddle_flashmask", "doctor"],
            cwd=place,
            env={**clean, "PATH": f"{self.programs}:{os.environ['PATH']}", **self.variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.returncode, re.findall(r"^\d+\. (.*)$", done.stdout, re.MULTILINE), done.stdout

    def only_sentence(self) -> str:
        code, sentences, told = self.doctor()
        assert code == 1, told
        assert len(sentences) == 1, told
        return sentences[0]


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_a_sound_installation_passes(site):
    code, sentences, told = site.doctor()
    assert (code, sentences) == (0, []), told
    assert told.endswith("nothing is wrong\n")
    assert f"paddle_flashmask  {VERSION}, {site.package}\n" in told
    assert f"library loaded    {site.package / '_custom_ops.so'}\n" in told
    assert f"Paddle            {PADDLE}, " in told
    assert "  kernel          cpu: float32 float16 bfloat16" in told
    assert "float32" in told.partition("self-test CPU")[2]


# Paddle and numpy.


def test_no_paddle(site):
    (site.packages / "paddle").unlink()
    assert site.only_sentence().startswith("Paddle is not installed for this Python: pip install")


def test_no_numpy(site):
    (site.packages / "numpy").unlink()
    sentence = "numpy does not import: No module named 'numpy'; pip install numpy"
    assert site.only_sentence() == sentence


def test_paddle_that_does_not_import(site):
    site.replace_paddle("raise ImportError('libpaddle.so: no such symbol')")
    sentence = "Paddle does not import: ImportError: libpaddle.so: no such symbol"
    assert site.only_sentence() == sentence


def test_paddle_that_crashes(site):
    site.replace_paddle("import os, sys; print('bad luck', file=sys.stderr); os.abort()")
    assert site.only_sentence() == (
        "importing Paddle ends its process: the process died of SIGABRT; its last words: bad luck; "
        "install Paddle again"
    )


def test_paddle_too_old(site):
    site.replace_paddle(FAKE_PADDLE.format(version="2.5.2", with_cuda=False, count=0))
    _, sentences, told = site.doctor()
    wanted = "Paddle 2.5.2 is too old: paddle_flashmask needs 2.6 or newer"
    assert wanted in sentences, told


def test_two_paddles(site):
    for name, version in (("paddlepaddle", PADDLE), ("paddlepaddle-gpu", "2.6.2")):
        folder = site.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        if not folder.exists():
            folder.mkdir()
            (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    assert site.only_sentence() == (
        f"Paddle is installed twice, paddlepaddle {PADDLE} and paddlepaddle-gpu 2.6.2, one over "
        "the other: uninstall both, then install one"
    )


# The library.


def test_no_library(site):
    (site.package / "_custom_ops.so").unlink()
    sentence = f"there is no operator library in {site.package}: build it with pip"
    assert site.only_sentence().startswith(sentence)


def test_no_library_in_a_clone_and_no_compiler(site):
    (site.package / "_custom_ops.so").unlink()
    (site.packages / "setup_ops.py").touch()
    site.variables["CXX"] = "no-such-compiler -O3"
    code, sentences, told = site.doctor()
    assert code == 1
    assert "the source tree, where nothing was built: run from another folder" in sentences[0], told
    assert sentences[1:] == [
        "there is no C++ compiler 'no-such-compiler' to build the library with: install g++, or "
        "set CXX"
    ]


def test_two_libraries(site):
    shutil.copy(site.package / "_custom_ops.so", site.package / "_custom_ops_pd_.so")
    assert site.only_sentence() == (
        f"there is more than one operator library in {site.package}: _custom_ops.so, "
        "_custom_ops_pd_.so; delete them and build again"
    )


def test_no_record_of_the_build(site):
    (site.package / "_build_info.json").write_text("{}")
    assert site.only_sentence().startswith(
        "it is not recorded what the operator library was built for (KeyError: 'paddle'): build"
    )


def test_library_of_another_paddle(site):
    site.record(paddle="3.0.0")
    assert site.only_sentence().startswith(
        f"the operator library was built for Paddle 3.0.0, but this is Paddle {PADDLE}: build again"
    )


def test_library_of_another_version_of_the_package(site):
    site.record(project="0.0.1")
    assert site.only_sentence().startswith(
        f"the operator library is of paddle_flashmask 0.0.1, but this is {VERSION}: build again"
    )


def test_library_that_does_not_load(site):
    (site.package / "_custom_ops.so").unlink()
    (site.package / "_custom_ops.so").write_text("no library")
    assert site.only_sentence().startswith("the operator library does not load: ")


def test_library_older_than_the_package(site):
    loader = site.package / "_ops.py"
    loader.write_text(loader.read_text().replace('"flashmask_cpu_isa"', '"flashmask_new_door"'))
    assert re.fullmatch(
        r"the operator library does not load: .*undefined symbol: flashmask_new_door; it was built "
        r"from other sources: build again with pip install .*",
        site.only_sentence(),
    )


def test_operator_registered_twice(site):
    other = site.folder / "other.so"
    shutil.copy(site.package / "_custom_ops.so", other)
    (site.packages / "sitecustomize.py").write_text(REGISTER_ANOTHER.format(library=str(other)))
    assert site.only_sentence() == (
        "the operator library does not load: the operator paddle_flashmask_attention is registered "
        "already by another copy of paddle_flashmask; keep one of them (this one is "
        f"{site.package})"
    )


def test_two_installations(site):
    other = site.copy_package(site.folder / "another")
    site.variables["PYTHONPATH"] = str(other.parent)
    assert site.only_sentence().startswith(
        f"there are two installations: {other} is used and hides {site.package}, and a process"
    )


def test_clone_that_hides_an_editable_installation(site):
    clone = site.copy_package(site.folder / "clone")
    record = site.packages / f"paddle_flashmask-{VERSION}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Name: paddle_flashmask\nVersion: {VERSION}\n")
    origin = {"url": clone.parent.as_uri(), "dir_info": {"editable": True}}
    (record / "direct_url.json").write_text(json.dumps(origin))
    assert f"hides {clone}, and" in site.only_sentence()


# GPUs. Paddle with CUDA is a stand-in, so its library does not load: that is another sentence.


def with_gpu(site: Site, capability: str) -> None:
    site.add_program("nvidia-smi", f"echo 'NVIDIA A Card, {capability}'")


def test_paddle_without_cuda_on_a_machine_with_a_gpu(site):
    with_gpu(site, "9.0")
    assert site.only_sentence().startswith(
        f"this machine has a GPU (NVIDIA A Card), but Paddle {PADDLE} was built without CUDA, so "
        "attention runs on the CPU: install paddlepaddle-gpu"
    )


@pytest.mark.parametrize(
    ("toolkit", "sentence"),
    [
        (True, "built without: build again with FLASHMASK_CUDA=1 pip install"),
        (False, "built without: no CUDA toolkit was found (CUDA_HOME, nvcc on PATH, /usr/local"),
    ],
)
def test_library_without_cuda_under_a_paddle_with_cuda(toolkit, sentence, site):
    site.replace_paddle(FAKE_PADDLE.format(version=PADDLE, with_cuda=True, count=1))
    site.record(with_cuda=False)
    site.variables["CUDA_HOME"] = str(site.folder)
    if toolkit:
        (site.folder / "bin").mkdir()
        (site.folder / "bin" / "nvcc").touch()
    _, sentences, told = site.doctor()
    assert any(sentence in one for one in sentences), told


def test_one_command_builds_for_all_gpus_that_nothing_was_built_for():
    gpus = [Gpu("A", 80), Gpu("B", 100), Gpu("C", 120), Gpu("D", 75)]
    too_old, command = _architectures(gpus, ("sm_80", "sm_90a"))
    assert too_old.startswith("D (compute capability 7.5) is too old")
    assert command.startswith(
        "nothing was built for B (compute capability 10.0), C (compute capability 12.0), only"
    )
    assert 'FLASHMASK_ARCHS="80 90a 100 120" pip' in command


def test_two_gpus_of_one_architecture_are_both_named():
    (sentence,) = _architectures([Gpu("B", 100), Gpu("C", 100)], ("sm_80",))
    assert "B (compute capability 10.0), C (compute capability 10.0)" in sentence
    assert 'FLASHMASK_ARCHS="80 100" pip' in sentence


@pytest.mark.parametrize(
    ("built", "wanted"),
    [(("sm_80", "sm_90"), "80 90a"), (("compute_80",), "compute_80 90a")],
)
def test_hopper_without_its_own_kernels_is_told(built, wanted):
    (sentence,) = _architectures([Gpu("H", 90), Gpu("A", 80)], built)
    assert sentence.startswith(
        "the sm90a kernels, faster on H (compute capability 9.0), were not built, only "
        f'{", ".join(built)}: build again with FLASHMASK_ARCHS="{wanted}" pip'
    )
    assert not list(_architectures([Gpu("H", 90)], (*built, "sm_90a")))
    both = list(_architectures([Gpu("H", 90), Gpu("B", 100)], ("sm_80", "sm_90")))
    assert len(both) == 2
    assert all('FLASHMASK_ARCHS="80 100 90a" pip' in one for one in both)


@pytest.mark.parametrize(
    ("capability", "count", "sentence"),
    [
        (
            "12.0",
            1,
            "nothing was built for NVIDIA A Card (compute capability 12.0), only sm_80, sm_90a: "
            'build again with FLASHMASK_ARCHS="80 90a 120" pip install',
        ),
        ("10.3", 1, "nothing was built for NVIDIA A Card (compute capability 10.3), only"),
        ("7.5", 1, "NVIDIA A Card (compute capability 7.5) is too old: the kernels need 8.0 or"),
        ("9.0", 0, "the driver has a GPU (NVIDIA A Card), but Paddle sees none; look at CUDA_VIS"),
        ("9.0", 1, None),
    ],
)
def test_gpu_that_cannot_be_used(capability, count, sentence, site):
    site.replace_paddle(FAKE_PADDLE.format(version=PADDLE, with_cuda=True, count=count))
    site.record(with_cuda=True, architectures=["sm_80", "sm_90a"])
    with_gpu(site, capability)
    _, sentences, told = site.doctor()
    about = [one for one in sentences if "NVIDIA A Card" in one]
    assert len(about) == (sentence is not None), told
    assert sentence is None or about[0].startswith(sentence)


# The self-test.


def test_wrong_results(site):
    with (site.package / "_ops.py").open("a") as file:
        file.write(WRONG_OPERATOR)
    assert re.fullmatch(
        r"the self-test on the CPU is wrong in float32: .+ is off dense attention by \S+ of its "
        "largest value, where 1e-05 is allowed",
        site.only_sentence(),
    )


def test_no_number_is_worse_than_any():
    errors = [[1e-7, "out"], [math.nan, "grad_key"], [3.0, "grad_value"]]
    assert probes.worst(errors)[1] == "grad_key"
    assert probes.worst(errors[::2]) == [3.0, "grad_value"]


def test_kernel_that_dies(site):
    with (site.package / "_ops.py").open("a") as file:
        file.write(DYING_OPERATOR)
    assert site.only_sentence().startswith(
        "the self-test on the CPU failed: crash: the process died of SIGABRT"
    )


def test_probe_that_hangs(monkeypatch):
    monkeypatch.setattr(children, "SECONDS", 0.01)
    outcome = children.run("numpy")
    assert outcome.kind == "timeout"
    assert outcome.failure == "it did not end within 0.01 s"
