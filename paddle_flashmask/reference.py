"""Attention with a dense mask in Paddle's own operators: the definition, O(Sq * Sk) memory.

Shares no code with the kernels; use it to check results and to see what a dense mask costs.
"""

from __future__ import annotations

import math

import paddle


def dense_attention(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    mask: paddle.Tensor | None = None,
    softmax_scale: float | None = None,
) -> paddle.Tensor:
    """Return softmax(softmax_scale * q k^T, masked) v; rows that see nothing give 0.

    Sums of 16-bit inputs are in float32, and so are their scores and weights.

    Args:
        query: [B, Sq, Hq, D], floating.
        key: [B, Sk, Hk, D], dtype of query; Hq a multiple of Hk.
        value: [B, Sk, Hk, Dv], dtype of query.
        mask: [B or 1, 1 or Hq, Sq, Sk], bool, True where a row sees a column; None: all visible.
        softmax_scale: factor of the scores; None: 1 / sqrt(D).

    Returns:
        [B, Sq, Hq, Dv], dtype of query, differentiable.
    """
    scale = 1.0 / math.sqrt(query.shape[-1]) if softmax_scale is None else softmax_scale
    group = query.shape[2] // key.shape[2]
    heads_first = [0, 2, 1, 3]
    is_wide = query.dtype in (paddle.float32, paddle.float64)
    queries, keys, values = (
        (tensor if is_wide else tensor.astype("float32")).transpose(heads_first)
        for tensor in (query, key, value)
    )
    keys = paddle.repeat_interleave(keys, group, axis=1)
    values = paddle.repeat_interleave(values, group, axis=1)
    scores = paddle.matmul(queries, keys, transpose_y=True) * scale
    if mask is not None:
        # A finite stand-in for -inf keeps the gradient of rows without any key free of NaN.
        lowest = paddle.full([], paddle.finfo(scores.dtype).min, scores.dtype)
        scores = paddle.where(mask, scores, lowest)
    weights = paddle.nn.functional.softmax(scores, axis=-1)
    if mask is not None:
        weights = paddle.where(mask, weights, paddle.zeros([], weights.dtype))
    out: paddle.Tensor = paddle.matmul(weights, values).transpose(heads_first)
    return out.astype(query.dtype)
