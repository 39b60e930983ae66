"""The two masked row intervals of every column, the one form that all others are lowered to."""

from __future__ import annotations

import numpy as np

from paddle_flashmask.indices.form import ColumnMask, Int32Array, check, check_seqlen_q


def diagonal_rows(seqlen_q: int, seqlen_k: int) -> Int32Array:
    """Return for each column the first row that the causal rule lets see it.

    Args:
        seqlen_q: number of query rows, Sq.
        seqlen_k: number of key columns, Sk.

    Returns:
        [Sk], int32, in [0, Sq]: j - (Sk - Sq), clipped.
    """
    seqlen_q = check_seqlen_q(seqlen_q)
    rows = np.arange(seqlen_k, dtype=np.int64) - (seqlen_k - seqlen_q)
    return np.clip(rows, 0, seqlen_q).astype(np.int32)


def to_bounds(startend_row_indices: Int32Array, *, causal: bool, seqlen_q: int) -> Int32Array:
    """Return the two masked row intervals of every column, clipped, with causal lowered.

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.

    Returns:
        [B, Hm, Sk, 4], int32 in [0, Sq]: lower_start, lower_end, upper_start, upper_end, half-open.
        This is the non-causal form of width 4, so it is itself a valid mask with causal=False.

    Raises:
        TypeError, ValueError: see `check`.

    Example:
        >>> import numpy as np
        >>> causal_pair = np.array([[[[2], [2]]]], np.int32)
        >>> to_bounds(causal_pair, causal=True, seqlen_q=2).tolist()
        [[[[2, 2, 0, 0], [2, 2, 0, 1]]]]
    """
    check(startend_row_indices, causal=causal)
    seqlen_q = check_seqlen_q(seqlen_q)
    clipped = np.clip(startend_row_indices, 0, seqlen_q)
    width = clipped.shape[3]
    bounds = np.zeros((*clipped.shape[:3], 4), np.int32)
    bounds[..., 0] = clipped[..., 0]
    bounds[..., 1] = seqlen_q
    if causal:
        bounds[..., 3] = diagonal_rows(seqlen_q, clipped.shape[2])
        if width == 2:
            bounds[..., 1] = clipped[..., 1]
    elif width == 2:
        bounds[..., 3] = clipped[..., 1]
    else:
        bounds[...] = clipped
    return bounds


def lower_causal(startend_row_indices: Int32Array, *, seqlen_q: int) -> ColumnMask:
    """Return the non-causal mask that equals a causal one.

    Args:
        startend_row_indices: [B, Hm, Sk, 1 or 2], int32, to be read with causal=True.
        seqlen_q: number of query rows, Sq.

    Returns:
        A `ColumnMask` with causal=False: width 1 becomes 2 (lower_start, upper_end), width 2
        becomes 4 (lower_start, lower_end, 0, upper_end).

    Raises:
        TypeError, ValueError: see `check`.
    """
    bounds = to_bounds(startend_row_indices, causal=True, seqlen_q=seqlen_q)
    if startend_row_indices.shape[3] == 1:
        return ColumnMask(np.ascontiguousarray(bounds[..., [0, 3]]), causal=False)
    return ColumnMask(bounds, causal=False)
