"""Documents read back from position ids, for data that somebody else packed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["document_lengths"]


def document_lengths(position_ids: ArrayLike) -> list[list[int]]:
    """Return the document lengths of each row, read from positions that restart at 0.

    A document starts at the first column of a row and wherever the position is 0; elsewhere the
    position must grow by 1. The first document of a row may start above 0 (a continued one). The
    zeros that `pack_sft` writes under padding read as documents of one token: such a row sees
    itself, and nothing else is affected.

    Args:
        position_ids: [B, S] or [S] (one row), ints >= 0.

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
    positions = np.asarray(position_ids)
    if positions.dtype.kind not in "iu":
        raise TypeError(f"position_ids must be ints; got {positions.dtype}")
    if positions.ndim not in (1, 2):
        raise ValueError(
            f"position_ids must be [batch, seqlen] or [seqlen]; got shape {list(positions.shape)}"
        )
    rows = np.atleast_2d(positions).astype(np.int64)
    if (rows < 0).any():
        raise ValueError(f"position_ids must be at least 0; got {rows.min()}")
    restarts = rows == 0
    broken = np.argwhere((np.diff(rows, axis=1) != 1) & ~restarts[:, 1:])
    if broken.size:
        row, column = (int(number) for number in broken[0])
        raise ValueError(
            "position_ids must grow by 1 or restart at 0; "
            f"got {rows[row, column + 1]} after {rows[row, column]} in row {row}"
        )
    return [_lengths(row) for row in restarts]


def _lengths(restarts: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[int]:
    if restarts.size == 0:
        return []
    starts = np.flatnonzero(restarts[1:]) + 1
    edges: list[int] = [0, *starts.tolist(), restarts.size]
    lengths: list[int] = np.diff(edges).tolist()
    return lengths
