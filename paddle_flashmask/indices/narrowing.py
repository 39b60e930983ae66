"""The same mask in fewer numbers: per column, and per sample where mask heads are equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices._arguments import check_count, check_mask
from paddle_flashmask.indices.bounds import diagonal_rows, to_bounds
from paddle_flashmask.indices.form import BoolArray, ColumnMask, Int32Array
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
        A `ColumnMask` with bounds in [0, Sq] whose dense form is the same. A column that nobody
        sees starts at its diagonal row, as recipes pad.

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
    rest = np.where(from_top, second, first)
    rest_is_tail = (rest[0] >= rest[1]) | (rest[1] == seqlen_q)
    second_is_free = from_top | (second[0] >= second[1])
    if (rest_is_tail & second_is_free).all():
        upper_end = np.where(from_top, first[1], 0)
        lower_start = np.where(rest[0] >= rest[1], seqlen_q, rest[0])
        hidden = from_top & (first[1] == seqlen_q)
        upper_end, lower_start = np.where(hidden, diagonal, [upper_end, lower_start])
        return ColumnMask(_stack(lower_start, upper_end), causal=False)
    return ColumnMask(bounds, causal=False)


def collapse_heads(
    mask: ColumnMask, *, seqlen_q: int, num_heads_k: int | None = None
) -> ColumnMask:
    """Return the mask with as few mask heads as say the same.

    Heads are equal if they mask the same rows, whatever numbers say so. Query head h uses mask
    head h // (Hq / Hm), so heads may only be merged to one, or to one per key head.

    Args:
        mask: int32 indices [B, Hm, Sk, C].
        seqlen_q: number of query rows, Sq.
        num_heads_k: number of key heads, Hk, to merge to if one head does not do; None: do not.

    Returns:
        The `ColumnMask` with 1 head if all are equal in every sample, else with Hk if each group
        of Hm / Hk neighbours is, else the mask as it came.

    Raises:
        TypeError: mask is not a `ColumnMask` of int32, or a number is not an int.
        ValueError: the form breaks a rule, or Hm is not a multiple of num_heads_k.

    Example:
        >>> import numpy as np
        >>> heads = ColumnMask(np.array([[[[2], [2]], [[5], [2]]]], np.int32), causal=True)
        >>> collapse_heads(heads, seqlen_q=2).startend_row_indices.shape
        (1, 1, 2, 1)
    """
    indices = check_mask("mask", mask).startend_row_indices
    first, second = disjoint_runs(to_bounds(indices, causal=mask.causal, seqlen_q=seqlen_q))
    runs = np.concatenate([first, second])
    num_heads = indices.shape[1]
    targets = [1]
    if num_heads_k is not None:
        targets.append(check_count("num_heads_k", num_heads_k, at_least=1))
        if num_heads % targets[-1] != 0:
            raise ValueError(
                f"num_heads_k must divide the mask heads, {num_heads}; got {num_heads_k}"
            )
    for target in targets:
        group = num_heads // target
        if _is_repeated(runs, group):
            return ColumnMask(np.ascontiguousarray(indices[:, ::group]), mask.causal)
    return mask


def is_same(first: ColumnMask, second: ColumnMask, *, seqlen_q: int) -> bool:
    """Tell whether two masks of one shape [B, Hm, Sk] mask the same cells, whatever their form.

    Args:
        first: int32 indices [B, Hm, Sk, C].
        second: int32 indices of the same batch, heads and columns; form and flag may differ.
        seqlen_q: number of query rows of both, Sq.

    Raises:
        TypeError: an argument is not a `ColumnMask` of int32, or seqlen_q not an int.
        ValueError: a form breaks a rule.

    Example:
        >>> import numpy as np
        >>> causal = ColumnMask(np.array([[[[2], [2]]]], np.int32), causal=True)
        >>> pair = ColumnMask(np.array([[[[9, 0], [9, 1]]]], np.int32), causal=False)
        >>> is_same(causal, pair, seqlen_q=2)
        True
    """
    runs = []
    for name, mask in (("first", first), ("second", second)):
        check_mask(name, mask)
        bounds = to_bounds(mask.startend_row_indices, causal=mask.causal, seqlen_q=seqlen_q)
        runs.append(np.stack(disjoint_runs(bounds)))
    return np.array_equal(runs[0], runs[1])


def _is_repeated(runs: Int32Array, group: int) -> bool:
    """Tell whether each head's runs [4, B, Hm, Sk] are those of the first of its group."""
    leaders = np.repeat(runs[:, :, ::group], group, axis=2)
    same: BoolArray = runs == leaders
    return bool(same.all())


def _stack(*columns: NDArray[np.integer]) -> Int32Array:
    return np.stack(columns, axis=-1).astype(np.int32)
