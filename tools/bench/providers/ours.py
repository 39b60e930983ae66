"""`paddle_flashmask.flashmask_attention`, the Paddle operator on the CPU."""

from __future__ import annotations

from typing import Any

from harness.masks import BenchMask

from providers.paddle_tensors import PaddleProvider


class Bench(PaddleProvider):
    """Our operator, with its arguments checked in Python as in any call."""

    modules = ("paddle", "paddle_flashmask")
    install = "pip install --no-build-isolation -e ."

    def build_mask(self, mask: BenchMask) -> None:
        import numpy as np
        import paddle

        rows, self._causal = mask.mask
        self._rows = paddle.to_tensor(np.repeat(rows, self.cell.batch, axis=0))

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        from paddle_flashmask import flashmask_attention

        return flashmask_attention(query, key, value, self._rows, self._causal)

    def versions(self) -> str:
        from paddle_flashmask import _ops, version

        return f"paddle_flashmask {version.__version__} {_ops.cpu_isa()}, {super().versions()}"
