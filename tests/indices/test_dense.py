"""`from_dense` and `narrow`: exact, as narrow as can be, and refused where nothing can say it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import masks as support

from paddle_flashmask.indices import from_dense, is_same, narrow, to_dense

SIZES = [(1, 1), (1, 3), (2, 2), (3, 1), (2, 3), (3, 2), (4, 2), (2, 4), (3, 3), (5, 2)]


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), SIZES)
def test_every_small_mask_gets_the_narrowest_form_or_is_refused(seqlen_q, seqlen_k):
    sayable = [
        support.every_dense_of_form(causal, width, seqlen_q, seqlen_k)
        for causal, width in support.FORMS
    ]
    for visible in support.every_dense(seqlen_q, seqlen_k):
        forms = [
            form
            for form, all_masks in zip(support.FORMS, sayable, strict=True)
            if visible.tobytes() in all_masks
        ]
        if not forms:
            with pytest.raises(ValueError, match="visible cannot be expressed"):
                from_dense(visible)
            continue
        mask = from_dense(visible)
        assert (mask.causal, mask.startend_row_indices.shape[3]) == forms[0], visible
        assert mask.startend_row_indices.shape == (1, 1, seqlen_k, forms[0][1])
        assert mask.startend_row_indices.dtype == np.int32
        np.testing.assert_array_equal(support.dense_by_loops(mask, seqlen_q)[0, 0], visible)


@given(hnp.arrays(bool, hnp.array_shapes(min_dims=4, max_dims=4, min_side=1, max_side=5)))
def test_dense_masks_come_back_exactly_or_are_refused(visible):
    if not support.is_expressible(visible):
        with pytest.raises(ValueError, match="cannot be expressed"):
            from_dense(visible)
        return
    mask = from_dense(visible)
    np.testing.assert_array_equal(support.dense_by_loops(mask, visible.shape[2]), visible)
    assert mask.startend_row_indices.min(initial=0) >= 0
    assert mask.startend_row_indices.max(initial=0) <= visible.shape[2]


@given(support.masks_with_rows())
def test_what_indices_say_dense_says_back_and_narrow_agrees(drawn):
    mask, seqlen_q = drawn
    visible = support.dense_by_loops(mask, seqlen_q)
    np.testing.assert_array_equal(
        to_dense(mask.startend_row_indices, causal=mask.causal, seqlen_q=seqlen_q), visible
    )
    back = from_dense(visible)
    np.testing.assert_array_equal(support.dense_by_loops(back, seqlen_q), visible)
    narrowed = narrow(mask.startend_row_indices, causal=mask.causal, seqlen_q=seqlen_q)
    np.testing.assert_array_equal(support.dense_by_loops(narrowed, seqlen_q), visible)
    assert narrowed.causal == back.causal
    assert narrowed.startend_row_indices.shape == back.startend_row_indices.shape
    assert is_same(mask, back, seqlen_q=seqlen_q)


@given(st.data())
def test_is_same_tells_different_cells_apart(data):
    seqlen_q, seqlen_k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    first, second = (
        data.draw(support.masks(seqlen_q=seqlen_q, batch=1, heads=1, seqlen_k=seqlen_k))
        for _ in range(2)
    )
    dense = [support.dense_by_loops(mask, seqlen_q) for mask in (first, second)]
    assert is_same(first, second, seqlen_q=seqlen_q) == np.array_equal(*dense)


def test_columns_that_nobody_sees_start_at_their_diagonal_row():
    padded = narrow(np.array([[[[2, 0], [2, 0], [0, 9]]]], np.int32), causal=False, seqlen_q=3)
    assert padded.startend_row_indices[0, 0].tolist() == [[2, 0], [2, 0], [2, 2]]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_axes_left_out_are_one(rank):
    visible = np.tri(4, dtype=bool).reshape((1,) * (rank - 2) + (4, 4))
    mask = from_dense(visible)
    assert mask.startend_row_indices.tolist() == [[[[4]] * 4]]
    assert mask.causal


def test_heads_stay_as_given_unless_they_are_to_collapse():
    visible = np.stack([np.tri(3, dtype=bool)] * 2)
    assert from_dense(visible).startend_row_indices.shape == (1, 2, 3, 1)
    assert from_dense(visible, collapse=True).startend_row_indices.shape == (1, 1, 3, 1)
    visible[1, 2, 0] = False
    assert from_dense(visible, collapse=True).startend_row_indices.shape == (1, 2, 3, 1)


def striped(seqlen_q, columns):
    """Return a mask whose given columns mask every other row, from row 0."""
    visible = np.ones((2, 1, seqlen_q, 7), bool)
    visible[1, :, ::2, columns] = False
    return visible


BAD_VALUES = [
    (
        striped(5, [3]),
        "visible cannot be expressed: a column holds at most 2 runs of masked rows, but 1 column "
        "has more: sample 1 head 0 column 3 (3 runs)",
    ),
    (
        striped(7, [0, 1, 2, 4, 5, 6]),
        "visible cannot be expressed: a column holds at most 2 runs of masked rows, but 6 columns "
        "have more: sample 1 head 0 column 0 (4 runs), sample 1 head 0 column 1 (4 runs), "
        "sample 1 head 0 column 2 (4 runs), sample 1 head 0 column 4 (4 runs) and 2 more",
    ),
    (
        np.ones(3, bool),
        "visible must have axes [Sq, Sk], [Hm, Sq, Sk] or [B, Hm, Sq, Sk]; got shape [3]",
    ),
]
BAD_KINDS = [
    ([[True]], "visible must be a numpy array; got list"),
    (
        np.zeros((2, 2), np.float32),
        "visible must be bool, True where a row sees a column; got float32 "
        "(a mask of 0 and -inf, or of 1 for masked, must be compared first)",
    ),
]


@pytest.mark.parametrize(("visible", "message"), BAD_VALUES)
def test_values_are_refused_in_words(visible, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_dense(visible)


@pytest.mark.parametrize(("visible", "message"), BAD_KINDS)
def test_kinds_are_refused_in_words(visible, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        from_dense(visible)
