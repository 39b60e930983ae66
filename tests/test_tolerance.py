"""The tolerance rule itself: it passes right results and fails every kind of wrong one."""

from __future__ import annotations

import numpy as np
import pytest
from support import calls, cases, dense, tolerance
from support.cases import AttentionCase, Mask

LENGTH = 66


def documents(lengths: list[int]) -> Mask:
    ends = cases.document_bounds(lengths)[1]
    return Mask(ends.astype(np.int32)[None, None, :, None], causal=True)


@pytest.fixture(params=cases.DTYPES)
def dtype(request):
    return request.param


@pytest.fixture
def inputs(dtype, rng):
    case = AttentionCase(seqlen_q=LENGTH, num_heads=2, num_heads_k=1, head_dim=16, dtype=dtype)
    return calls.random_inputs(case, rng)


RIGHT = documents([20, 30, 16])


def as_stored(results: dense.Results, dtype: str) -> dense.Results:
    """Exact results as a perfect operator of that dtype would return them."""
    rounded = dense.ROUNDINGS[dtype]
    lse = dense.round_float32(results.softmax_lse)
    return dense.Results(*(lse if x is results.softmax_lse else rounded(x) for x in results))


def wrong_result(inputs, dtype, mask, **options):
    return as_stored(calls.exact(inputs, mask, **options), dtype)


def judge(results, inputs, dtype):
    calls.assert_right(results, inputs, RIGHT, dtype)


def test_passes_the_exact_result_rounded_once(inputs, dtype):
    judge(wrong_result(inputs, dtype, RIGHT), inputs, dtype)


def test_passes_the_dense_maths_of_the_dtype(inputs, dtype):
    stepwise = calls.exact(inputs, RIGHT, rounded=dense.ROUNDINGS[dtype])
    exact = calls.exact(inputs, RIGHT)
    for name in ("out", "grad_query", "grad_key", "grad_value"):
        ours, right = getattr(stepwise, name), getattr(exact, name)
        tolerance.assert_array_close(name, ours, right, ours, dtype)


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("column", [3, 19, 20, 49])
def test_fails_when_one_bound_is_off_by_one(shift, column, inputs, dtype):
    shifted = RIGHT.indices.copy()
    shifted[0, 0, column, 0] += shift
    with pytest.raises(AssertionError):
        judge(wrong_result(inputs, dtype, Mask(shifted, True)), inputs, dtype)


def test_fails_when_the_diagonal_is_off_by_one(inputs, dtype):
    seen = calls.visible(inputs, RIGHT) & ~np.eye(LENGTH, dtype=bool)
    wrong = dense.attention(*inputs[:3], seen, grad_out=inputs.grad_out, grad_lse=inputs.grad_lse)
    with pytest.raises(AssertionError):
        judge(as_stored(wrong, dtype), inputs, dtype)


def test_fails_when_a_document_is_dropped(inputs, dtype):
    merged = documents([50, 16])
    with pytest.raises(AssertionError):
        judge(wrong_result(inputs, dtype, merged), inputs, dtype)


def test_fails_when_the_last_short_document_is_zero(inputs, dtype):
    right = wrong_result(inputs, dtype, RIGHT)
    out = right.out.copy()
    out[:, 50:] = 0
    with pytest.raises(AssertionError, match="out"):
        judge(right._replace(out=out), inputs, dtype)


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_fails_when_the_scale_is_five_percent_wrong(factor, inputs, dtype):
    wrong = wrong_result(inputs, dtype, RIGHT, softmax_scale=factor / 4)
    with pytest.raises(AssertionError):
        judge(wrong, inputs, dtype)


def test_fails_when_the_gradient_of_lse_is_ignored(inputs, dtype):
    with pytest.raises(AssertionError, match="grad_"):
        judge(wrong_result(inputs, dtype, RIGHT, grads="out"), inputs, dtype)


def test_fails_when_only_one_head_of_a_group_is_summed(inputs, dtype):
    right = wrong_result(inputs, dtype, RIGHT)
    with pytest.raises(AssertionError, match="grad_value"):
        judge(right._replace(grad_value=right.grad_value / 2), inputs, dtype)


def test_fails_when_keys_are_in_the_wrong_order(inputs, dtype):
    right = wrong_result(inputs, dtype, RIGHT)
    with pytest.raises(AssertionError, match="grad_key"):
        judge(right._replace(grad_key=right.grad_key[:, ::-1]), inputs, dtype)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", dense.Results._fields)
def test_fails_on_one_number_that_is_not_finite(name, bad, inputs, dtype):
    right = wrong_result(inputs, dtype, RIGHT)
    array = getattr(right, name).copy()
    array.flat[array.size // 2] = bad
    with pytest.raises(AssertionError, match=name):
        judge(right._replace(**{name: array}), inputs, dtype)


EMPTY_TAIL = Mask(np.full((1, 1, LENGTH, 1), 50, np.int32), causal=True)


@pytest.mark.parametrize("bad", [0.0, np.inf, np.nan, -1e30])
def test_fails_when_lse_of_an_empty_row_is_not_minus_infinity(bad, inputs, dtype):
    right = wrong_result(inputs, dtype, EMPTY_TAIL)
    lse = right.softmax_lse.copy()
    lse[0, 0, 60] = bad
    with pytest.raises(AssertionError, match="softmax_lse"):
        calls.assert_right(right._replace(softmax_lse=lse), inputs, EMPTY_TAIL, dtype)


@pytest.mark.parametrize("name", ["out", "grad_query", "grad_key", "grad_value"])
def test_fails_when_a_required_zero_is_only_tiny(name, inputs, dtype):
    right = wrong_result(inputs, dtype, EMPTY_TAIL)
    array = getattr(right, name).copy()
    array[0, 60, 0, 0] = 1e-7
    with pytest.raises(AssertionError, match="not exactly 0"):
        calls.assert_right(right._replace(**{name: array}), inputs, EMPTY_TAIL, dtype)


def test_fails_when_a_reference_is_nan(inputs, dtype):
    right = wrong_result(inputs, dtype, RIGHT).out
    with pytest.raises(AssertionError, match="reference"):
        tolerance.assert_array_close("out", right, right * np.nan, right, dtype)


def test_fails_when_one_head_points_the_wrong_way(rng):
    # One large number licenses the error of many small ones: only the cosine sees it.
    exact = 0.02 * rng.standard_normal((1, 400, 2, 8))
    exact[:, 0, :, 0] = 1.5
    dense_maths = exact.copy()
    dense_maths[0, 0, 0, 0] += 0.01
    ours = exact.copy()
    ours[:, :, 1] += 0.02 * rng.choice([-1, 1], (1, 400, 8))
    with pytest.raises(AssertionError, match=r"cosine .* head 1"):
        tolerance.assert_array_close("out", ours, exact, dense_maths, "float16")


@pytest.mark.parametrize("printed", [[1.0, 2.5], [1.0, 2.5001, 3.0], [1.0, np.nan, 3.0]])
def test_printed_numbers_fail_when_one_differs(printed):
    with pytest.raises(AssertionError):
        tolerance.assert_printed(np.array([1.0, 2.5, 3.0]), printed)


def test_printed_numbers_fail_on_nan():
    with pytest.raises(AssertionError):
        tolerance.assert_printed(np.array([1.0, np.nan]), [1.0, np.nan])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_rounding_of_the_reference_agrees_with_paddle(name, rng):
    import paddle

    numbers = (rng.standard_normal(4000) * 10.0 ** rng.integers(-5, 4, 4000)).astype(np.float32)
    theirs = paddle.to_tensor(numbers).astype(name).astype("float32").numpy()
    np.testing.assert_array_equal(dense.ROUNDINGS[name](numbers), theirs)


def test_gradients_of_the_reference_equal_finite_differences(rng):
    case = AttentionCase("four", seqlen_q=5, seqlen_k=6, num_heads=2, num_heads_k=1, head_dim=8)
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    seen = calls.visible(inputs, mask)
    alive = seen.any(axis=3)

    def loss(arrays):
        results = dense.attention(*arrays, seen, softmax_scale=0.3)
        lse = np.where(alive, results.softmax_lse, 0.0)
        return (results.out * inputs.grad_out).sum() + (lse * inputs.grad_lse).sum()

    gradients = calls.exact(inputs, mask, softmax_scale=0.3)[2:]
    step = 1e-5
    for i, gradient in enumerate(gradients):
        numeric = np.zeros_like(gradient)
        for place in np.ndindex(gradient.shape):
            sides = []
            for sign in (1, -1):
                arrays = [array.copy() for array in inputs[:3]]
                arrays[i][place] += sign * step
                sides.append(loss(arrays))
            numeric[place] = (sides[0] - sides[1]) / (2 * step)
        tolerance.assert_array_close("gradient", numeric, gradient, None, "float32")
