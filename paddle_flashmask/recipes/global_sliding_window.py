"""Global tokens and a sliding window: the first tokens see and are seen by all, others are local.

1 global token, a window of 1 to the left and 1 to the right:

    # # # # # #
    # # # . . .
    # # # # . .
    # . # # # .
    # . . # # #
    # . . . # #
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.indices._arguments import check_count
from paddle_flashmask.recipes._spans import to_mask

__all__ = ["EXAMPLES", "global_sliding_window", "is_visible"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "one global token": {"seq_len": 6, "num_global": 1, "left": 1, "right": 1},
    "no global token": {"seq_len": 5, "num_global": 0, "left": 1, "right": 2},
    "only global tokens": {"seq_len": 3, "num_global": 3, "left": 0, "right": 0},
    "global tokens and the diagonal": {"seq_len": 6, "num_global": 2, "left": 0, "right": 0},
    "wider than the row": {"seq_len": 4, "num_global": 1, "left": 9, "right": 9},
    "no token": {"seq_len": 0, "num_global": 0, "left": 1, "right": 1},
}


def global_sliding_window(seq_len: int, *, num_global: int, left: int, right: int) -> ColumnMask:
    """Return the mask of global first tokens and a two-way window for the rest.

    Args:
        seq_len: length of the row, S.
        num_global: how many first tokens see everything and are seen by everything.
        left: tokens seen before the token, itself not counted.
        right: tokens seen after the token, itself not counted.

    Returns:
        A `ColumnMask`, not causal, with int32 indices [1, 1, S, 4]: masked are the rows from the
        window's end down, and those between the global rows and the window's start.

    Raises:
        TypeError: an argument is not an int.
        ValueError: a number is negative or does not fit int32, or num_global exceeds seq_len.

    Example:
        >>> mask = global_sliding_window(4, num_global=1, left=0, right=1)
        >>> mask.startend_row_indices[0, 0].tolist()
        [[4, 4, 0, 0], [2, 4, 0, 0], [3, 4, 0, 0], [4, 4, 1, 2]]
    """
    length = check_count("seq_len", seq_len)
    first_local = check_count("num_global", num_global)
    seen_before, seen_after = check_count("left", left), check_count("right", right)
    if first_local > length:
        raise ValueError(f"num_global must be at most seq_len, {length}; got {first_local}")
    column = np.arange(length, dtype=np.int64)
    is_local = column >= first_local
    lower_start = np.where(is_local, np.minimum(column + seen_before + 1, length), length)
    window_start = column - seen_after
    is_cut_above = is_local & (window_start > first_local)
    return to_mask(
        lower_start,
        np.full(length, length),
        np.where(is_cut_above, first_local, 0),
        np.where(is_cut_above, window_start, 0),
        causal=False,
    )


def is_visible(
    row: int, column: int, *, seq_len: int, num_global: int, left: int, right: int
) -> bool:
    """Tell whether `row` sees `column`: one of them is global, or they are near enough.

    Args:
        row: position of the query.
        column: position of the key.
        seq_len: as for `global_sliding_window`.
        num_global: as for `global_sliding_window`.
        left: as for `global_sliding_window`.
        right: as for `global_sliding_window`.
    """
    if max(row, column) >= seq_len:
        return False
    return row < num_global or column < num_global or row - left <= column <= row + right
