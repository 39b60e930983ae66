"""PyTorch's FlexAttention, compiled, with a rule of its own for each mask."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness.cells import Cell
from harness.masks import BenchMask

from providers.flex_rules import rule
from providers.torch_tensors import TorchProvider, forward_only_on_cpu


class Bench(TorchProvider):
    """The block mask is made in `build_mask`, so outside the timing."""

    compiles = True
    kernel_options: dict[str, Any] | None = None
    _attention: Any = None

    @classmethod
    def impossible(cls, cell: Cell, mask: BenchMask, direction: str) -> str | None:
        return forward_only_on_cpu(cell, direction)

    def build_mask(self, mask: BenchMask) -> None:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def tensor(array: np.ndarray) -> Any:
            return torch.as_tensor(array, dtype=torch.int32, device=self.place)

        length, is_seen = mask.seqlen, rule(mask, tensor)
        self._blocks = None
        if is_seen is not None:
            self._blocks = create_block_mask(
                is_seen, None, None, length, length, device=self.place, _compile=self._on_gpu()
            )
        if self._attention is None:
            torch._dynamo.reset()  # cells before would count as recompilations
            self._attention = torch.compile(flex_attention, dynamic=False)

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        return self._attention(
            query,
            key,
            value,
            block_mask=self._blocks,
            enable_gqa=self.cell.num_heads != self.cell.num_heads_k,
            kernel_options=self.kernel_options,
        )

    def _on_gpu(self) -> bool:
        return self.place == "cuda"
