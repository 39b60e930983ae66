"""Causal attention: every token sees itself and the tokens before it.

Four tokens, a row per query and a column per key:

    # . . .
    # # . .
    # # # .
    # # # #
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.indices._arguments import check_count
from paddle_flashmask.recipes._spans import to_mask

__all__ = ["EXAMPLES", "causal", "is_visible"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "four tokens": {"seq_len": 4},
    "one token": {"seq_len": 1},
    "no token": {"seq_len": 0},
}


def causal(seq_len: int) -> ColumnMask:
    """Return the causal mask that hides nothing below the diagonal.

    Args:
        seq_len: length of the row, S.

    Returns:
        A causal `ColumnMask` with int32 indices [1, 1, S, 1] (lower_start).

    Raises:
        TypeError: seq_len is not an int.
        ValueError: it is negative or does not fit int32.

    Example:
        >>> causal(3).startend_row_indices[0, 0, :, 0].tolist()
        [3, 3, 3]
    """
    length = check_count("seq_len", seq_len)
    return to_mask(np.full(length, length), causal=True)


def is_visible(row: int, column: int, *, seq_len: int) -> bool:
    """Tell whether `row` sees `column`: not if it comes later; arguments as for `causal`."""
    return column <= row < seq_len
