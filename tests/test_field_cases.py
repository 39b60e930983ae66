"""Faults that users of masked attention reported elsewhere, each as a trial with a known answer.

The number in a name (F01) is that of the report in the project's list; the arrays are computed by
hand from the formula: COUNT means q = 0 and v_j = j + 1, so that out is the mean of j + 1 over the
keys a row sees, and the gradient of v_j is the sum of 1 / n_i over the rows i that see it.
"""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle.distributed.fleet.utils import recompute
from support import calls, cases, dense, tolerance
from support.cases import TILE, AttentionCase, Mask

from paddle_flashmask import _ops, flashmask_attention

HEAD_DIMS = (64, 128)
ODD_LENGTHS = (1, 2, 31, 33, 63, 64, 65, 127, 128, 129, 191, 193, 1025)


def column_mask(*bounds, causal: bool = True) -> Mask:
    columns = np.stack([np.asarray(bound, np.int32) for bound in bounds], axis=-1)
    return Mask(columns[None, None], causal)


def documents(lengths: list[int]) -> Mask:
    return column_mask(cases.document_bounds(lengths)[1])


@pytest.fixture(params=HEAD_DIMS)
def head_dim(request):
    return request.param


@pytest.fixture(params=cases.DTYPES)
def dtype(request):
    return request.param


class Count:
    """One COUNT call: results of one lane of one head, all lanes and heads being equal."""

    def __init__(self, mask: Mask, rows: int, columns: int, head_dim: int, dtype: str):
        self.inputs = calls.count_inputs(1, rows, columns, 2, 2, head_dim)
        self.results = calls.run(self.inputs, mask, dtype=dtype, grads="out")
        calls.assert_right(self.results, self.inputs, mask, dtype, grads="out")
        exact = calls.exact(self.inputs, mask, grads="out")
        # float32 is held against the printed arrays itself; the 16-bit types were held against the
        # exact maths by their own rule, and the exact maths is held against the printed arrays.
        numbers = self.results if dtype == "float32" else exact
        self.out = numbers.out[0, :, 0, 0]
        self.grad_value = numbers.grad_value[0, :, 0, 0]


def check_count(mask, rows, columns, head_dim, dtype, *, out, grad_value=None) -> None:
    count = Count(mask, rows, columns, head_dim, dtype)
    tolerance.assert_printed(count.out, out)
    if grad_value is not None:
        tolerance.assert_printed(count.grad_value, grad_value)


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


# K08: layout and types of the inputs.


def f18_sources(rng) -> list[paddle.Tensor]:
    packed = calls.tensor(rng.standard_normal((2, 3, 3, 2, 64)))
    return [packed[:, :, i] for i in range(3)]


def f18_gradients(sources, make_loss):
    sources = [source.detach() for source in sources]
    for source in sources:
        source.stop_gradient = False
    out = flashmask_attention(*sources, np.full((2, 1, 3, 1), 3, np.int32), causal=True)
    return [x.numpy().tobytes() for x in (out, *paddle.grad([make_loss(out)], sources))]


def test_f18_gradient_of_a_sum_has_stride_zero(dtype):
    inputs = calls.count_inputs(1, 3, 3, 1, 1, 64)
    query, key, value = (calls.tensor(array, dtype, grad=True) for array in inputs[:3])
    out = flashmask_attention(query, key, value, np.full((1, 1, 3, 1), 3, np.int32), causal=True)
    out.sum().backward()
    exact = calls.exact(inputs, column_mask([3, 3, 3]), grads="out")
    tolerance.assert_printed(exact.grad_value[0, :, 0, 0], [1.8333, 0.8333, 0.3333])
    stepwise = calls.exact(
        inputs, column_mask([3, 3, 3]), grads="out", rounded=dense.ROUNDINGS[dtype]
    )
    tolerance.assert_array_close(
        "grad_value", calls.to_numpy(value.grad), exact.grad_value, stepwise.grad_value, dtype
    )


def test_f18_slices_of_one_packed_tensor_equal_copies(rng):
    views = f18_sources(rng)
    copies = [paddle.to_tensor(view.numpy()) for view in views]
    loss = paddle.sum
    assert f18_gradients(views, loss) == f18_gradients(copies, loss)


def test_f18_transposed_inputs_equal_copies(rng):
    views = [
        calls.tensor(rng.standard_normal((2, 2, 3, 64))).transpose([0, 2, 1, 3]) for _ in range(3)
    ]
    copies = [paddle.to_tensor(view.numpy()) for view in views]
    assert f18_gradients(views, paddle.sum) == f18_gradients(copies, paddle.sum)


def test_f18_gradient_cut_from_a_concat_equals_a_copy(rng):
    sources = f18_sources(rng)
    other = calls.tensor(rng.standard_normal((2, 3, 2, 128)))
    part = paddle.to_tensor(other[..., :64].numpy())

    def by_concat(out):
        return (paddle.concat([out, paddle.zeros_like(out)], axis=3) * other).sum()

    assert f18_gradients(sources, by_concat) == f18_gradients(
        sources, lambda out: (out * part).sum()
    )


@pytest.mark.parametrize("dtype", ["int64", "float32", "int16"])
def test_f19_indices_of_another_type_are_refused_by_name(dtype):
    tensors = [paddle.ones([1, 2, 1, 64])] * 3
    indices = paddle.full([1, 1, 2, 1], 2, dtype)
    with pytest.raises(TypeError, match=f"must be int32; got {dtype}"):
        flashmask_attention(*tensors, indices, causal=True)


def test_f19_mixed_types_are_refused_by_name():
    query, key = paddle.ones([1, 2, 1, 64]), paddle.ones([1, 2, 1, 64], "bfloat16")
    with pytest.raises(TypeError, match="got float32, bfloat16 and bfloat16"):
        flashmask_attention(query, key, key, np.full((1, 1, 2, 1), 2, np.int32), causal=True)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_f19_amp_gives_the_amp_type(level):
    def attend(query):
        with paddle.amp.auto_cast(level=level, dtype="bfloat16"):
            return flashmask_attention(query, query, query, causal=True)

    graph = paddle.jit.to_static(attend, full_graph=True)
    assert graph(paddle.ones([1, 2, 1, 64])).dtype == paddle.bfloat16


# K09: memory nobody wrote.


def test_f21_tail_beyond_the_last_document_is_zero(head_dim, dtype):
    check_count(
        column_mask([3, 3, 3, 5, 5, 5, 5, 5]), 8, 8, head_dim, dtype,
        out=[1, 1.5, 2, 4, 4.5, 0, 0, 0],
        grad_value=[1.8333, 0.8333, 0.3333, 1.5, 0.5, 0, 0, 0],
    )  # fmt: skip


@pytest.mark.parametrize("padded", [8, 64, 65, 200])
def test_f21_tail_is_zero_and_the_rest_unchanged_every_time(padded, dtype, rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=padded, head_dim=64, dtype=dtype), rng)
    short = calls.Inputs(*(array[:, :5] for array in inputs[:4]), inputs.grad_lse[:, :, :5])
    ends = [3, 3, 3] + [5] * (padded - 3)
    alone = calls.run(short, column_mask(ends[:5]), dtype=dtype)
    for _ in range(20):
        ours = calls.run(inputs, column_mask(ends), dtype=dtype)
        for name in ("out", "grad_query", "grad_key", "grad_value"):
            assert not getattr(ours, name)[:, 5:].any(), name
            tolerance.assert_array_close(
                name,
                getattr(ours, name)[:, :5],
                getattr(alone, name).astype(np.float64),
                getattr(alone, name),
                dtype,
            )


# K11: numbers.


@pytest.mark.parametrize("input_scale", [1.0, 3.0])
@pytest.mark.parametrize("num_heads_k", [6, 2, 1])
@pytest.mark.parametrize("mask", ["causal_documents", "four", "prefix"])
def test_f26_error_is_at_most_twice_that_of_the_dense_maths(
    mask, num_heads_k, input_scale, dtype, head_dim, rng
):
    case = AttentionCase(
        mask,
        seqlen_q=113,
        num_heads=6,
        num_heads_k=num_heads_k,
        head_dim=head_dim,
        dtype=dtype,
        input_scale=input_scale,
    )
    calls.check_case(case, rng)


@pytest.mark.parametrize("length", [256, 1024])
@pytest.mark.parametrize("mask", ["causal_documents", "four"])
def test_f26_error_is_at_most_twice_that_of_the_dense_maths_at_length(mask, length, dtype, rng):
    case = AttentionCase(
        mask, seqlen_q=length, num_heads=1, num_heads_k=1, head_dim=64, dtype=dtype
    )
    calls.check_case(case, rng)


def test_f26_every_document_is_right_on_its_own(dtype, rng):
    lengths = [100, 3, 60, 1, 40]
    inputs = calls.random_inputs(
        AttentionCase(seqlen_q=sum(lengths), head_dim=64, dtype=dtype), rng
    )
    ours = calls.run(inputs, documents(lengths), dtype=dtype)
    begin = 0
    for length in lengths:
        rows = slice(begin, begin + length)
        begin += length
        part = calls.Inputs(*(array[:, rows] for array in inputs[:4]), inputs.grad_lse[:, :, rows])
        mine = [array[:, :, rows] if array.ndim == 3 else array[:, rows] for array in ours]
        calls.assert_right(calls.Results(*mine), part, Mask(None, causal=True), dtype)


@pytest.mark.parametrize(("scale", "expected"), [(None, 0.99966), (1 / 64, 0.73106), (0.0, 0.5)])
def test_f27_scale_is_used(scale, expected, dtype):
    query = np.ones((1, 2, 1, 64))
    key, value = query * np.array([0.0, 1.0])[None, :, None, None], query.copy()
    value[:, 0] = 0
    inputs = calls.Inputs(query, key, value, np.ones(query.shape), np.zeros((1, 1, 2)))
    mask = column_mask([2, 2])
    ours = calls.run(inputs, mask, dtype=dtype, softmax_scale=scale, grads="out")
    calls.assert_right(ours, inputs, mask, dtype, softmax_scale=scale, grads="out")
    exact = calls.exact(inputs, mask, softmax_scale=scale)
    tolerance.assert_printed(exact.out[0, 1:, 0, 0], [expected])


# Not larger: the rounding of scores beyond about 30 alone costs float32 gradients 1e-5.
@pytest.mark.parametrize("scale", [None, 1 / 64, 0.0, 0.1, -0.5, 1.0])
@pytest.mark.parametrize("head_dim", [64, 72])
def test_f27_gradients_scale_with_it(head_dim, scale, dtype, rng):
    case = AttentionCase(
        "causal_2", seqlen_q=40, head_dim=head_dim, dtype=dtype, softmax_scale=scale
    )
    calls.check_case(case, rng)


def test_f28_lse_counts_the_keys_seen(dtype):
    inputs = calls.count_inputs(1, 130, 130, 3, 3, 64)
    ours = calls.run(inputs, documents([100, 30]), dtype=dtype)
    row = np.arange(130)
    expected = np.log(np.where(row < 100, row + 1, row - 99))
    expected = np.broadcast_to(expected, (1, 3, 130))
    tolerance.assert_array_close("softmax_lse", ours.softmax_lse, expected, None, "float32")


def test_f28_lse_of_hidden_rows_is_minus_infinity(dtype):
    inputs = calls.count_inputs(1, 8, 8, 3, 3, 64)
    ours = calls.run(inputs, column_mask([5] * 8), dtype=dtype)
    assert np.isneginf(ours.softmax_lse[:, :, 5:]).all()


# K12: dropout and recompute.


@pytest.mark.parametrize("dropout", [0.5, 1e-9, 1.0])
def test_f30_dropout_while_training_is_refused(dropout):
    with pytest.raises(NotImplementedError, match="dropout while training is not supported"):
        flashmask_attention(*[paddle.ones([1, 4, 1, 64])] * 3, dropout=dropout)


@pytest.mark.parametrize("options", [{"dropout": 0.0}, {"dropout": 0.5, "training": False}])
def test_f30_no_dropout_gives_the_plain_result(options):
    inputs = calls.count_inputs(1, 4, 4, 1, 1, 64)
    value = np.eye(64)[:4][None, :, None]
    tensors = [calls.tensor(array) for array in (inputs.query, inputs.key, value)]
    everything = np.tile(np.array([4, 0], np.int32), (1, 1, 4, 1))
    out = flashmask_attention(*tensors, everything, causal=False, **options).numpy()
    np.testing.assert_array_equal(out[0, :, 0, :4], np.full((4, 4), 0.25))


def test_f30_recompute_repeats_the_forward_bit_for_bit(rng):
    sources = [calls.tensor(rng.standard_normal((1, 70, 2, 64)), grad=True) for _ in range(3)]
    mask = documents([40, 30])

    def block(query, key, value):
        return flashmask_attention(query * 1, key, value, mask.indices, mask.causal)

    plain = paddle.grad([block(*sources).sum()], sources)
    recompute(block, *sources).sum().backward()
    for source, gradient in zip(sources, plain, strict=True):
        assert source.grad.numpy().tobytes() == gradient.numpy().tobytes()


# K16: static graph, shapes, optional input. The saved model of F43 is in test_graphs.py.


@pytest.mark.parametrize("wanted", ["qkv", "v", "q", "k"])
def test_f44_each_input_gets_its_gradient_or_none(wanted, rng):
    arrays = [rng.standard_normal((1, 3, 2, 64)) for _ in range(3)]
    mask = column_mask([3, 3, 3])

    def gradients(names: str) -> dict[str, bytes]:
        sources = [
            calls.tensor(array, grad=name in names)
            for name, array in zip("qkv", arrays, strict=True)
        ]
        out = flashmask_attention(*sources, mask.indices, causal=True, softmax_scale=0.1)
        out.square().sum().backward()
        named = zip("qkv", sources, strict=True)
        return {name: s.grad.numpy().tobytes() for name, s in named if s.grad is not None}

    everyone = gradients("qkv")
    assert gradients(wanted) == {name: everyone[name] for name in wanted}


def test_f44_indices_get_no_gradient():
    query = paddle.ones([1, 3, 1, 64])
    query.stop_gradient = False
    indices = paddle.full([1, 1, 3, 1], 3, "int32")
    indices.stop_gradient = False
    flashmask_attention(query, query, query, indices, causal=True).sum().backward()
    assert indices.grad is None


def test_f44_no_grad_gives_an_output_without_gradient():
    query = paddle.ones([1, 3, 1, 64])
    query.stop_gradient = False
    with paddle.no_grad():
        out = flashmask_attention(query, query, query, causal=True)
    assert out.stop_gradient


# K18: cost. Counted in tiles, not in seconds: other jobs share the machine.


def test_f49_small_documents_leave_few_live_tiles():
    length = 64 * TILE
    source = paddle.rand([1, length, 1, 16])
    _ops.reset_tile_counters()
    flashmask_attention(source, source, source, documents([32] * 128).indices, causal=True)
    counted = _ops.tile_counters()
    assert counted.forward_partial + counted.forward_full == 64
    assert counted.forward_skipped == 64 * 64 - 64
