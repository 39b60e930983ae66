"""What the operator does at the edges of numbers and of Paddle's graph."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest

from paddle_flashmask import _ops, flashmask_attention

ISAS = ("portable", "avx2", "avx512", "avx512_bf16")


@pytest.fixture(params=ISAS)
def isa(request):
    try:
        _ops.set_cpu_isa(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    yield request.param
    _ops.set_cpu_isa("auto")


@pytest.mark.parametrize("position", [0, 1], ids=["out", "lse"])
@pytest.mark.parametrize("with_indices", [False, True])
def test_second_backward_through_a_freed_graph_names_the_remedy(position, with_indices, rng):
    query = paddle.to_tensor(rng.standard_normal((1, 8, 2, 16), np.float32), stop_gradient=False)
    rows = paddle.full([1, 1, 8, 1], 8, "int32") if with_indices else None
    result = flashmask_attention(query, query * 1, query, rows, True, return_softmax_lse=True)
    result[position].mean().backward()
    with pytest.raises(ValueError, match="retain_graph=True"):
        result[position].mean().backward()


@pytest.mark.parametrize("scale", [1.0, 1e20], ids=["infinite key", "overflowing product"])
def test_row_that_sees_only_minus_infinity_is_nan(isa, scale):
    query = paddle.full([1, 70, 1, 8], scale)
    key = paddle.full([1, 70, 1, 8], -scale if scale > 1 else -math.inf)
    out = flashmask_attention(query, key, query, causal=True).numpy()
    assert np.isnan(out).all()


def test_row_that_sees_nothing_beside_minus_infinity_is_zero(isa):
    query = paddle.ones([1, 3, 1, 8])
    key = paddle.full([1, 3, 1, 8], -math.inf)
    rows = paddle.full([1, 1, 3, 1], 1, "int32")
    out = flashmask_attention(query, key, query, rows, causal=True).numpy()
    assert np.isnan(out[:, 0]).all()
    assert (out[:, 1:] == 0).all()


def test_single_visible_key_has_weight_one_however_large_its_score(isa, rng):
    length = 70
    magnitude = 10.0 ** rng.uniform(1, 9, (1, length, 1, 1))
    query = paddle.to_tensor(
        (rng.standard_normal((1, length, 1, 16)) * magnitude).astype("float32")
    )
    value = paddle.to_tensor(rng.standard_normal((1, length, 1, 16), np.float32))
    value.stop_gradient = False
    diagonal = paddle.arange(1, length + 1, dtype="int32").reshape([1, 1, length, 1])
    out = flashmask_attention(query, query, value, diagonal, causal=True, softmax_scale=0.1)
    out.sum().backward()
    assert (value.grad.numpy() == 1).all()
    assert (out.numpy() == value.numpy()).all()


def test_static_program_of_another_rank_is_refused_when_it_runs():
    paddle.enable_static()
    try:
        program = paddle.static.Program()
        with paddle.static.program_guard(program):
            query = paddle.static.data("query", [4], "float32")
            out, _ = _ops.run(
                query,
                query,
                query,
                None,
                softmax_scale=1.0,
                causal=False,
                window_left=-1,
                window_right=-1,
            )
        with pytest.raises(ValueError, match="query must have 4 axes"):
            paddle.static.Executor().run(
                program, feed={"query": np.zeros(4, np.float32)}, fetch_list=[out]
            )
    finally:
        paddle.disable_static()


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_raw_scale_must_be_finite(scale):
    query = paddle.ones([1, 2, 1, 8])
    with pytest.raises(ValueError, match="softmax_scale must be finite"):
        _ops.run(
            query,
            query,
            query,
            None,
            softmax_scale=scale,
            causal=False,
            window_left=-1,
            window_right=-1,
        )
