"""Shared question: several answers to one question, each blind to the others.

A question of 2 tokens, answers of 2 and 3:

    # . . . . . .
    # # . . . . .
    # # # . . . .
    # # # # . . .
    # # . . # . .
    # # . . # # .
    # # . . # # #
"""

from __future__ import annotations

from typing import Any

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.recipes._arguments import Groups
from paddle_flashmask.recipes._spans import mask_question_groups

__all__ = ["EXAMPLES", "is_visible", "share_question"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "two answers": {"groups": [(2, [2, 3])]},
    "one answer": {"groups": [(1, [3])]},
    "single tokens": {"groups": [(1, [1, 1, 1])]},
    "two groups, padding": {"groups": [(2, [1, 2]), (1, [2])], "seq_len": 10},
    "only padding": {"groups": [], "seq_len": 3},
    "no token": {"groups": []},
}


def share_question(groups: Groups, seq_len: int | None = None) -> ColumnMask:
    """Return the mask of packed groups of one question and its answers.

    Args:
        groups: [(question_length, [answer_length, ...]), ...] in the order of the row; a group is
            its question, then its answers. At least 1 answer, every length at least 1.
        seq_len: length of the row, S; None for the sum of all lengths. The tail is padding: it
            sees nothing and nobody sees it.

    Returns:
        A causal `ColumnMask` with int32 indices [1, 1, S, 1]: lower_start is the end of the group
        for a question's column, the end of its answer for an answer's, j for a padding column j.

    Raises:
        TypeError: groups does not have this form, or a length is not an int.
        ValueError: a question or answer is empty or missing, a number does not fit int32, or the
            sum exceeds seq_len.

    Example:
        >>> share_question([(2, [2, 3])]).startend_row_indices[0, 0, :, 0].tolist()
        [7, 7, 4, 4, 7, 7, 7]
    """
    return mask_question_groups(groups, seq_len)


def is_visible(row: int, column: int, *, groups: Groups, seq_len: int | None = None) -> bool:
    """Tell whether `row` sees `column`: not later, and in its group's question or its own answer.

    Args:
        row: position of the query.
        column: position of the key.
        groups: as for `share_question`.
        seq_len: as for `share_question`; padding is in no group, whatever its length.
    """
    tokens = [
        (group, piece)
        for group, (question, answers) in enumerate(groups)
        for piece, length in enumerate([question, *answers])
        for _ in range(length)
    ]
    if max(row, column) >= len(tokens) or column > row:
        return False
    (row_group, row_piece), (column_group, column_piece) = tokens[row], tokens[column]
    question = 0
    return row_group == column_group and column_piece in (question, row_piece)
