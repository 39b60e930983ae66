"""Reward modelling: the prompt once, then the answers to be ranked, each blind to the others.

A prompt of 2 tokens, answers of 2, 1 and 3:

    # . . . . . . .
    # # . . . . . .
    # # # . . . . .
    # # # # . . . .
    # # . . # . . .
    # # . . . # . .
    # # . . . # # .
    # # . . . # # #

The mask is that of `share_question`. Each answer's reward is read at its own last token.
"""

from __future__ import annotations

from typing import Any

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.recipes._arguments import Groups
from paddle_flashmask.recipes._spans import mask_question_groups
from paddle_flashmask.recipes.share_question import is_visible as shares_question

__all__ = ["EXAMPLES", "is_visible", "rm"]

EXAMPLES: dict[str, dict[str, Any]] = {
    "three answers": {"groups": [(2, [2, 1, 3])]},
    "one answer": {"groups": [(2, [2])]},
    "two prompts, padding": {"groups": [(1, [1, 2]), (3, [1, 1, 1])], "seq_len": 12},
    "only padding": {"groups": [], "seq_len": 2},
    "no token": {"groups": []},
}


def rm(groups: Groups, seq_len: int | None = None) -> ColumnMask:
    """Return the mask of packed prompts with the answers to be ranked.

    Args:
        groups: [(question_length, [answer_length, ...]), ...] in the order of the row; a group is
            its prompt, then its answers. At least 1 answer, every length at least 1.
        seq_len: length of the row, S; None for the sum of all lengths. The tail is padding: it
            sees nothing and nobody sees it.

    Returns:
        A causal `ColumnMask` with int32 indices [1, 1, S, 1]: lower_start is the end of the group
        for a prompt's column, the end of its answer for an answer's, j for a padding column j.

    Raises:
        TypeError: groups does not have this form, or a length is not an int.
        ValueError: a prompt or answer is empty or missing, a number does not fit int32, or the
            sum exceeds seq_len.

    Example:
        >>> rm([(2, [2, 1, 3])]).startend_row_indices[0, 0, :, 0].tolist()
        [8, 8, 4, 4, 5, 8, 8, 8]
    """
    return mask_question_groups(groups, seq_len)


def is_visible(row: int, column: int, *, groups: Groups, seq_len: int | None = None) -> bool:
    """Tell whether `row` sees `column`: not later, and in its own prompt or its own answer.

    Args:
        row: position of the query.
        column: position of the key.
        groups: as for `rm`.
        seq_len: as for `rm`.
    """
    return shares_question(row, column, groups=groups, seq_len=seq_len)
