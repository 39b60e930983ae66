"""The drawing of tokens/s against length, a panel for each layout."""

from __future__ import annotations

from pathlib import Path

from harness.drawings import figure, save
from harness.readme import length

from train_steps.cells import DENSE, FLEX, OURS, ROLES
from train_steps.layouts import LAYOUTS
from train_steps.summary import ROLE_WORDS, WORDS, Figures, Rows

NAME = "training_by_length"
STYLES = {OURS: ("#b3261e", "o"), DENSE: ("#e07a1f", "D"), FLEX: ("#6a4c93", "v")}
TICK_SIZE = 8  # points


def draw(folder: Path, rows: Rows, device: str = "gpu") -> list[Path]:
    """Draw tokens/s of each attention; ValueError if nothing was measured."""
    figures = Figures(rows, device)
    layouts = [name for name in LAYOUTS if figures.lengths(name, OURS)]
    if not layouts:
        raise ValueError("the CSV has no row that can be drawn; measure first")
    drawn, panels = figure(len(layouts), "S, tokens")
    for axes, name in zip(panels, layouts, strict=True):
        ticks = sorted({seqlen for layout, seqlen, _ in figures.rows if layout == name})
        for role in ROLES[device].values():
            points = figures.lengths(name, role)
            colour, marker = STYLES[role]
            speeds = [float(figures.get(name, at, role)["tokens_per_s"]) / 1e3 for at in points]
            axes.plot(points, speeds, marker + "-", color=colour, label=ROLE_WORDS[role])
        axes.set_title(WORDS[name])
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, labels=[length(tick) for tick in ticks], fontsize=TICK_SIZE)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("thousand tokens/s")
    some = figures.get(layouts[0], figures.lengths(layouts[0], OURS)[0], OURS)
    title = f"training steps, {some['blocks']} blocks of {some['hidden']}, {some['dtype']}"
    return save(drawn, panels, folder / NAME, f"{title}, {some['device']}")
