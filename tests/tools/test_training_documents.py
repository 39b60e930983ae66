"""Documents of the training benchmark: they fill a row, follow the seed and the deciles."""

from __future__ import annotations

import numpy as np
import pytest
from train_steps import documents, layouts
from train_steps.layouts import LAYOUTS

from paddle_flashmask import indices, recipes

VOCAB = 100


@pytest.mark.parametrize("answers", [1, 2, 6])
@pytest.mark.parametrize(("seqlen", "count"), [(7, 1), (512, 5), (4096, 9), (4097, 2)])
def test_documents_fill_the_row(seqlen, count, answers):
    drawn = documents.draw(seqlen, count, answers=answers, at_least=32, seed=[0])
    assert sum(one.tokens for one in drawn) == seqlen
    assert len(drawn) <= count
    assert all(one.tokens >= min(32, seqlen) for one in drawn)
    assert all(min(one.question, *one.answers) >= 1 for one in drawn)
    assert all(len(one.answers) == answers for one in drawn)


def test_a_row_without_room_for_question_and_answers_is_refused():
    with pytest.raises(ValueError, match="must hold more than 6 tokens; got 6"):
        documents.draw(6, 1, answers=6, at_least=1, seed=[0])


def test_short_rows_hold_fewer_documents():
    assert len(documents.draw(1024, 9, answers=1, at_least=128, seed=[0])) == 4


def test_the_seed_decides():
    first, again, other = (
        documents.draw(4096, 5, answers=2, at_least=128, seed=seed) for seed in ([1], [1], [2])
    )
    assert first == again
    assert first != other


def test_lengths_follow_the_deciles_between_the_tails():
    drawn = documents.draw(10**8, 20000, answers=1, at_least=1, seed=[3])
    lengths = np.array([one.tokens for one in drawn])
    found = np.quantile(lengths, documents.LEVELS) / np.median(lengths)
    assert found == pytest.approx(np.array(documents.SFT_LENGTHS) / 585, rel=0.05)


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_rows_are_full_and_masked_as_the_recipe_says(name):
    layout, seqlen = LAYOUTS[name], 2048
    batch = layouts.batch(layout, seqlen, 5, VOCAB)
    seed = [layouts.SEED, layout.seed, seqlen, 5]
    drawn = documents.draw(seqlen, 5, answers=layout.answers, at_least=layout.at_least, seed=seed)
    assert batch["input_ids"].min() >= 1  # no padding
    if layout.answers == 1:
        mask = recipes.sft([one.tokens for one in drawn])
    else:
        mask = recipes.rm([(one.question, list(one.answers)) for one in drawn])
    rows = batch["attn_mask_startend_row_indices"]
    assert indices.is_same(indices.ColumnMask(rows, causal=True), mask, seqlen_q=seqlen)


def test_lora_trains_on_the_rows_of_sft():
    sft, lora = (layouts.batch(LAYOUTS[name], 512, 2, VOCAB) for name in ("sft", "lora"))
    assert all(np.array_equal(sft[key], lora[key]) for key in sft)


def test_dpo_has_the_reference_of_a_uniform_model():
    batch = layouts.batch(LAYOUTS["dpo"], 512, 2, VOCAB)
    lengths = np.diff(batch["answer_spans"], axis=1)[:, 0]
    assert batch["reference_log_probs"] == pytest.approx(-np.log(VOCAB) * lengths)


def test_density_counts_visible_cells():
    batch = layouts.batch(LAYOUTS["rm"], 2048, 5, VOCAB)
    rows = batch["attn_mask_startend_row_indices"]
    dense = indices.to_dense(rows, causal=True, seqlen_q=2048)
    assert layouts.density(batch) == pytest.approx(dense.mean())
