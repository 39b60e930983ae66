"""Visible cells in all, per row and per column are those of the dense mask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from support import masks as support

from paddle_flashmask.indices import count_visible, visible_per_column, visible_per_row


@given(support.masks_with_rows())
def test_counts_are_those_of_the_dense_mask(drawn):
    mask, seqlen_q = drawn
    visible = support.dense_by_loops(mask, seqlen_q)
    for count, axis in (
        (count_visible, (2, 3)),
        (visible_per_column, 2),
        (visible_per_row, 3),
    ):
        counted = count(mask.startend_row_indices, causal=mask.causal, seqlen_q=seqlen_q)
        assert counted.dtype == np.int64
        np.testing.assert_array_equal(counted, visible.sum(axis=axis), err_msg=count.__name__)


def test_counts_do_not_overflow_int32():
    length = 2**17
    causal = np.full((1, 1, length, 1), length, np.int32)
    assert count_visible(causal, causal=True, seqlen_q=length).item() == length * (length + 1) // 2


def test_longest_row_is_counted_and_number_beyond_it_clipped():
    longest = np.array([[[[2**31 - 1, -(2**31)]]]], np.int32)
    assert count_visible(longest, causal=False, seqlen_q=2**31 - 1).item() == 2**31 - 1
