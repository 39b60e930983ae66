"""tools/train/on_paddlenlp.py before anything is installed: arguments and files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).parents[2] / "tools" / "train" / "on_paddlenlp.py"
# What train.sh finds on a fresh machine: Python alone.
BARE = (
    "import runpy, sys; [sys.modules.update({name: None}) for name in ('numpy', 'paddle')]; "
    "sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rpartition('/')[0]); "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


def check(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", BARE, str(COMMAND), "--check-only", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("stage", ["sft", "dpo", "rm"])
def test_own_samples_fit_every_stage(stage):
    done = check(stage)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: stage"),
        (["ppo"], "invalid choice: 'ppo'"),
        (["sft", "--steps", "0"], "must be a whole number from 1; got '0'"),
        (["sft", "--seq-len", "8"], "must be a whole number from 16; got '8'"),
        (["sft", "--lengths", "long"], "must be a whole number from 16; got 'long'"),
        (["sft", "--model", "gpt"], "invalid choice: 'gpt'"),
        (["sft", "no-such-file"], "train: no-such-file: no such file"),
    ],
)
def test_wrong_arguments_leave_with_code_2(arguments, words):
    done = check(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_file_of_the_other_kind_leaves_with_code_2(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"instruction": "a", "output": "b"}))
    assert check("sft", str(path)).returncode == 0
    done = check("rm", str(path))
    assert done.returncode == 2
    assert done.stderr == "train: rm: no file has a preference (chosen and rejected)\n"
