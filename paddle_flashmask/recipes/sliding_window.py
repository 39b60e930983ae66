"""Sliding window: every token sees its neighbours only, looking back or both ways.

With window=3, a token sees 3 tokens, itself among them:

    # . . . . .
    # # . . . .
    # # # . . .
    . # # # . .
    . . # # # .
    . . . # # #

Mind the one: `window` counts tokens and includes the token itself, as model configurations do.
The op's `window_size` is the width to the left and leaves the token out, so `window=w` is
`window_size=w - 1`. `left` and `right` are widths in that second sense.
"""

from __future__ import annotations

from reprlib import repr as short
from typing import Any

import numpy as np

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.indices._arguments import check_count
from paddle_flashmask.recipes._spans import to_mask

__all__ = ["EXAMPLES", "is_visible", "sliding_window"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "three tokens back": {"seq_len": 6, "window": 3},
    "itself only": {"seq_len": 3, "window": 1},
    "wider than the row": {"seq_len": 3, "window": 9},
    "both ways": {"seq_len": 6, "left": 2, "right": 1},
    "both ways, itself only": {"seq_len": 3, "left": 0, "right": 0},
    "no token": {"seq_len": 0, "window": 2},
}


def sliding_window(
    seq_len: int,
    window: int | None = None,
    *,
    left: int | None = None,
    right: int | None = None,
) -> ColumnMask:
    """Return the mask of a window that looks back, or both ways.

    Give either `window`, or `left` and `right`.

    Args:
        seq_len: length of the row, S.
        window: tokens seen, the token itself included, looking back only; at least 1. It is one
            more than the op's `window_size`.
        left: tokens seen before the token, itself not counted.
        right: tokens seen after the token, itself not counted.

    Returns:
        For `window` a causal `ColumnMask` with int32 indices [1, 1, S, 1] (lower_start); for
        `left` and `right` one that is not causal, [1, 1, S, 2] (lower_start, upper_end).

    Raises:
        TypeError: an argument is not an int, or neither or both forms are given.
        ValueError: a number is negative, window is 0, or a number does not fit int32.

    Example:
        >>> sliding_window(4, 2).startend_row_indices[0, 0, :, 0].tolist()
        [2, 3, 4, 4]
        >>> sliding_window(3, left=1, right=0).startend_row_indices[0, 0].tolist()
        [[2, 0], [3, 1], [3, 2]]
    """
    length = check_count("seq_len", seq_len)
    column = np.arange(length, dtype=np.int64)
    if window is not None and left is None and right is None:
        seen = check_count("window", window, at_least=1)
        return to_mask(np.minimum(column + seen, length), causal=True)
    if window is not None or left is None or right is None:
        raise TypeError(
            "sliding_window must get either window, or left and right; "
            f"got window={short(window)}, left={short(left)}, right={short(right)}"
        )
    seen_before, seen_after = check_count("left", left), check_count("right", right)
    lower_start = np.minimum(column + seen_before + 1, length)
    upper_end = np.maximum(column - seen_after, 0)
    return to_mask(lower_start, upper_end, causal=False)


def is_visible(
    row: int,
    column: int,
    *,
    seq_len: int,
    window: int | None = None,
    left: int | None = None,
    right: int | None = None,
) -> bool:
    """Tell whether `row` sees `column`: it is near enough; arguments as for `sliding_window`."""
    if max(row, column) >= seq_len:
        return False
    if window is not None:
        return row - window < column <= row
    assert left is not None
    assert right is not None
    return row - left <= column <= row + right
