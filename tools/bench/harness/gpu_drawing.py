"""The drawing of rates on a GPU: a line for each shape and mask, forward and backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.cells import DIRECTIONS
from harness.drawings import COLOURS, MARKERS, figure, save
from harness.gpu_tables import FLEX, SHAPE, Figures, Rows, by_shape, words
from harness.results import OK, OURS

NAME = "tflops_by_mask"
DRAWN = {
    OURS: "ours",
    FLEX: "FlexAttention",
    "torch_flex_flash": "FlexAttention with FA4",
    "torch_cudnn": "cuDNN",
    "torch_flash": "FlashAttention-2",
}
LINE_HEIGHT, EDGES = 0.19, 1.1  # inches
TEXT_SIZE, DOT_SIZE = 8, 5.5  # points
ABOVE_GRID = 10  # the order in which matplotlib paints; the grid has 1
Line = tuple[str, Figures | None]


def draw_rates(folder: Path, rows: Rows) -> list[Path]:
    """Draw TFLOP/s of every shape and mask of the card that was measured last."""
    usable = [row for row in rows if row["status"] == OK and row["provider"] in DRAWN]
    if not usable:
        raise ValueError("the CSV has no row that can be drawn; measure first")
    newest = max(usable, key=lambda row: row["date"])
    shapes = by_shape([row for row in usable if row["device"] == newest["device"]])
    ordered = sorted(shapes.items(), key=_place)
    lines = [line for shape, figures in ordered for line in _lines(shape, figures)]
    drawn, panels = figure(
        len(DIRECTIONS),
        "TFLOP/s on visible cells",
        height=EDGES + LINE_HEIGHT * len(lines),
        sharey=True,
    )
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        _dots(axes, lines, direction)
        axes.set_title(direction)
        axes.tick_params(axis="y", left=False)
    right = max(axes.get_xlim()[1] for axes in panels)
    for axes in panels:
        axes.set_xlim(0, right)
    _label_lines(panels[0], lines)
    title = f"{newest['device']}, further right is faster"
    source = f"rows up to {newest['date']}, commit {newest['commit']}"
    return save(drawn, panels, folder / NAME, title, source=source)


def _place(item: tuple[tuple[str, ...], Figures]) -> tuple[Any, ...]:
    """Return what sorts shapes: those with the most masks first, then by head_dim."""
    shape, figures = item
    fields = dict(zip(SHAPE, shape, strict=True))
    numbers = (int(fields[name]) for name in ("head_dim", "num_heads_k", "seqlen"))
    return (-len(figures.masks), *numbers, fields["dtype"])


def _lines(shape: tuple[str, ...], figures: Figures) -> list[Line]:
    """Return a heading for the shape, and a line for each of its masks."""
    fields = dict(zip(SHAPE, shape, strict=True))
    heading = f"{words(fields)}, {fields['dtype']}"
    return [(heading, None), *((mask, figures) for mask in figures.masks)]


def _dots(axes: Any, lines: list[Line], direction: str) -> None:
    for number, (name, label) in enumerate(DRAWN.items()):
        found = [
            (figures.value("tflops_visible", mask, name, direction), place)
            for place, (mask, figures) in enumerate(lines)
            if figures is not None
        ]
        dots = [(rate, place) for rate, place in found if rate is not None]
        if dots:
            style = {"color": COLOURS[name], "label": label, "markersize": DOT_SIZE}
            above = ABOVE_GRID - number  # ours on top
            axes.plot(*zip(*dots, strict=True), MARKERS[name], zorder=above, **style)


def _label_lines(axes: Any, lines: list[Line]) -> None:
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), labels=[text for text, _ in lines], fontsize=TEXT_SIZE)
    for (_, figures), label in zip(lines, axes.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if figures is None else "normal")
