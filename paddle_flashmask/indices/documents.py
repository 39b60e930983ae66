"""Document masks from what packed rows carry: offsets (cu_seqlens) or a segment id per token.

A token sees its own document only; with causal, itself and earlier tokens. Padding column j holds
j, so that nobody sees it and its row sees nothing; see `paddle_flashmask.recipes`.
"""

from __future__ import annotations

from reprlib import repr as short

import numpy as np

from paddle_flashmask.indices._arguments import (
    Integers,
    check_count,
    check_integers,
    check_rows,
)
from paddle_flashmask.indices.form import INT32_MAX, BoolArray, ColumnMask, Int64Array

SHOWN_POSITIONS = 4  # positions that a message lists before it says how many more there are


def from_cu_seqlens(
    cu_seqlens: Integers, *, causal: bool = True, seq_len: int | None = None
) -> ColumnMask:
    """Return the mask of packed documents given by their offsets.

    Args:
        cu_seqlens: [N + 1], integers from 0 up: document n is the tokens [cu_seqlens[n],
            cu_seqlens[n + 1]); equal neighbours are an empty document, which leaves no trace.
        causal: whether documents are causal, else seen both ways.
        seq_len: length of the row, S; None for the last offset. The tail is padding.

    Returns:
        A `ColumnMask` [1, 1, S, 1] (lower_start) if causal, else [1, 1, S, 2] (and upper_end).

    Raises:
        TypeError: cu_seqlens is no list, tuple or array of ints, causal no bool, seq_len no int.
        ValueError: cu_seqlens does not have 1 axis, does not start at 0 or goes down, or its last
            offset exceeds seq_len or int32.

    Example:
        >>> from_cu_seqlens([0, 3, 5], seq_len=6).startend_row_indices[0, 0, :, 0].tolist()
        [3, 3, 3, 5, 5, 5]
    """
    check_causal(causal)
    offsets = check_integers("cu_seqlens", cu_seqlens)
    if offsets.ndim != 1:
        raise ValueError(f"cu_seqlens must have 1 axis; got shape {list(offsets.shape)}")
    if offsets.size == 0 or offsets[0] != 0:
        came = "no offset" if offsets.size == 0 else f"{offsets[0]}"
        raise ValueError(f"cu_seqlens must start at 0; got {came}")
    for number in np.flatnonzero(offsets[1:] < offsets[:-1])[:1]:
        raise ValueError(
            f"cu_seqlens must not go down; got cu_seqlens[{number}] = {offsets[number]} and "
            f"cu_seqlens[{number + 1}] = {offsets[number + 1]} (are these lengths?)"
        )
    tokens = int(offsets[-1])
    if tokens > INT32_MAX:
        raise ValueError(f"cu_seqlens must end by {INT32_MAX}; got {tokens}")
    length = tokens if seq_len is None else check_count("seq_len", seq_len)
    if length < tokens:
        raise ValueError(f"seq_len must be at least the last offset, {tokens}; got {length}")
    is_start = np.zeros((1, length), bool)
    is_start[0, offsets[offsets < length]] = True
    return documents_to_mask(is_start, np.arange(length)[None] >= tokens, causal=causal)


def from_segment_ids(
    segment_ids: Integers, *, causal: bool = True, padding_id: int | None = None
) -> ColumnMask:
    """Return the mask of packed documents given by an id per token.

    A document is a run of equal ids. An id that comes back behind another one is refused: as two
    documents it would be split without a word, and as one it may not be expressible.

    Args:
        segment_ids: [B, S] or [S], integers, in any order of ids.
        causal: whether documents are causal, else seen both ways.
        padding_id: the id of padding, which may stand anywhere and more than once; None: none.

    Returns:
        A `ColumnMask` [B, 1, S, 1] (lower_start) if causal, else [B, 1, S, 2] (and upper_end).

    Raises:
        TypeError: segment_ids is no list, tuple or array of ints, causal no bool, padding_id no
            int.
        ValueError: segment_ids has another rank, or an id comes back; the message names positions.

    Example:
        >>> mask = from_segment_ids([[7, 7, 9, 0]], padding_id=0)
        >>> mask.startend_row_indices[0, 0, :, 0].tolist()
        [2, 2, 3, 3]
    """
    check_causal(causal)
    ids = check_rows("segment_ids", segment_ids)
    is_padding = np.zeros(ids.shape, bool)
    if padding_id is not None:
        if isinstance(padding_id, bool) or not isinstance(padding_id, (int, np.integer)):
            kind = type(padding_id).__name__
            raise TypeError(f"padding_id must be an int; got {kind} {short(padding_id)}")
        is_padding = ids == padding_id
    is_start = np.ones(ids.shape, bool)
    is_start[:, 1:] = ids[:, 1:] != ids[:, :-1]
    _refuse_returning_ids(ids, is_start & ~is_padding)
    return documents_to_mask(is_start, is_padding, causal=causal)


def documents_to_mask(is_start: BoolArray, is_padding: BoolArray, *, causal: bool) -> ColumnMask:
    """Return the mask of documents given by where they start.

    Args:
        is_start: [B, S], bool, True at the first token of each document, and of padding behind a
            document; column 0 starts one anyway.
        is_padding: [B, S], bool.
        causal: whether documents are causal, else seen both ways.

    Returns:
        A `ColumnMask` [B, 1, S, 1] (lower_start) if causal, else [B, 1, S, 2] (and upper_end).
    """
    batch, length = is_start.shape
    column = np.arange(length, dtype=np.int32)
    end = np.full((batch, length), length, np.int32)
    next_start = np.where(is_start, column, np.int32(length))[:, :0:-1]
    end[:, :-1] = np.minimum.accumulate(next_start, axis=1)[:, ::-1]
    numbers = [np.where(is_padding, column, end)]
    if not causal:
        start = np.maximum.accumulate(np.where(is_start, column, np.int32(0)), axis=1)
        numbers.append(np.where(is_padding, column, start))
    return ColumnMask(np.stack(numbers, axis=-1)[:, None], causal=causal)


def check_causal(causal: object) -> None:
    """Check that a flag is a bool.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(causal, (bool, np.bool_)):
        raise TypeError(f"causal must be a bool; got {type(causal).__name__} {short(causal)}")


def _refuse_returning_ids(ids: Int64Array, is_start: BoolArray) -> None:
    sample, position = np.nonzero(is_start)
    run_ids = ids[sample, position]
    order = np.lexsort((position, run_ids, sample))
    sample, position, run_ids = sample[order], position[order], run_ids[order]
    again = (sample[1:] == sample[:-1]) & (run_ids[1:] == run_ids[:-1])
    if not again.any():
        return
    back = np.flatnonzero(again) + 1
    back = back[np.lexsort((position[back], sample[back]))]
    shown = [
        f"id {run_ids[at]} at sample {sample[at]} position {position[at]}"
        for at in back[:SHOWN_POSITIONS]
    ]
    more = f" and {len(back) - len(shown)} more" if len(back) > len(shown) else ""
    raise ValueError(
        "segment_ids must keep equal ids together, an id that comes back would be split into "
        f"documents that do not see each other; got {', '.join(shown)}{more} after another id"
    )
