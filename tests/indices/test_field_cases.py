"""Mistakes that users of such masks reported, tried on this package.

Each trial has its numbers worked out by hand: the mean of the positions j + 1 that a row sees, and
the sum of weights 1 / (columns seen) that a column gets.
"""

from __future__ import annotations

import numpy as np
import pytest
from support import masks as support
from support.recipe_modules import mean_of_seen_positions, weight_on_columns

from paddle_flashmask.indices import (
    check_values,
    concatenate,
    count_visible,
    for_kv_step,
    from_cu_seqlens,
    from_dense,
    from_position_ids,
    inspect,
    intersect,
    to_dense,
)
from paddle_flashmask.recipes import causal, document, prefix_lm_causal, sliding_window


def dense_of(mask, seqlen_q):
    return to_dense(mask.startend_row_indices, causal=mask.causal, seqlen_q=seqlen_q)[0, 0]


def outputs(mask, seqlen_q):
    return [round(mean, 4) for mean in mean_of_seen_positions(dense_of(mask, seqlen_q))]


def weights(mask, seqlen_q):
    return [round(weight, 4) for weight in weight_on_columns(dense_of(mask, seqlen_q))]


@pytest.mark.parametrize("length", [4, 130, 257])
def test_the_diagonal_is_not_lost_where_a_document_ends_at_it(length):
    mask = from_cu_seqlens(np.arange(length + 1))
    assert outputs(mask, length) == list(range(1, length + 1))
    assert count_visible(*mask[:1], causal=True, seqlen_q=length).item() == length


def test_the_diagonal_is_not_leaked_either():
    mask = support.filled(True, [0], [1], [2], [3])
    assert outputs(mask, 4) == [0, 0, 0, 0]
    report = inspect(mask.startend_row_indices, causal=True, seqlen_q=4)
    assert len(report.of_kind("blind_row")[0].positions) == 4


def test_a_window_of_two_left_is_three_tokens():
    mask = support.filled(True, [3], [4], [5], [6], [6], [6])
    assert outputs(mask, 6) == [1, 1.5, 2, 3, 4, 5]
    assert weights(mask, 6) == [1.8333, 1.1667, 1, 1, 0.6667, 0.3333]
    report = inspect(mask.startend_row_indices, causal=True, seqlen_q=6)
    assert "3 tokens, itself included (window_size=2)" in str(report)
    with pytest.raises(ValueError, match="seen from more than 2 tokens"):
        check_values(mask.startend_row_indices, causal=True, seqlen_q=6, window=2)


def test_prefix_and_two_way_documents_come_back_from_their_dense_masks():
    prefix = from_dense(dense_of(prefix_lm_causal(6, 3), 6))
    assert not prefix.causal
    assert prefix.startend_row_indices[0, 0].T.tolist() == [[6] * 6, [0, 0, 0, 3, 4, 5]]
    assert outputs(prefix, 6) == [2, 2, 2, 2.5, 3, 3.5]
    documents = from_dense(dense_of(document([2, 3]), 5))
    numbers = documents.startend_row_indices[0, 0].T.tolist()
    assert numbers == [[2, 2, 5, 5, 5], [0, 0, 2, 2, 2]]
    assert outputs(documents, 5) == [1.5, 1.5, 4, 4, 4]


def test_the_causal_corner_is_the_bottom_right():
    few_rows = support.filled(True, *[[2]] * 5)
    assert outputs(few_rows, 2) == [2.5, 3]
    assert weights(few_rows, 2) == [0.45, 0.45, 0.45, 0.45, 0.2]
    few_keys = support.filled(True, *[[5]] * 2)
    assert outputs(few_keys, 5) == [0, 0, 0, 1, 1.5]
    report = inspect(few_keys.startend_row_indices, causal=True, seqlen_q=5)
    assert report.of_kind("blind_row")[0].positions[:, 2].tolist() == [0, 1, 2]
    for mask, rows in ((few_rows, 2), (few_keys, 5)):
        again = from_dense(dense_of(mask, rows))
        assert (again.causal, again.startend_row_indices.shape[3]) == (True, 1)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(0, 4), (4, 0), (0, 0)])
def test_no_row_and_no_key_are_masks_too(seqlen_q, seqlen_k):
    mask = from_dense(np.zeros((seqlen_q, seqlen_k), bool))
    assert mask.startend_row_indices.shape == (1, 1, seqlen_k, 1)
    assert intersect(mask, mask, seqlen_q=seqlen_q).startend_row_indices.shape[2] == seqlen_k
    assert count_visible(*mask[:1], causal=mask.causal, seqlen_q=seqlen_q).tolist() == [[0]]


def test_empty_documents_and_no_document():
    mask = from_cu_seqlens([0, 3, 3, 5, 5])
    assert outputs(mask, 5) == [1, 1.5, 2, 4, 4.5]
    assert concatenate([causal(0), causal(0)]).startend_row_indices.shape == (1, 1, 0, 1)


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_other_dtypes_are_named_with_int32(dtype):
    indices = np.full((1, 1, 2, 1), 2, dtype)
    with pytest.raises(ValueError, match=f"the dtype must be int32; got {np.dtype(dtype)}"):
        check_values(indices, causal=True, seqlen_q=2)
    with pytest.raises(TypeError, match=f"must be int32; got {np.dtype(dtype)}"):
        to_dense(indices, causal=True, seqlen_q=2)


def test_samples_do_not_see_each_other():
    mask = from_cu_seqlens([0, 3, 5, 8])
    assert mask.startend_row_indices.shape == (1, 1, 8, 1)
    assert mask.startend_row_indices[0, 0, :, 0].tolist() == [3, 3, 3, 5, 5, 8, 8, 8]
    assert outputs(mask, 8) == [1, 1.5, 2, 4, 4.5, 6, 6.5, 7]
    positions = from_position_ids([0, 1, 2, 0, 1, 0, 1, 2])
    np.testing.assert_array_equal(positions.startend_row_indices, mask.startend_row_indices)
    joined = concatenate([causal(3), causal(2), causal(3)])
    np.testing.assert_array_equal(joined.startend_row_indices, mask.startend_row_indices)


def test_halves_of_a_row_add_up_to_the_whole():
    mask = from_cu_seqlens([0, 3, 5, 8])
    halves = [for_kv_step(mask, seqlen_q_total=8, first_row=first, num_rows=4) for first in (0, 4)]
    assert outputs(halves[0], 4) == [1, 1.5, 2, 4]
    assert outputs(halves[1], 4) == [4.5, 6, 6.5, 7]
    both = np.array([weight_on_columns(dense_of(half, 4)) for half in halves]).sum(axis=0)
    whole = [1.8333, 0.8333, 0.3333, 1.5, 0.5, 1.8333, 0.8333, 0.3333]
    assert both.round(4).tolist() == whole


def test_documents_with_a_window_hide_what_either_hides():
    mask = intersect(from_cu_seqlens([0, 3, 8]), sliding_window(8, 2), seqlen_q=8)
    assert mask.startend_row_indices[0, 0, :, 0].tolist() == [2, 3, 3, 5, 6, 7, 8, 8]
    assert outputs(mask, 8) == [1, 1.5, 2.5, 4, 4.5, 5.5, 6.5, 7.5]
