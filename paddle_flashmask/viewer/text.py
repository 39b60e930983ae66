"""A mask as text: a line per block of rows, rules between tiles, then the classes of the tiles."""

from __future__ import annotations

from itertools import groupby

from paddle_flashmask.viewer.blocks import Blocks, Int8Array, merge

MOST_BLOCKS = 64  # per side: with a space between, what a wide terminal holds
LEAST_RULED = 4  # blocks; closer rules would hide the picture
CLASS_LETTERS = ".+#"  # SKIP, PARTIAL, FULL


def draw(blocks: Blocks) -> str:
    """Return the picture of a mask.

    `#` is a block that is visible in all cells, `.` in none, `+` in some. With more than one tile
    the classes follow: `.` skip, `+` partial, `#` full.
    """
    lines = _cells(blocks)
    if blocks.step > 1:
        lines.insert(
            0, f"a character is {blocks.step} x {blocks.step} cells: # all, + some, . none"
        )
    if blocks.tiles.size > 1:
        lines += ["", *_tiles(blocks.tiles, blocks.tile)]
    return "\n".join(lines)


def _cells(blocks: Blocks) -> list[str]:
    letters = [
        ["." if seen == 0 else "#" if seen == of else "+" for seen, of in zip(*pair, strict=True)]
        for pair in zip(blocks.visible.tolist(), blocks.cells.tolist(), strict=True)
    ]
    per_tile = blocks.tile // blocks.step
    if blocks.tiles.size <= 1 or per_tile < LEAST_RULED:
        return [" ".join(line) for line in letters]
    lines: list[str] = []
    for tile, members in groupby(enumerate(letters), lambda pair: pair[0] // per_tile):
        ruled = [_ruled(line, per_tile) for _, line in members]
        if tile:
            lines.append("".join("+" if letter == "|" else "-" for letter in ruled[0]))
        lines += ruled
    return lines


def _ruled(letters: list[str], per_tile: int) -> str:
    pieces = range(0, len(letters), per_tile)
    return " | ".join(" ".join(letters[first : first + per_tile]) for first in pieces)


def _tiles(tiles: Int8Array, tile: int) -> list[str]:
    factor = 1
    while factor * MOST_BLOCKS < max(tiles.shape):
        factor *= 2
    of = f", {factor} x {factor} of them a character" if factor > 1 else ""
    mixed = " or mixed" if factor > 1 else ""
    title = f"tiles of {tile} x {tile}{of}: # full, + partial{mixed}, . skip"
    rows = merge(tiles, factor).tolist()
    return [title, *(" ".join(CLASS_LETTERS[one] for one in row) for row in rows)]
