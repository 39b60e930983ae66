"""Two-way documents: a token sees its whole own document and no other.

Documents of 2 and 3 tokens, and 1 token of padding:

    # # . . . .
    # # . . . .
    . . # # # .
    . . # # # .
    . . # # # .
    . . . . . .
"""

from __future__ import annotations

from typing import Any

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.recipes._arguments import Counts, check_counts, check_seq_len
from paddle_flashmask.recipes._spans import document_spans, pad, to_mask

__all__ = ["EXAMPLES", "document", "is_visible"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "two documents, padding": {"lengths": [2, 3], "seq_len": 6},
    "one document": {"lengths": [4]},
    "single tokens": {"lengths": [1, 1, 1]},
    "empty documents between": {"lengths": [0, 3, 0, 2, 0]},
    "only padding": {"lengths": [], "seq_len": 3},
    "no token": {"lengths": [0, 0]},
}


def document(lengths: Counts, seq_len: int | None = None) -> ColumnMask:
    """Return the mask of packed documents, each seen both ways and blind to the others.

    Args:
        lengths: tokens of each document in the order of the row; empty ones leave no trace.
        seq_len: length of the row, S; None for the sum of lengths. The tail is padding: it sees
            nothing and nobody sees it.

    Returns:
        A `ColumnMask`, not causal, with int32 indices [1, 1, S, 2]: lower_start is the end and
        upper_end the start of the column's document; both are j for a padding column j.

    Raises:
        TypeError: lengths is not a list, tuple or array of ints, or seq_len not an int.
        ValueError: a number is negative or does not fit int32, or the sum exceeds seq_len.

    Example:
        >>> document([1, 2], seq_len=4).startend_row_indices[0, 0].tolist()
        [[1, 0], [3, 1], [3, 1], [3, 3]]
    """
    checked = check_counts("lengths", lengths)
    row_length = check_seq_len(seq_len, tokens=int(checked.sum()), source="lengths")
    spans = document_spans(checked)
    return to_mask(pad(spans.end, row_length), pad(spans.start, row_length), causal=False)


def is_visible(row: int, column: int, *, lengths: Counts, seq_len: int | None = None) -> bool:
    """Tell whether `row` sees `column`: same document.

    Args:
        row: position of the query.
        column: position of the key.
        lengths: as for `document`.
        seq_len: as for `document`; padding is in no document, whatever its length.
    """
    document_of = [number for number, length in enumerate(lengths) for _ in range(length)]
    if max(row, column) >= len(document_of):
        return False
    return document_of[row] == document_of[column]
