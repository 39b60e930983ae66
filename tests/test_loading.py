"""What the loader says when there is no library to load."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_flashmask import _ops

ROOT = Path(__file__).resolve().parent.parent


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
