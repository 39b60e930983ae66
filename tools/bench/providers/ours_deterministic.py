"""Our GPU kernels with the backward that gives the same bits every time."""

from __future__ import annotations

from harness.cells import FORWARD, Cell
from harness.masks import BenchMask

from providers import ours_gpu


class Bench(ours_gpu.Bench):
    """The backward adds in a fixed order; the forward always does."""

    deterministic = True

    @classmethod
    def impossible(cls, cell: Cell, mask: BenchMask, direction: str) -> str | None:
        if cell.device == "cpu":
            return "on the CPU ours is deterministic"
        if direction == FORWARD:
            return "the forward of ours is deterministic"
        return super().impossible(cell, mask, direction)
