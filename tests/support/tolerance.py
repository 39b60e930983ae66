"""The one rule that says when a result is right. Every tolerance of the tests lives here.

An array of float16 or bfloat16 passes if

    max |ours - exact| <= 2 * max |dense - exact| + floor

where `exact` is dense attention in float64, `dense` the same maths rounded to that dtype after
every step, and `floor` = 2 * max |((exact + 0.3) - 0.3) - exact| with both operations in that
dtype: what is lost by storing numbers of that size. An array of float32 passes if

    max |ours - exact| <= 1e-5 * max |exact| + 5e-6

The logarithm of the softmax sums is float32 for every input and takes the rule of float32.

Besides: nothing may be NaN or infinite but the lse of rows that see nothing, which must be -inf
there and nowhere else; out and gradients of rows that see nothing and gradients of keys that nobody
sees must be exactly 0; each head must point the right way (cosine >= 0.999) on its own, so that one
wrong head cannot hide behind the others. The cosine is asked only of heads whose largest exact
number is at least 64 times the error allowed above: below that it would measure rounding.
"""

from __future__ import annotations

import numpy as np
from support.dense import ROUNDINGS, Results

FLOAT32_RELATIVE = 1e-5
FLOAT32_ABSOLUTE = 5e-6
TIMES_DENSE = 2.0
FLOOR_SHIFT = 0.3
MIN_COSINE = 0.999
COSINE_FROM = 64.0  # times the allowed error

# Logits of a small model of two layers, of size 1 to 10, in float32: absolute.
LOGITS = 2e-5
# Losses of two trainings in float32, step by step: relative, as the quickstart has it.
LOSSES = 1e-5
# Logits of such a model in bfloat16, relative to the largest: two roundings of 8 bits per layer.
BFLOAT16_LOGITS = 2.0**-6

# Printed numbers of the field cases have four or five digits after the point.
PRINTED = 5e-5


def floor(exact: np.ndarray, dtype: str) -> float:
    rounded = ROUNDINGS[dtype]
    stored = rounded(rounded(np.asarray(exact) + FLOOR_SHIFT) - FLOOR_SHIFT)
    return TIMES_DENSE * _largest(stored - exact)


def allowed_error(exact: np.ndarray, dense: np.ndarray | None, dtype: str) -> float:
    if dtype == "float32":
        return FLOAT32_RELATIVE * _largest(exact) + FLOAT32_ABSOLUTE
    assert dense is not None, "16-bit dtypes are judged by the dense maths in that dtype"
    return TIMES_DENSE * _largest(dense - exact) + floor(exact, dtype)


def assert_array_close(
    name: str, ours: np.ndarray, exact: np.ndarray, dense: np.ndarray | None, dtype: str
) -> None:
    """Check one array; -inf must stand at the same places, NaN never."""
    ours = np.asarray(ours, np.float64)
    assert ours.shape == exact.shape, f"{name}: shape {ours.shape}, expected {exact.shape}"
    assert not np.isnan(exact).any(), f"{name}: the reference is NaN"
    assert not np.isnan(ours).any(), f"{name}: NaN at {_places(np.isnan(ours))}"
    wrong = np.isinf(ours) != np.isneginf(exact)
    wrong |= np.isposinf(ours)
    assert not wrong.any(), f"{name}: infinities differ at {_places(wrong)}"
    finite = np.isfinite(exact)
    ours, exact = np.where(finite, ours, 0.0), np.where(finite, exact, 0.0)
    if dense is not None:
        dense = np.where(finite, dense, 0.0)
    allowed = allowed_error(exact, dense, dtype)
    error = _largest(ours - exact)
    assert error <= allowed, (
        f"{name}: error {error:.3g} at {_places(np.abs(ours - exact) == error)}, "
        f"allowed {allowed:.3g}"
    )
    if ours.ndim == 4:
        _assert_heads_point_the_right_way(name, ours, exact, allowed)


def assert_results_close(
    ours: Results, exact: Results, dense: Results | None, dtype: str, seen: np.ndarray
) -> None:
    """Check all arrays of a call, and the exact zeros that the mask demands.

    Args:
        ours: what the operator gave, as float arrays.
        exact: `support.dense.attention` in float64 on the same inputs.
        dense: the same rounded to dtype after each step; None for float32.
        dtype: dtype of the inputs.
        seen: [B or 1, Hm, Sq, Sk], the visibility that `exact` was made with.
    """
    for name, mine, right in zip(Results._fields, ours, exact, strict=True):
        if name == "softmax_lse":
            assert_array_close(name, mine, right, None, "float32")
        else:
            coarse = None if dense is None else getattr(dense, name)
            assert_array_close(name, mine, right, coarse, dtype)
    assert_masked_is_zero(ours, seen)


def assert_masked_is_zero(ours: Results, seen: np.ndarray) -> None:
    batch, _, num_heads, _ = ours.out.shape
    num_heads_k = ours.grad_key.shape[2]
    seen = np.broadcast_to(seen, (batch, *seen.shape[1:]))
    seen = np.repeat(seen, num_heads // seen.shape[1], axis=1)
    empty_row = ~seen.any(axis=3)
    for name in ("out", "grad_query"):
        rows = getattr(ours, name).transpose(0, 2, 1, 3)[empty_row]
        assert not rows.any(), f"{name} of a row that sees nothing is not exactly 0"
    unseen_key = ~seen.any(axis=2)
    unseen_key = unseen_key.reshape(batch, num_heads_k, num_heads // num_heads_k, seen.shape[3])
    unseen_key = unseen_key.all(axis=2)
    for name in ("grad_key", "grad_value"):
        rows = getattr(ours, name).transpose(0, 2, 1, 3)[unseen_key]
        assert not rows.any(), f"{name} of a key that nobody sees is not exactly 0"


def assert_printed(ours: np.ndarray, printed: list[float]) -> None:
    """Check numbers against a formula's value as printed, rounded to four digits."""
    ours = np.asarray(ours, np.float64)
    assert ours.shape == (len(printed),), f"{ours.shape} against {len(printed)} numbers"
    assert np.isfinite(ours).all(), f"not finite: {ours}"
    error = np.abs(ours - printed)
    assert (error <= PRINTED).all(), f"got {ours}, expected {printed}"


def assert_logits_close(ours: np.ndarray, theirs: np.ndarray, allowed: float = LOGITS) -> None:
    assert ours.shape == theirs.shape
    error = np.abs(ours.astype(np.float64) - theirs)
    assert (error <= allowed).all(), f"logits differ by {_largest(error):.3g}, allowed {allowed}"


def assert_same_bits(ours: Results, others: Results) -> None:
    for name, mine, other in zip(Results._fields, ours, others, strict=True):
        same = mine.shape == other.shape and mine.tobytes() == other.tobytes()
        assert same, f"{name} differs"


def _assert_heads_point_the_right_way(
    name: str, ours: np.ndarray, exact: np.ndarray, allowed: float
) -> None:
    for batch, head in np.ndindex(exact.shape[0], exact.shape[2]):
        mine, right = ours[batch, :, head].ravel(), exact[batch, :, head].ravel()
        if _largest(right) < COSINE_FROM * allowed or not right.any():
            continue
        cosine = mine @ right / max(np.linalg.norm(mine) * np.linalg.norm(right), 1e-300)
        assert cosine >= MIN_COSINE, f"{name}: cosine {cosine:.6f} in batch {batch}, head {head}"


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0.0))


def _places(where: np.ndarray) -> list[list[int]]:
    shown = 3
    return np.argwhere(where)[:shown].tolist()


def assert_gradients_agree(ours: Results, others: Results, dtype: str = "bfloat16") -> None:
    """Check gradients of other orders of sums: a few roundings of the largest value apart."""
    bound = 4 * {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    for name in ("grad_query", "grad_key", "grad_value"):
        mine, other = getattr(ours, name), getattr(others, name)
        np.testing.assert_allclose(mine, other, rtol=0, atol=bound * np.abs(other).max())
