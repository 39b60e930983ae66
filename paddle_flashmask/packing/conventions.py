"""Index fields that Paddle's own trainers made, brought to ours: [B, 1, S, 1], int32, padding j.

Their per-sample fields are flat lists; their batch fields have two to four axes:

| project           | field                               | batch field                 |
|-------------------|-------------------------------------|-----------------------------|
| PaddleFormers 1.2 | attn_mask_startend_row_indices      | [B, 1, S, 1] or [B, 1, S]   |
| PaddleNLP 3       | attn_mask_startend_row_indices      | [B, 1, S]                   |
| ERNIEKit          | attn_mask_start_row_indices         | [B, 1, S]                   |
| ERNIEKit          | inbatch_pack_offset                 | [B, n], ends, then -1       |

All are read with causal=True and hold one number per column. What they hold in padding differs;
for a row with n real tokens of S, padding column j holds

| convention | number                                                | made by                    |
|------------|-------------------------------------------------------|----------------------------|
| own        | j                                                     | PaddleFormers, ERNIEKit    |
| last       | n, the last real number repeated                      | PaddleNLP 3, DPO and RM    |
| zero       | 0, behind the tokens, or before them (the real        | tokenizer.pad of both      |
|            | numbers have then grown by the padding's length)      |                            |
| next       | j + 1: each padding row sees itself alone             | PaddleNLP 3, embedding     |

Real rows keep what they see; padding sees nothing and is seen by none afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as short
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paddle_flashmask.packing.layout import check_size

__all__ = ["from_batch", "from_index_lists", "from_indices", "from_pack_offsets"]

Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]

INDEX_FIELDS = ("attn_mask_startend_row_indices", "attn_mask_start_row_indices")
OFFSET_FIELD = "inbatch_pack_offset"
PAD_OFFSET = -1


def from_batch(batch: Mapping[str, Any], lengths: Sequence[int], *, seq_len: int) -> Int32Array:
    """Return the indices of a batch of another trainer, whatever it calls them.

    Args:
        batch: its fields; exactly one of those named above is read.
        lengths: [B], real tokens of each row.
        seq_len: positions in a row, S.

    Returns:
        [B, 1, S, 1], int32, for causal=True.

    Raises:
        TypeError: see `from_indices`.
        ValueError: the batch has none or several of the fields, its rows have another seq_len, its
            offsets end before or behind the lengths, or see `from_indices` and
            `from_pack_offsets`.
    """
    found = [name for name in (*INDEX_FIELDS, OFFSET_FIELD) if batch.get(name) is not None]
    if len(found) != 1:
        raise ValueError(
            f"batch must have one of {', '.join((*INDEX_FIELDS, OFFSET_FIELD))}; "
            f"got {', '.join(found) or 'none'}"
        )
    if found[0] == OFFSET_FIELD:
        made = from_pack_offsets(batch[OFFSET_FIELD], seq_len=seq_len)
        # Real columns hold more than their number, padding holds it.
        ends = (made[:, 0, :, 0] > np.arange(seq_len)).sum(axis=1).tolist()
        given = list(lengths)
        _check_one_each(given, len(ends))
        for row, (end, length) in enumerate(zip(ends, given, strict=True)):
            if end != length:
                raise ValueError(
                    f"lengths must be where {OFFSET_FIELD} ends, {end} in row {row}; got {length}"
                )
        return made
    made = from_indices(batch[found[0]], lengths)
    if made.shape[2] != seq_len:
        raise ValueError(f"seq_len must be that of {found[0]}, {made.shape[2]}; got {seq_len}")
    return made


def from_index_lists(lists: Sequence[Sequence[int]], *, seq_len: int) -> Int32Array:
    """Return the indices of one row that holds samples with their own flat lists, in order.

    Args:
        lists: per sample one number per token, counted from the sample's start, as
            `[n] * n` for SFT or `[n] * p + [p + c] * c + [n] * r` for a preference pair.
        seq_len: positions in the row, S.

    Returns:
        [1, 1, S, 1], int32, for causal=True.

    Raises:
        TypeError: a list holds no ints.
        ValueError: the lists are longer than seq_len, or a number is outside [0, n].

    Example:
        >>> from_index_lists([[2, 2], [1]], seq_len=5).ravel().tolist()
        [2, 2, 3, 3, 4]
    """
    seq_len = check_size("seq_len", seq_len)
    numbers = np.arange(seq_len)
    start = 0
    for sample, given in enumerate(lists):
        own = _ints(f"lists[{sample}]", given)
        if own.ndim != 1:
            raise ValueError(f"lists[{sample}] must be flat; got shape {list(own.shape)}")
        wrong = np.flatnonzero((own < 0) | (own > own.size))
        if wrong.size:
            raise ValueError(
                f"lists[{sample}] must hold numbers in [0, {own.size}], its length; "
                f"got {own[wrong[0]]} at position {wrong[0]}"
            )
        if start + own.size > seq_len:
            raise ValueError(
                f"lists must have at most seq_len={seq_len} numbers in all; "
                f"got {sum(map(len, lists))}"
            )
        numbers[start : start + own.size] = own + start
        start += own.size
    return _in_form(numbers[None])


def from_indices(startend_row_indices: ArrayLike, lengths: Sequence[int]) -> Int32Array:
    """Return index rows of any rank and padding convention in ours.

    Args:
        startend_row_indices: ints, [S] (one row), [B, S], [B, 1, S] or [B, 1, S, 1].
        lengths: [B], real tokens of each row, in [0, S].

    Returns:
        [B, 1, S, 1], int32, for causal=True. Real numbers beyond the last real row are cut to it,
        so that padding rows see nothing; what padding held is recognised and replaced.

    Raises:
        TypeError: not ints.
        ValueError: another rank, lengths that do not fit, a negative number, padding that follows
            none of the four conventions, or a real token that does not see itself.

    Example:
        >>> from_indices([[3, 3, 3, 0, 0]], [3]).ravel().tolist()
        [3, 3, 3, 3, 4]
    """
    given = _ints("startend_row_indices", startend_row_indices)
    if given.ndim == 1:
        given = given[None]
    shape = given.shape
    heads, width = shape[1:2] if len(shape) > 2 else (1,), shape[3:]
    if len(shape) not in (2, 3, 4) or heads != (1,) or width not in ((), (1,)):
        raise ValueError(
            "startend_row_indices must be [S], [B, S], [B, 1, S] or [B, 1, S, 1]; "
            f"got shape {list(shape)}"
        )
    rows = given.reshape(shape[0], shape[1] if len(shape) == 2 else shape[2])
    sizes = _ints("lengths", lengths).tolist()
    _check_one_each(sizes, len(rows))
    for row, (numbers, length) in enumerate(zip(rows, sizes, strict=True)):
        rows[row] = _own_padding(numbers, length, row)
    return _in_form(rows)


def from_pack_offsets(offsets: ArrayLike, *, seq_len: int) -> Int32Array:
    """Return the indices of ERNIEKit's `inbatch_pack_offset`.

    Args:
        offsets: [B, n] or [n] (one row), ints: 0, the end of each sample, then -1 as filler.
        seq_len: positions in a row, S; the last end may be smaller, the rest is padding.

    Returns:
        [B, 1, S, 1], int32, for causal=True.

    Raises:
        TypeError: not ints.
        ValueError: another rank, or a row does not start at 0, falls, or exceeds seq_len.

    Example:
        >>> from_pack_offsets([[0, 2, 3, -1]], seq_len=5).ravel().tolist()
        [2, 2, 3, 3, 4]
    """
    seq_len = check_size("seq_len", seq_len)
    given = _ints(OFFSET_FIELD, offsets)
    if given.ndim not in (1, 2):
        raise ValueError(f"{OFFSET_FIELD} must be [batch, n] or [n]; got {list(given.shape)}")
    rows = np.tile(np.arange(seq_len), (len(np.atleast_2d(given)), 1))
    for row, padded in enumerate(np.atleast_2d(given)):
        is_filler = padded == PAD_OFFSET
        ends = padded[: int((~is_filler).sum())]  # with filler between them: it falls
        wrong = np.flatnonzero((np.diff(ends, prepend=0) < 0) | (ends > seq_len))
        if ends.size == 0 or ends[0] != 0 or wrong.size:
            at = int(wrong[0]) if wrong.size else 0
            came = f"{ends[at]} at position {at}" if ends.size else "none"
            raise ValueError(
                f"{OFFSET_FIELD} must rise from 0 to at most seq_len={seq_len}; "
                f"got {came} in row {row}"
            )
        rows[row, : ends[-1]] = np.repeat(ends[1:], np.diff(ends))
    return _in_form(rows)


def _own_padding(numbers: Int64Array, length: int, row: int) -> Int64Array:
    seq_len = numbers.size
    if not 0 <= length <= seq_len:
        raise ValueError(f"lengths must be in [0, {seq_len}]; got {length} for row {row}")
    if (numbers < 0).any():
        raise ValueError(
            f"startend_row_indices must be at least 0; got {numbers.min()} in row {row}"
        )
    columns = np.arange(seq_len)
    padding_size = seq_len - length
    # A token sees itself, so a real first column never holds 0.
    is_left = padding_size > 0 and length > 0 and numbers[0] == 0
    is_padding = columns < padding_size if is_left else columns >= length
    padding, places = numbers[is_padding], columns[is_padding]
    known = [padding == 0] if is_left else [padding == places + shift for shift in (0, 1)]
    if not is_left:
        known += [padding == 0, padding == length]
    if not any(matches.all() for matches in known):
        at = max(int(matches.argmin()) for matches in known)  # where the best of them fails
        raise ValueError(
            "padding of startend_row_indices must hold 0, its column, its column + 1 or the row's "
            f"length {length}, all of it the same; got {padding[at]} at column {places[at]} in row "
            f"{row}"
        )
    last_row = seq_len if is_left else length
    is_blind = ~is_padding & (numbers <= columns)
    if is_blind.any():
        column = int(columns[is_blind][0])
        raise ValueError(
            "startend_row_indices must let each real token see itself, so column j holds more than "
            f"j; got {numbers[column]} at column {column} in row {row}"
        )
    return np.where(is_padding, columns, np.minimum(numbers, last_row))


def _check_one_each(lengths: list[int], rows: int) -> None:
    if len(lengths) != rows:
        raise ValueError(f"lengths must be one for each of {rows} rows; got {len(lengths)}")


def _ints(name: str, values: object) -> Int64Array:
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must have rows of one length; got {short(values)}") from None
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be ints; got {array.dtype}")
    return array.astype(np.int64)


def _in_form(rows: Int64Array) -> Int32Array:
    return rows[:, None, :, None].astype(np.int32)
