"""A cell: one shape, dtype and mask on one device, and how its operations are counted."""

from __future__ import annotations

from dataclasses import dataclass

from harness.masks import BenchMask

FORWARD, BACKWARD = "forward", "backward"
DIRECTIONS = (FORWARD, BACKWARD)
# Two products of 2 operations per visible cell and element of head_dim; the backward has five.
FORWARD_OPERATIONS = 4
BACKWARD_TIMES_FORWARD = 2.5


@dataclass(frozen=True)
class Cell:
    """What is measured once for every provider.

    Attributes:
        mask: a text of `harness.masks`.
        device: "cpu" or "gpu".
        threads: of the CPU, the same for every provider; 0 on a GPU.
        providers: names, in the order of the report.
        directions: of `DIRECTIONS`.
        seed: of the Gaussian inputs.
    """

    mask: str
    seqlen: int
    batch: int
    num_heads: int
    num_heads_k: int
    head_dim: int
    dtype: str
    device: str
    threads: int
    providers: tuple[str, ...]
    directions: tuple[str, ...] = DIRECTIONS
    seed: int = 0

    def __str__(self) -> str:
        heads = f"{self.num_heads}"
        if self.num_heads_k != self.num_heads:
            heads += f":{self.num_heads_k}"
        where = count_threads(self.threads) if self.device == "cpu" else self.device
        return (
            f"{self.mask} S={self.seqlen} B={self.batch} H={heads} D={self.head_dim} "
            f"{self.dtype} {where}"
        )


def count_threads(count: int) -> str:
    """Return "1 thread", "2 threads"."""
    return f"{count} thread" + "s" * (count > 1)


def operations(cell: Cell, cells: int, direction: str) -> float:
    """Return the floating point operations of all heads if each computes so many cells."""
    forward = FORWARD_OPERATIONS * cell.batch * cell.num_heads * cell.head_dim * cells
    return forward if direction == FORWARD else forward * BACKWARD_TIMES_FORWARD


def visible_operations(cell: Cell, mask: BenchMask, direction: str) -> float:
    """Return the operations that the mask asks for: those of its visible cells."""
    return operations(cell, mask.visible, direction)


def live_operations(cell: Cell, mask: BenchMask, direction: str) -> float:
    """Return the operations of the 128 x 128 tiles that hold a visible cell."""
    return operations(cell, mask.live, direction)
