"""The same mask in the fewest numbers per column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices.bounds import diagonal_rows, to_bounds
from paddle_flashmask.indices.form import ColumnMask, Int32Array
from paddle_flashmask.indices.runs import disjoint_runs


def narrow(startend_row_indices: Int32Array, *, causal: bool, seqlen_q: int) -> ColumnMask:
    """Return the same mask in the fewest numbers per column.

    Forms are tried in the order causal 1, causal 2, non-causal 2, non-causal 4; the first that
    says exactly the same for every column of every sample and head is returned.

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.

    Returns:
        A `ColumnMask` with bounds in [0, Sq] whose dense form is the same.

    Raises:
        TypeError, ValueError: see `check`.

    Example:
        >>> import numpy as np
        >>> documents = np.array([[[[2, 3, 0, 0], [2, 3, 0, 1], [3, 3, 0, 2]]]], np.int32)
        >>> mask = narrow(documents, causal=False, seqlen_q=3)
        >>> mask.startend_row_indices[0, 0, :, 0].tolist(), mask.causal
        ([2, 2, 3], True)
    """
    bounds = to_bounds(startend_row_indices, causal=causal, seqlen_q=seqlen_q)
    first, second = disjoint_runs(bounds)
    diagonal = diagonal_rows(seqlen_q, bounds.shape[2])
    above_is_masked = (first[0] == 0) & (first[1] >= diagonal) | (diagonal == 0)
    if above_is_masked.all():
        first_below, second_below = np.maximum(first, diagonal), np.maximum(second, diagonal)
        first_is_empty = first_below[0] >= first_below[1]
        if (first_is_empty | (second_below[0] >= second_below[1])).all():
            start, end = np.where(first_is_empty, second_below, first_below)
            empty = start >= end
            start, end = np.where(empty, seqlen_q, start), np.where(empty, seqlen_q, end)
            if (end == seqlen_q).all():
                return ColumnMask(_stack(start), causal=True)
            return ColumnMask(_stack(start, end), causal=True)
    from_top = first[0] == 0
    upper_end = np.where(from_top, first[1], 0)
    rest = np.where(from_top, second, first)
    rest_is_tail = (rest[0] >= rest[1]) | (rest[1] == seqlen_q)
    second_is_free = from_top | (second[0] >= second[1])
    if (rest_is_tail & second_is_free).all():
        lower_start = np.where(rest[0] >= rest[1], seqlen_q, rest[0])
        return ColumnMask(_stack(lower_start, upper_end), causal=False)
    return ColumnMask(bounds, causal=False)


def _stack(*columns: NDArray[np.integer]) -> Int32Array:
    return np.stack(columns, axis=-1).astype(np.int32)
