"""What is measured: one attention, layout and length, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from train_steps.layouts import LAYOUTS

OURS, DENSE, FLEX = "ours", "dense", "flex"
# Who plays which part on a device; FlexAttention has no backward on the CPU.
ROLES = {
    "gpu": {"ours": OURS, "torch_sdpa": DENSE, "torch_flex": FLEX},
    "cpu": {"ours": OURS, "paddle_dense": DENSE},
}
COMPILED = ("torch_flex",)  # for every length
KIB = 1024
SEQLENS = {
    # Not 16K: FlexAttention had not compiled for it in 115 s, when for the others it had.
    "gpu": (4 * KIB, 8 * KIB, 32 * KIB, 64 * KIB, 128 * KIB),
    "cpu": (1 * KIB, 2 * KIB, 4 * KIB),
}
CHECKED_SEQLEN = {"gpu": 4 * KIB, "cpu": 512}
# The most telling first, since time may run out: ours and FlexAttention at the longest, the dense
# mask where it surely fits, then the rest; the dense mask at the longest takes minutes, so it is
# last of the long ones.
GPU_ORDER = (
    ("ours", 128 * KIB),
    ("torch_flex", 128 * KIB),
    ("torch_sdpa", 64 * KIB),
    ("ours", 64 * KIB),
    ("torch_flex", 64 * KIB),
    ("ours", 32 * KIB),
    ("torch_sdpa", 32 * KIB),
    ("torch_flex", 32 * KIB),
    ("torch_sdpa", 128 * KIB),
    *((name, seqlen * KIB) for seqlen in (4, 8) for name in ROLES["gpu"]),
)


@dataclass(frozen=True)
class TrainCell:
    """One row of the CSV."""

    layout: str
    seqlen: int
    provider: str

    def __str__(self) -> str:
        return f"{self.layout} S={self.seqlen} {self.provider}"


def cells(
    device: str,
    layouts: list[str] | None = None,
    seqlens: list[int] | None = None,
    providers: list[str] | None = None,
) -> list[TrainCell]:
    """Return the cells in the order of measuring.

    Args:
        device: "gpu" or "cpu".
        layouts: which; None: all.
        seqlens: which lengths; None: all of the device. Others than those come last.
        providers: which; None: all of the device.
    """
    names = providers or tuple(ROLES[device])
    chosen = seqlens or SEQLENS[device]
    if device == "cpu":  # rivals beside each other, since a CPU is seldom left alone
        return [
            TrainCell(layout, seqlen, name)
            for seqlen, layout, name in product(chosen, layouts or LAYOUTS, names)
        ]
    order = [*GPU_ORDER, *((name, seqlen) for seqlen, name in product(chosen, names))]
    return [
        TrainCell(layout, seqlen, name)
        for name, seqlen in dict.fromkeys(order)
        if seqlen in chosen and name in names
        for layout in layouts or LAYOUTS
    ]
