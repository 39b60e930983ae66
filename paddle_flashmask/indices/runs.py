"""The masked rows of a column as sorted runs that do not touch: what two masks are compared by."""

from __future__ import annotations

import numpy as np

from paddle_flashmask.indices.form import INT32_MAX, Int32Array


def disjoint_runs(bounds: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Return the masked rows of each column as two sorted runs that do not touch, empties last."""
    seqlen_sentinel = INT32_MAX
    starts, ends = bounds[..., 0::2].copy(), bounds[..., 1::2].copy()
    empty = starts >= ends
    starts[empty] = seqlen_sentinel
    ends[empty] = seqlen_sentinel
    order = np.argsort(starts, axis=-1, kind="stable")
    starts = np.take_along_axis(starts, order, axis=-1)
    ends = np.take_along_axis(ends, order, axis=-1)
    touch = (starts[..., 1] <= ends[..., 0]) & (starts[..., 1] != seqlen_sentinel)
    first_end = np.where(touch, np.maximum(ends[..., 0], ends[..., 1]), ends[..., 0])
    second_start = np.where(touch, seqlen_sentinel, starts[..., 1])
    second_end = np.where(touch, seqlen_sentinel, ends[..., 1])
    return np.stack([starts[..., 0], first_end]), np.stack([second_start, second_end])
