"""Dense masks: the definition of what the numbers mean, and the way back."""

from __future__ import annotations

import numpy as np

from paddle_flashmask.indices.bounds import diagonal_rows, to_bounds
from paddle_flashmask.indices.form import BoolArray, ColumnMask, Int32Array
from paddle_flashmask.indices.narrowing import collapse_heads, narrow
from paddle_flashmask.indices.runs import NO_ROW, Runs, refuse_more_runs, runs_to_bounds

MATRIX_RANK = 2
FULL_RANK = 4


def to_dense(startend_row_indices: Int32Array, *, causal: bool, seqlen_q: int) -> BoolArray:
    """Return the dense mask: True where a query row sees a key column. The definition, O(Sq * Sk).

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.

    Returns:
        [B, Hm, Sq, Sk], bool.

    Raises:
        TypeError, ValueError: see `check`.

    Example:
        >>> import numpy as np
        >>> two_documents = np.array([[[[2], [2], [3]]]], np.int32)
        >>> to_dense(two_documents, causal=True, seqlen_q=3)[0, 0].astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    bounds = to_bounds(startend_row_indices, causal=causal, seqlen_q=seqlen_q)
    lower_start, lower_end, upper_start, upper_end = np.moveaxis(bounds[..., None, :, :], -1, 0)
    row = np.arange(seqlen_q, dtype=np.int32)[:, None]
    masked = (row >= lower_start) & (row < lower_end)
    masked |= (row >= upper_start) & (row < upper_end)
    visible: BoolArray = ~masked
    return visible


def from_dense(visible: BoolArray, *, collapse: bool = False) -> ColumnMask:
    """Return exactly a dense mask in the fewest numbers per column, or refuse it. O(Sq * Sk).

    Args:
        visible: [Sq, Sk], [Hm, Sq, Sk] or [B, Hm, Sq, Sk], bool, True where a row sees a column.
        collapse: whether mask heads that are equal in every sample become one (`collapse_heads`);
            else the heads stay as given.

    Returns:
        A `ColumnMask` with int32 indices [B, Hm, Sk, C] in [0, Sq], in the first form of causal 1,
        causal 2, non-causal 2 and non-causal 4 that says all columns; a form is causal only if no
        row sees a column above its (bottom-right aligned) diagonal.

    Raises:
        TypeError: visible is not a numpy array of bools.
        ValueError: its rank is not 2, 3 or 4, or a column's masked rows make more than 2 runs; the
            message names the columns.

    Example:
        >>> import numpy as np
        >>> visible = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]], bool)
        >>> mask = from_dense(visible)
        >>> mask.startend_row_indices[0, 0].tolist(), mask.causal
        ([[2], [2], [3]], True)
    """
    if not isinstance(visible, np.ndarray):
        raise TypeError(f"visible must be a numpy array; got {type(visible).__name__}")
    if visible.dtype != np.bool_:
        raise TypeError(
            f"visible must be bool, True where a row sees a column; got {visible.dtype} "
            "(a mask of 0 and -inf, or of 1 for masked, must be compared first)"
        )
    if not MATRIX_RANK <= visible.ndim <= FULL_RANK:
        raise ValueError(
            "visible must have axes [Sq, Sk], [Hm, Sq, Sk] or [B, Hm, Sq, Sk]; "
            f"got shape {list(visible.shape)}"
        )
    full: BoolArray = visible.reshape((1,) * (FULL_RANK - visible.ndim) + visible.shape)
    seqlen_q, seqlen_k = full.shape[2], full.shape[3]
    diagonal = diagonal_rows(seqlen_q, seqlen_k)
    bounds = runs_to_bounds(_runs_of_dense(full), diagonal=diagonal, seqlen_q=seqlen_q)
    mask = narrow(bounds, causal=False, seqlen_q=seqlen_q)
    return collapse_heads(mask, seqlen_q=seqlen_q) if collapse else mask


def _runs_of_dense(visible: BoolArray) -> Runs:
    batch, heads, seqlen_q, seqlen_k = visible.shape
    masked = np.zeros((batch, heads, seqlen_k, seqlen_q + 2), bool)
    masked[..., 1:-1] = ~np.swapaxes(visible, 2, 3)
    starts = masked[..., 1:] & ~masked[..., :-1]
    ends = masked[..., :-1] & ~masked[..., 1:]
    num_runs = starts.sum(axis=-1, dtype=np.int64)
    refuse_more_runs("visible", num_runs)
    runs = np.full((2, 2, batch * heads * seqlen_k), NO_ROW, np.int32)
    for side, edges in enumerate((starts, ends)):
        column, row = np.nonzero(edges.reshape(-1, seqlen_q + 1))
        is_second = np.zeros(row.size, np.int64)
        is_second[1:] = column[1:] == column[:-1]
        runs[is_second, side, column] = row
    first, second = runs.reshape(2, 2, batch, heads, seqlen_k)
    return Runs(first, second, num_runs)
