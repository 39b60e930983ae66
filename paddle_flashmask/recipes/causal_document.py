"""Causal documents: a token sees itself and earlier tokens of its own document.

Documents of 3 and 2 tokens, and 1 token of padding:

    # . . . . .
    # # . . . .
    # # # . . .
    . . . # . .
    . . . # # .
    . . . . . .
"""

from __future__ import annotations

from typing import Any

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.recipes._arguments import Counts
from paddle_flashmask.recipes._spans import mask_causal_documents

__all__ = ["EXAMPLES", "causal_document", "is_visible"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "two documents, padding": {"lengths": [3, 2], "seq_len": 6},
    "one document": {"lengths": [4]},
    "single tokens": {"lengths": [1, 1, 1]},
    "empty documents between": {"lengths": [0, 3, 0, 2, 0]},
    "only padding": {"lengths": [], "seq_len": 3},
    "no token": {"lengths": [0, 0]},
}


def causal_document(lengths: Counts, seq_len: int | None = None) -> ColumnMask:
    """Return the mask of packed documents, each causal and blind to the others.

    Args:
        lengths: tokens of each document in the order of the row; empty ones leave no trace.
        seq_len: length of the row, S; None for the sum of lengths. The tail is padding: it sees
            nothing and nobody sees it.

    Returns:
        A causal `ColumnMask` with int32 indices [1, 1, S, 1]: lower_start is the end of the
        column's document, and j for a padding column j.

    Raises:
        TypeError: lengths is not a list, tuple or array of ints, or seq_len not an int.
        ValueError: a number is negative or does not fit int32, or the sum exceeds seq_len.

    Example:
        >>> causal_document([3, 2], seq_len=6).startend_row_indices[0, 0, :, 0].tolist()
        [3, 3, 3, 5, 5, 5]
    """
    return mask_causal_documents(lengths, seq_len)


def is_visible(row: int, column: int, *, lengths: Counts, seq_len: int | None = None) -> bool:
    """Tell whether `row` sees `column`: same document, and not later.

    Args:
        row: position of the query.
        column: position of the key.
        lengths: as for `causal_document`.
        seq_len: as for `causal_document`; padding is in no document, whatever its length.
    """
    document = [number for number, length in enumerate(lengths) for _ in range(length)]
    if max(row, column) >= len(document):
        return False
    return column <= row and document[row] == document[column]
