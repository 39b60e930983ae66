"""Causal blocks, as for in-context examples: a block sees itself, the last block sees all before.

Blocks of 2, 2, 1 and 2 tokens:

    # . . . . . .
    # # . . . . .
    . . # . . . .
    . . # # . . .
    . . . . # . .
    # # # # # # .
    # # # # # # #

Padding columns are seen by nobody, as everywhere. Padding rows see what the last block sees: to
hide the early blocks from both the middle blocks and the padding takes two runs of masked rows
below the diagonal, and a causal column has one. Drop the output of padding rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.recipes._arguments import Counts, check_counts, check_seq_len
from paddle_flashmask.recipes._spans import document_spans, pad, to_mask

__all__ = ["EXAMPLES", "causal_blockwise", "is_visible"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "four blocks": {"lengths": [2, 2, 1, 2]},
    "one block": {"lengths": [3]},
    "two blocks": {"lengths": [2, 3]},
    "padding": {"lengths": [2, 1, 2], "seq_len": 8},
    "empty blocks, the last one too": {"lengths": [0, 2, 0, 1, 2, 0], "seq_len": 6},
    "only padding": {"lengths": [], "seq_len": 3},
    "no token": {"lengths": [0]},
}


def causal_blockwise(lengths: Counts, seq_len: int | None = None) -> ColumnMask:
    """Return the mask of causal blocks of which only the last sees the others.

    Args:
        lengths: tokens of each block in the order of the row; empty ones leave no trace, so the
            last block is the last that is not empty.
        seq_len: length of the row, S; None for the sum of lengths. The tail is padding: nobody
            sees it; its own rows see every block.

    Returns:
        A causal `ColumnMask` with int32 indices [1, 1, S, 2]: masked are the rows from the end of
        the column's block to the start of the last block, none for the last block, and [j, S) for
        a padding column j.

    Raises:
        TypeError: lengths is not a list, tuple or array of ints, or seq_len not an int.
        ValueError: a number is negative or does not fit int32, or the sum exceeds seq_len.

    Example:
        >>> causal_blockwise([1, 1, 2]).startend_row_indices[0, 0].tolist()
        [[1, 2], [2, 2], [4, 4], [4, 4]]
    """
    checked = check_counts("lengths", lengths)
    tokens = int(checked.sum())
    row_length = check_seq_len(seq_len, tokens=tokens, source="lengths")
    spans = document_spans(checked)
    is_last = spans.end == tokens
    lower_start = pad(np.where(is_last, row_length, spans.end), row_length)
    lower_end = np.full(row_length, row_length)
    lower_end[:tokens] = np.where(is_last, row_length, spans.start[-1:])
    return to_mask(lower_start, lower_end, causal=True)


def is_visible(row: int, column: int, *, lengths: Counts, seq_len: int | None = None) -> bool:
    """Tell whether `row` sees `column`: not later, and same block or from the last block on.

    Args:
        row: position of the query.
        column: position of the key.
        lengths: as for `causal_blockwise`.
        seq_len: as for `causal_blockwise`.
    """
    block = [number for number, length in enumerate(lengths) for _ in range(length)]
    if column > row or column >= len(block):
        return False
    is_padding_row = row >= len(block)
    return is_padding_row or block[row] in (block[column], block[-1])
