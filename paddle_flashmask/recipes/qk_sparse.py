"""Dropped spans (QK-sparse): causal, but inside a dropped span no token sees the span.

Tokens 2, 3 and 4 are dropped; they see what comes before the span, and later rows see them:

    # . . . . . .
    # # . . . . .
    # # . . . . .
    # # . . . . .
    # # . . . . .
    # # # # # # .
    # # # # # # #

A dropped token does not even see itself; the rows of a span at the very start see nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as short
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.indices._arguments import check_count
from paddle_flashmask.recipes._arguments import PAIR, Int64Array, check_counts
from paddle_flashmask.recipes._spans import to_mask

__all__ = ["EXAMPLES", "is_visible", "qk_sparse"]

TokenSpans: TypeAlias = Sequence[tuple[int, int]] | NDArray[np.integer]

EXAMPLES: dict[str, dict[str, Any]] = {
    "one span": {"seq_len": 7, "spans": [(2, 5)]},
    "spans that touch": {"seq_len": 6, "spans": [(3, 5), (1, 3)]},
    "first token": {"seq_len": 3, "spans": [(0, 1)]},
    "whole row": {"seq_len": 3, "spans": [(0, 3)]},
    "empty span": {"seq_len": 4, "spans": [(2, 2), (1, 3)]},
    "no span": {"seq_len": 3, "spans": []},
    "no token": {"seq_len": 0, "spans": []},
}


def qk_sparse(seq_len: int, spans: TokenSpans) -> ColumnMask:
    """Return the causal mask with spans of tokens whose queries and keys do not meet.

    Args:
        seq_len: length of the row, S.
        spans: [(start, end), ...], half-open, in any order, or an integer array [N, 2]. Spans may
            touch but not overlap; an empty one leaves no trace.

    Returns:
        A causal `ColumnMask` with int32 indices [1, 1, S, 2]: masked are the rows from j to the
        span's end for a dropped column j, none for the others.

    Raises:
        TypeError: seq_len is not an int, or spans is not a list of pairs of ints.
        ValueError: a span is inverted, out of the row, or overlaps another.

    Example:
        >>> qk_sparse(4, [(1, 3)]).startend_row_indices[0, 0].tolist()
        [[4, 4], [1, 3], [2, 3], [4, 4]]
    """
    length = check_count("seq_len", seq_len)
    start, end = _check_spans(spans, length)
    size = end - start
    first_of_span = np.repeat(np.cumsum(size) - size, size)
    dropped = np.repeat(start, size) + np.arange(size.sum()) - first_of_span
    lower_start, lower_end = np.full((2, length), length)
    lower_start[dropped] = dropped
    lower_end[dropped] = np.repeat(end, size)
    return to_mask(lower_start, lower_end, causal=True)


def is_visible(row: int, column: int, *, seq_len: int, spans: TokenSpans) -> bool:
    """Tell whether `row` sees `column`: not later, and no dropped span holds both.

    Args:
        row: position of the query.
        column: position of the key.
        seq_len: as for `qk_sparse`.
        spans: as for `qk_sparse`.
    """
    is_dropped = any(start <= row < end and start <= column < end for start, end in spans)
    return column <= row < seq_len and not is_dropped


def _check_spans(spans: object, seq_len: int) -> tuple[Int64Array, Int64Array]:
    """Return starts and ends of the spans that are not empty, in the order of the row."""
    if not isinstance(spans, (list, tuple, np.ndarray)):
        kind = type(spans).__name__
        raise TypeError(f"spans must be a list, tuple or integer array; got {kind} {short(spans)}")
    checked = np.zeros((len(spans), PAIR), np.int64)
    for number, span in enumerate(spans):
        pair = check_counts(f"spans[{number}]", span)
        if pair.size != PAIR:
            raise ValueError(f"spans[{number}] must be a pair (start, end); got {short(span)}")
        start, end = pair.tolist()
        if not start <= end <= seq_len:
            raise ValueError(
                f"spans[{number}] must be half-open with start <= end <= seq_len, {seq_len}; "
                f"got ({start}, {end})"
            )
        checked[number] = start, end
    numbers = np.flatnonzero(checked[:, 0] < checked[:, 1])
    numbers = numbers[np.argsort(checked[numbers, 0], kind="stable")]
    start, end = checked[numbers].T
    for place in np.flatnonzero(start[1:] < end[:-1])[:1]:
        raise ValueError(
            f"spans must not overlap; got spans[{numbers[place]}] = ({start[place]}, {end[place]}) "
            f"and spans[{numbers[place + 1]}] = ({start[place + 1]}, {end[place + 1]})"
        )
    return start, end
