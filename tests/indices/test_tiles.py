"""Tiles are classed by the kernels' rule: the very header, compiled, and the cells themselves."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import masks as support

import paddle_flashmask
from paddle_flashmask.indices import (
    FULL,
    PARTIAL,
    SKIP,
    exact_tile_counts,
    tile_classes,
    tile_statistics,
    to_bounds,
)
from paddle_flashmask.recipes import causal_document, document, sliding_window

ROOT = Path(paddle_flashmask.__file__).parents[1]
SOURCE = """
#include "core/column_bounds.h"

using namespace flashmask;

// Counts the tiles of each class of one mask head, as MaskPlan::LowerTile and Classify do.
extern "C" void CountTiles(const int32_t* indices, int width, int causal, int64_t seqlen_q,
                           int64_t seqlen_k, int64_t tile_rows, int64_t tile_columns,
                           int64_t* counts) {
  MaskParams mask{};
  mask.width = width;
  mask.causal = causal != 0;
  for (int64_t c0 = 0; c0 < seqlen_k; c0 += tile_columns) {
    TileRange range{EmptyRange(), EmptyRange()};
    for (int64_t c = c0; c < c0 + tile_columns; ++c) {
      if (c < seqlen_k) {
        const ColumnBounds bounds =
            LowerColumn(mask, indices + c * width, c, seqlen_q, seqlen_k);
        AddColumn(bounds.lower, &range.lower);
        AddColumn(bounds.upper, &range.upper);
      } else {
        range.lower.touch = {0, static_cast<int32_t>(seqlen_q)};
      }
    }
    for (int64_t r0 = 0; r0 < seqlen_q; r0 += tile_rows) {
      const int64_t r1 = r0 + tile_rows < seqlen_q ? r0 + tile_rows : seqlen_q;
      ++counts[static_cast<int>(
          ClassifyTile(range, static_cast<int32_t>(r0), static_cast<int32_t>(r1)))];
    }
  }
}
"""


@pytest.fixture(scope="session")
def count_tiles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiles")
    (folder / "tiles.cc").write_text(SOURCE, encoding="utf-8")
    library = folder / "tiles.so"
    options = ["-std=c++17", "-shared", "-fPIC", "-O1", f"-I{ROOT / 'custom_ops'}"]
    subprocess.run(["g++", *options, "-o", library, folder / "tiles.cc"], check=True)
    function = ctypes.CDLL(str(library)).CountTiles
    function.restype = None

    def count(mask, seqlen_q, tile_rows, tile_columns):
        batch, heads, seqlen_k, width = mask.startend_row_indices.shape
        counts = np.zeros((batch, heads, 3), np.int64)
        for sample, head in np.ndindex(batch, heads):
            numbers = np.ascontiguousarray(mask.startend_row_indices[sample, head])
            function(
                numbers.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_int(width),
                ctypes.c_int(mask.causal),
                *(ctypes.c_int64(size) for size in (seqlen_q, seqlen_k, tile_rows, tile_columns)),
                counts[sample, head].ctypes.data_as(ctypes.c_void_p),
            )
        return counts

    return count


def counted(mask, seqlen_q, tile_rows, tile_columns):
    tiles = tile_statistics(
        mask.startend_row_indices,
        causal=mask.causal,
        seqlen_q=seqlen_q,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
    )
    return np.stack([tiles.skip, tiles.partial, tiles.full], axis=-1)


@given(
    drawn=support.masks_with_rows(),
    tile_rows=st.integers(1, 4),
    tile_columns=st.integers(1, 4),
)
def test_classes_are_those_of_the_kernels_header(count_tiles, drawn, tile_rows, tile_columns):
    mask, seqlen_q = drawn
    np.testing.assert_array_equal(
        counted(mask, seqlen_q, tile_rows, tile_columns),
        count_tiles(mask, seqlen_q, tile_rows, tile_columns),
    )


@pytest.mark.parametrize("length", [1, 63, 64, 65, 640, 1000])
def test_classes_are_those_of_the_kernels_header_at_their_tile_size(count_tiles, length):
    generator = np.random.default_rng(length)
    cuts = np.sort(generator.integers(0, length, 5))
    lengths = np.diff([0, *cuts.tolist(), length])
    for mask in (
        causal_document(lengths),
        document(lengths[:-1], seq_len=length),
        sliding_window(length, 100),
    ):
        np.testing.assert_array_equal(
            counted(mask, length, 64, 64), count_tiles(mask, length, 64, 64)
        )


def tile_sums(mask, seqlen_q, tile_rows, tile_columns):
    """Yield sample, head, visible cells and cells with the columns past the end, per tile."""
    visible = support.dense_by_loops(mask, seqlen_q)
    for sample, head in np.ndindex(*visible.shape[:2]):
        for top in range(0, visible.shape[2], tile_rows):
            for left in range(0, visible.shape[3], tile_columns):
                tile = visible[sample, head, top : top + tile_rows, left : left + tile_columns]
                yield sample, head, int(tile.sum()), tile.shape[0] * tile_columns


@given(
    drawn=support.masks_with_rows(),
    tile_rows=st.integers(1, 4),
    tile_columns=st.integers(1, 4),
)
def test_exact_counts_are_those_of_the_cells(drawn, tile_rows, tile_columns):
    mask, seqlen_q = drawn
    expected = np.zeros((*mask.startend_row_indices.shape[:2], 3), np.int64)
    for sample, head, seen, cells in tile_sums(mask, seqlen_q, tile_rows, tile_columns):
        expected[sample, head, 0 if seen == 0 else 2 if seen == cells else 1] += 1
    exact = exact_tile_counts(
        mask.startend_row_indices,
        causal=mask.causal,
        seqlen_q=seqlen_q,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
    )
    np.testing.assert_array_equal(np.stack(exact, axis=-1), expected)
    tiles = counted(mask, seqlen_q, tile_rows, tile_columns)
    assert (exact.dead >= tiles[..., 0]).all()
    assert (exact.clear >= tiles[..., 2]).all()


def test_columns_past_the_end_make_no_tile_full_and_hinder_no_skip():
    nothing_masked = support.filled(False, [65, 0], [65, 0], [65, 0])
    assert counted(nothing_masked, 64, 64, 2)[0, 0].tolist() == [0, 1, 1]
    all_masked = support.filled(False, [0, 0], [0, 0], [0, 0])
    assert counted(all_masked, 64, 64, 2)[0, 0].tolist() == [2, 0, 0]


def test_an_empty_interval_does_not_stretch_what_others_touch():
    mask = support.filled(False, [0, 0, 0, 0], [3, 4, 0, 0])
    assert counted(mask, 4, 2, 2)[0, 0].tolist() == [0, 1, 1]


def test_lowering_keeps_the_classes():
    mask = causal_document([100, 30, 200], seq_len=400)
    bounds = to_bounds(mask.startend_row_indices, causal=True, seqlen_q=400)
    lowered = support.ColumnMask(bounds, causal=False)
    np.testing.assert_array_equal(counted(lowered, 400, 64, 64), counted(mask, 400, 64, 64))


@pytest.mark.parametrize("count", [tile_statistics, exact_tile_counts])
@pytest.mark.parametrize("name", ["tile_rows", "tile_columns"])
def test_tile_sizes_are_checked(count, name):
    indices = np.zeros((1, 1, 1, 1), np.int32)
    message = rf"^{name} must be in \[1, 2147483647\]; got 0$"
    with pytest.raises(ValueError, match=message):
        count(indices, causal=True, seqlen_q=1, **{name: 0})
    with pytest.raises(TypeError, match=f"^{name} must be an int; got float 2.0$"):
        count(indices, causal=True, seqlen_q=1, **{name: 2.0})


@given(support.masks_with_rows(), st.integers(1, 5), st.integers(1, 5))
def test_classes_of_tiles_are_what_the_statistics_count(given_mask, tile_rows, tile_columns):
    mask, seqlen_q = given_mask
    size = {"tile_rows": tile_rows, "tile_columns": tile_columns}
    form = {"causal": mask.causal, "seqlen_q": seqlen_q}
    classes = tile_classes(mask.startend_row_indices, **form, **size)
    counted = tile_statistics(mask.startend_row_indices, **form, **size)
    for name, count in ((SKIP, counted.skip), (PARTIAL, counted.partial), (FULL, counted.full)):
        np.testing.assert_array_equal((classes == name).sum(axis=(2, 3)), count)
    dense = support.dense_by_loops(mask, seqlen_q)
    for sample, head, row, column in np.ndindex(*classes.shape):
        down, across = row * tile_rows, column * tile_columns
        cells = dense[sample, head, down : down + tile_rows, across : across + tile_columns]
        assert classes[sample, head, row, column] != SKIP or not cells.any()
        assert classes[sample, head, row, column] != FULL or cells.all()
