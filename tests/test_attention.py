"""The operator, forward and backward, against dense attention in float64."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from support import calls, cases, dense, tolerance
from support.cases import AttentionCase, Mask
from support.dense import Results
from support.inputs import Inputs, exact, visible

from paddle_flashmask import flashmask_attention

MAX_THREADS = 5
HUGE = 1e30  # finite in float32 and bfloat16, its square is not
HUGE_FLOAT16 = 6e4


def causal_documents(lengths: list[int]) -> Mask:
    ends = cases.document_bounds(lengths)[1]
    return Mask(ends.astype(np.int32)[None, None, :, None], causal=True)


@pytest.mark.parametrize("case", cases.form_cases(), ids=str)
def test_matches_dense_for_every_mask_form_and_dtype(case, rng):
    calls.check_case(case, rng)


@pytest.mark.parametrize("case", cases.length_cases(), ids=str)
def test_matches_dense_around_tile_edges(case, rng):
    calls.check_case(case, rng)


@pytest.mark.parametrize("case", cases.head_cases(), ids=str)
def test_matches_dense_for_every_head_layout(case, rng):
    calls.check_case(case, rng)


@pytest.mark.parametrize("case", cases.head_dim_cases(), ids=str)
def test_matches_dense_for_every_head_dim(case, rng):
    calls.check_case(case, rng)


@pytest.mark.parametrize("case", cases.scale_cases(), ids=str)
def test_matches_dense_for_every_softmax_scale(case, rng):
    calls.check_case(case, rng)


@pytest.mark.parametrize("grads", calls.GRADIENTS)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_matches_dense_when_a_gradient_comes_through(grads, dtype, rng):
    calls.check_case(
        AttentionCase("causal_2", num_heads=4, seqlen_q=100, dtype=dtype), rng, grads=grads
    )


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(300))
def test_matches_dense_for_random_sizes(repeat, rng):
    num_heads_k, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    num_heads = num_heads_k * group
    case = AttentionCase(
        mask=str(rng.choice(cases.FAMILIES[:8])),
        batch=int(rng.integers(1, 4)),
        seqlen_q=int(rng.integers(1, 260)),
        seqlen_k=int(rng.integers(1, 260)),
        num_heads=num_heads,
        num_heads_k=num_heads_k,
        num_heads_mask=int(rng.choice([1, num_heads_k, num_heads])),
        head_dim=8 * int(rng.integers(1, 33)),
        dtype=str(rng.choice(cases.DTYPES)),
        softmax_scale=float(rng.normal()) / 8,
    )
    calls.check_case(case, rng)


def test_default_scale_comes_from_the_real_head_dim(rng):
    case = AttentionCase(head_dim=72)
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    by_default = calls.run(inputs, mask)
    tolerance.assert_same_bits(by_default, calls.run(inputs, mask, softmax_scale=72**-0.5))


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 1, 7, (3, 0), (0, 3), (64, 63), (500, 2), 10**12])
def test_window_equals_the_same_window_as_indices_bit_for_bit(window, causal, dtype, rng):
    length = 130
    left, right = (window, window) if isinstance(window, int) else window
    column = np.arange(length)
    lower_start = np.minimum(column + left + 1, length)
    upper_end = np.maximum(column - right, 0)
    bounds = [lower_start] if causal else [lower_start, upper_end]
    indices = np.stack(bounds, axis=-1).astype(np.int32)[None, None]
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length, dtype=dtype), rng)
    by_window = calls.run(inputs, Mask(None, causal, window), dtype=dtype)
    by_indices = calls.run(inputs, Mask(indices, causal), dtype=dtype)
    tolerance.assert_same_bits(by_window, by_indices)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(130, 70), (70, 130), (1, 65), (65, 1)])
def test_window_follows_the_diagonal_of_unequal_lengths(rows, columns, causal, rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=rows, seqlen_k=columns), rng)
    mask = Mask(None, causal, (9, 5))
    calls.assert_right(calls.run(inputs, mask), inputs, mask, "float32")


@pytest.mark.parametrize("causal", [True, False])
def test_no_indices_equal_indices_that_mask_nothing_bit_for_bit(causal, rng):
    length = 100
    numbers = [length] if causal else [length, 0]
    nothing = np.tile(np.array(numbers, np.int32), (1, 1, length, 1))
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length), rng)
    without = calls.run(inputs, Mask(None, causal))
    tolerance.assert_same_bits(without, calls.run(inputs, Mask(nothing, causal)))


@pytest.mark.parametrize(("causal", "width"), cases.FORMS)
def test_bounds_out_of_range_act_as_if_clipped_bit_for_bit(causal, width, rng):
    length = 90
    wild = rng.choice([-(2**31), -7, 0, 30, 64, 90, 95, 2**31 - 1], (1, 2, length, width))
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length), rng)
    clipped = Mask(np.clip(wild, 0, length).astype(np.int32), causal)
    tolerance.assert_same_bits(
        calls.run(inputs, Mask(wild.astype(np.int32), causal)), calls.run(inputs, clipped)
    )


@pytest.mark.parametrize(("causal", "width"), cases.FORMS)
def test_mask_head_of_a_query_head_is_that_of_its_group(causal, width, rng):
    inputs = calls.random_inputs(AttentionCase(num_heads=4, num_heads_k=2), rng)
    mask = cases.random_form(causal, width)(rng, 1, 2, 65, 65)
    per_query_head = Mask(np.repeat(mask.indices, 2, axis=1), causal)
    tolerance.assert_same_bits(calls.run(inputs, mask), calls.run(inputs, per_query_head))


def test_each_sample_has_its_own_mask(rng):
    case = AttentionCase("four", batch=3, num_heads_mask=2, seqlen_q=70)
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    together = calls.run(inputs, mask)
    for i in range(case.batch):
        one = slice(i, i + 1)
        alone = calls.run(
            calls.Inputs(*(array[one] for array in inputs)), Mask(mask.indices[one], mask.causal)
        )
        tolerance.assert_same_bits(alone, Results(*(array[one] for array in together)))


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_count_probe_gives_means_of_seen_positions(family, dtype, rng):
    length = 130
    case = AttentionCase(family, seqlen_q=length, num_heads=2, num_heads_k=1)
    mask = case.make_mask(rng)
    inputs = calls.count_inputs(1, length, length, 2, 1, int(rng.choice([64, 128])))
    ours = calls.run(inputs, mask, dtype=dtype, grads="out")
    counts = calls.visible(inputs, mask)[0, 0].sum(axis=1)
    with np.errstate(divide="ignore"):
        lse = np.broadcast_to(np.log(counts), (1, 2, length)).astype(np.float64)
    if dtype != "float32":
        # All lanes of out round the same way, so that their sum in the gradient of the query is off
        # by head_dim roundings at once; the probe does not speak of it.
        ours = ours._replace(grad_query=calls.exact(inputs, mask, grads="out").grad_query)
    tolerance.assert_array_close("softmax_lse", ours.softmax_lse, lse, None, "float32")
    calls.assert_right(ours, inputs, mask, dtype, grads="out")


def leak_case(dtype: str, rng) -> tuple[calls.Inputs, calls.Inputs, Mask]:
    """Two documents, and the same inputs with the first one replaced by large numbers."""
    inputs = calls.random_inputs(AttentionCase(seqlen_q=150, num_heads=4, dtype=dtype), rng)
    huge = HUGE_FLOAT16 if dtype == "float16" else HUGE
    changed = [array.copy() for array in inputs[:3]]
    for array in changed:
        array[:, :70] = huge * rng.choice([-1.0, 1.0], array[:, :70].shape)
    return inputs, calls.Inputs(*changed, *inputs[3:]), causal_documents([70, 80])


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_replaced_tokens_leave_rows_that_do_not_see_them_unchanged(dtype, rng):
    inputs, changed, mask = leak_case(dtype, rng)
    ours = calls.run(inputs, mask, dtype=dtype)
    others = calls.run(changed, mask, dtype=dtype)
    for name in ("out", "grad_query", "grad_key", "grad_value"):
        mine, other = getattr(ours, name)[:, 70:], getattr(others, name)[:, 70:]
        assert mine.tobytes() == other.tobytes(), name
    assert ours.softmax_lse[:, :, 70:].tobytes() == others.softmax_lse[:, :, 70:].tobytes()


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_later_tokens_leave_earlier_causal_rows_unchanged(dtype, rng):
    inputs, _, _ = leak_case(dtype, rng)
    changed = [array.copy() for array in inputs[:3]]
    for array in changed[1:]:
        array[:, 100:] = HUGE_FLOAT16 if dtype == "float16" else HUGE
    mask = Mask(None, causal=True)
    ours = calls.run(inputs, mask, dtype=dtype)
    others = calls.run(calls.Inputs(*changed, *inputs[3:]), mask, dtype=dtype)
    assert ours.out[:, :100].tobytes() == others.out[:, :100].tobytes()
    assert ours.grad_query[:, :100].tobytes() == others.grad_query[:, :100].tobytes()


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("lengths", [[3, 2, 3], [64, 64], [63, 1, 65, 2], [1] * 9, [130, 7]])
def test_packed_documents_equal_documents_alone(lengths, dtype, rng):
    case = AttentionCase(seqlen_q=sum(lengths), num_heads=4, num_heads_k=2, dtype=dtype)
    inputs = calls.random_inputs(case, rng)
    mask = causal_documents(lengths)
    packed = calls.run(inputs, mask, dtype=dtype)
    # What is right comes from each document alone, and how far off may be from all together: of two
    # rows the rounded maths can be exact by chance.
    right = of_documents_alone(inputs, lengths, dense.round_float64)
    coarse = None
    if dtype != "float32":
        coarse = of_documents_alone(inputs, lengths, dense.ROUNDINGS[dtype])
    tolerance.assert_results_close(packed, right, coarse, dtype, visible(inputs, mask))


def of_documents_alone(inputs: Inputs, lengths: list[int], rounded: dense.Rounding) -> Results:
    """Return dense causal attention of one document after the other, joined along the rows."""
    found = []
    ends = np.cumsum(lengths)
    for begin, end in zip(ends - lengths, ends, strict=True):
        part = Inputs(
            *(array[:, begin:end] for array in inputs[:4]), inputs.grad_lse[:, :, begin:end]
        )
        found.append(exact(part, Mask(None, causal=True), rounded=rounded))
    joined = zip(*found, strict=True)
    axes = (2 if name == "softmax_lse" else 1 for name in Results._fields)
    return Results(*(np.concatenate(parts, axis) for parts, axis in zip(joined, axes, strict=True)))


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_everything_is_zero_when_no_row_sees_anything(dtype, rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=70, dtype=dtype), rng)
    mask = Mask(np.zeros((1, 1, 70, 1), np.int32), causal=True)
    ours = calls.run(inputs, mask, dtype=dtype)
    for name in ("out", "grad_query", "grad_key", "grad_value"):
        assert not getattr(ours, name).any(), name
    assert np.isneginf(ours.softmax_lse).all()


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_row_that_sees_nothing_ignores_an_infinite_gradient(dtype, rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=70, dtype=dtype), rng)
    mask = Mask(np.full((1, 1, 70, 1), 50, np.int32), causal=True)
    plain = calls.run(inputs, mask, dtype=dtype)
    grad_lse = inputs.grad_lse.copy()
    grad_lse[:, :, 50:] = np.inf
    tolerance.assert_same_bits(
        plain, calls.run(inputs._replace(grad_lse=grad_lse), mask, dtype=dtype)
    )


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_row_that_sees_one_key_returns_its_value(dtype, rng):
    length = 130
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length, dtype=dtype), rng)
    own_key = np.arange(1, length + 1, dtype=np.int32)[None, None, :, None]
    mask = Mask(own_key, causal=True)
    ours = calls.run(inputs, mask, dtype=dtype, grads="out")
    np.testing.assert_array_equal(ours.out, inputs.value)
    np.testing.assert_array_equal(ours.grad_value, inputs.grad_out)
    calls.assert_right(ours, inputs, mask, dtype, grads="out")


ZERO_SIZES = [(0, 4, 4), (2, 0, 4), (2, 4, 0), (0, 0, 0), (1, 0, 65), (1, 65, 0)]


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize(("causal", "width"), [*cases.FORMS, (True, 0), (False, 0)])
@pytest.mark.parametrize(("batch", "rows", "columns"), ZERO_SIZES)
def test_zero_size_tensors_give_zeros(batch, rows, columns, causal, width, dtype, rng):
    case = AttentionCase(batch=batch, seqlen_q=rows, seqlen_k=columns, dtype=dtype)
    inputs = calls.random_inputs(case, rng)
    indices = np.zeros((batch, 1, columns, width), np.int32) if width else None
    ours = calls.run(inputs, Mask(indices, causal), dtype=dtype)
    assert [array.shape for array in ours] == [
        inputs.query.shape,
        inputs.grad_lse.shape,
        *(array.shape for array in inputs[:3]),
    ]
    assert not any(array.any() for name, array in ours._asdict().items() if name != "softmax_lse")
    assert np.isneginf(ours.softmax_lse).all()


def test_calls_work_after_a_zero_size_call(rng):
    empty = calls.random_inputs(AttentionCase(batch=0), rng)
    calls.run(empty, Mask(None, causal=True))
    calls.check_case(AttentionCase("causal_documents"), rng)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("layout", ["packed", "transposed", "sliced", "strided", "expanded"])
def test_inputs_that_are_not_contiguous_equal_copies_bit_for_bit(layout, dtype, rng):
    batch, length, heads, head_dim = 2, 67, 2, 16
    normal = rng.standard_normal
    if layout == "packed":
        packed = calls.tensor(normal((batch, length, 3, heads, head_dim)), dtype)
        views = [packed[:, :, i] for i in range(3)]
    elif layout == "transposed":
        views = [
            calls.tensor(normal((batch, heads, length, head_dim)), dtype).transpose([0, 2, 1, 3])
            for _ in range(3)
        ]
    elif layout == "sliced":
        wide = calls.tensor(normal((batch, length + 9, heads + 1, 3 * head_dim)), dtype)
        views = [wide[:, 5:72, :heads, i * head_dim : (i + 1) * head_dim] for i in range(3)]
    elif layout == "strided":
        views = [
            calls.tensor(normal((batch, 2 * length, heads, head_dim)), dtype)[:, ::2]
            for _ in range(3)
        ]
    else:
        strides = [length * head_dim, head_dim, 0, 1]
        views = [
            paddle.as_strided(
                calls.tensor(normal((batch, length, 1, head_dim)), dtype),
                [batch, length, heads, head_dim],
                strides,
            )
            for _ in range(3)
        ]
    indices = cases.random_form(True, 1)(rng, batch, 1, length, length).indices
    copies = [paddle.to_tensor(view.numpy()) for view in views]
    assert not any(view.is_contiguous() for view in views)
    results = []
    for inputs in (views, copies):
        sources = [source.detach() for source in inputs]
        for source in sources:
            source.stop_gradient = False
        out = flashmask_attention(*sources, indices, causal=True)
        gradients = paddle.grad(out.astype("float32").square().sum(), sources)
        results.append([calls.to_numpy(x).tobytes() for x in (out, *gradients)])
    assert results[0] == results[1]


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("layout", ["sum", "sliced", "transposed"])
def test_gradient_that_is_not_contiguous_equals_a_copy_bit_for_bit(layout, dtype, rng):
    shape = [2, 67, 2, 16]
    inputs = calls.random_inputs(AttentionCase(batch=2, seqlen_q=67, dtype=dtype), rng)
    query, key, value = (calls.tensor(array, dtype, grad=True) for array in inputs[:3])
    out = flashmask_attention(query, key, value, causal=True)
    other = calls.tensor(rng.standard_normal((2, 67, 2, 32)), dtype)
    if layout == "sum":
        ours = paddle.grad(out.sum(), [query, key, value], retain_graph=True)
        dense_grad = paddle.ones(shape, dtype)
    elif layout == "sliced":
        assert not other[..., :16].is_contiguous()
        ours = paddle.grad([out], [query, key, value], [other[..., :16]], retain_graph=True)
        dense_grad = paddle.to_tensor(other[..., :16].numpy())
    else:
        flat = calls.tensor(rng.standard_normal((2, 2, 67, 16)), dtype)
        ours = paddle.grad([out], [query, key, value], [flat.transpose([0, 2, 1, 3])], True)
        dense_grad = paddle.to_tensor(flat.transpose([0, 2, 1, 3]).numpy())
    copies = paddle.grad([out], [query, key, value], [dense_grad])
    for mine, other_grad in zip(ours, copies, strict=True):
        assert calls.to_numpy(mine).tobytes() == calls.to_numpy(other_grad).tobytes()


def test_index_tensor_that_is_not_contiguous_equals_a_copy(rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=67), rng)
    query, key, value = (calls.tensor(array) for array in inputs[:3])
    wide = paddle.to_tensor(rng.integers(0, 67, (1, 1, 67, 5)).astype(np.int32))
    view = wide[..., 1:5:2]
    assert not view.is_contiguous()
    mine = flashmask_attention(query, key, value, view, causal=True).numpy()
    copy = flashmask_attention(query, key, value, view.numpy(), causal=True).numpy()
    assert mine.tobytes() == copy.tobytes()


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("mask", ["four", "causal_documents"])
def test_repeated_calls_are_bit_identical_for_every_thread_count(mask, dtype, rng):
    case = AttentionCase(
        mask, batch=2, seqlen_q=300, num_heads=4, num_heads_k=2, head_dim=64, dtype=dtype
    )
    inputs, made = calls.random_inputs(case, rng), case.make_mask(rng)
    first = calls.run(inputs, made, dtype=dtype)
    try:
        for threads in (1, 2, 3, MAX_THREADS):
            paddle.base.core.set_num_threads(threads)
            tolerance.assert_same_bits(first, calls.run(inputs, made, dtype=dtype))
    finally:
        paddle.base.core.set_num_threads(1)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("mask", cases.FAMILIES)
def test_matches_dense_when_threads_outnumber_heads(mask, dtype, rng):
    # The backward then shares one head among threads and walks the tiles in another order.
    case = AttentionCase(mask, seqlen_q=200, num_heads=2, num_heads_k=1, dtype=dtype)
    try:
        paddle.base.core.set_num_threads(4 * MAX_THREADS)
        calls.check_case(case, rng)
    finally:
        paddle.base.core.set_num_threads(1)


@pytest.mark.parametrize("blind_head", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_key_tile_that_one_head_of_a_group_never_sees_is_right_for_the_others(
    blind_head, dtype, rng
):
    length = 200
    case = AttentionCase(seqlen_q=length, num_heads=4, num_heads_k=2, dtype=dtype)
    inputs = calls.random_inputs(case, rng)
    bounds = np.full((1, 4, length, 1), length, np.int32)
    bounds[:, blind_head, : 2 * cases.TILE] = 0
    mask = Mask(bounds, causal=True)
    calls.assert_right(calls.run(inputs, mask, dtype=dtype), inputs, mask, dtype)


def test_sharply_peaked_scores_match_dense(rng):
    case = AttentionCase("causal_documents", seqlen_q=150, head_dim=64, input_scale=3.0)
    calls.check_case(case, rng)


def test_scores_that_underflow_count_as_zero_weight():
    # Key 1 outweighs key 0 by e^200: float32 cannot hold the ratio.
    query = np.full((1, 1, 1, 8), 5.0)
    key = np.stack([np.full(8, -2.5), np.full(8, 2.5)])[None, :, None]
    value = np.stack([np.full(8, 3.0), np.full(8, 7.0)])[None, :, None]
    inputs = calls.Inputs(query, key, value, np.ones(query.shape), np.zeros((1, 1, 1)))
    mask = Mask(None, causal=False)
    calls.assert_right(
        calls.run(inputs, mask, softmax_scale=1.0), inputs, mask, "float32", softmax_scale=1.0
    )


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_scores_of_large_size_do_not_overflow(sign, rng):
    # Forward only: float32 holds a logarithm of 80000 to 0.004, so gradients lose three digits.
    case = AttentionCase("causal_1", seqlen_q=70, head_dim=8)
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    inputs = inputs._replace(
        query=np.full(inputs.query.shape, sign * 1e4), key=np.ones(inputs.key.shape)
    )
    ours = calls.run(inputs, mask, softmax_scale=1.0)
    exact = calls.exact(inputs, mask, softmax_scale=1.0)
    tolerance.assert_array_close("out", ours.out, exact.out, None, "float32")
    tolerance.assert_array_close(
        "softmax_lse", ours.softmax_lse, exact.softmax_lse, None, "float32"
    )
    assert all(np.isfinite(gradient).all() for gradient in ours[2:])


@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_nan_input_shows_in_rows_that_see_it_and_nowhere_else(where, rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=140), rng)
    array = getattr(inputs, where).copy()
    array[:, 3] = np.nan
    # Documents in tiles of their own: zero weight times NaN is NaN inside a tile.
    ours = calls.run(inputs._replace(**{where: array}), causal_documents([64, 76]))
    assert np.isnan(ours.out[:, 3]).all()
    assert np.isfinite(ours.out[:, 64:]).all()


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_merging_two_halves_of_the_keys_by_lse_gives_the_whole(dtype, rng):
    length, half = 130, 60
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length, dtype=dtype), rng)
    made = cases.random_form(False, 4)(rng, 1, 1, length, length)
    parts = []
    for columns in (slice(0, half), slice(half, length)):
        piece = inputs._replace(key=inputs.key[:, columns], value=inputs.value[:, columns])
        parts.append(calls.run(piece, Mask(made.indices[:, :, columns], False), dtype=dtype))
    lse = np.logaddexp(parts[0].softmax_lse, parts[1].softmax_lse)
    shift = np.where(np.isneginf(lse), 0.0, lse)
    weights = [np.exp(part.softmax_lse - shift).transpose(0, 2, 1)[..., None] for part in parts]
    merged = sum(w * part.out for w, part in zip(weights, parts, strict=True))
    whole = calls.exact(inputs, made)
    tolerance.assert_array_close("softmax_lse", lse, whole.softmax_lse, None, "float32")
    coarse = None
    if dtype != "float32":
        coarse = calls.exact(inputs, made, rounded=dense.ROUNDINGS[dtype]).out
    tolerance.assert_array_close("merged out", merged, whole.out, coarse, dtype)


def test_large_batch_of_single_tokens_returns_the_values():
    batch, heads, head_dim = 1100, 4, 128
    shape = [batch, 1, heads, head_dim]
    query, key, value = (paddle.rand(shape) for _ in range(3))
    for source in (query, key, value):
        source.stop_gradient = False
    indices = np.ones((batch, 1, 1, 1), np.int32)
    out = flashmask_attention(query, key, value, indices, causal=True)
    gradient = paddle.rand(shape)
    grad_query, grad_key, grad_value = paddle.grad([out], [query, key, value], [gradient])
    zero = np.zeros(shape)
    tolerance.assert_array_close("out", out.numpy(), value.numpy(), None, "float32")
    tolerance.assert_array_close(
        "grad_value", grad_value.numpy(), gradient.numpy(), None, "float32"
    )
    tolerance.assert_array_close("grad_query", grad_query.numpy(), zero, None, "float32")
    tolerance.assert_array_close("grad_key", grad_key.numpy(), zero, None, "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_row_of_documents_counts_past_32768_rows(dtype):
    length, document = 33728, 1000
    lengths = [document] * (length // document) + [length % document]
    mask = causal_documents(lengths)
    zeros, ones = paddle.zeros([1, length, 1, 64], dtype), paddle.ones([1, length, 1, 64], dtype)
    out, lse = flashmask_attention(
        zeros, zeros, ones, mask.indices, causal=True, return_softmax_lse=True
    )
    ones = np.ones(out.shape)
    tolerance.assert_array_close("out", calls.to_numpy(out), ones, ones, dtype)
    expected = np.log(np.arange(length) % document + 1.0)[None, None]
    tolerance.assert_array_close("softmax_lse", lse.numpy(), expected, None, "float32")
