"""What a provider must do, and the inputs that all get."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from harness.cells import Cell
from harness.masks import BenchMask
from harness.meters import CpuMeter, Meter

INPUTS = ("query", "key", "value", "grad_out")
GRADIENTS = ("grad_query", "grad_key", "grad_value")


class Provider(ABC):
    """One attention, prepared for one cell.

    Attributes:
        modules: what must be importable.
        install: how to get it, for the message that it is missing.
        compiles: whether the first call compiles; its memory is then not the provider's.
    """

    modules: ClassVar[tuple[str, ...]] = ()
    install: ClassVar[str] = ""
    compiles: ClassVar[bool] = False

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.tensors: dict[str, Any] = {}

    @classmethod
    def missing(cls) -> str | None:
        """Return what is not installed, or None."""
        lacking = [name for name in cls.modules if not _is_found(name)]
        return ", ".join(lacking) or None

    @classmethod
    def impossible(cls, cell: Cell, mask: BenchMask, direction: str) -> str | None:
        """Return why this provider can never do that cell, or None."""
        return None

    @abstractmethod
    def make_inputs(self) -> None:
        """Make q, k, v and the gradient of out from the cell's seed."""

    @abstractmethod
    def build_mask(self, mask: BenchMask) -> None:
        """Bring the mask into this provider's form."""

    @abstractmethod
    def forward(self) -> None:
        """Compute out, without anything kept for a backward."""

    @abstractmethod
    def prepare_backward(self) -> None:
        """Run a forward that keeps what `backward` needs."""

    @abstractmethod
    def backward(self) -> None:
        """Compute the three gradients; may be repeated."""

    @abstractmethod
    def head(self, name: str, batch: int, head: int) -> np.ndarray:
        """Return [S, D], float32, one head of an input, of out or of a gradient."""

    def meter(self) -> Meter:
        """Return what measures time and memory on the cell's device."""
        return CpuMeter()

    @abstractmethod
    def versions(self) -> str:
        """Return names and versions of what computes."""

    def device_name(self) -> str | None:
        """Return the GPU's name; None on the CPU."""
        return None


def gaussian_inputs(cell: Cell) -> dict[str, np.ndarray]:
    """Return the inputs of a cell on the CPU: [B, S, H, D], float32, standard normal."""
    draw = np.random.default_rng(cell.seed)
    heads = {"query": cell.num_heads, "grad_out": cell.num_heads}
    return {
        name: draw.standard_normal(
            (cell.batch, cell.seqlen, heads.get(name, cell.num_heads_k), cell.head_dim), np.float32
        )
        for name in INPUTS
    }


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
