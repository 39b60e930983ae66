"""Blocks of cells and classes of tiles, against counting cell by cell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import masks as support

from paddle_flashmask import indices, recipes
from paddle_flashmask.viewer import blocks, colours

FULL, PARTIAL, SKIP = indices.FULL, indices.PARTIAL, indices.SKIP


def by_loops(visible: np.ndarray, step: int) -> tuple[list, list]:
    """Return per block of a [Sq, Sk] mask how many cells are visible, and how many there are."""
    rows, columns = visible.shape
    parts = [
        [visible[r : r + step, c : c + step] for c in range(0, columns, step)]
        for r in range(0, rows, step)
    ]
    return [[int(one.sum()) for one in line] for line in parts], [
        [one.size for one in line] for line in parts
    ]


@given(support.masks_with_rows(batch=2), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_visible_cells_of_blocks_are_exact(given_mask, most, tile):
    mask, seqlen_q = given_mask
    head = mask.startend_row_indices.shape[1] - 1
    found = blocks.make_blocks(mask, seqlen_q=seqlen_q, sample=1, head=head, tile=tile, most=most)
    dense = support.dense_by_loops(mask, seqlen_q)[1, head]
    seen, cells = by_loops(dense, found.step)
    if dense.size:
        assert found.visible.tolist() == seen
        assert found.cells.tolist() == cells
        assert max(found.visible.shape) <= most
    classes = found.classes()
    assert classes.shape == found.visible.shape
    assert (found.visible[classes == SKIP] == 0).all()
    assert (found.visible[classes == FULL] == found.cells[classes == FULL]).all()


def test_counting_in_chunks_changes_nothing(monkeypatch):
    mask = recipes.prefix_lm_document([130, 90, 37], [40, 50, 1])
    place = {"seqlen_q": 257, "sample": 0, "head": 0, "tile": 64, "most": 64}
    whole = blocks.make_blocks(mask, **place)
    monkeypatch.setattr(blocks, "CHUNK_CELLS", 1)
    assert (blocks.make_blocks(mask, **place).visible == whole.visible).all()


def test_block_of_unlike_tiles_is_partial():
    merged = blocks.merge(np.array([[SKIP, SKIP, FULL], [SKIP, SKIP, FULL], [FULL, SKIP, SKIP]]), 2)
    assert merged.tolist() == [[SKIP, FULL], [PARTIAL, SKIP]]


@pytest.mark.parametrize("length", [512, 513, 32768])
def test_a_block_is_as_small_as_the_picture_allows(length):
    found = blocks.make_blocks(
        recipes.causal(length), seqlen_q=length, sample=0, head=0, tile=64, most=colours.MOST_BLOCKS
    )
    assert found.step == {512: 1, 513: 2, 32768: 64}[length]


def test_one_visible_cell_of_many_is_seen_in_the_colour():
    rows = np.zeros((1, 1, 64, 4), np.int32)
    rows[..., 1] = 64
    rows[0, 0, 5] = [7, 64, 0, 6]  # row 6 alone sees column 5
    mask = indices.ColumnMask(rows, causal=False)
    found = blocks.make_blocks(mask, seqlen_q=64, sample=0, head=0, tile=64, most=1)
    assert found.visible.tolist() == [[1]]
    assert colours.paint(found)[0, 0].tolist() != list(colours.NONE_VISIBLE[PARTIAL])
