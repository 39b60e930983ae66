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

from paddle_flashmask.indices import to_dense
from paddle_flashmask.packing import PackedRows

__all__ = ["draw_losses", "draw_mask", "memory_line", "speed_line", "tiles_line", "write_losses"]

SMALLEST_DRAWN = 1e-10  # a difference of exactly 0 has no place on a logarithmic axis
DOTS_PER_INCH = 150
MASKED, VISIBLE, PADDING = 0, 1, 2
COLOURS = ("#f4f4f4", "#2a6f97", "#d9c9a3")
KIB = 1024


def write_losses(path: Path, steps: Sequence[Step]) -> None:
    """Write one line per step."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*Step._fields, "relative_difference"])
        for step in steps:
            writer.writerow(
                [
                    step.number,
                    step.tokens,
                    f"{step.flashmask_loss:.8f}",
                    f"{step.dense_loss:.8f}",
                    f"{step.flashmask_seconds:.4f}",
                    f"{step.dense_seconds:.4f}",
                    "" if step.watched is None else f"{step.watched:.8f}",
                    f"{step.relative_difference:.3e}",
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
    share = f"{visited / total:.1%}" if total else "none"
    return f"tiles visited, {direction}: {visited} of {total} ({share}; {partial} partly masked)"


def memory_line(batch: int, seqlen: int, num_heads: int, num_layers: int) -> str:
    """Return what the mask takes in each form, computed from shapes (nothing is measured)."""
    indices = 4 * batch * seqlen
    dense_mask = batch * seqlen * seqlen
    scores = 4 * batch * num_heads * seqlen * seqlen * num_layers
    return (
        "attention memory per batch (computed from shapes): "
        f"indices {indices / KIB:.1f} KiB (4 B S bytes); "
        f"dense mask {dense_mask / KIB:.0f} KiB (B S S bytes) and "
        f"score matrices {scores / KIB:.0f} KiB (4 B Hq S S bytes in each of {num_layers} layers)"
    )


def draw_mask(path: Path, packed: PackedRows) -> None:
    """Draw the mask of the row that holds the most samples."""
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
    noun = "sample" if len(places) == 1 else "samples"
    axes.set_title(f"Packed row {row}: {len(places)} {noun}, {visible.mean():.1%} of cells visible")
    names = ("masked", "visible", "padding")
    handles = [
        Patch(facecolor=colour, edgecolor="#666666", label=name)
        for colour, name in zip(COLOURS, names, strict=True)
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
    upper.plot(numbers, flashmask, color=COLOURS[1], linewidth=4, label="flashmask_attention")
    upper.plot(numbers, dense, color="#e07a1f", linewidth=1.4, linestyle="--", label="dense mask")
    upper.set_ylabel("mean loss (nats)")
    upper.set_title(f"{title}:\nsame model, same batches, two attentions")
    upper.legend(frameon=False)
    drawn = [max(SMALLEST_DRAWN, step.relative_difference) for step in steps]
    lower.semilogy(numbers, drawn, "o", color="#444444", markersize=3, label="difference")
    lower.axhline(LOSS_TOLERANCE, color="#b3261e", linewidth=1, label=f"limit {LOSS_TOLERANCE:.0e}")
    lower.set_ylim(SMALLEST_DRAWN / 2, max(5 * LOSS_TOLERANCE, 2 * max(drawn)))
    lower.set_xlabel("step")
    lower.set_ylabel(f"relative difference\n(0 drawn as {SMALLEST_DRAWN:.0e})")
    lower.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.9))
    for axes in (upper, lower):
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)
