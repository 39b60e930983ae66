"""Document masks from offsets, segment ids and positions."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_flashmask.indices import (
    count_visible,
    from_cu_seqlens,
    from_position_ids,
    from_segment_ids,
    is_same,
    to_dense,
)
from paddle_flashmask.recipes import causal_document, document

PADDING = -7
lengths_lists = st.lists(st.integers(0, 4), max_size=4)


def dense_of(mask):
    indices = mask.startend_row_indices
    return to_dense(indices, causal=mask.causal, seqlen_q=indices.shape[2])


def same_document_by_loops(documents, causal):
    """Return [B, 1, S, S] from a document number per token, None for padding."""
    batch, length = len(documents), len(documents[0]) if documents else 0
    visible = np.zeros((batch, 1, length, length), bool)
    for sample, _, row, column in np.ndindex(*visible.shape):
        one, other = documents[sample][row], documents[sample][column]
        together = one is not None and one == other
        visible[sample, 0, row, column] = together and (column <= row or not causal)
    return visible


def assert_documents(mask, documents, causal):
    np.testing.assert_array_equal(dense_of(mask), same_document_by_loops(documents, causal))
    assert mask.causal == causal
    assert mask.startend_row_indices.dtype == np.int32
    assert mask.startend_row_indices.shape[3] == (1 if causal else 2)


@st.composite
def packed(draw, *, batch=None):
    """Draw per sample the document number of each token, documents first, padding behind."""
    length = draw(st.integers(0, 7))
    samples = []
    for _ in range(draw(st.integers(1, 3)) if batch is None else batch):
        real = draw(st.integers(0, length))
        starts = draw(st.lists(st.booleans(), min_size=real, max_size=real))
        numbers = np.cumsum(starts).tolist() if starts else []
        samples.append(numbers + [None] * (length - real))
    return samples


@given(documents=packed(batch=1), causal=st.booleans(), empty=st.integers(0, 2))
def test_offsets_of_documents(documents, causal, empty):
    row = documents[0]
    real = [number for number in row if number is not None]
    starts = [at for at in range(len(real)) if at == 0 or real[at] != real[at - 1]]
    offsets = [*(starts or [0]), *[len(real)] * empty]
    offsets += [len(real)] if offsets[-1] != len(real) else []
    mask = from_cu_seqlens(offsets, causal=causal, seq_len=len(row))
    assert_documents(mask, documents, causal)
    as_array = from_cu_seqlens(np.array(offsets, np.int32), causal=causal, seq_len=len(row))
    np.testing.assert_array_equal(as_array.startend_row_indices, mask.startend_row_indices)


@given(lengths=lengths_lists, padding=st.integers(0, 3))
def test_offsets_give_the_numbers_of_the_recipes(lengths, padding):
    offsets = [0, *np.cumsum(lengths).tolist()]
    seq_len = sum(lengths) + padding
    for causal, recipe in ((True, causal_document), (False, document)):
        np.testing.assert_array_equal(
            from_cu_seqlens(offsets, causal=causal, seq_len=seq_len).startend_row_indices,
            recipe(lengths, seq_len).startend_row_indices,
        )


@given(documents=packed(), causal=st.booleans(), data=st.data())
def test_segment_ids_of_documents(documents, causal, data):
    names = data.draw(st.permutations(range(-3, 9)))
    ids = [[PADDING if number is None else names[number] for number in row] for row in documents]
    mask = from_segment_ids(
        np.array(ids, np.int64).reshape(len(ids), -1), causal=causal, padding_id=PADDING
    )
    assert_documents(mask, documents, causal)


@given(documents=packed(), causal=st.booleans(), data=st.data())
def test_positions_of_documents(documents, causal, data):
    positions, real = [], []
    for row in documents:
        first = data.draw(st.integers(0, 5))
        known = [number for number in row if number is not None]
        places = []
        for at, number in enumerate(known):
            goes_on = at > 0 and number == known[at - 1]
            places.append(places[-1] + 1 if goes_on else 0 if at else first)
        junk = data.draw(
            st.lists(
                st.integers(-2, 9), min_size=len(row) - len(known), max_size=len(row) - len(known)
            )
        )
        positions.append(places + junk)
        real.append(len(known))
    mask = from_position_ids(
        np.array(positions, np.int64).reshape(len(positions), -1), causal=causal, num_tokens=real
    )
    assert_documents(mask, documents, causal)


def test_padding_may_stand_anywhere():
    mask = from_segment_ids([[0, 4, 4, 0, 0, 5, 0]], padding_id=0)
    assert mask.startend_row_indices[0, 0, :, 0].tolist() == [0, 3, 3, 3, 4, 6, 6]


def test_positions_of_the_field_case():
    assert from_position_ids([0, 1, 2, 0, 1, 0, 1, 2]).startend_row_indices[
        0, 0, :, 0
    ].tolist() == [3, 3, 3, 5, 5, 8, 8, 8]
    separate = from_position_ids([0, 0, 1, 0])
    assert is_same(separate, causal_document([1, 2, 1]), seqlen_q=4)
    continued = from_position_ids([5, 6, 7])
    assert is_same(continued, causal_document([3]), seqlen_q=3)
    batch = from_position_ids([[0, 1, 0, 1], [0, 1, 2, 0]])
    assert batch.startend_row_indices[:, 0, :, 0].tolist() == [[2, 2, 4, 4], [3, 3, 3, 4]]


def test_empty_documents_leave_no_trace():
    mask = from_cu_seqlens([0, 3, 3, 5, 5])
    assert mask.startend_row_indices[0, 0, :, 0].tolist() == [3, 3, 3, 5, 5]
    assert from_cu_seqlens([0, 0]).startend_row_indices.shape == (1, 1, 0, 1)
    assert from_segment_ids([[]]).startend_row_indices.shape == (1, 1, 0, 1)
    assert from_position_ids(np.zeros((0, 4), np.int64)).startend_row_indices.shape == (0, 1, 4, 1)


RETURNING = (
    "segment_ids must keep equal ids together, an id that comes back would be split into "
    "documents that do not see each other; got {} after another id"
)
AXES = (
    "position_ids must have axes [batch, seqlen] or [seqlen]; positions on three axes are not "
    "supported, they do not tell documents apart: got shape {}"
)
STEP = "position_ids must go up by 1 or start again at 0; got {}"
BAD_VALUES = [
    (from_cu_seqlens, [], {}, "cu_seqlens must start at 0; got no offset"),
    (from_cu_seqlens, [1, 3], {}, "cu_seqlens must start at 0; got 1"),
    (from_cu_seqlens, [[0, 3]], {}, "cu_seqlens must have 1 axis; got shape [1, 2]"),
    (
        from_cu_seqlens,
        [0, 3, 2, 1],
        {},
        "cu_seqlens must not go down; got cu_seqlens[1] = 3 and cu_seqlens[2] = 2 "
        "(are these lengths?)",
    ),
    (from_cu_seqlens, [0, 2**31], {}, "cu_seqlens must end by 2147483647; got 2147483648"),
    (
        from_cu_seqlens,
        [0, 3],
        {"seq_len": 2},
        "seq_len must be at least the last offset, 3; got 2",
    ),
    (
        from_cu_seqlens,
        [[0], [0, 1]],
        {},
        "cu_seqlens must have rows of one length; got [[0], [0, 1]]",
    ),
    (
        from_segment_ids,
        [[1, 1, 1], [1, 2, 1]],
        {},
        RETURNING.format("id 1 at sample 1 position 2"),
    ),
    (
        from_segment_ids,
        [1, 2, 1, 2, 1, 2, 1],
        {},
        RETURNING.format(
            "id 1 at sample 0 position 2, id 2 at sample 0 position 3, "
            "id 1 at sample 0 position 4, id 2 at sample 0 position 5 and 1 more"
        ),
    ),
    (
        from_segment_ids,
        [[1, 0, 1]],
        {"padding_id": 0},
        RETURNING.format("id 1 at sample 0 position 2"),
    ),
    (
        from_segment_ids,
        [[[1]]],
        {},
        "segment_ids must have axes [batch, seqlen] or [seqlen]; got shape [1, 1, 1]",
    ),
    (from_position_ids, np.zeros((3, 1, 8), np.int64), {}, AXES.format([3, 1, 8])),
    (from_position_ids, [0, 1, 1, 2], {}, STEP.format("1 after 1 at sample 0 position 2")),
    (from_position_ids, [[0, 1], [0, 2]], {}, STEP.format("2 after 0 at sample 1 position 1")),
    (from_position_ids, [-1, 0], {}, STEP.format("-1 at sample 0 position 0")),
    (
        from_position_ids,
        [[0, 1]],
        {"num_tokens": [1, 2]},
        "num_tokens must hold one number per row, 1; got shape [2]",
    ),
    (
        from_position_ids,
        [[0, 1], [0, 1]],
        {"num_tokens": [2, 3]},
        "num_tokens[1] must be in [0, 2]; got 3",
    ),
]
BAD_KINDS = [
    (from_cu_seqlens, 3, {}, "cu_seqlens must be a list, tuple or integer array; got int 3"),
    (from_cu_seqlens, [0.0, 3.0], {}, "cu_seqlens must hold ints; got an array of float64"),
    (from_cu_seqlens, [False, True], {}, "cu_seqlens must hold ints; got an array of bool"),
    (from_cu_seqlens, [0, 3], {"causal": 1}, "causal must be a bool; got int 1"),
    (from_cu_seqlens, [0, 3], {"seq_len": 4.0}, "seq_len must be an int; got float 4.0"),
    (from_segment_ids, ["a"], {}, "segment_ids must hold ints; got an array of <U1"),
    (from_segment_ids, [1], {"causal": None}, "causal must be a bool; got NoneType None"),
    (from_segment_ids, [1], {"padding_id": 0.0}, "padding_id must be an int; got float 0.0"),
    (from_position_ids, [0.5], {}, "position_ids must hold ints; got an array of float64"),
    (
        from_position_ids,
        [0],
        {"num_tokens": [1.0]},
        "num_tokens must hold ints; got an array of float64",
    ),
]


@pytest.mark.parametrize(("convert", "values", "options", "message"), BAD_VALUES)
def test_values_are_refused_in_words(convert, values, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        convert(values, **options)


@pytest.mark.parametrize(("convert", "values", "options", "message"), BAD_KINDS)
def test_kinds_are_refused_in_words(convert, values, options, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        convert(values, **options)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        (
            [0, 2**63 - 1, -5],
            "cu_seqlens must not go down; got cu_seqlens[1] = 9223372036854775807",
        ),
        (
            np.array([0, 2**63], np.uint64),
            "cu_seqlens must hold ints of 64 bits; got 92233720368547",
        ),
    ],
)
def test_offsets_do_not_overflow(offsets, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        from_cu_seqlens(offsets, seq_len=8)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.uint32, np.uint64])
def test_numbers_of_rows_of_numpy_do_not_overflow(kind):
    rows = np.full((1, 1, 4, 1), 8, np.int32)
    wanted = to_dense(rows, causal=True, seqlen_q=8)
    assert (to_dense(rows, causal=True, seqlen_q=kind(8)) == wanted).all()
    assert count_visible(rows, causal=True, seqlen_q=kind(8)).tolist() == [[wanted.sum()]]
