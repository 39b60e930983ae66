"""tools/train.sh and tools/test_integrations.sh up to where they would install something."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def start(tmp_path):
    """A copy of the tools without environments, and a script in it as a user runs it."""
    for folder in ("quickstart", "train"):
        shutil.copytree(TOOLS / folder, tmp_path / "tools" / folder)
    for script in ("train.sh", "test_integrations.sh", "venv.sh"):
        shutil.copy(TOOLS / script, tmp_path / "tools")

    def run(script, *arguments, **environment):
        return subprocess.run(
            ["bash", str(tmp_path / "tools" / script), *arguments],
            env={**os.environ, "PYTHON": sys.executable, "CXX": "no-such-compiler", **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("train.sh", []),
        ("train.sh", ["paddleformers"]),
        ("train.sh", ["other", "sft"]),
        ("test_integrations.sh", ["other"]),
    ],
)
def test_unknown_trainers_leave_with_code_2(start, script, arguments):
    done = start(script, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"usage: bash tools/{script} paddleformers|paddlenlp")


def test_unknown_stage_is_noticed_before_anything_is_made(start, tmp_path):
    done = start("train.sh", "paddleformers", "ppo")
    assert done.returncode == 2
    assert "choose from" in done.stderr
    assert not (tmp_path / ".venv-paddleformers").exists()


def test_too_few_records_are_noticed_before_anything_is_made(start, tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text(json.dumps({"instruction": "a", "output": "b"}) + "\n")
    done = start("train.sh", "paddleformers", "sft", str(path))
    assert done.returncode == 2
    assert done.stderr == "train: sft: more than 5 records are needed; got 1\n"


def test_a_missing_compiler_is_noticed_before_anything_is_made(start, tmp_path):
    done = start("train.sh", "paddleformers", "dpo")
    assert done.returncode == 3
    assert done.stderr == "train: no C++ compiler no-such-compiler; install g++ or set CXX\n"
    assert not (tmp_path / ".venv-paddleformers").exists()
