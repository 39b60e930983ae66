"""PyTorch's `scaled_dot_product_attention` with a dense mask."""

from __future__ import annotations

from typing import Any

from harness.masks import BenchMask

from providers.torch_tensors import TorchProvider


class Bench(TorchProvider):
    """The mask is bool, one for all heads; which kernel runs is PyTorch's choice."""

    def build_mask(self, mask: BenchMask) -> None:
        import numpy as np
        import torch

        seen = mask.seen(np.arange(mask.seqlen))
        self._mask = torch.from_numpy(seen[None, None]).to(self.place)

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        import torch

        return torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=self._mask,
            enable_gqa=self.cell.num_heads != self.cell.num_heads_k,
        )
