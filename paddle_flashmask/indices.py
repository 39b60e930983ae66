"""The mask format: row intervals per key column, their rules and their dense meaning.

A mask is an int32 array `startend_row_indices` of shape [B, Hm, Sk, C] and a flag `causal`.
Column j holds C row numbers that bound at most two half-open intervals of *masked* query rows:

| causal | C | masked rows of column j                                   |
|--------|---|-----------------------------------------------------------|
| True   | 1 | [lower_start, Sq)          and the rows above the diagonal |
| True   | 2 | [lower_start, lower_end)   and the rows above the diagonal |
| False  | 2 | [lower_start, Sq)          and [0, upper_end)              |
| False  | 4 | [lower_start, lower_end)   and [upper_start, upper_end)    |

The diagonal is aligned to the bottom right: row i may see column j only if j <= i + Sk - Sq.
Numbers are signed and count as if clipped to [0, Sq]; start >= end is an empty interval.
Source: `paddle.nn.functional.flashmask_attention` (Paddle 3.3) and arXiv 2410.01359, section 4.

Everything here is numpy and linear in Sk, but for `to_dense`, which is the definition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ColumnMask",
    "check",
    "check_form",
    "lower_causal",
    "narrow",
    "to_bounds",
    "to_dense",
]

Int32Array = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

CAUSAL_WIDTHS = (1, 2)
NON_CAUSAL_WIDTHS = (2, 4)
INT32_MAX = 2**31 - 1


class ColumnMask(NamedTuple):
    """A mask as `flashmask_attention` takes it: `flashmask_attention(q, k, v, *mask)`.

    Attributes:
        startend_row_indices: [B, Hm, Sk, C], int32, masked row bounds of each key column.
        causal: whether the rows above the (bottom-right aligned) diagonal are masked as well.
    """

    startend_row_indices: Int32Array
    causal: bool


def check_form(
    shape: tuple[int, ...],
    dtype: str,
    *,
    causal: bool,
    batch: int | None = None,
    num_heads: int | None = None,
    num_heads_k: int | None = None,
    seqlen_k: int | None = None,
) -> None:
    """Check shape and dtype of `startend_row_indices`; sizes left None or unknown (-1) are free.

    Args:
        shape: its shape; -1 stands for an axis not known yet (static graphs).
        dtype: its dtype by name, without a module: "int32".
        causal: the flag the indices are to be read with.
        batch: batch size of query and key.
        num_heads: number of query heads, Hq.
        num_heads_k: number of key heads, Hk.
        seqlen_k: number of keys, Sk.

    Raises:
        TypeError: the dtype is not int32, or causal is not a bool.
        ValueError: rank, batch, heads, length or width break a rule.
    """
    name = "startend_row_indices"
    if not isinstance(causal, (bool, np.bool_)):
        raise TypeError(f"causal must be a bool; got {type(causal).__name__} {causal!r}")
    if dtype != "int32":
        raise TypeError(f"{name} must be int32; got {dtype}. Cast it, e.g. {name}.astype('int32')")
    if len(shape) != 4:
        raise ValueError(
            f"{name} must have 4 axes [batch, mask heads, seqlen_k, 1|2|4]; got shape {list(shape)}"
        )
    widths = CAUSAL_WIDTHS if causal else NON_CAUSAL_WIDTHS
    if shape[3] != -1 and shape[3] not in widths:
        raise ValueError(
            f"{name} must have last axis {widths[0]} or {widths[1]} with causal={bool(causal)}; "
            f"got {shape[3]} in shape {list(shape)}"
        )
    if not _same(shape[0], batch):
        raise ValueError(
            f"{name} must have the batch of query and key, {batch}; "
            f"got {shape[0]} in shape {list(shape)} (the batch is not broadcast)"
        )
    if num_heads is not None and num_heads_k is not None:
        allowed = {1, num_heads, num_heads_k, -1}
        if shape[1] not in allowed and -1 not in (num_heads, num_heads_k):
            raise ValueError(
                f"{name} must have 1, {num_heads_k} (key heads) or {num_heads} (query heads) "
                f"mask heads; got {shape[1]} in shape {list(shape)}"
            )
    elif shape[1] == 0:
        raise ValueError(f"{name} must have at least 1 mask head; got shape {list(shape)}")
    if not _same(shape[2], seqlen_k):
        raise ValueError(
            f"{name} must have one column per key, {seqlen_k}; "
            f"got {shape[2]} in shape {list(shape)}"
        )


def check(
    startend_row_indices: Int32Array,
    *,
    causal: bool,
    batch: int | None = None,
    num_heads: int | None = None,
    num_heads_k: int | None = None,
    seqlen_k: int | None = None,
) -> None:
    """Check that an array has the form of `startend_row_indices`; see `check_form`.

    Raises:
        TypeError: it is not a numpy array, or not int32.
        ValueError: rank, batch, heads, length or width break a rule.
    """
    if not isinstance(startend_row_indices, np.ndarray):
        kind = type(startend_row_indices).__name__
        raise TypeError(f"startend_row_indices must be a numpy array; got {kind}")
    check_form(
        startend_row_indices.shape,
        str(startend_row_indices.dtype),
        causal=causal,
        batch=batch,
        num_heads=num_heads,
        num_heads_k=num_heads_k,
        seqlen_k=seqlen_k,
    )


def diagonal_rows(seqlen_q: int, seqlen_k: int) -> Int32Array:
    """Return for each column the first row that the causal rule lets see it.

    Args:
        seqlen_q: number of query rows, Sq.
        seqlen_k: number of key columns, Sk.

    Returns:
        [Sk], int32, in [0, Sq]: j - (Sk - Sq), clipped.
    """
    _check_seqlen_q(seqlen_q)
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
    _check_seqlen_q(seqlen_q)
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
    first, second = _disjoint_runs(bounds)
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


def _same(size: int, wanted: int | None) -> bool:
    return wanted is None or -1 in (size, wanted) or size == wanted


def _check_seqlen_q(seqlen_q: int) -> None:
    if isinstance(seqlen_q, bool) or not isinstance(seqlen_q, (int, np.integer)):
        raise TypeError(f"seqlen_q must be an int; got {type(seqlen_q).__name__} {seqlen_q!r}")
    if not 0 <= seqlen_q <= INT32_MAX:
        raise ValueError(f"seqlen_q must be in [0, {INT32_MAX}]; got {seqlen_q}")


def _stack(*columns: NDArray[np.integer]) -> Int32Array:
    return np.stack(columns, axis=-1).astype(np.int32)


def _disjoint_runs(bounds: Int32Array) -> tuple[Int32Array, Int32Array]:
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
