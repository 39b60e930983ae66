"""tools/train/on_paddlenlp.py end to end on a few steps, and what makes it fail."""

from __future__ import annotations

import csv

import numpy as np
import on_paddlenlp
import paddlenlp_runs
import pytest

from paddle_flashmask.integrations.paddlenlp import trainer
from paddle_flashmask.integrations.paddlenlp.inputs import model_inputs

SHORT = ["--steps", "2", "--seq-len", "128", "--batch-size", "1", "--lengths"]
STAGES = ("sft", "dpo", "rm")


@pytest.mark.parametrize("stage", STAGES)
def test_on_and_off_have_the_same_losses(stage, tmp_path, capsys):
    output = tmp_path / "new" / "folder"
    assert on_paddlenlp.main([stage, *SHORT, "--output", str(output)]) == 0
    text = capsys.readouterr().out
    assert "flash_mask and dense equal over 2 steps: worst " in text
    assert "without the borders of samples losses differ by up to " in text
    assert text.count("tokens/s (median of steps)") == 2
    with (output / f"paddlenlp_llama_{stage}_losses.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2"]
    assert float(rows[1]["flash_mask"]) == pytest.approx(float(rows[1]["dense"]), rel=1e-5)


def test_mixtral_recomputes_and_accumulates(tmp_path):
    options = ["--model", "mixtral", "--recompute", "--accumulate", "2"]
    assert on_paddlenlp.main(["sft", *options, *SHORT, "--output", str(tmp_path)]) == 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_wrong_mask_leaves_with_code_1(stage, tmp_path, capsys, monkeypatch):
    def wrong(batch, *, flash_mask):
        inputs = model_inputs(batch, flash_mask=flash_mask)
        if flash_mask:
            inputs["attention_mask"] = inputs["attention_mask"] * 0 + 128
        return inputs

    monkeypatch.setattr(trainer, "model_inputs", wrong)
    assert on_paddlenlp.main([stage, *SHORT, "--output", str(tmp_path)]) == 1
    assert "flash_mask and dense DIFFER over 2 steps" in capsys.readouterr().out


def test_a_leak_that_cannot_be_seen_leaves_with_code_1(tmp_path, capsys, monkeypatch):
    def unchanged(rows, numbers):
        return rows._packed.build(numbers)

    monkeypatch.setattr(paddlenlp_runs._Leaking, "build", unchanged)
    assert on_paddlenlp.main(["sft", *SHORT, "--output", str(tmp_path)]) == 1
    assert "without the borders of samples losses DO NOT DIFFER" in capsys.readouterr().out


def test_files_of_the_user_are_trained_on(tmp_path, capsys):
    path = tmp_path / "own.jsonl"
    record = '{"instruction": "Count from %d", "output": "%d, %d, and so on."}\n'
    path.write_text("".join(record % (n, n, n + 1) for n in range(20)))
    assert on_paddlenlp.main(["sft", str(path), *SHORT, "--output", str(tmp_path)]) == 0
    assert on_paddlenlp.main(["dpo", str(path), *SHORT]) == 2
    assert "train: dpo: no file has a preference" in capsys.readouterr().err


@pytest.mark.timeout(
    600
)  # two processes import PaddleNLP; a quarter of a minute on an idle machine
def test_a_long_step_holds_no_dense_matrix(tmp_path, capsys):
    """In a process of its own, beside the dense step of the same row."""
    length = 2048
    arguments = ["sft", "--lengths", str(length), "--output", str(tmp_path)]
    options = on_paddlenlp.parse(arguments)
    code = paddlenlp_runs._measure_lengths(options)
    line = capsys.readouterr().out.splitlines()[-1].split()
    ours, dense = float(line[1]), float(line[5])
    matrix = np.float32().nbytes * length**2 / 2**20
    assert dense > 4 * matrix
    assert ours < dense / 2
    assert code == (ours >= matrix)
