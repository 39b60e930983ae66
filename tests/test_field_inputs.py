"""Faults that users reported elsewhere: layouts, memory, numbers, graphs. See test_field_cases."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle.distributed.fleet.utils import recompute
from support import calls, cases, dense, tolerance
from support.cases import TILE, AttentionCase, Mask
from support.field import (
    HEAD_DIMS,
    check_count,
    column_mask,
    documents,
)

from paddle_flashmask import _ops, flashmask_attention


@pytest.fixture(params=HEAD_DIMS)
def head_dim(request):
    return request.param


@pytest.fixture(params=cases.DTYPES)
def dtype(request):
    return request.param


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
