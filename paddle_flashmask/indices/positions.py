"""Document masks from position ids: a document starts where positions start again at 0."""

from __future__ import annotations

import numpy as np

from paddle_flashmask.indices._arguments import Integers, check_integers, check_rows
from paddle_flashmask.indices.documents import check_causal, documents_to_mask
from paddle_flashmask.indices.form import ColumnMask, Int64Array

AXES_RANK = 3


def from_position_ids(
    position_ids: Integers, *, causal: bool = True, num_tokens: Integers | None = None
) -> ColumnMask:
    """Return the mask of packed documents that is implied by the positions of their tokens.

    Positions go up by 1 in a document and start again at 0 with the next one. The first document
    of a row may start at any position (it continues text that is not in the row).

    Args:
        position_ids: [B, S] or [S], integers, not negative. Positions of padding do not count.
        causal: whether documents are causal, else seen both ways.
        num_tokens: [B] (or [1] for [S]), integers, real tokens of each row, the rest is padding;
            None: no padding, and a padding position 0 is a document of its own.

    Returns:
        A `ColumnMask` [B, 1, S, 1] (lower_start) if causal, else [B, 1, S, 2] (and upper_end).

    Raises:
        TypeError: an argument is no list, tuple or array of ints, or causal no bool.
        ValueError: position_ids has another rank (positions on three axes, say), a position
            neither goes up by 1 nor starts again at 0, or num_tokens does not fit.

    Example:
        >>> from_position_ids([0, 0, 1, 0]).startend_row_indices[0, 0, :, 0].tolist()
        [1, 3, 3, 4]
    """
    check_causal(causal)
    rank = check_integers("position_ids", position_ids).ndim
    if rank == AXES_RANK:
        shape = list(np.shape(position_ids))
        raise ValueError(
            "position_ids must have axes [batch, seqlen] or [seqlen]; positions on three axes are "
            f"not supported, they do not tell documents apart: got shape {shape}"
        )
    positions = check_rows("position_ids", position_ids)
    real = _real_tokens(positions.shape, num_tokens)
    is_padding = np.arange(positions.shape[1]) >= real[:, None]
    is_start = positions == 0
    goes_up = np.zeros(positions.shape, bool)
    goes_up[:, 1:] = positions[:, 1:] == positions[:, :-1] + 1
    goes_up[:, :1] = positions[:, :1] >= 0
    for sample, place in np.argwhere(~(is_start | goes_up | is_padding))[:1]:
        before = f" after {positions[sample, place - 1]}" if place else ""
        raise ValueError(
            "position_ids must go up by 1 or start again at 0; "
            f"got {positions[sample, place]}{before} at sample {sample} position {place}"
        )
    first_of_padding = np.arange(positions.shape[1]) == real[:, None]
    return documents_to_mask(is_start | first_of_padding, is_padding, causal=causal)


def _real_tokens(shape: tuple[int, ...], num_tokens: Integers | None) -> Int64Array:
    batch, length = shape
    if num_tokens is None:
        return np.full(batch, length, np.int64)
    real = check_integers("num_tokens", num_tokens)
    if real.shape != (batch,):
        raise ValueError(
            f"num_tokens must hold one number per row, {batch}; got shape {list(real.shape)}"
        )
    for sample in np.flatnonzero((real < 0) | (real > length))[:1]:
        raise ValueError(f"num_tokens[{sample}] must be in [0, {length}]; got {real[sample]}")
    return real
