"""PaddleFormers' trainer, ours against its eager attention: losses of packed rows are equal."""

from __future__ import annotations

import numpy as np
import pytest
from support.formers import (
    MODELS,
    SHAPE,
    assert_losses_equal,
    largest_difference,
    make_model,
    make_trainer,
    packed_rows,
)
from support.tolerance import LOSSES

from paddle_flashmask.integrations import paddleformers
from paddle_flashmask.integrations.paddleformers import calls

ATTENTIONS = (paddleformers.NAME, "eager")
STEPS = 30


def train(rows, folder, name="Llama", *, model=None, **changes):
    """Losses of both attentions, of steps and evaluations."""
    kept = []
    for attention in ATTENTIONS:
        trained = make_model(attention, name, **(model or {}))
        trainer = make_trainer(trained, rows, folder / attention, **changes)
        trainer.train()
        kept.append(trainer.kept)
    return kept


@pytest.mark.parametrize("name", MODELS)
def test_a_few_steps_of_each_model(name, rng, tmp_path):
    ours, theirs = train(packed_rows(rng, 8), tmp_path, name)
    assert_losses_equal(ours.losses, theirs.losses, 4)


def test_thirty_steps_with_accumulation_and_evaluation_that_does_not_divide(
    rng, tmp_path, monkeypatch
):
    # Before an accumulated step PaddleFormers 1.2.0 waits for a device, which a CPU is not.
    monkeypatch.setattr("paddle.device.synchronize", lambda: None)
    rows = packed_rows(rng, 11)
    ours, theirs = train(
        rows[:8],
        tmp_path,
        eval_rows=rows[8:],  # 3 rows in batches of 2
        max_steps=STEPS,
        gradient_accumulation_steps=2,
        do_eval=True,
        evaluation_strategy="steps",
        eval_steps=15,
    )
    assert_losses_equal(ours.losses, theirs.losses, STEPS)
    assert_losses_equal(ours.evaluations, theirs.evaluations, 2)


def test_recompute_of_all_layers(rng, tmp_path, monkeypatch):
    counted = []
    record = calls.record

    def count_and_record(*arguments, **options):
        counted.append(1)
        record(*arguments, **options)

    monkeypatch.setattr(calls, "record", count_and_record)
    recompute = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    ours, theirs = train(packed_rows(rng, 8), tmp_path, model=recompute)
    assert_losses_equal(ours.losses, theirs.losses, 4)
    assert len(counted) == 2 * 4 * SHAPE["num_hidden_layers"]  # forward again in each backward


def test_a_broken_mask_gives_other_losses(rng, tmp_path):
    """The comparison can fail: one boundary moved by one row is seen in the first loss."""
    rows = packed_rows(rng, 2)
    broken = [dict(row) for row in rows]
    for row in broken:
        field = row["attn_mask_startend_row_indices"].copy()
        first = field[0, 0, 0]
        field[field == first] = first + 1
        row["attn_mask_startend_row_indices"] = field
    losses = []
    for given in (rows, broken):
        trainer = make_trainer(make_model(paddleformers.NAME), given, tmp_path, max_steps=1)
        trainer.train()
        losses.append(trainer.kept.losses)
    assert np.isfinite(losses).all()
    assert largest_difference(*losses) > LOSSES
