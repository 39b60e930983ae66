"""Calls of the operator from numpy arrays: inputs, poisoned memory, forward, backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from support.cases import AttentionCase, Mask
from support.dense import Results
from support.inputs import Inputs, assert_right, count_inputs, exact, random_inputs, visible

from paddle_flashmask import flashmask_attention

__all__ = [
    "Inputs",
    "assert_right",
    "check_case",
    "count_inputs",
    "exact",
    "poison",
    "random_inputs",
    "run",
    "tensor",
    "to_numpy",
    "visible",
]
GRADIENTS = ("both", "out", "lse")


def tensor(array: np.ndarray, dtype: str = "float32", *, grad: bool = False) -> paddle.Tensor:
    made = paddle.to_tensor(np.ascontiguousarray(array, np.float32)).astype(dtype)
    made.stop_gradient = not grad
    return made


def to_numpy(made: paddle.Tensor) -> np.ndarray:
    return made.astype("float32").numpy()


def poison(*shapes: tuple[int, ...]) -> None:
    """Fill blocks of these sizes with NaN and free them, so that unwritten memory shows."""
    blocks = []
    for shape in shapes:
        for dtype in ("float32", "bfloat16"):
            blocks += [paddle.full(shape, float("nan"), dtype) for _ in range(2)]
    del blocks


def run(
    inputs: Inputs,
    mask: Mask,
    *,
    dtype: str = "float32",
    softmax_scale: float | None = None,
    grads: str = "both",
    **arguments: Any,
) -> Results:
    """Return what the operator gives for these inputs, with memory poisoned before each pass."""
    query, key, value = (tensor(array, dtype, grad=True) for array in inputs[:3])
    poison(inputs.query.shape, inputs.key.shape, inputs.grad_lse.shape)
    out, lse = flashmask_attention(
        query,
        key,
        value,
        mask.indices,
        mask.causal,
        window_size=mask.window,
        softmax_scale=softmax_scale,
        return_softmax_lse=True,
        **arguments,
    )
    assert out.dtype == query.dtype
    assert lse.dtype == paddle.float32
    grad_out, grad_lse = tensor(inputs.grad_out, dtype), tensor(inputs.grad_lse)
    poison(inputs.query.shape, inputs.key.shape, inputs.key.shape)
    outputs, cotangents = {
        "both": ([out, lse], [grad_out, grad_lse]),
        "out": ([out], [grad_out]),
        "lse": ([lse], [grad_lse]),
    }[grads]
    gradients = paddle.grad(outputs, [query, key, value], cotangents)
    for gradient, source in zip(gradients, (query, key, value), strict=True):
        assert gradient.dtype == source.dtype
    return Results(*(to_numpy(x) for x in (out, lse, *gradients)))


def check_case(case: AttentionCase, rng: np.random.Generator, *, grads: str = "both") -> None:
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    ours = run(inputs, mask, dtype=case.dtype, softmax_scale=case.softmax_scale, grads=grads)
    assert_right(ours, inputs, mask, case.dtype, softmax_scale=case.softmax_scale, grads=grads)
