"""A mask as SVG, written by hand: a path per colour, rules between tiles, a legend."""

from __future__ import annotations

from html import escape
from itertools import pairwise

import numpy as np

from paddle_flashmask.viewer.blocks import Blocks
from paddle_flashmask.viewer.colours import (
    LEGEND,
    MOST_BLOCKS,
    UInt8Array,
    hex_colour,
    paint,
    scale_words,
)

SIDE = 512  # of the picture, in points; a block has at least one
MARGIN, LINE, SWATCH, TEXT = 16, 18, 12, 12  # points: around, per line of words, of a swatch, font
LEAST_RULED = 8  # points of a tile; closer rules would hide the picture
LEAST_WIDTH = 360  # points, for the words


def draw(blocks: Blocks, title: str, words: list[str]) -> str:
    """Return an SVG document.

    Args:
        blocks: what is drawn; at most `MOST_BLOCKS` per side.
        title: what stands above it.
        words: lines that stand below it.
    """
    rows, columns = blocks.visible.shape
    size = max(1, round(SIDE / max(rows, columns, 1)))
    assert max(rows, columns) <= MOST_BLOCKS
    width, height = columns * size, rows * size
    below = [scale_words(blocks), *words]
    top = MARGIN + LINE
    full_width = max(width, LEAST_WIDTH, 7 * max(map(len, (title, *below)))) + 2 * MARGIN
    full_height = top + height + LINE * (len(LEGEND) + len(below) + 1) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{full_width}" height="{full_height}" '
        f'viewBox="0 0 {full_width} {full_height}" font-family="sans-serif" font-size="{TEXT}">',
        '<rect width="100%" height="100%" fill="white"/>',
        _words(MARGIN, MARGIN + TEXT / 2, title),
        f'<g transform="translate({MARGIN} {top})" shape-rendering="crispEdges">',
        *_paths(paint(blocks), size),
        _rules(blocks, size, width, height),
        f'<rect x="-1" y="-1" width="{width + 2}" height="{height + 2}" fill="none" '
        'stroke="#666"/>',
        "</g>",
    ]
    line = top + height + LINE
    for colour, meaning in LEGEND:
        place = f'x="{MARGIN}" y="{line - SWATCH + 2}" width="{SWATCH}" height="{SWATCH}"'
        parts += [f'<rect {place} fill="{hex_colour(colour)}" stroke="#999"/>']
        parts += [_words(MARGIN + LINE, line, meaning)]
        line += LINE
    for text in below:
        parts.append(_words(MARGIN, line, text))
        line += LINE
    return "\n".join([*parts, "</svg>", ""])


def _paths(picture: UInt8Array, size: int) -> list[str]:
    """Return a path per colour, of the runs of equal blocks in each row."""
    rows, columns, _ = picture.shape
    runs: dict[tuple[int, ...], list[str]] = {}
    for row in range(rows):
        line = picture[row]
        changes = np.flatnonzero((line[1:] != line[:-1]).any(axis=1)) + 1
        edges = [0, *changes.tolist(), columns] if columns else []
        for first, last in pairwise(edges):
            run = f"M{first * size} {row * size}h{(last - first) * size}v{size}H{first * size}z"
            runs.setdefault(tuple(line[first].tolist()), []).append(run)
    return [
        f'<path fill="{hex_colour(colour)}" d="{"".join(run)}"/>' for colour, run in runs.items()
    ]


def _rules(blocks: Blocks, size: int, width: int, height: int) -> str:
    per_tile = size * blocks.tile // blocks.step
    if per_tile < LEAST_RULED:
        return ""
    lines = [f"M{x} 0v{height}" for x in range(per_tile, width, per_tile)]
    lines += [f"M0 {y}h{width}" for y in range(per_tile, height, per_tile)]
    return f'<path stroke="#666" stroke-opacity="0.5" fill="none" d="{"".join(lines)}"/>'


def _words(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'
