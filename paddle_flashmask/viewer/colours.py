"""The colours of pictures: how much of a block is visible, over the class of its tile."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.viewer.blocks import Blocks

UInt8Array: TypeAlias = NDArray[np.uint8]

MOST_BLOCKS = 512  # per side of a picture
SHADES = 16  # steps from masked to visible
# Of a block of which nothing and all is visible; rows are SKIP, PARTIAL, FULL.
NONE_VISIBLE = ((236, 236, 236), (252, 228, 206), (206, 224, 236))
ALL_VISIBLE = ((236, 236, 236), (224, 122, 31), (42, 111, 151))
LEGEND = (
    (ALL_VISIBLE[2], "visible, full tile: computed unmasked"),
    (ALL_VISIBLE[1], "visible, partial tile"),
    (NONE_VISIBLE[1], "masked, partial tile: computed in vain"),
    (NONE_VISIBLE[0], "masked, skipped tile: never loaded"),
)


def paint(blocks: Blocks) -> UInt8Array:
    """Return the colour of each block, [R, C, 3], uint8, in red, green and blue."""
    classes = blocks.classes()
    low = np.array(NONE_VISIBLE, np.float64)[classes]
    high = np.array(ALL_VISIBLE, np.float64)[classes]
    # Up, so that a single visible cell shows.
    share = np.ceil(SHADES * blocks.visible / np.maximum(blocks.cells, 1)) / SHADES
    return np.round(low + (high - low) * share[..., None]).astype(np.uint8)


def hex_colour(colour: tuple[int, ...]) -> str:
    """Return a colour of three parts in [0, 255] as "#rrggbb"."""
    return "#" + "".join(f"{part:02x}" for part in colour)


def scale_words(blocks: Blocks) -> str:
    """Return what a point of the picture stands for."""
    if blocks.step == 1:
        return "one square is one cell"
    mixed = ""
    if blocks.step > blocks.tile:
        mixed = "; where their tiles differ it has the colour of a partial one"
    return (
        f"one point is {blocks.step} x {blocks.step} cells, its shade how many are visible{mixed}"
    )
