"""Our GPU kernels, called through the C interface of `tools/capi.py` on PyTorch's tensors."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness.masks import BenchMask

from providers.interface import GRADIENTS
from providers.torch_tensors import TorchProvider, torch_inputs

TOOLS = Path(__file__).resolve().parents[2]


class Bench(TorchProvider):
    """Tensors are [B, S, H, D]; the preprocessing of the indices is part of each call."""

    modules = ("torch", "capi")
    install = "needs tools/capi.py and the library that it loads"
    deterministic = False
    kernels = "auto"  # a name of `capi.info`, or the best

    @classmethod
    def missing(cls) -> str | None:
        sys.path.append(str(TOOLS))
        return super().missing()

    def make_inputs(self) -> None:
        sys.path.append(str(TOOLS))
        self._capi = importlib.import_module("capi")
        self._capi.use_kernels(self.kernels)
        self.tensors.update(torch_inputs(self.cell))

    def build_mask(self, mask: BenchMask) -> None:
        import torch

        rows, self._causal = mask.mask
        self._rows = torch.from_numpy(np.repeat(rows, self.cell.batch, axis=0)).to(self.place)

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        return self._capi.forward(query, key, value, self._rows, self._causal)

    def forward(self) -> None:
        self.tensors["out"], self.tensors["softmax_lse"] = self.attend(*self._inputs())

    def prepare_backward(self) -> None:
        self.forward()

    def backward(self) -> None:
        query, key, value = self._inputs()
        gradients = self._capi.backward(
            self.tensors["grad_out"],
            query,
            key,
            value,
            self.tensors["out"],
            self.tensors["softmax_lse"],
            self._rows,
            self._causal,
            deterministic=self.deterministic,
        )
        self.tensors.update(zip(GRADIENTS, gradients, strict=True))

    def versions(self) -> str:
        from paddle_flashmask import version

        return f"paddle_flashmask {version.__version__}, {super().versions()}"

    def head(self, name: str, batch: int, head: int) -> np.ndarray:
        return self.tensors[name][batch, :, head].float().cpu().numpy()
