"""The mask visible in both of two masks: documents with a window, a prefix with padding."""

from __future__ import annotations

import numpy as np

from paddle_flashmask.indices._arguments import check_mask
from paddle_flashmask.indices.bounds import diagonal_rows, to_bounds
from paddle_flashmask.indices.form import ColumnMask, Int32Array
from paddle_flashmask.indices.narrowing import narrow
from paddle_flashmask.indices.runs import merge_intervals, refuse_more_runs, runs_to_bounds


def intersect(first: ColumnMask, second: ColumnMask, *, seqlen_q: int) -> ColumnMask:
    """Return the mask whose cells are visible in both, in the fewest numbers per column.

    Its masked rows are those of either mask. Flags and widths may differ.

    Args:
        first: int32 indices [B, Hm, Sk, C].
        second: int32 indices with as many columns. Batch 1 goes with any batch; of the numbers of
            mask heads one must be a multiple of the other, and heads are shared as query heads
            share them: head h of the many goes with head h // (many / few).
        seqlen_q: number of query rows of both, Sq.

    Returns:
        A `ColumnMask` with the larger batch and number of heads; see `narrow` for the form.

    Raises:
        TypeError: an argument is not a `ColumnMask` of int32, or seqlen_q not an int.
        ValueError: the shapes do not go together, or a column's masked rows make more than 2 runs;
            the message names the columns.

    Example:
        >>> import numpy as np
        >>> documents = ColumnMask(np.array([[[[3], [3], [3], [4]]]], np.int32), causal=True)
        >>> window = ColumnMask(np.array([[[[2], [3], [4], [4]]]], np.int32), causal=True)
        >>> intersect(documents, window, seqlen_q=4).startend_row_indices[0, 0, :, 0].tolist()
        [2, 3, 3, 4]
    """
    bounds = [
        to_bounds(
            check_mask(name, mask).startend_row_indices, causal=mask.causal, seqlen_q=seqlen_q
        )
        for name, mask in (("first", first), ("second", second))
    ]
    one, other = _broadcast(bounds[0], bounds[1])
    runs = merge_intervals(
        np.concatenate([one[..., 0::2], other[..., 0::2]], axis=-1),
        np.concatenate([one[..., 1::2], other[..., 1::2]], axis=-1),
    )
    refuse_more_runs("the intersection of first and second", runs.num_runs)
    diagonal = diagonal_rows(seqlen_q, one.shape[2])
    both = runs_to_bounds(runs, diagonal=diagonal, seqlen_q=seqlen_q)
    return narrow(both, causal=False, seqlen_q=seqlen_q)


def _broadcast(one: Int32Array, other: Int32Array) -> tuple[Int32Array, Int32Array]:
    shapes = f"got [batch, heads, seqlen_k] {list(one.shape[:3])} and {list(other.shape[:3])}"
    if one.shape[2] != other.shape[2]:
        raise ValueError(f"first and second must have as many columns; {shapes}")
    if one.shape[0] != other.shape[0] and 1 not in (one.shape[0], other.shape[0]):
        raise ValueError(f"first and second must have one batch, or one of them batch 1; {shapes}")
    fewer, more = sorted((one.shape[1], other.shape[1]))
    if more != fewer and (fewer == 0 or more % fewer != 0):
        raise ValueError(
            f"the mask heads of first and second must be one a multiple of the other; {shapes}"
        )
    one, other = (
        bounds if bounds.shape[1] == more else np.repeat(bounds, more // fewer, axis=1)
        for bounds in (one, other)
    )
    one, other = np.broadcast_arrays(one, other)
    return one, other
