"""Two drawings from the CSV: time against density at one length, memory against length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot

from harness.cells import BACKWARD, FORWARD, count_threads
from harness.results import OK
from harness.tables import Rows, clock_of

__all__ = ["draw_density", "draw_memory", "figure", "save"]

COLOURS = {
    "ours": "#b3261e",
    "paddle_dense": "#2a6f97",
    "paddle_dense_shared": "#61a5c2",
    "paddle_flashmask_builtin": "#013a63",
    "torch_sdpa": "#e07a1f",
    "torch_flash": "#8a5a00",
    "torch_cudnn": "#3a7d44",
    "torch_flex": "#6a4c93",
    "torch_flex_flash": "#444444",
}
MARKERS = dict(zip(COLOURS, "osdD^vPXh", strict=True))
DOTS_PER_INCH = 150
SHAPE = ("device", "threads", "batch", "num_heads", "num_heads_k", "head_dim", "dtype")
PANEL_WIDTH, PANEL_HEIGHT = 5.2, 4.4  # inches


def draw_density(folder: Path, rows: Rows) -> list[Path]:
    """Draw forward and backward time against density, for the shape with the most masks."""
    usable = [row for row in rows if row["status"] == OK]
    chosen = _largest_group(usable, (*SHAPE, "seqlen"), "mask")
    clock = clock_of(chosen)
    drawn, panels = figure(2, "density: visible cells / all cells")
    for axes, direction in zip(panels, (FORWARD, BACKWARD), strict=True):
        of_pass = [row for row in chosen if row["direction"] == direction]
        _lines(axes, of_pass, "density", clock)
        axes.set_title(direction)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("CPU time, ms" if clock == "cpu_ms" else "GPU time, ms")
    return save(drawn, panels, folder / "latency_by_density", _title(chosen[0], length=True))


def draw_memory(folder: Path, rows: Rows) -> list[Path]:
    """Draw peak memory against length, for the mask and shape with the most lengths."""
    usable = [
        row
        for row in rows
        if row["status"] == OK and row["peak_mib"] and row["direction"] == BACKWARD
    ]
    chosen = _largest_group(usable, (*SHAPE, "mask"), "seqlen")
    drawn, panels = figure(1, "S, tokens")
    _lines(panels[0], chosen, "seqlen", "peak_mib")
    panels[0].set_xscale("log", base=2)
    panels[0].set_yscale("log")
    ticks = sorted({int(row["seqlen"]) for row in chosen})
    panels[0].set_xticks(ticks, labels=[str(tick) for tick in ticks])
    panels[0].set_ylabel("MiB beyond the inputs, forward and backward")
    title = f"{_title(chosen[0], length=False)}, {chosen[0]['mask']}"
    return save(drawn, panels, folder / "memory_by_length", title)


def _largest_group(rows: Rows, shared: tuple[str, ...], counted: str) -> Rows:
    """Return the rows that agree on some columns and have the most values of another."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in shared), []).append(row)
    if not groups:
        raise ValueError("the CSV has no row that can be drawn; measure first")
    return max(groups.values(), key=lambda group: len({row[counted] for row in group}))


def _lines(axes: Any, rows: Rows, across: str, up: str) -> None:
    for name, colour in COLOURS.items():
        own = sorted(
            (float(row[across]), float(row[up])) for row in rows if row["provider"] == name
        )
        if own:
            style = {"linewidth": 2.2 if name == "ours" else 1.3, "markersize": 5}
            axes.plot(
                *zip(*own, strict=True), MARKERS[name] + "-", color=colour, label=name, **style
            )


def figure(
    panels: int, across: str, *, height: float = PANEL_HEIGHT, sharey: bool = False
) -> tuple[Any, list[Any]]:
    """Return a figure with so many panels beside each other, and the panels."""
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = ""  # with a salt of its own, each SVG would have other names
    size = (PANEL_WIDTH * panels, height)
    drawn, axes = pyplot.subplots(1, panels, figsize=size, sharey=sharey, layout="constrained")
    found = list(axes) if panels > 1 else [axes]
    for one in found:
        one.set_xlabel(across)
        one.grid(alpha=0.25)
    return drawn, found


def _title(row: dict[str, str], *, length: bool) -> str:
    at = f"S={row['seqlen']}, " if length else ""
    threads = "" if row["threads"] == "0" else f", {count_threads(int(row['threads']))}"
    return (
        f"{at}H={row['num_heads']}, D={row['head_dim']}, {row['dtype']}, {row['device']}{threads}"
    )


def save(
    drawn: Any, panels: list[Any], path: Path, title: str, *, source: str | None = None
) -> list[Path]:
    """Write a figure with one legend under it, as PNG and SVG; return the files.

    The same figure gives the same SVG; `source` says in it what was drawn.
    """
    drawn.suptitle(title, fontsize=10)
    handles = {}
    for axes in panels:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    columns = 2 * len(panels)
    drawn.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for file, metadata in zip(files, ({}, {"Date": None, "Description": source}), strict=True):
        drawn.savefig(file, dpi=DOTS_PER_INCH, metadata=metadata)
    pyplot.close(drawn)
    return files
