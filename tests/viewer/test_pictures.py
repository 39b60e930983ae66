"""Text and SVG read back: each block as counted cell by cell; PNG and size."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import masks as support

from paddle_flashmask import indices, recipes
from paddle_flashmask.viewer import colours, png, svg, text
from paddle_flashmask.viewer.blocks import make_blocks
from paddle_flashmask.viewer.command import main

NAMESPACE = "{http://www.w3.org/2000/svg}"


@given(support.masks_with_rows(batch=1, heads=1), st.sampled_from([1, 2, 4, 64]))
def test_text_shows_every_cell_and_tile(given_mask, tile):
    mask, seqlen_q = given_mask
    place = {"sample": 0, "head": 0, "tile": tile, "most": text.MOST_BLOCKS}
    drawn = text.draw(make_blocks(mask, seqlen_q=seqlen_q, **place))
    cells, _, tiles = drawn.partition("\n\n")
    ruled = [line for line in cells.splitlines() if "-" not in line]
    read = [[letter == "#" for letter in line if letter in "#."] for line in ruled]
    dense = support.dense_by_loops(mask, seqlen_q)[0, 0]
    if dense.size == 0:
        return
    assert read == dense.tolist()
    classes = indices.tile_classes(
        *mask[:1], causal=mask.causal, seqlen_q=seqlen_q, tile_rows=tile, tile_columns=tile
    )[0, 0]
    if classes.size > 1:
        shown = [[".+#".index(one) for one in line.split()] for line in tiles.splitlines()[1:]]
        assert shown == classes.tolist()


@given(support.masks_with_rows(batch=1, heads=1), st.sampled_from([1, 2, 4]))
def test_text_of_larger_blocks_says_all_some_or_none(given_mask, most):
    mask, seqlen_q = given_mask
    found = make_blocks(mask, seqlen_q=seqlen_q, sample=0, head=0, tile=64, most=most)
    drawn = text.draw(found).splitlines()
    if found.step > 1:
        scale = f"a character is {found.step} x {found.step} cells: # all, + some, . none"
        assert drawn.pop(0) == scale
    dense = support.dense_by_loops(mask, seqlen_q)[0, 0]
    step = found.step
    for row, line in enumerate(drawn):
        for column, letter in enumerate(line.split()):
            place = np.s_[row * step : (row + 1) * step, column * step : (column + 1) * step]
            assert (letter == "#") == dense[place].all()
            assert (letter == ".") == (not dense[place].any())


def test_tile_rules_stand_between_tiles():
    mask = recipes.sft([3, 2, 3])
    drawn = text.draw(make_blocks(mask, seqlen_q=8, sample=0, head=0, tile=4, most=64))
    assert drawn.splitlines()[3:6] == [
        ". . . # | . . . .",
        "--------+--------",
        ". . . # | # . . .",
    ]


def svg_pixels(document: str, rows: int, columns: int) -> np.ndarray:
    """Return the colour of each block as the paths of an SVG say it."""
    root = ElementTree.fromstring(document)
    picture = root.find(f"{NAMESPACE}g")
    pixels = np.full((rows, columns), "", object)
    for path in picture.findall(f"{NAMESPACE}path"):
        if path.get("fill") == "none":
            continue
        runs = re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)H(\d+)z", path.get("d"))
        for x, y, width, size, back in (map(int, run) for run in runs):
            assert back == x
            place = np.s_[y // size, x // size : (x + width) // size]
            assert (pixels[place] == "").all()
            pixels[place] = path.get("fill")
    return pixels


@settings(deadline=None)
@given(support.masks_with_rows(batch=1, heads=1), st.sampled_from([1, 2, 4]), st.integers(0, 3))
def test_svg_shows_every_block_in_its_colour(given_mask, tile, halvings):
    mask, seqlen_q = given_mask
    place = {"sample": 0, "head": 0, "tile": tile, "most": 8 >> halvings}
    found = make_blocks(mask, seqlen_q=seqlen_q, **place)
    pixels = svg_pixels(svg.draw(found, "a <title>", ["words & more"]), *found.visible.shape)
    classes = found.classes()
    for row, column in np.ndindex(*found.visible.shape):
        seen = int(found.visible[row, column])
        low = colours.NONE_VISIBLE[classes[row, column]]
        high = colours.ALL_VISIBLE[classes[row, column]]
        exact = {0: low, int(found.cells[row, column]): high}.get(seen)
        if exact is not None:
            assert pixels[row, column] == colours.hex_colour(exact)
        else:
            assert pixels[row, column] not in map(colours.hex_colour, (low, high))


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_32k_is_drawn_in_seconds_with_its_scale_said(suffix, tmp_path, capsys):
    file = tmp_path / f"mask{suffix}"
    start = time.monotonic()
    assert main(["sft", "lengths=[4000, 12000, 768, 16000]", "--output", str(file)]) == 0
    assert time.monotonic() - start < 20
    assert f"{file}: one point is 64 x 64 cells" in capsys.readouterr().out
    assert 10_000 < file.stat().st_size < 1_000_000


def test_png_without_matplotlib_is_refused_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(png.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["causal", "seq_len=4", "--output", "mask.png"])
    assert "a PNG needs matplotlib, not installed here: pip install mat" in capsys.readouterr().err


def test_a_caption_is_of_the_plane_that_is_drawn(tmp_path):
    rows = np.array([[4] * 4, [1, 2, 3, 4]], np.int32)[:, None, :, None]
    np.save(tmp_path / "rows.npy", rows)
    for sample, density in ((0, "0.625"), (1, "0.25")):
        file = tmp_path / f"{sample}.svg"
        options = ["--causal", "--sample", str(sample), "--output", str(file)]
        assert main([str(tmp_path / "rows.npy"), *options]) == 0
        assert f"density {density}:" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("sizes", [(2, 4096), (4096, 2), (64, 64)], ids=str)
def test_thin_masks_fill_their_picture(sizes, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    seqlen_q, seqlen_k = sizes
    mask = indices.ColumnMask(np.full((1, 1, seqlen_k, 1), seqlen_q, np.int32), True)
    place = {"sample": 0, "head": 0, "tile": 64, "most": colours.MOST_BLOCKS}
    png.draw(tmp_path / "mask.png", make_blocks(mask, seqlen_q=seqlen_q, **place), "title", [])
    pixels = image.imread(tmp_path / "mask.png")[..., :3]
    inked = (pixels < 1).any(axis=-1)
    assert inked.mean() > 0.2
    assert min(inked.any(axis=1).sum(), inked.any(axis=0).sum()) > 200
