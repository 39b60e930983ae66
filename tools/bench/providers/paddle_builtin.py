"""Paddle's own `flashmask_attention`; its kernels exist in GPU builds of Paddle only."""

from __future__ import annotations

from typing import Any

from harness.cells import Cell
from harness.masks import BenchMask
from harness.meters import Meter, PaddleMeter

from providers.paddle_tensors import PaddleProvider
from providers.torch_tensors import torch_inputs


class Bench(PaddleProvider):
    """The same indices as ours."""

    modules = ("paddle", "torch")
    install = "install a GPU build of Paddle 3.x from www.paddlepaddle.org.cn/install/quick"

    @classmethod
    def impossible(cls, cell: Cell, mask: BenchMask, direction: str) -> str | None:
        if cell.device == "cpu":
            return "Paddle's flashmask_attention fails on the CPU: it has GPU kernels only"
        return None

    def build_mask(self, mask: BenchMask) -> None:
        import numpy as np
        import paddle

        rows, self._causal = mask.mask
        self._rows = paddle.to_tensor(np.repeat(rows, self.cell.batch, axis=0))

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        import paddle

        return paddle.nn.functional.flashmask_attention(
            query, key, value, self._rows, causal=self._causal
        )

    def make_inputs(self) -> None:
        import paddle

        # The others' inputs are drawn by PyTorch on the GPU; these are the same memory.
        for name, tensor in torch_inputs(self.cell).items():
            self.tensors[name] = paddle.utils.dlpack.from_dlpack(tensor)
            self.tensors[name].stop_gradient = name == "grad_out"

    def meter(self) -> Meter:
        return PaddleMeter()

    def device_name(self) -> str | None:
        import paddle

        return paddle.device.cuda.get_device_name()
