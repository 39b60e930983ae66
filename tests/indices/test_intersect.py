"""`intersect`: visible in both, in the narrowest form, or refused with the columns."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import masks as support

from paddle_flashmask.indices import ColumnMask, from_dense, intersect
from paddle_flashmask.recipes import (
    causal_document,
    document,
    prefix_lm_document,
    qk_sparse,
    random_eviction,
    sliding_window,
)


def assert_intersection(first, second, seqlen_q):
    dense = [support.dense_by_loops(mask, seqlen_q) for mask in (first, second)]
    heads = max(one.shape[1] for one in dense)
    visible = np.logical_and(*(np.repeat(one, heads // one.shape[1], axis=1) for one in dense))
    if not support.is_expressible(visible):
        with pytest.raises(ValueError, match="the intersection of first and second cannot be"):
            intersect(first, second, seqlen_q=seqlen_q)
        return
    both = intersect(first, second, seqlen_q=seqlen_q)
    np.testing.assert_array_equal(support.dense_by_loops(both, seqlen_q), visible)
    narrowest = from_dense(visible)  # minimal: see test_dense.py
    assert both.causal == narrowest.causal
    assert both.startend_row_indices.shape == narrowest.startend_row_indices.shape


@given(st.data())
def test_it_is_what_both_see_in_the_narrowest_form(data):
    seqlen_q, seqlen_k = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 4))
    batches = data.draw(st.sampled_from([(1, 1), (2, 2), (1, 2), (2, 1), (0, 1)]))
    heads = data.draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (2, 4)]))
    first, second = (
        data.draw(support.masks(seqlen_q=seqlen_q, batch=batch, heads=number, seqlen_k=seqlen_k))
        for batch, number in zip(batches, heads, strict=True)
    )
    assert_intersection(first, second, seqlen_q)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 1), (2, 1), (3, 1), (2, 2), (1, 3)])
def test_every_small_pair(seqlen_q, seqlen_k):
    masks = [
        ColumnMask(np.array(numbers, np.int32).reshape(1, 1, seqlen_k, width), causal)
        for causal, width in [(True, 1), (True, 2), (False, 2)]
        for numbers in itertools.product(range(seqlen_q + 1), repeat=seqlen_k * width)
    ]
    generator = np.random.default_rng(0)
    pairs = list(itertools.product(masks, masks))
    chosen = generator.permutation(len(pairs))[:2000]
    for number in chosen:
        assert_intersection(*pairs[number], seqlen_q)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(causal_document([5, 4], 12), sliding_window(12, 3), id="document-window"),
        pytest.param(document([5, 4], 12), sliding_window(12, left=2, right=1), id="two-way"),
        pytest.param(
            prefix_lm_document([5, 7], [2, 3]), causal_document([10], 12), id="prefix-padding"
        ),
        pytest.param(
            random_eviction(8, seed=1, num_heads_mask=4), sliding_window(8, 3), id="eviction-window"
        ),
        pytest.param(qk_sparse(9, [(1, 4), (6, 8)]), causal_document([4, 5]), id="sparse-document"),
    ],
)
def test_recipes(first, second):
    assert_intersection(first, second, first.startend_row_indices.shape[2])


def test_documents_with_a_window_stay_one_number_a_column():
    both = intersect(causal_document([5, 4], 12), sliding_window(12, 3), seqlen_q=12)
    assert both.causal
    assert both.startend_row_indices[0, 0, :, 0].tolist() == [3, 4, 5, 5, 5, 8, 9, 9, 9, 9, 10, 11]


TWO_HOLES = support.filled(False, [1, 2, 4, 5])
OTHER_HOLES = support.filled(False, [6, 7, 8, 8])
ONE = support.filled(True, [1], [2])
BATCH_2 = ColumnMask(np.zeros((2, 1, 1, 1), np.int32), causal=True)
BATCH_3 = ColumnMask(np.zeros((3, 1, 1, 1), np.int32), causal=True)
HEADS_2 = ColumnMask(np.zeros((1, 2, 1, 1), np.int32), causal=True)
HEADS_3 = ColumnMask(np.zeros((1, 3, 1, 1), np.int32), causal=True)
BAD_VALUES = [
    (
        TWO_HOLES,
        OTHER_HOLES,
        "the intersection of first and second cannot be expressed: a column holds at most 2 runs "
        "of masked rows, but 1 column has more: sample 0 head 0 column 0 (3 runs)",
    ),
    (
        ONE,
        TWO_HOLES,
        "first and second must have as many columns; "
        "got [batch, heads, seqlen_k] [1, 1, 2] and [1, 1, 1]",
    ),
    (
        BATCH_2,
        BATCH_3,
        "first and second must have one batch, or one of them batch 1; "
        "got [batch, heads, seqlen_k] [2, 1, 1] and [3, 1, 1]",
    ),
    (
        HEADS_2,
        HEADS_3,
        "the mask heads of first and second must be one a multiple of the other; "
        "got [batch, heads, seqlen_k] [1, 2, 1] and [1, 3, 1]",
    ),
]


@pytest.mark.parametrize(("first", "second", "message"), BAD_VALUES)
def test_values_are_refused_in_words(first, second, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        intersect(first, second, seqlen_q=9)


def test_a_bare_array_is_no_mask():
    message = "second must be a ColumnMask(startend_row_indices, causal); got ndarray"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        intersect(ONE, ONE.startend_row_indices, seqlen_q=2)
