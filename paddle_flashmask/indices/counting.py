"""How many cells a mask leaves visible: in all, per row and per column. All O(B * Hm * (Sq + Sk)).

Two intervals of a column mask as many rows as both lengths less what they share.
"""

from __future__ import annotations

import numpy as np

from paddle_flashmask.indices.bounds import to_bounds
from paddle_flashmask.indices.form import Int32Array, Int64Array

BOUNDS = 4


def count_visible(startend_row_indices: Int32Array, *, causal: bool, seqlen_q: int) -> Int64Array:
    """Return how many cells of each mask head are visible, exactly.

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.

    Returns:
        [B, Hm], int64.

    Raises:
        TypeError, ValueError: see `check`.

    Example:
        >>> import numpy as np
        >>> count_visible(np.array([[[[2], [2], [3]]]], np.int32), causal=True, seqlen_q=3).tolist()
        [[4]]
    """
    columns = visible_per_column(startend_row_indices, causal=causal, seqlen_q=seqlen_q)
    total: Int64Array = columns.sum(axis=-1, dtype=np.int64)
    return total


def visible_per_column(
    startend_row_indices: Int32Array, *, causal: bool, seqlen_q: int
) -> Int64Array:
    """Return how many query rows see each key column.

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.

    Returns:
        [B, Hm, Sk], int64, in [0, Sq].

    Raises:
        TypeError, ValueError: see `check`.

    Example:
        >>> import numpy as np
        >>> visible_per_column(np.array([[[[2], [2]]]], np.int32), causal=True, seqlen_q=2).tolist()
        [[[2, 1]]]
    """
    bounds = to_bounds(startend_row_indices, causal=causal, seqlen_q=seqlen_q)
    return seqlen_q - masked_below(bounds, seqlen_q)


def visible_per_row(startend_row_indices: Int32Array, *, causal: bool, seqlen_q: int) -> Int64Array:
    """Return how many key columns each query row sees; 0 is a row whose output is 0.

    Each interval adds one at its first row and takes one away behind its last; the running sum is
    the number of masked columns. What both intervals of a column share counts once.

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.

    Returns:
        [B, Hm, Sq], int64, in [0, Sk].

    Raises:
        TypeError, ValueError: see `check`.

    Example:
        >>> import numpy as np
        >>> two_documents = np.array([[[[2], [2], [3]]]], np.int32)
        >>> visible_per_row(two_documents, causal=True, seqlen_q=3).tolist()
        [[[1, 2, 1]]]
    """
    bounds = to_bounds(startend_row_indices, causal=causal, seqlen_q=seqlen_q)
    batch, heads, seqlen_k, _ = bounds.shape
    line = seqlen_q + 1  # one more, for intervals that end behind the last row
    offset = np.arange(batch * heads, dtype=np.int64).reshape(batch, heads, 1) * line
    change = np.zeros(batch * heads * line, np.int64)
    lower_start, lower_end, upper_start, upper_end = np.moveaxis(bounds, -1, 0)
    shared = np.maximum(lower_start, upper_start), np.minimum(lower_end, upper_end)
    both_masked = (lower_start < lower_end) & (upper_start < upper_end)
    for (start, end), counts, sign in (
        ((lower_start, lower_end), lower_start < lower_end, 1),
        ((upper_start, upper_end), upper_start < upper_end, 1),
        (shared, both_masked & (shared[0] < shared[1]), -1),
    ):
        change += sign * np.bincount((offset + start)[counts], minlength=change.size)
        change -= sign * np.bincount((offset + end)[counts], minlength=change.size)
    masked = np.cumsum(change.reshape(batch, heads, line), axis=-1)[..., :seqlen_q]
    visible: Int64Array = seqlen_k - masked
    return visible


def masked_below(bounds: Int32Array, row_end: int | Int32Array) -> Int64Array:
    """Return how many of the rows [0, row_end) are masked in each column.

    Args:
        bounds: [B, Hm, Sk, 4], int32, as `to_bounds` returns them.
        row_end: one past the last row that counts, or one such row per sample, [B, 1, 1, 1].

    Returns:
        [B, Hm, Sk], int64.
    """
    bounds = np.minimum(bounds, row_end)
    lower_start, lower_end, upper_start, upper_end = (bounds[..., n] for n in range(BOUNDS))
    lower = np.maximum(lower_end - lower_start, 0)
    upper = np.maximum(upper_end - upper_start, 0)
    shared = np.minimum(lower_end, upper_end) - np.maximum(lower_start, upper_start)
    shared = np.where((lower > 0) & (upper > 0), np.maximum(shared, 0), 0)
    masked: Int64Array = lower.astype(np.int64) + upper - shared
    return masked
