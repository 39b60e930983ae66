"""The dense reference of the package against float64, and its behaviour on empty rows."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from support import calls, cases, dense, tolerance
from support.cases import AttentionCase, Mask
from support.dense import Results

from paddle_flashmask.reference import dense_attention


def run_reference(inputs, seen, **options) -> Results:
    query, key, value = (calls.tensor(array, grad=True) for array in inputs[:3])
    mask = None if seen is None else paddle.to_tensor(seen)
    out = dense_attention(query, key, value, mask, **options)
    gradients = paddle.grad([out], [query, key, value], [calls.tensor(inputs.grad_out)])
    shape = inputs.grad_lse.shape
    return Results(out.numpy(), np.zeros(shape), *(gradient.numpy() for gradient in gradients))


def check(inputs, mask: Mask, **options) -> None:
    seen = calls.visible(inputs, mask)
    exact = calls.exact(inputs, mask, grads="out", **options)
    by_head = np.repeat(seen, inputs.query.shape[2] // seen.shape[1], axis=1)
    ours = run_reference(inputs, by_head, **options)
    tolerance.assert_results_close(
        ours._replace(softmax_lse=exact.softmax_lse), exact, None, "float32", seen
    )


@pytest.mark.parametrize("mask", cases.FAMILIES)
def test_matches_float64_for_every_mask_family(mask, rng):
    case = AttentionCase(mask, batch=2, seqlen_q=40, num_heads=4, num_heads_mask=2)
    check(calls.random_inputs(case, rng), case.make_mask(rng))


@pytest.mark.parametrize(("num_heads", "num_heads_k"), [(1, 1), (6, 2), (4, 1)])
@pytest.mark.parametrize(("rows", "columns"), [(3, 7), (7, 3), (1, 1)])
def test_matches_float64_for_grouped_heads_and_unequal_lengths(
    num_heads, num_heads_k, rows, columns, rng
):
    case = AttentionCase(
        "four", seqlen_q=rows, seqlen_k=columns, num_heads=num_heads, num_heads_k=num_heads_k
    )
    check(calls.random_inputs(case, rng), case.make_mask(rng))


@pytest.mark.parametrize("scale", [None, 0.0, 0.3, -1.0])
def test_matches_float64_for_every_scale(scale, rng):
    case = AttentionCase("causal_2", seqlen_q=20)
    check(calls.random_inputs(case, rng), case.make_mask(rng), softmax_scale=scale)


def test_no_mask_means_everything_is_visible(rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=20), rng)
    everything = np.ones((1, 2, 20, 20), bool)
    tolerance.assert_same_bits(run_reference(inputs, None), run_reference(inputs, everything))


def test_empty_rows_give_zero_and_no_nan_in_gradients(rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=20), rng)
    seen = np.zeros((1, 2, 20, 20), bool)
    ours = run_reference(inputs, seen)
    for name in ("out", "grad_query", "grad_key", "grad_value"):
        assert (getattr(ours, name) == 0).all(), name


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_returns_the_dtype_of_the_query(dtype, rng):
    inputs = calls.random_inputs(AttentionCase(seqlen_q=5, dtype=dtype), rng)
    out = dense_attention(*(calls.tensor(array, dtype) for array in inputs[:3]))
    assert str(out.dtype).endswith(dtype)


def test_agrees_with_the_dense_maths_of_the_tests_in_bfloat16(rng):
    case = AttentionCase("causal_documents", seqlen_q=60, dtype="bfloat16")
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    seen = np.repeat(calls.visible(inputs, mask), 2, axis=1)
    sources = (calls.tensor(array, "bfloat16") for array in inputs[:3])
    out = calls.to_numpy(dense_attention(*sources, paddle.to_tensor(seen)))
    exact = calls.exact(inputs, mask)
    stepwise = calls.exact(inputs, mask, rounded=dense.round_bfloat16)
    tolerance.assert_array_close("out", out, exact.out, stepwise.out, "bfloat16")
