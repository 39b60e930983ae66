"""PaddleFormers' own command with the two lines, as tools/train.sh runs it: every stage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DRIVER = ROOT / "tools" / "train" / "on_paddleformers.py"
BROKEN = """\
from paddle_flashmask.integrations import paddleformers
from paddle_flashmask.integrations.paddleformers import forward

paddleformers.register(must_use=True)
right = forward.flashmask_attention


def late(query, key, value, startend_row_indices, causal, **options):
    return right(query, key, value, startend_row_indices + 1, causal, **options)


forward.flashmask_attention = late
"""


def run(folder, *arguments, **variables):
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(DRIVER), *arguments, "--output", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("stage", "tables"), [("sft", 1), ("lora", 1), ("dpo", 3)])
def test_thirty_steps_of_a_stage_have_equal_losses(stage, tables, tmp_path):
    done = run(tmp_path, stage, "--seq-len", "256")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal at every step within 1e-05") == tables
    assert done.stdout.count("\n  30   ") == tables
    logs = list((tmp_path / "paddleformers" / stage).glob("*_flashmask/train.log"))
    assert len(logs) == tables
    for log in logs:
        text = log.read_text()
        assert text.count("self_attn: ours, CPU") == 2
        assert text.count("see the last prompt token twice") == (stage == "dpo")


def test_a_broken_mask_gives_exit_code_1(tmp_path):
    register = tmp_path / "broken.py"
    register.write_text(BROKEN)
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(DRIVER.parent)!r})\n"
        "import on_paddleformers\n"
        f"on_paddleformers.CONTESTANTS['flashmask']['custom_register_path'] = {str(register)!r}\n"
        "sys.exit(on_paddleformers.main())\n"
    )
    done = subprocess.run(
        [sys.executable, str(driver), "sft", "--steps", "2", "--output", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the losses of sft differ by more than 1e-05" in done.stderr


def test_the_two_lines_name_a_file_that_is_there():
    command = [sys.executable, "-m", "paddle_flashmask.integrations.paddleformers"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    path, attention = done.stdout.splitlines()
    assert Path(path.removeprefix("custom_register_path: ")).is_file()
    assert attention == "_attn_implementation: paddle_flashmask"
