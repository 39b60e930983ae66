"""What the quickstart leaves behind: lines of numbers, a CSV and two drawings."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from comparison import LOSS_TOLERANCE, Step
from matplotlib import pyplot
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from paddle_flashmask.indices import to_dense
from paddle_flashmask.packing import PackedRows

__all__ = [
    "count",
    "draw_losses",
    "draw_mask",
    "ends_of",
    "memory_line",
    "percent",
    "speed_line",
    "tiles_line",
    "write_losses",
]

SMALLEST_DRAWN = 1e-10  # a difference of exactly 0 has no place on a logarithmic axis
DOTS_PER_INCH = 150
MASKED, VISIBLE, PADDING = 0, 1, 2
COLOURS = ("#f4f4f4", "#2a6f97", "#d9c9a3")
KIB = 1024
FEW_STEPS = 10  # up to these a curve shows its points
QUARTER = 4
TILE = 64  # rows and columns of the tiles that the operator counts on a CPU


def count(number: int, noun: str) -> str:
    """Return "1 row", "2 rows"."""
    return f"{number} {noun}" + "s" * (number != 1)


def percent(share: float) -> str:
    """Return a share with three digits that count, however small it is."""
    return f"{100 * share:.3g}%"


def ends_of(values: Sequence[float]) -> tuple[float, float, int]:
    """Return the means of the first and the last quarter, and how many values each has.

    Single batches differ more from each other than training changes them.
    """
    size = max(1, len(values) // QUARTER)
    return float(np.mean(values[:size])), float(np.mean(values[-size:])), size


def write_losses(path: Path, steps: Sequence[Step], watched: str | None = None) -> None:
    """Write one line per step.

    Args:
        path: of the CSV.
        steps: what they measured.
        watched: name of what the steps watch beside the loss; None if they watch nothing.
    """
    last = [] if watched is None else [watched.replace(" ", "_")]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = [name for name in Step._fields if name not in ("number", "watched")]
        writer.writerow(["step", *names, "relative_difference", *last])
        for step in steps:
            writer.writerow(
                [
                    step.number,
                    step.tokens,
                    f"{step.flashmask_loss:.8f}",
                    f"{step.dense_loss:.8f}",
                    f"{step.flashmask_seconds:.4f}",
                    f"{step.dense_seconds:.4f}",
                    f"{step.relative_difference:.3e}",
                    *(f"{step.watched:.8f}" for _ in last),
                ]
            )


def speed_line(steps: Sequence[Step]) -> str:
    """Return tokens per second of both models; the first step warms up and is not counted."""
    counted = steps[1:] or steps
    tokens = sum(step.tokens for step in counted)
    flashmask = tokens / sum(step.flashmask_seconds for step in counted)
    dense = tokens / sum(step.dense_seconds for step in counted)
    return (
        f"tokens/s (without padding): {flashmask:.0f} with flashmask_attention, "
        f"{dense:.0f} with the dense mask"
    )


def tiles_line(skipped: int, partial: int, full: int, direction: str) -> str:
    """Return how many tiles of the mask a kernel visited, from its own counters."""
    visited, total = partial + full, skipped + partial + full
    share = percent(visited / total) if total else "none"
    return (
        f"tiles visited, {direction}: {visited} of {total} ({share}; {partial} partly masked), "
        f"over all steps, layers and heads; a tile is {TILE} x {TILE} cells"
    )


def memory_line(batch: int, seqlen: int, num_heads: int, num_layers: int) -> str:
    """Return what the mask takes in each form, computed from shapes (nothing is measured)."""
    indices = 4 * batch * seqlen
    dense_mask = batch * seqlen * seqlen
    scores = 4 * batch * num_heads * seqlen * seqlen * num_layers
    return (
        "attention memory per batch (computed from shapes): "
        f"indices {indices / KIB:.1f} KiB (4 B S bytes); "
        f"dense mask {dense_mask / KIB:.0f} KiB (B S S bytes) and "
        f"score matrices {scores / KIB:.0f} KiB ({num_layers} layers x 4 B Hq S S bytes)"
    )


def draw_mask(path: Path, packed: PackedRows, noun: str = "sample") -> None:
    """Draw the mask of the row that holds the most samples, called by the noun."""
    mpl.use("Agg")
    row = max(range(len(packed)), key=lambda number: len(packed.row_placements(number)))
    indices = packed.build([row])["attn_mask_startend_row_indices"]
    visible = to_dense(indices, causal=True, seqlen_q=packed.seq_len)[0, 0]
    places = packed.row_placements(row)
    end = places[-1].offset + places[-1].length
    picture = np.where(visible, VISIBLE, MASKED)
    picture[end:, :] = PADDING
    picture[:, end:] = PADDING
    figure, axes = pyplot.subplots(figsize=(6.4, 6.8), layout="constrained")
    colours = ListedColormap(COLOURS)
    axes.imshow(picture, cmap=colours, vmin=MASKED, vmax=PADDING, interpolation="nearest")
    axes.set_xlabel("key column (position in the row)")
    axes.set_ylabel("query row (position in the row)")
    axes.set_title(
        f"Packed row {row + 1} of {len(packed)}: {count(len(places), noun)}, "
        f"{percent(visible.mean())} of cells visible"
    )
    names = ("masked", "visible", "padding") if end < packed.seq_len else ("masked", "visible")
    handles = [
        Patch(facecolor=colour, edgecolor="#666666", label=name)
        for colour, name in zip(COLOURS, names, strict=False)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)


def draw_losses(path: Path, steps: Sequence[Step], title: str) -> None:
    """Draw both loss curves, and their relative difference below."""
    mpl.use("Agg")
    numbers = [step.number for step in steps]
    figure, (upper, lower) = pyplot.subplots(
        2, 1, figsize=(7.2, 6.4), sharex=True, height_ratios=[2, 1], layout="constrained"
    )
    flashmask = [step.flashmask_loss for step in steps]
    dense = [step.dense_loss for step in steps]
    marker = "o" if len(steps) <= FEW_STEPS else ""
    wide = {"linewidth": 4, "marker": marker, "markersize": 9, "label": "flashmask_attention"}
    upper.plot(numbers, flashmask, color=COLOURS[1], **wide)
    narrow = {"linewidth": 1.4, "marker": marker, "markersize": 4, "label": "dense mask"}
    upper.plot(numbers, dense, color="#e07a1f", linestyle="--", **narrow)
    upper.ticklabel_format(axis="y", useOffset=False)
    upper.set_ylabel("mean loss (nats)")
    upper.set_title(f"{title}:\nsame model, same batches, two attentions")
    drawn = [max(SMALLEST_DRAWN, step.relative_difference) for step in steps]
    lower.semilogy(numbers, drawn, "o", color="#444444", markersize=3, label="difference")
    lower.axhline(LOSS_TOLERANCE, color="#b3261e", linewidth=1, label=f"limit {LOSS_TOLERANCE:.0e}")
    lower.set_ylim(SMALLEST_DRAWN / 2, max(5 * LOSS_TOLERANCE, 2 * max(drawn)))
    lower.set_xlabel("step")
    lower.set_ylabel(f"relative difference\n(0 drawn as {SMALLEST_DRAWN:.0e})")
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    # Below the axes, where no point can lie.
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    for axes in (upper, lower):
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)
