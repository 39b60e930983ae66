"""A provider in plain numpy for the tests of the benchmark, right or wrong on purpose."""

from __future__ import annotations

import numpy as np
from harness.cells import Cell
from harness.masks import BenchMask
from providers.interface import GRADIENTS, Provider, gaussian_inputs
from support import dense


class FakeProvider(Provider):
    """The dense definition; `wrong` names an array that is off at one row and head."""

    wrong = ""
    wrong_row = -1
    factor = 1.01

    def make_inputs(self) -> None:
        self.tensors = gaussian_inputs(self.cell)

    def build_mask(self, mask: BenchMask) -> None:
        rows, causal = mask.mask
        length = mask.seqlen
        self.seen = dense.visible(rows, causal=causal, seqlen_q=length, seqlen_k=length)

    def forward(self) -> None:
        self._run(None)

    def prepare_backward(self) -> None:
        self._run(None)

    def backward(self) -> None:
        self._run(self.tensors["grad_out"])

    def head(self, name: str, batch: int, head: int) -> np.ndarray:
        return self.tensors[name][batch, :, head]

    def versions(self) -> str:
        return "fake 1"

    def _run(self, grad_out: np.ndarray | None) -> None:
        query, key, value = (self.tensors[name] for name in ("query", "key", "value"))
        found = dense.attention(query, key, value, self.seen, grad_out=grad_out)
        for name in ("out", *GRADIENTS):
            array = np.array(getattr(found, name), np.float32)
            if name == self.wrong:
                array[-1, self.wrong_row, -1] *= self.factor
            self.tensors[name] = array


def cell(**changes: object) -> Cell:
    """Return a small cell; 300 tokens are more than are checked whole."""
    fields: dict[str, object] = {
        "mask": "causal_document:n=3",
        "seqlen": 300,
        "batch": 2,
        "num_heads": 4,
        "num_heads_k": 2,
        "head_dim": 8,
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
        "providers": ("ours",),
    }
    return Cell(**{**fields, **changes})
