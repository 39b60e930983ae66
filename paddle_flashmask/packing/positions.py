"""Documents read back from position ids, for data that somebody else packed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paddle_flashmask import indices

__all__ = ["document_lengths"]


def document_lengths(
    position_ids: Sequence[int] | Sequence[Sequence[int]] | np.ndarray,
) -> list[list[int]]:
    """Return the document lengths of each row, read from positions that restart at 0.

    The rule is that of `indices.from_position_ids`; the first document of a row may start above 0
    (a continued one). The zeros that `pack_sft` writes under padding read as documents of one
    token: such a row sees itself, and nothing else is affected.

    Args:
        position_ids: [B, S] or [S] (one row), ints, not negative.

    Returns:
        One list of lengths per row; each list sums to S.

    Raises:
        TypeError: not ints.
        ValueError: another rank (positions with three axes as in vision models name no
            documents), a negative position, or a step that is neither +1 nor a restart at 0.

    Example:
        >>> document_lengths([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])
        [[3, 2], [1, 4]]
    """
    ends = indices.from_position_ids(position_ids).startend_row_indices[:, 0, :, 0]
    return [np.diff(np.unique(row), prepend=0).tolist() for row in ends]
