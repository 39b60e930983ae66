"""What a mask costs before anything is run: work, memory, and what skipping saves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paddle_flashmask.indices._arguments import check_count
from paddle_flashmask.indices.counting import count_visible
from paddle_flashmask.indices.form import Int32Array, check, check_seqlen_q
from paddle_flashmask.indices.tiles import TILE_COLUMNS, TILE_ROWS, tile_statistics

FLOPS_PER_CELL_AND_DIM = 4  # a multiply and an add, in q k^T and in p v
BACKWARD_TO_FORWARD = 2.5  # five products against two; arXiv 2410.01359, section 5.4
FLOAT32_BYTES = 4
INDEX_BYTES = 4


@dataclass(frozen=True)
class Cost:
    """Estimated cost of attention under a mask; see `cost` for how each number is computed.

    Attributes:
        visible_cells: visible cells over the batch and all query heads.
        forward_flops: floating point operations of a forward pass over the visible cells.
        backward_flops: those of a backward pass.
        indices_bytes: memory of `startend_row_indices`.
        dense_bool_bytes: memory of the same mask as a dense bool array.
        dense_float32_bytes: memory of the same mask as a dense float32 array.
        scores_bytes: memory of all scores in float32, which attention without tiles would hold.
        live_tiles: tiles that kernels compute, over the batch and all query heads.
        causal_tiles: tiles that they compute under a plain causal mask of this size.
        all_tiles: tiles that they compute without a mask.
    """

    visible_cells: int
    forward_flops: int
    backward_flops: int
    indices_bytes: int
    dense_bool_bytes: int
    dense_float32_bytes: int
    scores_bytes: int
    live_tiles: int
    causal_tiles: int
    all_tiles: int

    @property
    def saving_to_causal(self) -> float:
        """Share of the tiles of a plain causal mask that are not computed; below 0 if more are."""
        return 1.0 - self.live_tiles / self.causal_tiles if self.causal_tiles else 0.0

    @property
    def saving_to_dense(self) -> float:
        """Share of all tiles that are not computed."""
        return 1.0 - self.live_tiles / self.all_tiles if self.all_tiles else 0.0


def cost(
    startend_row_indices: Int32Array,
    *,
    causal: bool,
    seqlen_q: int,
    num_heads: int,
    head_dim: int,
    tile_rows: int = TILE_ROWS,
    tile_columns: int = TILE_COLUMNS,
) -> Cost:
    """Return the estimated cost of one attention layer under a mask. O(B * Hm * Sk).

    * `visible_cells` is `count_visible`, each mask head counted for the Hq / Hm heads it serves.
    * `forward_flops` is 4 * D per visible cell (two products, a multiply and an add each; softmax
      is not counted); `backward_flops` is 2.5 times that (five products).
    * `indices_bytes` is 4 bytes a number, `dense_bool_bytes` B * Hm * Sq * Sk,
      `dense_float32_bytes` 4 times that, and `scores_bytes` 4 * B * Hq * Sq * Sk.
    * Tiles are those of `tile_statistics`, times Hq / Hm. Savings compare numbers of computed
      tiles, a partial tile counting as much as a full one; they estimate time for long rows only.

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.
        num_heads: number of query heads, Hq, a multiple of Hm.
        head_dim: width of a head, D, of query, key and value.
        tile_rows: rows of a tile, at least 1.
        tile_columns: columns of a tile, at least 1.

    Returns:
        The `Cost`.

    Raises:
        TypeError, ValueError: see `check`; or a number is not an int, or not in range.

    Example:
        >>> import numpy as np
        >>> causal = np.full((1, 1, 256, 1), 256, np.int32)
        >>> estimate = cost(causal, causal=True, seqlen_q=256, num_heads=2, head_dim=64)
        >>> estimate.visible_cells, estimate.forward_flops, estimate.saving_to_dense
        (65792, 16842752, 0.375)
    """
    check(startend_row_indices, causal=causal)
    seqlen_q = check_seqlen_q(seqlen_q)
    num_heads = check_count("num_heads", num_heads, at_least=1)
    head_dim = check_count("head_dim", head_dim, at_least=1)
    batch, heads, seqlen_k, width = startend_row_indices.shape
    if num_heads % heads != 0:
        raise ValueError(
            f"num_heads must be a multiple of the mask heads, {heads}; got {num_heads}"
        )
    sharing = num_heads // heads
    tile_sizes = {"tile_rows": tile_rows, "tile_columns": tile_columns}
    tiles = tile_statistics(startend_row_indices, causal=causal, seqlen_q=seqlen_q, **tile_sizes)
    plain = np.full((1, 1, seqlen_k, 1), seqlen_q, np.int32)
    plain_tiles = tile_statistics(plain, causal=True, seqlen_q=seqlen_q, **tile_sizes)
    visible = count_visible(startend_row_indices, causal=causal, seqlen_q=seqlen_q)
    cells = sharing * int(visible.sum())
    forward = FLOPS_PER_CELL_AND_DIM * head_dim * cells
    matrix = seqlen_q * seqlen_k
    return Cost(
        visible_cells=cells,
        forward_flops=forward,
        backward_flops=int(BACKWARD_TO_FORWARD * forward),
        indices_bytes=INDEX_BYTES * batch * heads * seqlen_k * width,
        dense_bool_bytes=batch * heads * matrix,
        dense_float32_bytes=FLOAT32_BYTES * batch * heads * matrix,
        scores_bytes=FLOAT32_BYTES * batch * num_heads * matrix,
        live_tiles=sharing * int(tiles.live.sum()),
        causal_tiles=batch * num_heads * int(plain_tiles.live.sum()),
        all_tiles=batch * num_heads * int(plain_tiles.total.sum()),
    )
