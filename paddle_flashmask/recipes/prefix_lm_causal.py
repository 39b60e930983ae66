"""Prefix language model: everyone sees the prefix, the rest is causal.

A prefix of 3 tokens:

    # # # . . .
    # # # . . .
    # # # . . .
    # # # # . .
    # # # # # .
    # # # # # #
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.indices._arguments import check_count
from paddle_flashmask.recipes._spans import to_mask

__all__ = ["EXAMPLES", "is_visible", "prefix_lm_causal"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "prefix of three": {"seq_len": 6, "prefix_length": 3},
    "no prefix": {"seq_len": 4, "prefix_length": 0},
    "prefix of one": {"seq_len": 4, "prefix_length": 1},
    "only prefix": {"seq_len": 3, "prefix_length": 3},
    "no token": {"seq_len": 0, "prefix_length": 0},
}


def prefix_lm_causal(seq_len: int, prefix_length: int) -> ColumnMask:
    """Return the mask of a prefix that all rows see, with causal text behind it.

    Args:
        seq_len: length of the row, S.
        prefix_length: tokens of the prefix, at most S.

    Returns:
        A `ColumnMask`, not causal, with int32 indices [1, 1, S, 2]: lower_start is S; upper_end is
        0 for a prefix column, else j.

    Raises:
        TypeError: an argument is not an int.
        ValueError: a number is negative or does not fit int32, or the prefix exceeds the row.

    Example:
        >>> prefix_lm_causal(4, 2).startend_row_indices[0, 0].tolist()
        [[4, 0], [4, 0], [4, 2], [4, 3]]
    """
    length = check_count("seq_len", seq_len)
    prefix = check_count("prefix_length", prefix_length)
    if prefix > length:
        raise ValueError(f"prefix_length must be at most seq_len, {length}; got {prefix}")
    column = np.arange(length, dtype=np.int64)
    return to_mask(np.full(length, length), np.where(column < prefix, 0, column), causal=False)


def is_visible(row: int, column: int, *, seq_len: int, prefix_length: int) -> bool:
    """Tell whether `row` sees `column`: in the prefix, or not later.

    Args:
        row: position of the query.
        column: position of the key.
        seq_len: as for `prefix_lm_causal`.
        prefix_length: as for `prefix_lm_causal`.
    """
    if max(row, column) >= seq_len:
        return False
    return column < prefix_length or column <= row
