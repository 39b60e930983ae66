"""What providers in Paddle share: tensors [B, S, H, D] from the common inputs, gradients."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from providers.interface import GRADIENTS, Provider, gaussian_inputs


class PaddleProvider(Provider):
    """A differentiable Paddle function of q, k, v."""

    modules = ("paddle",)
    install = "pip install paddlepaddle==3.3.1"

    @abstractmethod
    def attend(self, query: Any, key: Any, value: Any) -> Any:
        """Return out, [B, S, H, D]."""

    def make_inputs(self) -> None:
        import paddle

        for name, array in gaussian_inputs(self.cell).items():
            tensor = paddle.to_tensor(array).astype(self.cell.dtype)
            tensor.stop_gradient = name == "grad_out"
            self.tensors[name] = tensor

    def forward(self) -> None:
        import paddle

        with paddle.no_grad():
            self.tensors["out"] = self.attend(*self._inputs())

    def prepare_backward(self) -> None:
        self.tensors["kept"] = self.attend(*self._inputs())

    def backward(self) -> None:
        import paddle

        kept, grad_out = self.tensors["kept"], self.tensors["grad_out"]
        gradients = paddle.grad([kept], self._inputs(), [grad_out], retain_graph=True)
        self.tensors.update(zip(GRADIENTS, gradients, strict=True))

    def head(self, name: str, batch: int, head: int) -> np.ndarray:
        return self.tensors[name].detach()[batch, :, head].astype("float32").numpy()

    def versions(self) -> str:
        import paddle

        return f"paddle {paddle.version.full_version}"

    def _inputs(self) -> list[Any]:
        return [self.tensors[name] for name in ("query", "key", "value")]
