"""A mask as PNG, by matplotlib, which the package does not require."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from paddle_flashmask.viewer.blocks import Blocks
from paddle_flashmask.viewer.colours import LEGEND, hex_colour, paint, scale_words

INCHES, DOTS_PER_INCH = 7.0, 150
LEAST_INCHES = 5.0  # of the width: for the words
THINNEST = 1 / 8  # of the picture's longer side; what is thinner is stretched
MOST_RULES = 40


def require_matplotlib() -> None:
    """Check that a PNG can be drawn.

    Raises:
        ValueError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "a PNG needs matplotlib, not installed here: pip install matplotlib; or write an SVG"
        )


def draw(path: Path, blocks: Blocks, title: str, words: list[str]) -> None:
    """Write a PNG file.

    Args:
        path: the file.
        blocks: what is drawn.
        title: what stands above it.
        words: lines that stand below it.

    Raises:
        ValueError: matplotlib is not installed, or there is no cell to draw.
    """
    require_matplotlib()
    if blocks.visible.size == 0:
        raise ValueError("a mask without cells has no PNG; write an SVG")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows, columns = (float(count * blocks.step) for count in blocks.visible.shape)
    height, width = (max(side / max(rows, columns), THINNEST) for side in (rows, columns))
    size = (max(INCHES * width, LEAST_INCHES), INCHES * height + 2)
    figure = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    extent = (0.0, columns, rows, 0.0)
    axes.imshow(paint(blocks), extent=extent, interpolation="nearest")
    axes.set_aspect("equal" if THINNEST < rows / columns < 1 / THINNEST else "auto")
    edges = range(blocks.tile, max(blocks.seqlen_q, blocks.seqlen_k), blocks.tile)
    if len(edges) <= MOST_RULES:
        axes.hlines([y for y in edges if y < blocks.seqlen_q], 0, blocks.seqlen_k, "#666", lw=0.4)
        axes.vlines([x for x in edges if x < blocks.seqlen_k], 0, blocks.seqlen_q, "#666", lw=0.4)
    axes.set_xlim(0, blocks.seqlen_k)
    axes.set_ylim(blocks.seqlen_q, 0)
    axes.set_title(title, fontsize="medium")
    axes.set_ylabel("query rows")
    axes.set_xlabel("\n".join(["key columns", scale_words(blocks), *words]), fontsize="small")
    patches = [Patch(color=hex_colour(colour), label=meaning) for colour, meaning in LEGEND]
    figure.legend(handles=patches, loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, bbox_inches="tight")
