"""FlexAttention on top of FlashAttention-4, a GPU package of its own."""

from __future__ import annotations

from harness.cells import Cell
from harness.masks import BenchMask

from providers import torch_flex


class Bench(torch_flex.Bench):
    """FlexAttention with the FLASH backend."""

    modules = ("torch", "flash_attn.cute")
    install = "pip install flash-attn-4"
    kernel_options = {"BACKEND": "FLASH"}  # noqa: RUF012 (read only)

    @classmethod
    def impossible(cls, cell: Cell, mask: BenchMask, direction: str) -> str | None:
        if cell.device == "cpu":
            return "FlashAttention-4 needs a GPU"
        return super().impossible(cell, mask, direction)
