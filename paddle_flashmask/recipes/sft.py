"""Supervised fine-tuning: several samples packed in one row, none sees another.

Samples of 3, 2 and 3 tokens:

    # . . . . . . .
    # # . . . . . .
    # # # . . . . .
    . . . # . . . .
    . . . # # . . .
    . . . . . # . .
    . . . . . # # .
    . . . . . # # #

The mask is that of `causal_document`. A row that is masked and padded like this gives each sample
what it would get alone; positions and labels are not part of the mask.
"""

from __future__ import annotations

from typing import Any

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.recipes._arguments import Counts
from paddle_flashmask.recipes._spans import mask_causal_documents

__all__ = ["EXAMPLES", "is_visible", "sft"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "three samples": {"lengths": [3, 2, 3]},
    "two samples, padding": {"lengths": [3, 2], "seq_len": 8},
    "one sample": {"lengths": [4]},
    "empty samples between": {"lengths": [3, 0, 2, 0]},
    "only padding": {"lengths": [0], "seq_len": 3},
    "no token": {"lengths": []},
}


def sft(lengths: Counts, seq_len: int | None = None) -> ColumnMask:
    """Return the mask of packed samples for fine-tuning.

    Args:
        lengths: tokens of each sample in the order of the row; empty ones leave no trace.
        seq_len: length of the row, S; None for the sum of lengths. The tail is padding: it sees
            nothing and nobody sees it.

    Returns:
        A causal `ColumnMask` with int32 indices [1, 1, S, 1]: lower_start is the end of the
        column's sample, and j for a padding column j.

    Raises:
        TypeError: lengths is not a list, tuple or array of ints, or seq_len not an int.
        ValueError: a number is negative or does not fit int32, or the sum exceeds seq_len.

    Example:
        >>> sft([3, 2, 3]).startend_row_indices[0, 0, :, 0].tolist()
        [3, 3, 3, 5, 5, 8, 8, 8]
    """
    return mask_causal_documents(lengths, seq_len)


def is_visible(row: int, column: int, *, lengths: Counts, seq_len: int | None = None) -> bool:
    """Tell whether `row` sees `column`: from the first token of the row's sample to the row itself.

    Args:
        row: position of the query.
        column: position of the key.
        lengths: as for `sft`.
        seq_len: as for `sft`; padding is in no sample, whatever its length.
    """
    start = 0
    for length in lengths:
        if start <= row < start + length:
            return start <= column <= row
        start += length
    return False
