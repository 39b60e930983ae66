"""The shell script up to where it would install something."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def start(tmp_path):
    """A copy of the project without .venv, and the script in it as a user runs it."""
    shutil.copytree(TOOLS / "quickstart", tmp_path / "tools" / "quickstart")
    for script in ("quickstart.sh", "venv.sh"):
        shutil.copy(TOOLS / script, tmp_path / "tools")

    def run(**environment):
        return subprocess.run(
            ["bash", str(tmp_path / "tools" / "quickstart.sh")],
            env={**os.environ, "PYTHON": sys.executable, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_missing_compiler_is_noticed_before_anything_is_made(start, tmp_path):
    done = start(CXX="no-such-compiler -O1")
    assert done.returncode == 3
    assert done.stderr == (
        "quickstart: no C++ compiler no-such-compiler -O1; install g++ or set CXX\n"
    )
    assert not (tmp_path / ".venv").exists()


def test_another_python_than_that_of_venv_is_refused(start, tmp_path):
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && echo 3.9\nexit 0\n')
    python.chmod(0o755)
    done = start(CXX="true")
    assert done.returncode == 3
    remedy = f"remove it to use PYTHON={sys.executable}"
    assert done.stderr == f"quickstart: .venv has Python 3.9; {remedy}\n"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("x\n  setup_ops.py: Paddle is broken\nerror: exit status 1\n", "setup_ops.py: Paddle"),
        ("error: one\nERROR: two\nhint\n", "ERROR: two"),
        ("only words\n", "only words"),
    ],
)
def test_last_error_prefers_the_line_of_the_build(tmp_path, log, words):
    (tmp_path / "log").write_text(log)
    text = (TOOLS / "venv.sh").read_text()
    function = text[text.index("last_error() {") : text.index("checksum_of_sources() {")]
    script = f"set -euo pipefail; root={tmp_path}\n{function}\nlast_error log"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(words)
    assert len(done.stdout.splitlines()) == 1
