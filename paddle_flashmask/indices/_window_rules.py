"""Checked mode for sliding windows: the width that the numbers have, in tokens.

A window of w tokens counts the token itself; kernels' `window_size` counts the others, w - 1. The
two are mixed up often, so the width found is always reported in tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paddle_flashmask.indices.findings import (
    COLUMN_AXES,
    Finding,
    Inspected,
    list_places,
    places,
    plural,
)
from paddle_flashmask.indices.form import BoolArray, Int32Array, Int64Array

PAIR = 2
ROUND_WIDTH = 16  # a power of two from here on is taken for a number somebody chose
COMMON_SHARE = 2  # a width is a window's if more than one in two columns has it


def find_windows(mask: Inspected) -> Iterator[Finding]:
    """Find windows of one width, and compare them with the width that was asked for."""
    if mask.numbers.shape[2] == 0 or mask.seqlen_q == 0 or not _has_lower_tail(mask):
        return
    back = mask.clipped[..., 0] - mask.diagonal
    widths = _window_widths(mask.clipped[..., 0], mask.diagonal, back, mask.seqlen_q)
    found: BoolArray = widths > 0
    if found.any():
        distinct = sorted({int(width) for width in widths[found]})
        hint = "; ".join(_describe(width) for width in distinct)
        right = _right_width(mask)
        ahead = f", and {right} tokens ahead" if right is not None else ""
        yield Finding(
            "window",
            "note",
            f"a sliding window in {list_places(found, COLUMN_AXES[:2])}: a row sees {hint}{ahead}",
            COLUMN_AXES[:2],
            np.argwhere(found),
        )
    if mask.window is not None:
        yield from _compare(mask, widths, back)


def _compare(mask: Inspected, widths: Int64Array, back: Int64Array) -> Iterator[Finding]:
    window = mask.window
    assert window is not None
    last_row = mask.clipped[..., 0]
    is_seen = last_row > np.clip(mask.diagonal, 0, None)
    wider: BoolArray = is_seen & (back > window)
    if wider.any():
        yield Finding(
            "window_too_wide",
            "error",
            f"{plural(int(wider.sum()), 'column')} seen from more than {window} tokens: "
            f"{places(wider, COLUMN_AXES, back)}",
            COLUMN_AXES,
            np.argwhere(wider),
        )
    narrower: BoolArray = (widths > 0) & (widths < window)
    if narrower.any():
        yield Finding(
            "window_too_narrow",
            "error",
            f"a row should see {window} tokens, itself included, but sees "
            f"{places(narrower, COLUMN_AXES[:2], widths)}",
            COLUMN_AXES[:2],
            np.argwhere(narrower),
        )


def _window_widths(
    lower_start: Int32Array, diagonal: Int64Array, back: Int64Array, seqlen_q: int
) -> Int64Array:
    """Return [B, Hm] tokens of the window, 0 where there is none.

    It is a window if lower_start is the diagonal row plus one constant in every column, but for
    the cut to the first and the last row; or if more than half of the columns have the largest
    such sum (windows inside documents, which cut them too).
    """
    is_cut = lower_start >= seqlen_q
    is_whole = ~is_cut & (lower_start > 0)
    widest = np.where(is_whole, back, 0).max(axis=-1)
    exact = np.clip(diagonal + widest[..., None], 0, seqlen_q) == lower_start
    whole = exact.all(axis=-1) & ~is_cut.all(axis=-1)
    most = np.count_nonzero(is_whole & (back == widest[..., None]), axis=-1)
    common = COMMON_SHARE * most > diagonal.size
    cut_short = (is_cut & (back > widest[..., None])).any(axis=-1)
    found = (whole | (common & ~cut_short)) & (widest > 0)
    return np.where(found, widest, 0)


def _describe(width: int) -> str:
    text = f"{plural(width, 'token')}, itself included (window_size={width - 1})"
    left = width - 1
    if left >= ROUND_WIDTH and left & (left - 1) == 0:
        text += f"; if {left} tokens were meant, it is one too wide"
    return text


def _right_width(mask: Inspected) -> int | None:
    """Return how many tokens ahead every row of a two-way window sees; None if not one number."""
    if mask.causal or mask.width != PAIR:
        return None
    upper_end = mask.clipped[..., 1]
    counts = upper_end > 0
    ahead = (mask.diagonal - upper_end)[counts]
    return int(ahead[0]) if ahead.size and (ahead == ahead[0]).all() else None


def _has_lower_tail(mask: Inspected) -> bool:
    """Whether the lower interval of every column runs to the last row."""
    if mask.width == 1 or (mask.width == PAIR and not mask.causal):
        return True
    return bool((mask.clipped[..., 1] == mask.seqlen_q).all())
