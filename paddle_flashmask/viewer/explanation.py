"""Why a row sees a column, or does not: the interval that masks it, in words."""

from __future__ import annotations

from typing import NamedTuple

from paddle_flashmask.indices import ColumnMask

LOWER_UPPER = 4  # numbers per column of the form with both intervals written out


class Interval(NamedTuple):
    """Masked rows [start, end) of one column, with the words for it.

    Attributes:
        words: what masks the rows.
        start: first masked row, clipped to [0, Sq].
        end: first row behind, clipped to [0, Sq].
    """

    words: str
    start: int
    end: int


class Explanation(NamedTuple):
    """Whether a row sees a column, and why.

    Attributes:
        visible: whether it does.
        sentence: why or why not, in plain words.
    """

    visible: bool
    sentence: str


def explain(
    mask: ColumnMask, row: int, column: int, *, seqlen_q: int, sample: int = 0, head: int = 0
) -> Explanation:
    """Return whether and why a row sees a column.

    Args:
        mask: int32 indices [B, Hm, Sk, C].
        row: query row, in [0, Sq).
        column: key column, in [0, Sk).
        seqlen_q: query rows, Sq.
        sample: row of the batch, in [0, B).
        head: mask head, in [0, Hm).

    Raises:
        ValueError: row, column, sample or head is out of range.

    Example:
        >>> import numpy as np
        >>> mask = ColumnMask(np.array([[[[2], [2], [3]]]], np.int32), causal=True)
        >>> print(explain(mask, 2, 1, seqlen_q=3).sentence)
        row 2 does not see column 1: the lower interval of column 1 masks rows [2, 3)
    """
    batch, heads, seqlen_k, _ = mask.startend_row_indices.shape
    ranges = (("row", row, seqlen_q), ("column", column, seqlen_k))
    for name, value, size in (*ranges, ("sample", sample, batch), ("head", head, heads)):
        if not 0 <= value < size:
            raise ValueError(f"{name} must be in [0, {size}); got {value}")
    intervals = _intervals(mask, column, seqlen_q=seqlen_q, sample=sample, head=head)
    hiding = [one for one in intervals if one.start <= row < one.end]
    if hiding:
        why = "; ".join(f"{one.words} masks rows [{one.start}, {one.end})" for one in hiding)
        return Explanation(False, f"row {row} does not see column {column}: {why}")
    told = [
        f"{one.words} masks {f'rows [{one.start}, {one.end})' if one.start < one.end else 'no row'}"
        for one in intervals
    ]
    return Explanation(
        True, f"row {row} sees column {column}: nothing masks row {row}; {'; '.join(told)}"
    )


def _intervals(
    mask: ColumnMask, column: int, *, seqlen_q: int, sample: int, head: int
) -> list[Interval]:
    numbers = mask.startend_row_indices[sample, head, column].tolist()
    width, seqlen_k = len(numbers), mask.startend_row_indices.shape[2]
    lower = f"the lower interval of column {column}"
    upper = f"the upper interval of column {column}"
    if mask.causal:
        diagonal = column - (seqlen_k - seqlen_q)
        aligned = "" if seqlen_k == seqlen_q else ", aligned to the bottom right corner"
        found = [
            (lower, numbers[0], numbers[1] if width > 1 else seqlen_q),
            (
                f"the causal rule (column {column} is seen from row {diagonal} on{aligned})",
                0,
                diagonal,
            ),
        ]
    elif width == LOWER_UPPER:
        found = [(lower, numbers[0], numbers[1]), (upper, numbers[2], numbers[3])]
    else:
        found = [(lower, numbers[0], seqlen_q), (upper, 0, numbers[1])]
    return [
        Interval(words, min(max(start, 0), seqlen_q), min(max(end, 0), seqlen_q))
        for words, start, end in found
    ]
