"""The definition of the operator in numpy: visibility cell by cell, attention and its gradients.

Shares no code with the package. `attention` works in float64; `attention_rounded` does the same
maths and rounds after every step to a narrower dtype, as a dense attention in that dtype would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Results(NamedTuple):
    """What a call gives; each of a float dtype. Axes as the operator has them."""

    out: np.ndarray  # [B, Sq, Hq, D]
    softmax_lse: np.ndarray  # [B, Hq, Sq]
    grad_query: np.ndarray  # [B, Sq, Hq, D]
    grad_key: np.ndarray  # [B, Sk, Hk, D]
    grad_value: np.ndarray  # [B, Sk, Hk, D]


Rounding = Callable[[np.ndarray], np.ndarray]


def round_float64(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float64)


def round_float32(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float32).astype(np.float64)


def round_float16(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(array, np.float16).astype(np.float64)


def round_bfloat16(array: np.ndarray) -> np.ndarray:
    """Round to 8 significant bits, halves to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


ROUNDINGS: dict[str, Rounding] = {
    "float32": round_float32,
    "float16": round_float16,
    "bfloat16": round_bfloat16,
}


def visible(
    indices: np.ndarray | None,
    *,
    causal: bool,
    seqlen_q: int,
    seqlen_k: int,
    window: tuple[int, int] | None = None,
) -> np.ndarray:
    """Return [B or 1, Hm or 1, Sq, Sk], True where a row sees a column; numbers are not clipped."""
    row = np.arange(seqlen_q, dtype=np.int64)[:, None]
    column = np.arange(seqlen_k, dtype=np.int64)[None, :]
    last_seen = row + seqlen_k - seqlen_q
    seen = np.ones((1, 1, seqlen_q, seqlen_k), bool)
    if causal:
        seen &= column <= last_seen
    if window is not None:
        left, right = window
        seen &= (column >= last_seen - left) & (column <= last_seen + right)
    if indices is None:
        return seen
    bounds = [indices[:, :, None, :, c].astype(np.int64) for c in range(indices.shape[3])]
    match causal, len(bounds):
        case True, 1:
            masked = row >= bounds[0]
        case True, 2:
            masked = (row >= bounds[0]) & (row < bounds[1])
        case False, 2:
            masked = (row >= bounds[0]) | (row < bounds[1])
        case False, 4:
            masked = (row >= bounds[0]) & (row < bounds[1])
            masked |= (row >= bounds[2]) & (row < bounds[3])
        case _:
            raise AssertionError(f"no such form: causal={causal}, width {len(bounds)}")
    return seen & ~masked


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    seen: np.ndarray,
    *,
    softmax_scale: float | None = None,
    grad_out: np.ndarray | None = None,
    grad_lse: np.ndarray | None = None,
    rounded: Rounding = round_float64,
) -> Results:
    """Return attention and its gradients for grad_out and grad_lse (zeros where None).

    Args:
        query: [B, Sq, Hq, D].
        key: [B, Sk, Hk, D].
        value: [B, Sk, Hk, D].
        seen: [B or 1, Hm, Sq, Sk], bool; Hm divides Hq.
        softmax_scale: factor of the scores; None: 1 / sqrt(D).
        grad_out: [B, Sq, Hq, D].
        grad_lse: [B, Hq, Sq].
        rounded: applied to every intermediate array.
    """
    batch, _, num_heads, head_dim = query.shape
    num_heads_k = key.shape[2]
    group = num_heads // num_heads_k
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    seen = np.repeat(np.broadcast_to(seen, (batch, *seen.shape[1:])), num_heads // seen.shape[1], 1)
    q, k, v = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (query, key, value))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = rounded(rounded(q @ k.swapaxes(2, 3)) * scale)
    scores = np.where(seen, scores, -np.inf)
    largest = scores.max(axis=3, keepdims=True, initial=-np.inf)
    shift = np.where(np.isneginf(largest), 0.0, largest)
    weights = np.exp(scores - shift)
    sums = weights.sum(axis=3, keepdims=True)
    weights = rounded(weights / np.where(sums == 0, 1.0, sums))
    with np.errstate(divide="ignore"):
        lse = np.log(sums)[..., 0] + shift[..., 0]
    out = rounded(weights @ v)

    grad_out = np.zeros(query.shape) if grad_out is None else np.asarray(grad_out, np.float64)
    grad_lse = np.zeros(lse.shape) if grad_lse is None else np.asarray(grad_lse, np.float64)
    grad = grad_out.transpose(0, 2, 1, 3)
    grad_weights = rounded(grad @ v.swapaxes(2, 3))
    mean = (grad_weights * weights).sum(axis=3, keepdims=True)
    grad_scores = rounded(rounded(weights * (grad_weights - mean + grad_lse[..., None])) * scale)
    grad_q = rounded(grad_scores @ k)
    grad_k = grad_scores.swapaxes(2, 3) @ q
    grad_v = weights.swapaxes(2, 3) @ grad
    by_group = (batch, num_heads_k, group, *key.shape[1::2])
    grad_k, grad_v = (rounded(x.reshape(by_group).sum(axis=2)) for x in (grad_k, grad_v))
    heads_second = (0, 2, 1, 3)
    return Results(
        out.transpose(heads_second),
        lse,
        grad_q.transpose(heads_second),
        grad_k.transpose(heads_second),
        grad_v.transpose(heads_second),
    )
