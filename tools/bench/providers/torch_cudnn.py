"""cuDNN's attention through PyTorch, for the full and the causal mask."""

from __future__ import annotations

from harness.cells import Cell
from harness.masks import BenchMask

from providers import torch_flash


class Bench(torch_flash.Bench):
    """The cuDNN backend of `scaled_dot_product_attention`."""

    backend = "CUDNN_ATTENTION"

    @classmethod
    def impossible(cls, cell: Cell, mask: BenchMask, direction: str) -> str | None:
        if cell.device == "cpu":
            return "cuDNN needs a GPU"
        return super().impossible(cell, mask, direction)
