"""Dense masks: the definition of what the numbers mean."""

from __future__ import annotations

import numpy as np

from paddle_flashmask.indices.bounds import to_bounds
from paddle_flashmask.indices.form import BoolArray, Int32Array


def to_dense(startend_row_indices: Int32Array, *, causal: bool, seqlen_q: int) -> BoolArray:
    """Return the dense mask: True where a query row sees a key column. The definition, O(Sq * Sk).

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.

    Returns:
        [B, Hm, Sq, Sk], bool.

    Raises:
        TypeError, ValueError: see `check`.

    Example:
        >>> import numpy as np
        >>> two_documents = np.array([[[[2], [2], [3]]]], np.int32)
        >>> to_dense(two_documents, causal=True, seqlen_q=3)[0, 0].astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    bounds = to_bounds(startend_row_indices, causal=causal, seqlen_q=seqlen_q)
    lower_start, lower_end, upper_start, upper_end = np.moveaxis(bounds[..., None, :, :], -1, 0)
    row = np.arange(seqlen_q, dtype=np.int32)[:, None]
    masked = (row >= lower_start) & (row < lower_end)
    masked |= (row >= upper_start) & (row < upper_end)
    visible: BoolArray = ~masked
    return visible
