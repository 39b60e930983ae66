import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_flashmask.indices import to_dense
from paddle_flashmask.packing import (
    from_batch,
    from_index_lists,
    from_indices,
    from_pack_offsets,
    pack_sft,
)

SEQ_LEN = 12
RANKS = {
    "[S]": lambda rows: rows[0],
    "[B, S]": lambda rows: rows,
    "[B, 1, S]": lambda rows: rows[:, None],
    "[B, 1, S, 1]": lambda rows: rows[:, None, :, None],
}
PADDINGS = {
    "own": lambda real: [*real, *range(len(real), SEQ_LEN)],
    "last": lambda real: [*real, *[len(real)] * (SEQ_LEN - len(real))],
    "zero": lambda real: [*real, *[0] * (SEQ_LEN - len(real))],
    "zero, left": lambda real: [
        *[0] * (SEQ_LEN - len(real)),
        *[SEQ_LEN - len(real) + number for number in real],
    ],
    "next": lambda real: [*real, *range(len(real) + 1, SEQ_LEN + 1)],
}


@st.composite
def real_numbers(draw):
    """Numbers of packed SFT samples or of one preference pair, at most SEQ_LEN of them."""
    if draw(st.booleans()):
        lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        ends = np.cumsum(lengths)
        return np.repeat(ends, lengths).tolist()
    prompt, chosen, rejected = (draw(st.integers(1, 4)) for _ in range(3))
    total = prompt + chosen + rejected
    return [total] * prompt + [prompt + chosen] * chosen + [total] * rejected


def dense_of(rows):
    rows = np.asarray(rows, np.int32)
    return to_dense(rows[:, None, :, None], causal=True, seqlen_q=SEQ_LEN)[:, 0]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(real=real_numbers())
def test_real_rows_keep_what_they_see_and_padding_sees_nothing(rank, padding, dtype, real):
    theirs = np.array([PADDINGS[padding](real)], dtype)
    ours = from_indices(RANKS[rank](theirs), [len(real)])
    assert (ours.shape, ours.dtype) == ((1, 1, SEQ_LEN, 1), np.int32)
    columns = np.arange(SEQ_LEN)
    is_left = padding == "zero, left"
    is_real = columns >= SEQ_LEN - len(real) if is_left else columns < len(real)
    before, after = dense_of(theirs)[0], dense_of(ours.reshape(1, -1))[0]
    assert (before[is_real] == after[is_real]).all()
    assert not after[~is_real].any()
    assert not after[:, ~is_real].any()
    assert (ours.ravel()[~is_real] == columns[~is_real]).all()


def test_rows_of_a_batch_may_follow_different_conventions():
    rows = [PADDINGS[name]([2, 2, 3][:size]) for name, size in (("last", 2), ("zero, left", 3))]
    ours = from_indices(rows, [2, 3])
    assert ours[0].ravel().tolist() == [2, 2, *range(2, SEQ_LEN)]
    assert ours[1].ravel().tolist() == [*range(9), 11, 11, 12]


def test_a_row_of_padding_alone_is_masked():
    assert from_indices([[0, 0, 0]], [0]).ravel().tolist() == [0, 1, 2]


@given(lengths=st.lists(st.integers(1, 4), max_size=3))
def test_lists_and_offsets_equal_our_packing(lengths):
    samples = [([1] * length, [1] * length) for length in lengths]
    packed = pack_sft(samples, seq_len=SEQ_LEN, strategy="sequential")
    empty = np.arange(SEQ_LEN)[None, None, :, None]
    wanted = packed[0]["attn_mask_startend_row_indices"] if lengths else empty
    lists = [[length] * length for length in lengths]
    assert (from_index_lists(lists, seq_len=SEQ_LEN) == wanted).all()
    offsets = [*np.cumsum([0, *lengths]), -1, -1]
    assert (from_pack_offsets([offsets], seq_len=SEQ_LEN) == wanted).all()
    assert (from_pack_offsets(offsets, seq_len=SEQ_LEN) == wanted).all()


@pytest.mark.parametrize(
    "batch",
    [
        {"attn_mask_startend_row_indices": [[[2, 2, 3, 3]]], "input_ids": None},
        {"attn_mask_start_row_indices": np.array([[[2, 2, 3, 3]]])},
        {"inbatch_pack_offset": [[0, 2, 3, -1]], "attn_mask_startend_row_indices": None},
    ],
)
def test_fields_are_found_under_all_names(batch):
    assert from_batch(batch, [3], seq_len=4).ravel().tolist() == [2, 2, 3, 3]


RANK_TEXT = "startend_row_indices must be [S], [B, S], [B, 1, S] or [B, 1, S, 1]; got shape "
ERRORS = [
    (lambda: from_indices([[0.5]], [1]), TypeError, "startend_row_indices must be ints; got float"),
    (lambda: from_indices(np.ones((1, 2, 3), int), [3]), ValueError, RANK_TEXT + "[1, 2, 3]"),
    (lambda: from_indices(np.ones((1, 1, 3, 2), int), [3]), ValueError, RANK_TEXT + "[1, 1, 3, 2]"),
    (lambda: from_indices(np.ones((1,) * 5, int), [1]), ValueError, RANK_TEXT + "[1, 1, 1, 1, 1]"),
    (
        lambda: from_indices([[1], [1]], [1]),
        ValueError,
        "lengths must be one for each of 2 rows; got 1",
    ),
    (
        lambda: from_indices([[1], [1]], [1, 2]),
        ValueError,
        "lengths must be in [0, 1]; got 2 for r",
    ),
    (
        lambda: from_indices([[2, -1]], [2]),
        ValueError,
        "startend_row_indices must be at least 0; got -1 in row 0",
    ),
    (
        lambda: from_indices([[2, 2, 2], [2, 2, 7]], [2, 2]),
        ValueError,
        "padding of startend_row_indices must hold 0, its column, its column + 1 or the row's "
        "length 2, all of it the same; got 7 at column 2 in row 1",
    ),
    (
        lambda: from_indices([[4] * 4 + [5, 6, 7, 8, 9, 10, 11, 3]], [4]),
        ValueError,
        "padding of startend_row_indices must hold 0, its column, its column + 1 or the row's "
        "length 4, all of it the same; got 3 at column 11 in row 0",
    ),
    (
        lambda: from_index_lists([[1], [1, 3]], seq_len=4),
        ValueError,
        "lists[1] must hold numbers in [0, 2], its length; got 3 at position 1",
    ),
    (
        lambda: from_index_lists([[[1]]], seq_len=4),
        ValueError,
        "lists[0] must be flat; got shape [",
    ),
    (
        lambda: from_index_lists([[2, 2], [1]], seq_len=2),
        ValueError,
        "lists must have at most seq_len=2 numbers in all; got 3",
    ),
    (
        lambda: from_pack_offsets([[0, 2], [1, 2]], seq_len=4),
        ValueError,
        "inbatch_pack_offset must rise from 0 to at most seq_len=4; got 1 at position 0 in row 1",
    ),
    (
        lambda: from_pack_offsets([[0, 5]], seq_len=4),
        ValueError,
        "inbatch_pack_offset must rise from 0 to at most seq_len=4; got 5 at position 1 in row 0",
    ),
    (
        lambda: from_pack_offsets([[0, 1, 2, 3, 4, 5, 6, 5, 8]], seq_len=8),
        ValueError,
        "inbatch_pack_offset must rise from 0 to at most seq_len=8; got 5 at position 7 in row 0",
    ),
    (
        lambda: from_pack_offsets([[-1, -1]], seq_len=8),
        ValueError,
        "inbatch_pack_offset must rise from 0 to at most seq_len=8; got none in row 0",
    ),
    (
        lambda: from_pack_offsets(3, seq_len=4),
        ValueError,
        "inbatch_pack_offset must be [batch, n] ",
    ),
    (
        lambda: from_batch({"input_ids": [1]}, [1], seq_len=1),
        ValueError,
        "batch must have one of attn_mask_startend_row_indices, attn_mask_start_row_indices, "
        "inbatch_pack_offset; got none",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), ERRORS)
def test_wrong_fields_are_named(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("batch", "lengths", "text"),
    [
        (
            {"attn_mask_startend_row_indices": [[[2, 2, 3, 3]]]},
            [3],
            "seq_len must be that of attn_mask_startend_row_indices, 4; got 8",
        ),
        (
            {"inbatch_pack_offset": [[0, 2, 5]]},
            [3],
            "lengths must be where inbatch_pack_offset ends, 5 in row 0; got 3",
        ),
        (
            {"inbatch_pack_offset": [[0, 2, 5]]},
            [5, 5],
            "lengths must be one for each of 1 rows; got 2",
        ),
        (
            {"inbatch_pack_offset": [[0, 5]] * 8 + [[0, 4]]},
            [5] * 9,
            "lengths must be where inbatch_pack_offset ends, 4 in row 8; got 5",
        ),
    ],
)
def test_batches_that_contradict_an_argument_are_refused(batch, lengths, text):
    with pytest.raises(ValueError, match="must") as caught:
        from_batch(batch, lengths, seq_len=8)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("numbers", "length", "place"),
    [([0, 0, 3, 3, 3], 3, "3 at column 3"), ([1, 1, 1, 3, 4], 3, "1 at column 1")],
)
def test_real_tokens_that_do_not_see_themselves_are_refused(numbers, length, place):
    with pytest.raises(ValueError, match=f"let each real token see itself.*got {place} in row 0"):
        from_indices([numbers], [length])


@pytest.mark.parametrize("offsets", [[0, -1, 3], [-1, 0, 3]])
def test_filler_before_the_last_offset_is_refused(offsets):
    with pytest.raises(ValueError, match="must rise from 0"):
        from_pack_offsets(offsets, seq_len=4)
