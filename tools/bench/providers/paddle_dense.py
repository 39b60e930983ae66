"""Paddle's `scaled_dot_product_attention` with a dense mask that is added to the scores."""

from __future__ import annotations

from typing import Any

from harness.cells import Cell
from harness.masks import BenchMask

from providers.paddle_tensors import PaddleProvider


class Bench(PaddleProvider):
    """The mask is of the dtype of q, 0 where seen and -inf elsewhere, repeated for every head.

    Paddle adds it faster that way than broadcast; `paddle_dense_shared` saves the memory instead.
    """

    mask_heads: int | None = None

    @classmethod
    def impossible(cls, cell: Cell, mask: BenchMask, direction: str) -> str | None:
        if cell.device == "cpu" and cell.dtype != "float32":
            return f"Paddle's dense attention has no {cell.dtype} kernels on the CPU"
        if mask.has_blind_row:
            return "a row that sees nothing is NaN in a dense softmax"
        return None

    def build_mask(self, mask: BenchMask) -> None:
        import numpy as np
        import paddle

        added = np.zeros((mask.seqlen, mask.seqlen), np.float32)
        added[~mask.seen(np.arange(mask.seqlen))] = -np.inf
        one = paddle.to_tensor(added[None, None]).astype(self.cell.dtype)
        heads = self.mask_heads or self.cell.num_heads
        self._mask = one if heads == 1 else paddle.tile(one, [1, heads, 1, 1])

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        import paddle

        group = self.cell.num_heads // self.cell.num_heads_k
        if group > 1:
            key, value = (paddle.repeat_interleave(x, group, axis=2) for x in (key, value))
        return paddle.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self._mask
        )
