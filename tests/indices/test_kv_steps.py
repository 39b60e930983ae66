"""`for_kv_step`: some rows of a mask, exactly those of the dense one."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import masks as support

from paddle_flashmask.indices import for_kv_step
from paddle_flashmask.recipes import causal_document


@given(st.data())
def test_rows_and_keys_are_those_of_the_dense_mask(data):
    mask, seqlen_q = data.draw(support.masks_with_rows())
    first_row = data.draw(st.integers(0, seqlen_q))
    num_rows = data.draw(st.integers(0, seqlen_q - first_row))
    all_keys = mask.startend_row_indices.shape[2]
    seqlen_k = data.draw(st.none() | st.integers(0, all_keys))
    step = for_kv_step(
        mask,
        seqlen_q_total=seqlen_q,
        first_row=first_row,
        num_rows=num_rows,
        seqlen_k=seqlen_k,
    )
    keys = all_keys if seqlen_k is None else seqlen_k
    rows = slice(first_row, first_row + num_rows)
    expected = support.dense_by_loops(mask, seqlen_q)[:, :, rows, :keys]
    np.testing.assert_array_equal(support.dense_by_loops(step, num_rows), expected)
    assert step.startend_row_indices.dtype == np.int32
    assert step.causal == (mask.causal and keys == all_keys - (seqlen_q - rows.stop))
    width = mask.startend_row_indices.shape[3]
    assert step.startend_row_indices.shape[3] == width * (1 + (mask.causal and not step.causal))


def test_every_decoding_step_stays_causal_and_one_number_wide():
    lengths = [3, 2, 3]
    mask = causal_document(lengths, seq_len=10)
    dense = support.dense_by_loops(mask, 10)
    for keys in range(1, 11):
        step = for_kv_step(mask, seqlen_q_total=10, first_row=keys - 1, num_rows=1, seqlen_k=keys)
        assert step.causal
        assert step.startend_row_indices.shape == (1, 1, keys, 1)
        np.testing.assert_array_equal(
            support.dense_by_loops(step, 1)[0, 0, 0], dense[0, 0, keys - 1, :keys]
        )


def test_a_split_over_two_ranks_has_the_numbers_of_the_field_case():
    mask = causal_document([3, 2, 3])
    half_0 = for_kv_step(mask, seqlen_q_total=8, first_row=0, num_rows=4)
    assert not half_0.causal
    numbers = half_0.startend_row_indices[0, 0].T.tolist()
    assert numbers == [[3, 3, 3, 4, 4, 4, 4, 4], [0, 1, 2, 3, 4, 4, 4, 4]]
    half_1 = for_kv_step(mask, seqlen_q_total=8, first_row=4, num_rows=4)
    assert half_1.causal
    assert half_1.startend_row_indices[0, 0, :, 0].tolist() == [0, 0, 0, 1, 1, 4, 4, 4]


def test_extreme_numbers_do_not_wrap_around():
    extreme = support.filled(False, [2**31 - 1, -(2**31)])
    step = for_kv_step(extreme, seqlen_q_total=2**31 - 1, first_row=2**30, num_rows=3)
    assert step.startend_row_indices.tolist() == [[[[3, 0]]]]


BAD_VALUES = [
    ({"first_row": -1, "num_rows": 1}, "first_row must be in [0, 5]; got -1"),
    ({"first_row": 6, "num_rows": 0}, "first_row must be in [0, 5]; got 6"),
    ({"first_row": 3, "num_rows": 3}, "num_rows must be in [0, 2]; got 3"),
    ({"first_row": 3, "num_rows": 1, "seqlen_k": 6}, "seqlen_k must be in [0, 5]; got 6"),
]
BAD_KINDS = [
    ({"first_row": True, "num_rows": 1}, "first_row must be an int; got bool True"),
    ({"first_row": 1, "num_rows": "1"}, "num_rows must be an int; got str '1'"),
]


@pytest.mark.parametrize(("options", "message"), BAD_VALUES)
def test_values_are_refused_in_words(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        for_kv_step(causal_document([5]), seqlen_q_total=5, **options)


@pytest.mark.parametrize(("options", "message"), BAD_KINDS)
def test_kinds_are_refused_in_words(options, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        for_kv_step(causal_document([5]), seqlen_q_total=5, **options)
