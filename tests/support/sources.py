"""Small differentiable inputs of a call as Paddle tensors."""

from __future__ import annotations

import numpy as np
import paddle
from support import calls

HEAD_DIM = 16


def make_sources(length: int = 70, *, grad: bool = False, dtype: str = "float32"):
    sources = [paddle.rand([2, length, heads, HEAD_DIM]) - 0.5 for heads in (4, 2, 2)]
    sources = [source.astype(dtype) for source in sources]
    for source in sources:
        source.stop_gradient = not grad
    return sources


def make_rows(length: int = 70) -> paddle.Tensor:
    ends = np.where(np.arange(length) < length // 2, length // 2, length)
    return paddle.to_tensor(np.tile(ends.astype(np.int32)[:, None], (2, 1, 1, 1)))


def same_bits(ours, others) -> bool:
    pairs = zip(ours, others, strict=True)
    return all(calls.to_numpy(a).tobytes() == calls.to_numpy(b).tobytes() for a, b in pairs)
