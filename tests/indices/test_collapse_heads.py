"""`collapse_heads`: mask heads that say the same become one, or one per key head."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import masks as support

from paddle_flashmask.indices import ColumnMask, collapse_heads


@given(st.data())
def test_collapsed_heads_mean_the_same_and_are_fewest(data):
    seqlen_q = data.draw(st.integers(0, 3))
    one = data.draw(support.masks(seqlen_q=seqlen_q, batch=2, heads=2, seqlen_k=2))
    order = data.draw(st.lists(st.integers(0, 1), min_size=4, max_size=4))
    mask = ColumnMask(one.startend_row_indices[:, order], one.causal)
    collapsed = collapse_heads(mask, seqlen_q=seqlen_q, num_heads_k=2)
    dense = support.dense_by_loops(mask, seqlen_q)
    heads = collapsed.startend_row_indices.shape[1]
    repeated = np.repeat(support.dense_by_loops(collapsed, seqlen_q), 4 // heads, axis=1)
    np.testing.assert_array_equal(repeated, dense)
    if (dense == dense[:, :1]).all():
        assert heads == 1
    elif (dense[:, 0] == dense[:, 1]).all() and (dense[:, 2] == dense[:, 3]).all():
        assert heads == 2
    else:
        assert heads == 4


def test_pairs_of_heads_stay_apart_without_key_heads():
    heads = ColumnMask(np.array([[[[1]], [[1]], [[0]], [[0]]]], np.int32), causal=True)
    assert collapse_heads(heads, seqlen_q=1).startend_row_indices.shape[1] == 4
    assert collapse_heads(heads, seqlen_q=1, num_heads_k=2).startend_row_indices.shape[1] == 2


def test_key_heads_that_do_not_divide_are_refused():
    heads = ColumnMask(np.zeros((1, 3, 1, 1), np.int32), causal=True)
    with pytest.raises(ValueError, match=r"^num_heads_k must divide the mask heads, 3; got 2$"):
        collapse_heads(heads, seqlen_q=1, num_heads_k=2)
