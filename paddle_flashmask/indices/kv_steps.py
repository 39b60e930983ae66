"""A mask for some of its rows: a step with a KV cache, a chunk of a prompt, a rank's share."""

from __future__ import annotations

import numpy as np

from paddle_flashmask.indices._arguments import check_count, check_mask
from paddle_flashmask.indices.bounds import to_bounds
from paddle_flashmask.indices.form import ColumnMask, check_seqlen_q

CAUSAL_ONE = 1
LOWER_START, UPPER_END = 0, 3  # places in `to_bounds`


def for_kv_step(
    mask: ColumnMask,
    *,
    seqlen_q_total: int,
    first_row: int,
    num_rows: int,
    seqlen_k: int | None = None,
) -> ColumnMask:
    """Return the mask of the rows [first_row, first_row + num_rows) over the first keys.

    It equals those rows of the dense mask exactly. A causal mask stays causal with its width if
    the diagonal still ends in the bottom right corner: if the rows are the last ones, or the keys
    are cut where the last of these rows stops seeing (a decoding step of n keys has num_rows=1,
    first_row=n-1, seqlen_k=n). Else it is lowered, width 1 to 2 and 2 to 4. So the form depends on
    the sizes only, never on the numbers.

    Args:
        mask: int32 indices [B, Hm, Sk, C] over all rows.
        seqlen_q_total: number of query rows of the mask, Sq.
        first_row: the first row wanted, counted from 0.
        num_rows: how many rows, so many that they end by Sq.
        seqlen_k: how many keys, the first ones; None for all.

    Returns:
        A `ColumnMask` with indices [B, Hm, seqlen_k, C] in [0, num_rows], for num_rows query rows.

    Raises:
        TypeError: mask is not a `ColumnMask` of int32, or a number is not an int.
        ValueError: the form breaks a rule, or a number is out of range.

    Example:
        >>> import numpy as np
        >>> documents = ColumnMask(np.array([[[[2], [2], [4], [4]]]], np.int32), causal=True)
        >>> step = for_kv_step(documents, seqlen_q_total=4, first_row=3, num_rows=1)
        >>> step.startend_row_indices[0, 0, :, 0].tolist(), step.causal
        ([0, 0, 1, 1], True)
    """
    indices = check_mask("mask", mask).startend_row_indices
    seqlen_q_total = check_seqlen_q(seqlen_q_total)
    first_row = check_count("first_row", first_row, at_most=seqlen_q_total)
    num_rows = check_count("num_rows", num_rows, at_most=seqlen_q_total - first_row)
    all_keys = indices.shape[2]
    keys = all_keys if seqlen_k is None else check_count("seqlen_k", seqlen_k, at_most=all_keys)
    rows_after = seqlen_q_total - first_row - num_rows
    stays_causal = mask.causal and keys == all_keys - rows_after
    if mask.causal and not stays_causal:
        bounds = to_bounds(indices, causal=True, seqlen_q=seqlen_q_total)
        places = [LOWER_START, UPPER_END] if indices.shape[3] == CAUSAL_ONE else slice(None)
        indices = bounds[..., places]
    # Clipped first: then nothing a caller wrote can overflow in the subtraction.
    clipped = np.clip(indices[:, :, :keys], first_row, first_row + num_rows)
    return ColumnMask((clipped - np.int32(first_row)).astype(np.int32), causal=stays_causal)
