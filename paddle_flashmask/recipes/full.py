"""Full attention: every token sees every token.

Four tokens, a row per query and a column per key:

    # # # #
    # # # #
    # # # #
    # # # #
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.indices._arguments import check_count
from paddle_flashmask.recipes._spans import to_mask

__all__ = ["EXAMPLES", "full", "is_visible"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "four tokens": {"seq_len": 4},
    "one token": {"seq_len": 1},
    "no token": {"seq_len": 0},
}


def full(seq_len: int) -> ColumnMask:
    """Return the mask that hides nothing.

    Args:
        seq_len: length of the row, S.

    Returns:
        A `ColumnMask`, not causal, with int32 indices [1, 1, S, 2] (lower_start, upper_end).

    Raises:
        TypeError: seq_len is not an int.
        ValueError: it is negative or does not fit int32.

    Example:
        >>> full(2).startend_row_indices.tolist()
        [[[[2, 0], [2, 0]]]]
    """
    length = check_count("seq_len", seq_len)
    return to_mask(np.full(length, length), np.zeros(length, np.int64), causal=False)


def is_visible(row: int, column: int, *, seq_len: int) -> bool:
    """Tell whether `row` sees `column`: always; arguments as for `full`."""
    return row < seq_len and column < seq_len
