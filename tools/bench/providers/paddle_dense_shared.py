"""Paddle's `scaled_dot_product_attention` with one dense mask for all heads."""

from __future__ import annotations

from providers import paddle_dense


class Bench(paddle_dense.Bench):
    """Less memory than `paddle_dense`, more time."""

    mask_heads = 1
