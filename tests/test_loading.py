"""Finding and loading the library, and what it says of itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import paddle
import pytest
from support import cases
from support.processes import run_python

import paddle_flashmask
from paddle_flashmask import _ops

# Finding the library.

ROOT = Path(__file__).resolve().parent.parent


def test_loading_again_does_nothing():
    paddle_flashmask.load_ops()
    first = _ops.library()
    paddle_flashmask.load_ops()
    assert _ops.library() is first


def test_kernels_are_described_with_dtypes_and_head_dims():
    text = _ops.kernels()
    assert all(word in text for word in ("cpu", *cases.DTYPES, "multiple of 8", "256"))


@pytest.fixture
def other_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(_ops, "FOLDER", tmp_path)
    monkeypatch.setattr(_ops, "_library", None)
    return tmp_path


def test_missing_library_is_named_with_the_way_to_build_it(other_folder):
    with pytest.raises(ImportError, match=r"no operator library in .*build it with: pip install"):
        _ops.load_ops()


def test_two_libraries_are_named(other_folder):
    for name in ("_custom_ops.so", "_custom_ops_pd_.so"):
        (other_folder / name).write_bytes(b"")
    with pytest.raises(ImportError, match=r"more than one .*_custom_ops.so, _custom_ops_pd_.so"):
        _ops.load_ops()


@pytest.mark.parametrize("record", [None, "", "[]", "{}", "not json"])
def test_library_without_a_record_is_refused(record, other_folder):
    (other_folder / "_custom_ops.so").write_bytes(b"")
    if record is not None:
        (other_folder / "_build_info.json").write_text(record)
    with pytest.raises(ImportError, match="does not say what was built"):
        _ops.load_ops()


def test_library_for_another_paddle_is_refused_with_both_versions(other_folder):
    (other_folder / "_custom_ops.so").write_bytes(b"")
    (other_folder / "_build_info.json").write_text(json.dumps({"paddle": "2.0.1"}))
    with pytest.raises(ImportError, match=r"built for Paddle 2\.0\.1, found Paddle .*rebuild"):
        _ops.load_ops()


DAMAGED = """
from paddle_flashmask import _ops
from pathlib import Path
_ops.FOLDER = Path.cwd()
try:
    _ops.load_ops()
except ImportError as error:
    print(error)
"""


def test_library_that_is_damaged_is_named(tmp_path):
    (tmp_path / "_custom_ops.so").write_bytes(b"no library")
    (tmp_path / "_build_info.json").write_text(json.dumps({"paddle": paddle.__version__}))
    found = run_python(DAMAGED, tmp_path).stdout
    assert found.startswith(f"Paddle cannot load {tmp_path / '_custom_ops.so'}: ")
    assert "build it with: pip install" in found


def test_second_copy_of_the_package_is_refused(other_folder, monkeypatch):
    (other_folder / "_custom_ops.so").write_bytes(b"")
    (other_folder / "_build_info.json").write_text(json.dumps({"paddle": paddle.__version__}))
    with pytest.raises(ImportError, match="registered already by another copy"):
        _ops.load_ops()


def test_source_tree_without_a_build_is_named_as_the_cause(tmp_path, monkeypatch):
    (tmp_path / "setup_ops.py").touch()
    monkeypatch.setattr(_ops, "FOLDER", tmp_path / "paddle_flashmask")
    with pytest.raises(ImportError, match=r"is the source tree.*run from another folder"):
        _ops._library_path()


def test_old_setuptools_is_refused_by_the_build_in_one_line():
    program = (
        "import runpy, sys, setuptools\n"
        "setuptools.__version__ = '65.5.0'\n"
        f"runpy.run_path({str(ROOT / 'setup_ops.py')!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    text = "setup_ops.py: setuptools 77 or newer is needed, found 65.5.0: pip install -U"
    assert re.search(re.escape(text), done.stderr)
    assert "Traceback" not in done.stderr
