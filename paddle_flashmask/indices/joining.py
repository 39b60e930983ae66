"""Several masks in one: along the sequence as blocks that do not see each other, and as a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paddle_flashmask.indices._arguments import check_count, check_mask
from paddle_flashmask.indices.bounds import lower_causal, to_bounds
from paddle_flashmask.indices.form import INT32_MAX, ColumnMask, Int32Array, check_seqlen_q
from paddle_flashmask.indices.narrowing import narrow
from paddle_flashmask.indices.runs import merge_intervals, refuse_more_runs, runs_to_bounds

WIDEST = 4


def concatenate(masks: Sequence[ColumnMask], *, seq_len: int | None = None) -> ColumnMask:
    """Return the square mask of masks one after another: rows see only columns of their own mask.

    Args:
        masks: square masks (Sq = Sk, the number of their columns), at least one, in the order of
            the row; forms and flags may differ. Batches and mask heads must be equal or 1.
        seq_len: length of the row, S; None for all columns. The tail is padding: it sees nothing
            and nobody sees it.

    Returns:
        A `ColumnMask` with S columns in the fewest numbers per column; see `narrow`.

    Raises:
        TypeError: masks is not a list or tuple of `ColumnMask`, or seq_len not an int.
        ValueError: there is no mask, shapes do not go together, the columns do not fit into
            seq_len, or a column's masked rows make more than 2 runs together with the rows of the
            other masks; the message names mask and columns.

    Example:
        >>> import numpy as np
        >>> one = ColumnMask(np.array([[[[2], [2]]]], np.int32), causal=True)
        >>> concatenate([one, one], seq_len=5).startend_row_indices[0, 0, :, 0].tolist()
        [2, 2, 4, 4, 4]
    """
    batch, heads = _shared_shape(_check_masks(masks))
    lengths = [mask.startend_row_indices.shape[2] for mask in masks]
    tokens = sum(lengths)
    if tokens > INT32_MAX:
        raise ValueError(f"masks must have at most {INT32_MAX} columns together; got {tokens}")
    length = tokens if seq_len is None else check_count("seq_len", seq_len)
    if length < tokens:
        raise ValueError(f"seq_len must be at least the columns of masks, {tokens}; got {length}")
    bounds = np.zeros((batch, heads, length, WIDEST), np.int32)
    bounds[..., tokens:, 1] = length
    begin = 0
    for number, mask in enumerate(masks):
        end = begin + lengths[number]
        bounds[:, :, begin:end] = _embed(number, mask, begin, length)
        begin = end
    return narrow(bounds, causal=False, seqlen_q=length)


def stack(masks: Sequence[ColumnMask], *, seqlen_q: int) -> ColumnMask:
    """Return masks of one length as one batch, each in the narrowest form that all can take.

    The form depends on the masks' forms only, not on their numbers, so that a step of training
    does not change shape with its data: causal if all are, with the larger width; else causal ones
    are lowered, width 1 to 2 and 2 to 4, and the larger width is taken. `narrow` may do better.

    Args:
        masks: int32 indices [B, Hm, Sk, C] with one Sk, at least one; batches are put one after
            another, mask heads must be equal or 1.
        seqlen_q: number of query rows of all, Sq.

    Returns:
        A `ColumnMask` with the sum of the batches.

    Raises:
        TypeError: masks is not a list or tuple of `ColumnMask`, or seqlen_q not an int.
        ValueError: there is no mask, or shapes do not go together.

    Example:
        >>> import numpy as np
        >>> causal = ColumnMask(np.array([[[[2], [2]]]], np.int32), causal=True)
        >>> both_ways = ColumnMask(np.array([[[[2, 0], [2, 0]]]], np.int32), causal=False)
        >>> stack([causal, both_ways], seqlen_q=2).startend_row_indices[:, 0].tolist()
        [[[2, 0], [2, 1]], [[2, 0], [2, 0]]]
    """
    seqlen_q = check_seqlen_q(seqlen_q)
    shapes = _check_masks(masks)
    columns = {shape[2] for shape in shapes}
    if len(columns) > 1:
        raise ValueError(
            f"masks must have as many columns; got {sorted(columns)} (pad the shorter)"
        )
    heads = _broadcast_size("mask heads", [shape[1] for shape in shapes])
    causal = all(mask.causal for mask in masks)
    formed = list(masks)
    if not causal:
        formed = [
            lower_causal(mask.startend_row_indices, seqlen_q=seqlen_q) if mask.causal else mask
            for mask in masks
        ]
    width = max(mask.startend_row_indices.shape[3] for mask in formed)
    widened = [_widen(mask, width, seqlen_q) for mask in formed]
    rows = [np.broadcast_to(one, (one.shape[0], heads, *one.shape[2:])) for one in widened]
    return ColumnMask(np.concatenate(rows), causal=causal)


def _embed(number: int, mask: ColumnMask, begin: int, length: int) -> Int32Array:
    """Return the bounds of a mask whose columns and rows start at `begin` of a longer row."""
    indices = mask.startend_row_indices
    size = indices.shape[2]
    bounds = to_bounds(indices, causal=mask.causal, seqlen_q=size) + np.int32(begin)
    around = np.zeros((*bounds.shape[:3], WIDEST), np.int32)
    around[...] = (0, begin, begin + size, length)
    runs = merge_intervals(
        np.concatenate([bounds[..., 0::2], around[..., 0::2]], axis=-1),
        np.concatenate([bounds[..., 1::2], around[..., 1::2]], axis=-1),
    )
    refuse_more_runs(f"masks[{number}] behind {begin} of {length} rows", runs.num_runs)
    diagonal = np.arange(begin, begin + size, dtype=np.int32)
    return runs_to_bounds(runs, diagonal=diagonal, seqlen_q=length)


def _widen(mask: ColumnMask, width: int, seqlen_q: int) -> Int32Array:
    """Return the indices with `width` numbers per column, those missing at their defaults."""
    indices = mask.startend_row_indices
    if indices.shape[3] == width:
        return indices
    if mask.causal:
        return np.concatenate([indices, np.full_like(indices, seqlen_q)], axis=-1)
    return to_bounds(indices, causal=False, seqlen_q=seqlen_q)


def _check_masks(masks: object) -> list[tuple[int, ...]]:
    if not isinstance(masks, (list, tuple)) or isinstance(masks, ColumnMask):
        raise TypeError(f"masks must be a list or tuple of ColumnMask; got {type(masks).__name__}")
    if not masks:
        raise ValueError("masks must hold at least 1 mask; got none")
    return [
        check_mask(f"masks[{number}]", mask).startend_row_indices.shape
        for number, mask in enumerate(masks)
    ]


def _shared_shape(shapes: list[tuple[int, ...]]) -> tuple[int, int]:
    batch = _broadcast_size("batch", [shape[0] for shape in shapes])
    return batch, _broadcast_size("mask heads", [shape[1] for shape in shapes])


def _broadcast_size(name: str, sizes: list[int]) -> int:
    others = sorted({size for size in sizes if size != 1})
    if len(others) > 1:
        raise ValueError(f"masks must have one number of {name}, or 1; got {sizes}")
    return others[0] if others else 1
