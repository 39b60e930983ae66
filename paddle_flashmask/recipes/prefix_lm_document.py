"""Prefix language model, packed: each document has its own prefix, none sees another document.

Documents of 3 and 4 tokens with prefixes of 2 and 3, and 1 token of padding:

    # # . . . . . .
    # # . . . . . .
    # # # . . . . .
    . . . # # # . .
    . . . # # # . .
    . . . # # # . .
    . . . # # # # .
    . . . . . . . .
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.recipes._arguments import Counts, check_counts, check_seq_len
from paddle_flashmask.recipes._spans import document_spans, pad, to_mask

__all__ = ["EXAMPLES", "is_visible", "prefix_lm_document"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "two documents, padding": {"lengths": [3, 4], "prefix_lengths": [2, 3], "seq_len": 8},
    "no prefix": {"lengths": [2, 2], "prefix_lengths": [0, 0]},
    "only prefix": {"lengths": [2, 2], "prefix_lengths": [2, 2]},
    "empty documents between": {"lengths": [0, 3, 0, 2], "prefix_lengths": [0, 1, 0, 2]},
    "only padding": {"lengths": [], "prefix_lengths": [], "seq_len": 3},
    "no token": {"lengths": [0], "prefix_lengths": [0]},
}


def prefix_lm_document(
    lengths: Counts, prefix_lengths: Counts, seq_len: int | None = None
) -> ColumnMask:
    """Return the mask of packed documents, each with a prefix that its own rows all see.

    Args:
        lengths: tokens of each document, its prefix included, in the order of the row; empty ones
            leave no trace.
        prefix_lengths: tokens of each document's prefix, at most the document's.
        seq_len: length of the row, S; None for the sum of lengths. The tail is padding: it sees
            nothing and nobody sees it.

    Returns:
        A `ColumnMask`, not causal, with int32 indices [1, 1, S, 2]: lower_start is the end of the
        column's document; upper_end its start for a prefix column, else j; both are j for a
        padding column j.

    Raises:
        TypeError: a list is not a list, tuple or array of ints, or seq_len not an int.
        ValueError: a number is negative or does not fit int32, the lists differ in length, a
            prefix exceeds its document, or the sum exceeds seq_len.

    Example:
        >>> prefix_lm_document([3], [2]).startend_row_indices[0, 0].tolist()
        [[3, 0], [3, 0], [3, 2]]
    """
    checked = check_counts("lengths", lengths)
    prefixes = check_counts("prefix_lengths", prefix_lengths)
    if prefixes.size != checked.size:
        raise ValueError(
            f"prefix_lengths must hold one number per document, {checked.size}; got {prefixes.size}"
        )
    for number in np.flatnonzero(prefixes > checked)[:1]:
        raise ValueError(
            f"prefix_lengths[{number}] must be at most lengths[{number}], {checked[number]}; "
            f"got {prefixes[number]}"
        )
    row_length = check_seq_len(seq_len, tokens=int(checked.sum()), source="lengths")
    spans = document_spans(checked)
    column = np.arange(spans.start.size, dtype=np.int64)
    is_prefix = column < spans.start + np.repeat(prefixes, checked)
    upper_end = np.where(is_prefix, spans.start, column)
    return to_mask(pad(spans.end, row_length), pad(upper_end, row_length), causal=False)


def is_visible(
    row: int, column: int, *, lengths: Counts, prefix_lengths: Counts, seq_len: int | None = None
) -> bool:
    """Tell whether `row` sees `column`: same document, and in its prefix or not later.

    Args:
        row: position of the query.
        column: position of the key.
        lengths: as for `prefix_lm_document`.
        prefix_lengths: as for `prefix_lm_document`.
        seq_len: as for `prefix_lm_document`; padding is in no document, whatever its length.
    """
    start = 0
    for length, prefix_length in zip(lengths, prefix_lengths, strict=True):
        if start <= row < start + length:
            return start <= column <= row or start <= column < start + prefix_length
        start += length
    return False
