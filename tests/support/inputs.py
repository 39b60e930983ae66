"""Inputs of a call as numpy arrays, and what is right for them; no framework needed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from support import dense, tolerance
from support.cases import AttentionCase, Mask
from support.dense import Results


class Inputs(NamedTuple):
    """Arrays already rounded to the dtype they will be used in."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    grad_out: np.ndarray
    grad_lse: np.ndarray


def random_inputs(case: AttentionCase, rng: np.random.Generator) -> Inputs:
    rounded = dense.ROUNDINGS[case.dtype]
    shape_q = (case.batch, case.seqlen_q, case.num_heads, case.head_dim)
    shape_k = (case.batch, case.seqlen_k, case.num_heads_k, case.head_dim)
    query, key, value, grad_out = (
        rounded(case.input_scale * rng.standard_normal(shape))
        for shape in (shape_q, shape_k, shape_k, shape_q)
    )
    shape_lse = (case.batch, case.num_heads, case.seqlen_q)
    grad_lse = dense.round_float32(rng.standard_normal(shape_lse))
    return Inputs(query, key, value, grad_out, grad_lse)


def visible(inputs: Inputs, mask: Mask) -> np.ndarray:
    return dense.visible(
        mask.indices,
        causal=mask.causal,
        seqlen_q=inputs.query.shape[1],
        seqlen_k=inputs.key.shape[1],
        window=mask.window_pair,
    )


def exact(
    inputs: Inputs,
    mask: Mask,
    *,
    softmax_scale: float | None = None,
    grads: str = "both",
    rounded: dense.Rounding = dense.round_float64,
) -> Results:
    return dense.attention(
        *inputs[:3],
        visible(inputs, mask),
        softmax_scale=softmax_scale,
        grad_out=None if grads == "lse" else inputs.grad_out,
        grad_lse=None if grads == "out" else inputs.grad_lse,
        rounded=rounded,
    )


def assert_right(
    ours: Results,
    inputs: Inputs,
    mask: Mask,
    dtype: str,
    *,
    softmax_scale: float | None = None,
    grads: str = "both",
) -> None:
    """Check a result of `run` by the rule of support.tolerance."""
    options = {"softmax_scale": softmax_scale, "grads": grads}
    coarse = None
    if dtype != "float32":
        coarse = exact(inputs, mask, rounded=dense.ROUNDINGS[dtype], **options)
    right = exact(inputs, mask, **options)
    tolerance.assert_results_close(ours, right, coarse, dtype, visible(inputs, mask))


def count_inputs(
    batch: int, seqlen_q: int, seqlen_k: int, num_heads: int, num_heads_k: int, head_dim: int
) -> Inputs:
    """Inputs of the COUNT probe: q = 0, v_j = j + 1, gradient of out 1, k random."""
    shape_q = (batch, seqlen_q, num_heads, head_dim)
    shape_k = (batch, seqlen_k, num_heads_k, head_dim)
    value = np.arange(1.0, seqlen_k + 1)[None, :, None, None]
    key = np.random.default_rng(0).standard_normal(shape_k).astype(np.float32)
    return Inputs(
        np.zeros(shape_q),
        dense.round_bfloat16(key),
        np.broadcast_to(value, shape_k),
        np.ones(shape_q),
        np.zeros((batch, num_heads, seqlen_q)),
    )
