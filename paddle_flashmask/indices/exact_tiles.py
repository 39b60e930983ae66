"""How many tiles are really all masked or all visible, beyond what kernels tell from bounds.

A tile may be dead through both intervals together, and be called partial though nothing in it is
masked. Here the masked columns of a column tile are counted down the rows, sorted change by sorted
change; O(Sk * log tile_columns).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paddle_flashmask.indices._arguments import check_count
from paddle_flashmask.indices.bounds import to_bounds
from paddle_flashmask.indices.form import BoolArray, Int32Array, Int64Array
from paddle_flashmask.indices.runs import disjoint_runs
from paddle_flashmask.indices.tiles import TILE_COLUMNS, TILE_ROWS, whole_tiles

FEWEST_CHANGE_BITS = 2  # a change is -1, 0 or 1, stored as 0, 1 or 2 below the row in a sort key


class ExactTiles(NamedTuple):
    """How many tiles of each kind a mask has, cell by cell; see `exact_tile_counts`.

    Attributes:
        dead: [B, Hm], int64, tiles without a visible cell.
        mixed: [B, Hm], int64, tiles with visible and masked cells.
        clear: [B, Hm], int64, tiles without a masked cell.
    """

    dead: Int64Array
    mixed: Int64Array
    clear: Int64Array


def exact_tile_counts(
    startend_row_indices: Int32Array,
    *,
    causal: bool,
    seqlen_q: int,
    tile_rows: int = TILE_ROWS,
    tile_columns: int = TILE_COLUMNS,
) -> ExactTiles:
    """Return how many tiles are all masked, mixed and all visible.

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.
        tile_rows: rows of a tile, at least 1; the last tile may have fewer.
        tile_columns: columns of a tile, at least 1; columns past the end count as masked.

    Returns:
        The `ExactTiles`: dead is at least the skip, clear at least the full of `tile_statistics`.

    Raises:
        TypeError, ValueError: see `check`; or a tile size is not an int, or not in range.

    Example:
        >>> import numpy as np
        >>> halves = np.array([[[[2, 2], [2, 2]]]], np.int32)  # rows [2, 4) and [0, 2)
        >>> exact_tile_counts(halves, causal=False, seqlen_q=4).dead.item()
        1
    """
    tile_rows = check_count("tile_rows", tile_rows, at_least=1)
    tile_columns = check_count("tile_columns", tile_columns, at_least=1)
    bounds = to_bounds(startend_row_indices, causal=causal, seqlen_q=seqlen_q)
    batch, heads, seqlen_k, _ = bounds.shape
    tiles_down, tiles_across = -(-seqlen_q // tile_rows), -(-seqlen_k // tile_columns)
    if tiles_down * tiles_across == 0:
        none = np.zeros((batch, heads), np.int64)
        return ExactTiles(none, none, none)
    row, masked_columns = _masked_columns_down(bounds, seqlen_q, tile_columns)
    whole = {}
    for kind, wanted in (("dead", tile_columns), ("clear", 0)):
        segment: BoolArray = masked_columns == wanted
        first, last = whole_tiles(
            row[..., :-1], row[..., 1:], seqlen_q=seqlen_q, tile_rows=tile_rows
        )
        size = np.where(segment & (row[..., :-1] < row[..., 1:]), last - first, 0)
        whole[kind] = size.sum(axis=(-2, -1))
    mixed = tiles_down * tiles_across - whole["dead"] - whole["clear"]
    return ExactTiles(whole["dead"], mixed, whole["clear"])


def _masked_columns_down(
    bounds: Int32Array, seqlen_q: int, tile_columns: int
) -> tuple[Int64Array, Int64Array]:
    """Return per column tile the rows where segments begin and the masked columns in each.

    Returns:
        [B, Hm, T, E + 2] rows from 0 to Sq, and [B, Hm, T, E + 1] masked columns of the rows
        between two of them.
    """
    batch, heads, seqlen_k, _ = bounds.shape
    missing = -seqlen_k % tile_columns
    first, second = disjoint_runs(bounds)
    edges = np.minimum(np.stack([first[0], second[0], first[1], second[1]]), seqlen_q)
    change = np.array([1, 1, -1, -1]).reshape(4, 1, 1, 1) * (edges < seqlen_q)
    past_the_end = [(0, 0), (0, 0), (0, 0), (0, missing)]
    edges, change = np.pad(edges, past_the_end), np.pad(change, past_the_end)
    if missing:  # masked in every row: one run that starts at row 0
        change[0, ..., seqlen_k:] = 1
    key = (edges.astype(np.int64) << FEWEST_CHANGE_BITS) + change + 1
    tiles_across = (seqlen_k + missing) // tile_columns
    per_tile = len(key) * tile_columns
    key = np.moveaxis(key, 0, -1).reshape(batch, heads, tiles_across, per_tile)
    key.sort(axis=-1)
    row = key >> FEWEST_CHANGE_BITS
    masked_columns = np.cumsum((key & ((1 << FEWEST_CHANGE_BITS) - 1)) - 1, axis=-1)
    ends = [(0, 0), (0, 0), (0, 0), (1, 1)]
    rows = np.pad(row, ends)
    rows[..., -1] = seqlen_q
    return rows, np.pad(masked_columns, [*ends[:3], (1, 0)])
