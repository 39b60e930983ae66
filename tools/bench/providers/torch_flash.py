"""PyTorch's fused kernels for the full and the causal mask: FlashAttention-2 on a GPU."""

from __future__ import annotations

from typing import Any

from harness.cells import Cell
from harness.masks import BenchMask

from providers.torch_tensors import TorchProvider, only_plain


class Bench(TorchProvider):
    """One backend of `scaled_dot_product_attention`, without a mask tensor."""

    backend = "FLASH_ATTENTION"

    @classmethod
    def impossible(cls, cell: Cell, mask: BenchMask, direction: str) -> str | None:
        return only_plain(mask)

    def build_mask(self, mask: BenchMask) -> None:
        self._causal = mask.recipe == "causal"

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, self.backend)):
            return torch.nn.functional.scaled_dot_product_attention(
                query,
                key,
                value,
                is_causal=self._causal,
                enable_gqa=self.cell.num_heads != self.cell.num_heads_k,
            )
