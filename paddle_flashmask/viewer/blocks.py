"""A mask at the size of a picture: square blocks of cells, how many are visible, their tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices import FULL, PARTIAL, SKIP, ColumnMask, tile_classes, to_bounds

Int64Array: TypeAlias = NDArray[np.int64]
Int8Array: TypeAlias = NDArray[np.int8]

CHUNK_CELLS = 1 << 22  # rows of blocks times columns that are counted at once: 100 MB or less


@dataclass(frozen=True, eq=False)
class Blocks:
    """One head of one sample, in blocks of step x step cells; the last ones may be smaller.

    Attributes:
        seqlen_q: query rows, Sq.
        seqlen_k: key columns, Sk.
        step: rows and columns of a block, a power of 2.
        tile: rows and columns of a tile, a power of 2.
        visible: [R, C], int64, visible cells of each block.
        cells: [R, C], int64, cells of each block.
        tiles: [Tr, Tc], int8, class of each tile, see `indices.tile_classes`.
    """

    seqlen_q: int
    seqlen_k: int
    step: int
    tile: int
    visible: Int64Array
    cells: Int64Array
    tiles: Int8Array

    def classes(self) -> Int8Array:
        """Return [R, C], int8, the class of the tile that each block lies in.

        A block of several tiles has their class if they agree, else PARTIAL.
        """
        rows, columns = self.visible.shape
        if self.step > self.tile:
            return merge(self.tiles, self.step // self.tile)
        repeat = self.tile // self.step
        return self.tiles.repeat(repeat, 0).repeat(repeat, 1)[:rows, :columns]


def make_blocks(
    mask: ColumnMask, *, seqlen_q: int, sample: int, head: int, tile: int, most: int
) -> Blocks:
    """Return one head of one sample in at most most x most blocks. O(most * Sk).

    Args:
        mask: int32 indices [B, Hm, Sk, C].
        seqlen_q: query rows, Sq.
        sample: which row of the batch.
        head: which mask head.
        tile: rows and columns of a tile, a power of 2.
        most: blocks per side at most, a power of 2.

    Raises:
        TypeError, ValueError: see `indices.check`.
    """
    one = mask.startend_row_indices[sample : sample + 1, head : head + 1]
    seqlen_k = one.shape[2]
    step = 1
    while step * most < max(seqlen_q, seqlen_k):
        step *= 2
    tiles = tile_classes(
        one, causal=mask.causal, seqlen_q=seqlen_q, tile_rows=tile, tile_columns=tile
    )
    bounds = to_bounds(one, causal=mask.causal, seqlen_q=seqlen_q)[0, 0]
    heights = np.diff(_edges(seqlen_q, step))
    widths = np.diff(_edges(seqlen_k, step))
    cells = heights[:, None] * widths
    visible = cells - _masked_cells(bounds.astype(np.int64), _edges(seqlen_q, step), step)
    return Blocks(seqlen_q, seqlen_k, step, tile, visible, cells, tiles[0, 0])


def merge(classes: Int8Array, factor: int) -> Int8Array:
    """Return the classes of groups of factor x factor tiles: theirs if they agree, else PARTIAL."""
    if classes.size == 0:
        return classes[::factor, ::factor]
    rows = np.arange(0, classes.shape[0], factor)
    columns = np.arange(0, classes.shape[1], factor)
    lowest = np.minimum.reduceat(np.minimum.reduceat(classes, rows, axis=0), columns, axis=1)
    highest = np.maximum.reduceat(np.maximum.reduceat(classes, rows, axis=0), columns, axis=1)
    merged: Int8Array = np.where(lowest == highest, lowest, np.int8(PARTIAL))
    assert set(np.unique(merged)) <= {SKIP, PARTIAL, FULL}
    return merged


def _edges(length: int, step: int) -> Int64Array:
    return np.append(np.arange(0, length, step, dtype=np.int64), length)


def _masked_cells(bounds: Int64Array, row_edges: Int64Array, step: int) -> Int64Array:
    """Return [R, C], int64: the masked cells of each block, from the bounds [Sk, 4]."""
    rows, seqlen_k = row_edges.size - 1, bounds.shape[0]
    masked = np.zeros((rows, -(-seqlen_k // step)), np.int64)
    if masked.size == 0:
        return masked
    chunk = max(1, CHUNK_CELLS // (rows * step)) * step
    top, bottom = row_edges[:-1, None], row_edges[1:, None]
    for first in range(0, seqlen_k, chunk):
        start, end, upper_start, upper_end = bounds[first : first + chunk].T

        def within(begin: Int64Array, stop: Int64Array) -> Int64Array:
            length = np.minimum(stop, bottom) - np.maximum(begin, top)
            kept: Int64Array = np.maximum(length, 0, out=length)
            return kept

        both = within(np.maximum(start, upper_start), np.minimum(end, upper_end))
        counts = within(start, end) + within(upper_start, upper_end) - both
        columns = np.arange(0, counts.shape[1], step)
        place = slice(first // step, first // step + columns.size)
        masked[:, place] = np.add.reduceat(counts, columns, axis=1)
    return masked
