"""`concatenate` and `stack`: blocks along the sequence, samples along the batch."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import masks as support

from paddle_flashmask.indices import ColumnMask, concatenate, from_dense, stack
from paddle_flashmask.recipes import causal, causal_document, full, prefix_lm_causal, qk_sparse


def dense_blocks(masks, length):
    """Return the block diagonal of the masks' dense forms; the rest sees nothing."""
    batch, heads = (max(mask.startend_row_indices.shape[axis] for mask in masks) for axis in (0, 1))
    visible = np.zeros((batch, heads, length, length), bool)
    begin = 0
    for mask in masks:
        size = mask.startend_row_indices.shape[2]
        end = begin + size
        visible[:, :, begin:end, begin:end] = support.dense_by_loops(mask, size)
        begin = end
    return visible


@given(
    masks=st.lists(support.square_masks(), min_size=1, max_size=3),
    padding=st.none() | st.integers(0, 2),
)
def test_rows_see_only_their_own_mask(masks, padding):
    tokens = sum(mask.startend_row_indices.shape[2] for mask in masks)
    length = tokens + (padding or 0)
    seq_len = None if padding is None else length
    visible = dense_blocks(masks, length)
    if not support.is_expressible(visible):
        with pytest.raises(ValueError, match=r"masks\[\d\] behind \d+ of \d+ rows cannot be exp"):
            concatenate(masks, seq_len=seq_len)
        return
    joined = concatenate(masks, seq_len=seq_len)
    np.testing.assert_array_equal(support.dense_by_loops(joined, length), visible)
    narrowest = from_dense(visible)  # minimal: see test_dense.py
    assert joined.causal == narrowest.causal
    assert joined.startend_row_indices.shape == narrowest.startend_row_indices.shape


@given(st.data())
def test_batches_and_heads_of_one_go_with_more(data):
    masks = [
        data.draw(support.masks(seqlen_q=2, batch=batch, heads=heads, seqlen_k=2, form=(True, 1)))
        for batch, heads in ((1, 2), (2, 1), (2, 2))
    ]
    joined = concatenate(masks)
    np.testing.assert_array_equal(support.dense_by_loops(joined, 6), dense_blocks(masks, 6))


def test_documents_one_by_one_are_documents_at_once():
    joined = concatenate([causal(3), causal(2)], seq_len=6)
    whole = causal_document([3, 2], seq_len=6)
    np.testing.assert_array_equal(joined.startend_row_indices, whole.startend_row_indices)
    assert joined.causal


def test_different_kinds_of_masks_join():
    joined = concatenate([prefix_lm_causal(4, 2), full(2), causal(2)])
    assert (joined.causal, joined.startend_row_indices.shape[3]) == (False, 2)


@given(st.data())
def test_a_stack_is_its_samples_in_the_narrowest_form_for_all(data):
    seqlen_q, seqlen_k = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))
    masks = [
        data.draw(
            support.masks(
                seqlen_q=seqlen_q,
                batch=data.draw(st.integers(0, 2)),
                heads=data.draw(st.sampled_from([1, 3])),
                seqlen_k=seqlen_k,
            )
        )
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    stacked = stack(masks, seqlen_q=seqlen_q)
    heads = max(mask.startend_row_indices.shape[1] for mask in masks)
    dense = [support.dense_by_loops(mask, seqlen_q) for mask in masks]
    expected = np.concatenate(
        [np.broadcast_to(one, (len(one), heads, seqlen_q, seqlen_k)) for one in dense]
    )
    np.testing.assert_array_equal(support.dense_by_loops(stacked, seqlen_q), expected)
    assert stacked.causal == all(mask.causal for mask in masks)
    widths = [
        mask.startend_row_indices.shape[3] * (2 if mask.causal and not stacked.causal else 1)
        for mask in masks
    ]
    assert stacked.startend_row_indices.shape[3] == max(widths)


THREE_RUNS = (
    "masks[0] behind 0 of 11 rows cannot be expressed: a column holds at most 2 runs of masked "
    "rows, but 2 columns have more: sample 0 head 0 column 2 (3 runs), "
    "sample 0 head 0 column 3 (3 runs)"
)


def test_a_hole_between_visible_rows_is_refused_with_its_columns():
    holes = support.filled(True, *[[9, 9]] * 2, *[[6, 8]] * 2, *[[9, 9]] * 5)
    with pytest.raises(ValueError, match=f"^{re.escape(THREE_RUNS)}$"):
        concatenate([holes, causal(2)])


def test_a_sparse_mask_alone_stays_itself():
    alone = qk_sparse(9, [(1, 4), (6, 8)])
    joined = concatenate([alone])
    np.testing.assert_array_equal(
        support.dense_by_loops(joined, 9), support.dense_by_loops(alone, 9)
    )


def two_heads(batch, heads):
    return ColumnMask(np.zeros((batch, heads, 1, 1), np.int32), causal=True)


BAD_VALUES = [
    (concatenate, [], {}, "masks must hold at least 1 mask; got none"),
    (
        concatenate,
        [two_heads(2, 1), two_heads(3, 1)],
        {},
        "masks must have one number of batch, or 1; got [2, 3]",
    ),
    (
        concatenate,
        [two_heads(1, 2), two_heads(1, 1), two_heads(1, 4)],
        {},
        "masks must have one number of mask heads, or 1; got [2, 1, 4]",
    ),
    (
        concatenate,
        [causal(2), causal(3)],
        {"seq_len": 4},
        "seq_len must be at least the columns of masks, 5; got 4",
    ),
    (stack, [], {"seqlen_q": 1}, "masks must hold at least 1 mask; got none"),
    (
        stack,
        [causal(3), causal(2)],
        {"seqlen_q": 3},
        "masks must have as many columns; got [2, 3] (pad the shorter)",
    ),
    (
        stack,
        [two_heads(1, 2), two_heads(1, 3)],
        {"seqlen_q": 3},
        "masks must have one number of mask heads, or 1; got [2, 3]",
    ),
]
BAD_KINDS = [
    (concatenate, causal(2), {}, "masks must be a list or tuple of ColumnMask; got ColumnMask"),
    (
        concatenate,
        [causal(2), causal(2).startend_row_indices],
        {},
        "masks[1] must be a ColumnMask(startend_row_indices, causal); got ndarray",
    ),
    (stack, 3, {"seqlen_q": 3}, "masks must be a list or tuple of ColumnMask; got int"),
    (stack, [causal(2)], {"seqlen_q": 2.0}, "seqlen_q must be an int; got float 2.0"),
]


@pytest.mark.parametrize(("join", "masks", "options", "message"), BAD_VALUES)
def test_values_are_refused_in_words(join, masks, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        join(masks, **options)


@pytest.mark.parametrize(("join", "masks", "options", "message"), BAD_KINDS)
def test_kinds_are_refused_in_words(join, masks, options, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        join(masks, **options)
