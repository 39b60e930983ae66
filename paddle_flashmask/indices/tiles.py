"""How many tiles of rows by columns kernels skip, and how many they need not mask.

The rule is that of `custom_ops/core/column_bounds.h`. For each interval of the columns of a tile,
*cover* is the rows that it masks in every column and *touch* the hull of those that it masks in
any. A tile is skipped if one interval covers all of its rows, full if none touches any, and else
partial, though its cells may turn out all masked or all visible (`exact_tile_counts`).
Columns past the end neither hinder a skip nor allow a full tile.

All is O(Sk): the row tiles that an interval covers or touches are a range, so they are counted by
its ends and never listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices._arguments import check_count
from paddle_flashmask.indices.bounds import to_bounds
from paddle_flashmask.indices.form import INT32_MAX, Int32Array, Int64Array

Int8Array: TypeAlias = NDArray[np.int8]

SKIP, PARTIAL, FULL = 0, 1, 2  # what `tile_classes` calls the classes
TILE_ROWS = 64  # custom_ops/kernels/cpu/tile_config.h
TILE_COLUMNS = 64  # custom_ops/kernels/cpu/tile_config.h


@dataclass(frozen=True, eq=False)
class TileStatistics:
    """How many tiles of each class a mask has; see `tile_statistics`.

    Attributes:
        tile_rows: rows of a tile.
        tile_columns: columns of a tile.
        skip: [B, Hm], int64, tiles that kernels do not visit.
        partial: [B, Hm], int64, tiles that they compute and mask cell by cell.
        full: [B, Hm], int64, tiles that they compute without masking.
    """

    tile_rows: int
    tile_columns: int
    skip: Int64Array
    partial: Int64Array
    full: Int64Array

    @property
    def live(self) -> Int64Array:
        """[B, Hm], int64, tiles that are computed: partial and full ones."""
        return self.partial + self.full

    @property
    def total(self) -> Int64Array:
        """[B, Hm], int64, all tiles."""
        return self.skip + self.live


def tile_statistics(
    startend_row_indices: Int32Array,
    *,
    causal: bool,
    seqlen_q: int,
    tile_rows: int = TILE_ROWS,
    tile_columns: int = TILE_COLUMNS,
) -> TileStatistics:
    """Return how many tiles kernels skip, mask and compute whole.

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.
        tile_rows: rows of a tile, at least 1; the last tile may have fewer.
        tile_columns: columns of a tile, at least 1; the last tile may have fewer.

    Returns:
        The `TileStatistics`.

    Raises:
        TypeError, ValueError: see `check`; or a tile size is not an int, or not in range.

    Example:
        >>> import numpy as np
        >>> causal = np.full((1, 1, 256, 1), 256, np.int32)
        >>> tiles = tile_statistics(causal, causal=True, seqlen_q=256)
        >>> tiles.skip.item(), tiles.partial.item(), tiles.full.item()
        (6, 4, 6)
    """
    tile_rows = check_count("tile_rows", tile_rows, at_least=1)
    tile_columns = check_count("tile_columns", tile_columns, at_least=1)
    bounds = to_bounds(startend_row_indices, causal=causal, seqlen_q=seqlen_q)
    batch, heads, seqlen_k, _ = bounds.shape
    tiles_down, tiles_across = -(-seqlen_q // tile_rows), -(-seqlen_k // tile_columns)
    if tiles_down * tiles_across == 0:
        none = np.zeros((batch, heads), np.int64)
        return TileStatistics(tile_rows, tile_columns, none, none, none)
    covered, touched = _tile_ranges(bounds, tile_rows, tile_columns, seqlen_q)
    skip = _union_size(covered[0], covered[1])
    full = tiles_down - _union_size(touched[0], touched[1])
    if seqlen_k % tile_columns != 0:
        full[..., -1] = 0
    skipped, whole = skip.sum(axis=-1), full.sum(axis=-1)
    partial = tiles_down * tiles_across - skipped - whole
    return TileStatistics(tile_rows, tile_columns, skipped, partial, whole)


def tile_classes(
    startend_row_indices: Int32Array,
    *,
    causal: bool,
    seqlen_q: int,
    tile_rows: int = TILE_ROWS,
    tile_columns: int = TILE_COLUMNS,
) -> Int8Array:
    """Return the class of every tile: what `tile_statistics` counts, tile by tile.

    Args:
        startend_row_indices: [B, Hm, Sk, C], int32.
        causal: the flag the indices are read with.
        seqlen_q: number of query rows, Sq.
        tile_rows: rows of a tile, at least 1; the last tile may have fewer.
        tile_columns: columns of a tile, at least 1; the last tile may have fewer.

    Returns:
        [B, Hm, ceil(Sq / tile_rows), ceil(Sk / tile_columns)], int8: SKIP, PARTIAL or FULL.

    Raises:
        TypeError, ValueError: see `check`; or a tile size is not an int, or not in range.

    Example:
        >>> import numpy as np
        >>> causal = np.full((1, 1, 4, 1), 4, np.int32)
        >>> size = {"tile_rows": 2, "tile_columns": 2}
        >>> tile_classes(causal, causal=True, seqlen_q=4, **size)[0, 0].tolist()
        [[1, 0], [2, 1]]
    """
    tile_rows = check_count("tile_rows", tile_rows, at_least=1)
    tile_columns = check_count("tile_columns", tile_columns, at_least=1)
    bounds = to_bounds(startend_row_indices, causal=causal, seqlen_q=seqlen_q)
    batch, heads, seqlen_k, _ = bounds.shape
    tiles_down, tiles_across = -(-seqlen_q // tile_rows), -(-seqlen_k // tile_columns)
    classes = np.full((batch, heads, tiles_down, tiles_across), FULL, np.int8)
    if classes.size == 0:
        return classes
    row = np.arange(tiles_down)[:, None]
    covered, touched = _tile_ranges(bounds, tile_rows, tile_columns, seqlen_q)
    if seqlen_k % tile_columns != 0:
        classes[..., -1] = PARTIAL
    for ranges, name in ((touched, PARTIAL), (covered, SKIP)):
        for first, last in ranges:
            classes[(row >= first[..., None, :]) & (row < last[..., None, :])] = name
    return classes


def whole_tiles(
    begin: Int64Array, end: Int64Array, *, seqlen_q: int, tile_rows: int
) -> tuple[Int64Array, Int64Array]:
    """Return the row tiles that lie whole in [begin, end), as a half-open range of tile numbers."""
    first = -(-begin // tile_rows)
    tiles_down = -(-seqlen_q // tile_rows)
    last = np.where(end >= seqlen_q, tiles_down, end // tile_rows)
    return first, np.maximum(first, last)


def _tile_ranges(
    bounds: Int32Array, tile_rows: int, tile_columns: int, seqlen_q: int
) -> tuple[list[tuple[Int64Array, Int64Array]], list[tuple[Int64Array, Int64Array]]]:
    """Return per interval the row tiles, [B, Hm, T] each, that it covers and that it touches."""
    covered, touched = [], []
    for lowest in (0, 2):
        cover, touch = _cover_and_touch(bounds[..., lowest], bounds[..., lowest + 1], tile_columns)
        covered.append(whole_tiles(*cover, seqlen_q=seqlen_q, tile_rows=tile_rows))
        touched.append(_touched_tiles(*touch, tile_rows=tile_rows))
    return covered, touched


def _touched_tiles(
    begin: Int64Array, end: Int64Array, *, tile_rows: int
) -> tuple[Int64Array, Int64Array]:
    first = begin // tile_rows
    return first, np.maximum(first, -(-end // tile_rows))


def _cover_and_touch(
    start: Int32Array, end: Int32Array, tile_columns: int
) -> tuple[tuple[Int64Array, Int64Array], tuple[Int64Array, Int64Array]]:
    """Return begin and end, [B, Hm, T], of the rows covered and of those touched per tile."""
    empty = start >= end
    starts = np.where(empty, np.int32(INT32_MAX), start)
    ends = np.where(empty, np.int32(-1), end)
    tile = np.arange(0, start.shape[-1], tile_columns)

    def reduce(least_or_most: np.ufunc, rows: Int32Array) -> Int64Array:
        reduced: Int64Array = least_or_most.reduceat(rows, tile, axis=-1).astype(np.int64)
        return reduced

    cover = reduce(np.maximum, starts), reduce(np.minimum, ends)
    touch = reduce(np.minimum, starts), reduce(np.maximum, ends)
    return cover, touch


def _union_size(
    first: tuple[Int64Array, Int64Array], second: tuple[Int64Array, Int64Array]
) -> Int64Array:
    shared = np.minimum(first[1], second[1]) - np.maximum(first[0], second[0])
    size: Int64Array = first[1] - first[0] + second[1] - second[0] - np.maximum(shared, 0)
    return size
