"""What providers in PyTorch share: tensors [B, H, S, D] on the CPU or GPU, gradients."""

from __future__ import annotations

import subprocess
from abc import abstractmethod
from typing import Any

import numpy as np
from harness.cells import BACKWARD, Cell
from harness.masks import BenchMask
from harness.meters import CpuMeter, Meter, TorchMeter

from providers.interface import GRADIENTS, INPUTS, Provider, gaussian_inputs


class TorchProvider(Provider):
    """A differentiable PyTorch function of q, k, v."""

    modules = ("torch",)
    install = "pip install -r tools/bench/requirements.txt"

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        import torch

        if cell.device == "cpu":
            torch.set_num_threads(cell.threads)
        self.place = "cuda" if cell.device == "gpu" else "cpu"
        self.dtype = getattr(torch, cell.dtype)

    @abstractmethod
    def attend(self, query: Any, key: Any, value: Any) -> Any:
        """Return out, [B, H, S, D]."""

    def make_inputs(self) -> None:
        for name, tensor in torch_inputs(self.cell).items():
            own = tensor.to(self.dtype).transpose(1, 2).contiguous()
            own.requires_grad_(BACKWARD in self.cell.directions and name != "grad_out")
            self.tensors[name] = own

    def forward(self) -> None:
        import torch

        with torch.no_grad():
            self.tensors["out"] = self.attend(*self._inputs())

    def prepare_backward(self) -> None:
        self.tensors["kept"] = self.attend(*self._inputs())

    def backward(self) -> None:
        import torch

        kept, grad_out = self.tensors["kept"], self.tensors["grad_out"]
        gradients = torch.autograd.grad(kept, self._inputs(), grad_out, retain_graph=True)
        self.tensors.update(zip(GRADIENTS, gradients, strict=True))

    def head(self, name: str, batch: int, head: int) -> np.ndarray:
        return self.tensors[name].detach()[batch, head].float().cpu().numpy()

    def versions(self) -> str:
        import torch

        versions = f"torch {torch.__version__}"
        return f"{versions}, driver {driver()}" if self.place == "cuda" else versions

    def meter(self) -> Meter:
        return TorchMeter() if self.place == "cuda" else CpuMeter()

    def device_name(self) -> str | None:
        import torch

        return torch.cuda.get_device_name() if self.place == "cuda" else None

    def _inputs(self) -> list[Any]:
        return [self.tensors[name] for name in ("query", "key", "value")]


def driver() -> str:
    """Return the version of the GPU's driver, which PyTorch does not tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.returncode == 0 else "unknown"


def torch_inputs(cell: Cell) -> dict[str, Any]:
    """Return the inputs, [B, S, H, D]; drawn on the GPU there, since numpy would take minutes."""
    import torch

    if cell.device == "cpu":
        return {name: torch.from_numpy(array) for name, array in gaussian_inputs(cell).items()}
    generator = torch.Generator("cuda").manual_seed(cell.seed)
    inputs = {}
    for name in INPUTS:
        heads = cell.num_heads if name in ("query", "grad_out") else cell.num_heads_k
        shape = (cell.batch, cell.seqlen, heads, cell.head_dim)
        inputs[name] = torch.randn(
            shape, generator=generator, device="cuda", dtype=getattr(torch, cell.dtype)
        )
    return inputs


def only_plain(mask: BenchMask) -> str | None:
    """Return why a kernel that knows the full and the causal mask only cannot do another."""
    if mask.recipe in ("full", "causal"):
        return None
    return "the kernel knows no mask but full and causal"


def forward_only_on_cpu(cell: Cell, direction: str) -> str | None:
    """Return why FlexAttention has no backward on the CPU."""
    if cell.device == "cpu" and direction == BACKWARD:
        return "FlexAttention has no backward on the CPU"
    return None
