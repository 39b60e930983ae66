"""`cost`: work, memory and savings by the formulas of its docstring."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import masks as support

from paddle_flashmask.indices import cost
from paddle_flashmask.recipes import causal, causal_document, full


@given(drawn=support.masks_with_rows(), sharing=st.integers(1, 3), head_dim=st.integers(1, 9))
def test_numbers_are_those_of_the_dense_mask(drawn, sharing, head_dim):
    mask, seqlen_q = drawn
    indices = mask.startend_row_indices
    batch, heads, seqlen_k, _ = indices.shape
    estimate = cost(
        indices,
        causal=mask.causal,
        seqlen_q=seqlen_q,
        num_heads=heads * sharing,
        head_dim=head_dim,
        tile_rows=1,
        tile_columns=1,
    )
    visible = np.repeat(support.dense_by_loops(mask, seqlen_q), sharing, axis=1)
    scores = np.zeros((batch, heads * sharing, seqlen_q, seqlen_k), np.float32)
    plain = support.ColumnMask(np.full_like(indices[..., :1], seqlen_q), causal=True)
    plain_cells = sharing * int(support.dense_by_loops(plain, seqlen_q).sum())
    assert estimate.visible_cells == visible.sum()
    assert estimate.forward_flops == 4 * head_dim * visible.sum()
    assert estimate.backward_flops == 10 * head_dim * visible.sum()
    assert estimate.indices_bytes == indices.nbytes
    assert estimate.dense_bool_bytes == scores[:, :heads].size
    assert estimate.dense_float32_bytes == scores[:, :heads].nbytes
    assert estimate.scores_bytes == scores.nbytes
    assert estimate.all_tiles == scores.size
    assert estimate.causal_tiles == plain_cells
    assert estimate.live_tiles == visible.sum()


def test_savings_compare_live_tiles():
    options = {"seqlen_q": 256, "num_heads": 4, "head_dim": 8}
    plain = cost(*causal(256)[:1], causal=True, **options)
    assert (plain.saving_to_causal, plain.saving_to_dense) == (0.0, 6 / 16)
    documents = cost(*causal_document([64] * 4)[:1], causal=True, **options)
    assert (documents.saving_to_causal, documents.saving_to_dense) == (6 / 10, 12 / 16)
    everything = cost(*full(256)[:1], causal=False, **options)
    assert (everything.saving_to_causal, everything.saving_to_dense) == (1 - 16 / 10, 0.0)


def test_no_cell_costs_and_saves_nothing():
    nothing = cost(*full(0)[:1], causal=False, seqlen_q=0, num_heads=1, head_dim=8)
    assert nothing.forward_flops == nothing.saving_to_causal == nothing.saving_to_dense == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_heads": 3, "head_dim": 8},
            "num_heads must be a multiple of the mask heads, 2; got 3",
        ),
        ({"num_heads": 0, "head_dim": 8}, "num_heads must be in [1, 2147483647]; got 0"),
        ({"num_heads": 2, "head_dim": 0}, "head_dim must be in [1, 2147483647]; got 0"),
    ],
)
def test_values_are_refused_in_words(options, message):
    indices = np.zeros((1, 2, 1, 1), np.int32)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cost(indices, causal=True, seqlen_q=1, **options)
