"""Losses of two trainings, side by side."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

__all__ = ["LOSS_TOLERANCE", "is_equal", "print_table", "relative_difference", "write_table"]

LOSS_TOLERANCE = 1e-5  # relative; float32 rounding stays well below, a mask error above


def relative_difference(ours: float, theirs: float) -> float:
    """Return the difference relative to theirs; infinite if only theirs is 0."""
    if theirs == 0:
        return 0.0 if ours == 0 else math.inf
    return abs(ours - theirs) / abs(theirs)


def is_equal(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether there are losses, as many on both sides, and all are equal and finite."""
    pairs = list(zip(ours, theirs, strict=False))
    near = all(relative_difference(*pair) <= LOSS_TOLERANCE for pair in pairs)
    return near and bool(pairs) and len(ours) == len(theirs)


def print_table(name: str, ours: Sequence[float], theirs: Sequence[float], other: str) -> None:
    """Print one line per step."""
    print(f"\n== {name}\nstep   flashmask        {other:<15}  relative difference")
    for step, pair in enumerate(zip(ours, theirs, strict=False), start=1):
        print(f"{step:4d}   {pair[0]:<15.8f}  {pair[1]:<15.8f}  {relative_difference(*pair):.1e}")


def write_table(path: Path, ours: Sequence[float], theirs: Sequence[float], other: str) -> None:
    """Write what `print_table` prints as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "flashmask_loss", f"{other}_loss", "relative_difference"])
        for step, pair in enumerate(zip(ours, theirs, strict=False), start=1):
            writer.writerow([step, *pair, relative_difference(*pair)])
