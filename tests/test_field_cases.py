"""Faults that users of masked attention reported elsewhere, each as a trial with a known answer.

The number in a name (F01) is that of the report in the project's list; the arrays are computed by
hand from the formula: COUNT means q = 0 and v_j = j + 1, so that out is the mean of j + 1 over the
keys a row sees, and the gradient of v_j is the sum of 1 / n_i over the rows i that see it.
"""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from support import calls, cases, dense, tolerance
from support.cases import AttentionCase, Mask
from support.field import (
    HEAD_DIMS,
    ODD_LENGTHS,
    Count,
    check_count,
    column_mask,
    documents,
)

from paddle_flashmask import flashmask_attention


@pytest.fixture(params=HEAD_DIMS)
def head_dim(request):
    return request.param


@pytest.fixture(params=cases.DTYPES)
def dtype(request):
    return request.param


# K01: rows that see nothing.


def test_f01_padding_rows_are_zero(head_dim, dtype):
    check_count(
        column_mask([5] * 8), 8, 8, head_dim, dtype,
        out=[1, 1.5, 2, 2.5, 3, 0, 0, 0],
        grad_value=[2.2833, 1.2833, 0.7833, 0.45, 0.2, 0, 0, 0],
    )  # fmt: skip


@pytest.mark.parametrize("empty", [0, 1, 63, 64, 65, 127, 129])
@pytest.mark.parametrize("length", [1, 64, 65, 130])
def test_f01_padding_rows_are_zero_wherever_they_begin(length, empty, dtype, rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length, dtype=dtype), rng)
    mask = column_mask([min(empty, length)] * length)
    calls.assert_right(calls.run(inputs, mask, dtype=dtype), inputs, mask, dtype)


@pytest.mark.parametrize("where", ["first", "middle", "every_other"])
def test_f01_hidden_rows_in_any_place_are_zero(where, dtype, rng):
    length = 130
    row_is_hidden = {"first": (0, 70), "middle": (60, 70), "every_other": (0, 129)}[where]
    begin, end = (np.full(length, bound) for bound in row_is_hidden)
    mask = column_mask(begin, end, np.zeros(length), np.zeros(length), causal=False)
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length, dtype=dtype), rng)
    calls.assert_right(calls.run(inputs, mask, dtype=dtype), inputs, mask, dtype)


# K02: edges of the mask shape.


def test_f03_each_row_sees_itself_when_documents_have_one_token(head_dim, dtype):
    check_count(
        column_mask([1, 2, 3, 4]), 4, 4, head_dim, dtype,
        out=[1, 2, 3, 4],
        grad_value=[1, 1, 1, 1],
    )  # fmt: skip


def test_f03_nothing_is_seen_when_documents_end_before_they_start(head_dim, dtype):
    check_count(
        column_mask([0, 1, 2, 3]), 4, 4, head_dim, dtype,
        out=[0] * 4,
        grad_value=[0] * 4,
    )  # fmt: skip


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("length", [130, 257])
def test_f03_diagonal_survives_in_every_tile(length, width, dtype):
    own = np.arange(1, length + 1)
    bounds = [own, np.full(length, length)][:width]
    exact_to = 256 if dtype == "bfloat16" else length
    count = Count(column_mask(*bounds), length, length, 64, dtype)
    expected = np.arange(1.0, length + 1)
    np.testing.assert_array_equal(count.results.out[0, :exact_to, 0, 0], expected[:exact_to])


@pytest.mark.parametrize("offset", [-1, 0, 1, 2])
@pytest.mark.parametrize("length", [63, 64, 65, 129, 193])
def test_f03_bounds_near_the_diagonal_match_dense(length, offset, rng):
    bounds = np.arange(length) + offset
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length), rng)
    for mask in (
        column_mask(bounds),
        column_mask(bounds, bounds + 1),
        column_mask(np.full(length, length), bounds, causal=False),
        column_mask(bounds, bounds + 1, bounds - 2, bounds - 1, causal=False),
    ):
        calls.assert_right(calls.run(inputs, mask), inputs, mask, "float32")


WINDOW_BY_INDICES = column_mask([3, 4, 5, 6, 6, 6])


@pytest.mark.parametrize(
    "mask", [WINDOW_BY_INDICES, Mask(None, True, 2)], ids=["indices", "window"]
)
def test_f04_window_of_two_sees_three_tokens(mask, head_dim, dtype):
    check_count(
        mask, 6, 6, head_dim, dtype,
        out=[1, 1.5, 2, 3, 4, 5],
        grad_value=[1.8333, 1.1667, 1, 1, 0.6667, 0.3333],
    )  # fmt: skip


def test_f04_window_and_indices_agree_bit_for_bit(dtype, rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=6, head_dim=64, dtype=dtype), rng)
    by_window = calls.run(inputs, Mask(None, True, 2), dtype=dtype)
    tolerance.assert_same_bits(by_window, calls.run(inputs, WINDOW_BY_INDICES, dtype=dtype))


def test_f04_window_together_with_indices_is_refused():
    tensors = [paddle.ones([1, 6, 1, 64])] * 3
    with pytest.raises(ValueError, match="window_size must be None when startend_row_indices"):
        flashmask_attention(*tensors, WINDOW_BY_INDICES.indices, True, window_size=2)


@pytest.mark.parametrize("window", [-1, (-1, 0), (0, -1)])
def test_f04_negative_width_is_not_taken_as_no_limit(window):
    with pytest.raises(ValueError, match="window_size must not be negative"):
        flashmask_attention(*[paddle.ones([1, 6, 1, 64])] * 3, causal=True, window_size=window)


def test_f05_prefix_is_seen_both_ways(head_dim, dtype):
    check_count(
        column_mask([6] * 6, [0, 0, 0, 3, 4, 5], causal=False), 6, 6, head_dim, dtype,
        out=[2, 2, 2, 2.5, 3, 3.5],
    )  # fmt: skip


def test_f05_documents_are_seen_both_ways(head_dim, dtype):
    check_count(
        column_mask([2, 2, 5, 5, 5], [0, 0, 2, 2, 2], causal=False), 5, 5, head_dim, dtype,
        out=[1.5, 1.5, 4, 4, 4],
        grad_value=[1] * 5,
    )  # fmt: skip


# K03: lengths that do not fill a tile.


@pytest.mark.parametrize("length", ODD_LENGTHS)
def test_f07_last_token_alone_at_any_length(length, dtype):
    ends = np.full(length, length - 1)
    ends[-1] = length
    # Positions past 256 are not exact in bfloat16, past 2048 not in float16: round them first.
    # 32 lanes: a sum over 64 of positions up to 1025 would overflow dense float16 maths.
    count = calls.count_inputs(1, length, length, 1, 1, 32)
    inputs = count._replace(value=dense.ROUNDINGS[dtype](count.value))
    mask = column_mask(ends)
    ours = calls.run(inputs, mask, dtype=dtype, grads="out")
    calls.assert_right(ours, inputs, mask, dtype, grads="out")
    exact = calls.exact(count, mask)
    rows = np.arange(length)
    tolerance.assert_printed(
        exact.out[0, :, 0, 0], list(np.where(rows < length - 1, (rows + 2) / 2, length))
    )


@pytest.mark.parametrize("length", ODD_LENGTHS)
@pytest.mark.parametrize(("causal", "width"), cases.FORMS)
def test_f07_index_array_is_not_read_past_its_end(causal, width, length, rng):
    # A neighbour that would hide everything, behind a view and behind the end of the array.
    bounds = rng.integers(0, length + 1, (2, 1, length, width)).astype(np.int32)
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length, num_heads=1, num_heads_k=1), rng)
    mask = Mask(bounds[:1].copy(), causal)
    bounds[1] = [0, length, 0, length][:width] if width != 2 or causal else [0, length]
    neighbour = paddle.to_tensor(bounds)[:1]
    alone = calls.run(inputs, mask)
    tolerance.assert_same_bits(alone, calls.run(inputs, Mask(neighbour, causal)))


# K04: query length differs from key length.


def test_f09_fewer_rows_than_keys_align_to_the_bottom_right(head_dim, dtype):
    check_count(
        column_mask([2] * 5), 2, 5, head_dim, dtype,
        out=[2.5, 3],
        grad_value=[0.45, 0.45, 0.45, 0.45, 0.2],
    )  # fmt: skip


def test_f09_more_rows_than_keys_align_to_the_bottom_right(head_dim, dtype):
    check_count(
        column_mask([5] * 2), 5, 2, head_dim, dtype,
        out=[0, 0, 0, 1, 1.5],
        grad_value=[1.5, 0.5],
    )  # fmt: skip


@pytest.mark.parametrize(("rows", "columns"), [(65, 200), (200, 65), (1, 64), (64, 1), (63, 64)])
def test_f09_no_indices_align_to_the_bottom_right(rows, columns, dtype):
    count = Count(Mask(None, causal=True), rows, columns, 64, dtype)
    seen = np.clip(np.arange(rows) + 1 + columns - rows, 0, columns)
    with np.errstate(divide="ignore"):
        expected = np.log(seen)[None, None]
    lse = count.results.softmax_lse[:, :1]
    tolerance.assert_array_close("softmax_lse", lse, expected, None, "float32")


# K05: empty inputs and empty documents.


@pytest.mark.parametrize(("batch", "rows", "columns"), [(0, 4, 4), (1, 0, 4), (1, 4, 0)])
def test_f11_empty_inputs_give_zeros_and_later_calls_work(batch, rows, columns, dtype, rng):
    case = AttentionCase(batch=batch, seqlen_q=rows, seqlen_k=columns, head_dim=64, dtype=dtype)
    inputs = calls.random_inputs(case, rng)
    mask = Mask(np.zeros((batch, 1, columns, 1), np.int32), causal=True)
    ours = calls.run(inputs, mask, dtype=dtype)
    assert [a.shape for a in ours[2:]] == [a.shape for a in inputs[:3]]
    calls.assert_right(ours, inputs, mask, dtype)
    calls.check_case(AttentionCase("causal_documents", dtype=dtype), rng)


def test_f11_documents_of_no_length_leave_no_trace(head_dim, dtype):
    check_count(documents([3, 0, 2, 0]), 5, 5, head_dim, dtype, out=[1, 1.5, 2, 4, 4.5])


def test_f11_all_documents_empty_is_no_error(rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=0), rng)
    ours = calls.run(inputs, documents([0, 0]))
    assert ours.out.shape == (1, 0, 2, 16)


# K06: heads and batch.


@pytest.mark.parametrize(
    ("num_heads", "num_heads_k", "expected"),
    [
        (6, 2, [[9, 3], [22.5, 7.5]]),
        (8, 1, [[54, 18]]),
        (3, 3, [[1.5, 0.5], [3, 1], [4.5, 1.5]]),
    ],
)
def test_f13_gradients_of_values_add_up_over_the_group(
    num_heads, num_heads_k, expected, head_dim, dtype
):
    inputs = calls.count_inputs(1, 2, 2, num_heads, num_heads_k, head_dim)
    by_head = np.arange(1.0, num_heads + 1)[None, None, :, None]
    inputs = inputs._replace(grad_out=np.broadcast_to(by_head, inputs.query.shape))
    mask = column_mask([2, 2])
    ours = calls.run(inputs, mask, dtype=dtype, grads="out")
    calls.assert_right(ours, inputs, mask, dtype, grads="out")
    # All of these are exact in 8 bits but 22.5 and 7.5, which the rule above covers.
    lanes = calls.exact(inputs, mask, grads="out").grad_value[0, :, :, 0]
    for head, numbers in enumerate(expected):
        tolerance.assert_printed(lanes[:, head], numbers)


def test_f13_gradient_of_the_query_by_hand(dtype):
    unit = np.eye(64)[0]
    key = np.stack([unit, 2 * unit])[None, :, None]
    value = np.stack([unit, 2 * unit])[None, :, None]
    grad_out = np.broadcast_to(unit, (1, 2, 1, 64))
    inputs = calls.Inputs(np.zeros((1, 2, 1, 64)), key, value, grad_out, np.zeros((1, 1, 2)))
    ours = calls.run(inputs, column_mask([2, 2]), dtype=dtype, grads="out")
    expected = np.zeros((1, 2, 1, 64))
    expected[0, 1, 0, 0] = 0.03125
    tolerance.assert_array_close("grad_query", ours.grad_query, expected, expected, dtype)


@pytest.mark.parametrize("swap", [False, True])
def test_f14_each_sample_has_its_own_mask(swap, dtype):
    starts = [[4, 4, 4, 4], [2, 2, 4, 4]]
    expected = [[1, 1.5, 2, 2.5], [1, 1.5, 3, 3.5]]
    if swap:
        starts, expected = starts[::-1], expected[::-1]
    inputs = calls.count_inputs(2, 4, 4, 2, 2, 64)
    mask = Mask(np.array(starts, np.int32)[:, None, :, None], causal=True)
    ours = calls.run(inputs, mask, dtype=dtype)
    np.testing.assert_array_equal(ours.out[:, :, 1, 3], expected)


def test_f14_batch_size_may_change_from_call_to_call(dtype, rng):
    for batch in (2, 3, 1, 2):
        calls.check_case(
            AttentionCase("causal_documents", batch=batch, seqlen_q=70, dtype=dtype), rng
        )


def test_f14_mask_of_one_sample_is_not_broadcast():
    tensors = [paddle.ones([2, 4, 2, 64])] * 3
    with pytest.raises(ValueError, match=r"batch of query and key, 2; got 1"):
        flashmask_attention(*tensors, np.full((1, 1, 4, 1), 4, np.int32), causal=True)
