"""Whether a provider is right: sampled rows and keys against float64, by the two-times rule.

An array passes if

    max |its - exact| <= 2 * max |dense - exact| + floor

where `dense` is the exact maths with every step rounded to the dtype. For 16-bit dtypes `floor` is
2 * max |((exact + 0.3) - 0.3) - exact| in that dtype; for float32, where the order of a long sum
matters more than rounding of its terms, it is 1e-5 * max |exact| + 5e-6. The tests of the package
hold the operator to the same rule on whole tensors (tests/support/tolerance.py).

Rows of up to `ALL_ROWS` tokens are checked whole, in all heads; longer ones by sampled rows (out,
grad_query) and keys (grad_key, grad_value) of the first and the last key head, very long ones of
the last alone.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from providers.interface import INPUTS

from harness import exact
from harness.cells import BACKWARD, FORWARD, Cell
from harness.masks import BenchMask

TIMES_DENSE = 2.0
FLOOR_SHIFT = 0.3
FLOAT32_RELATIVE, FLOAT32_ABSOLUTE = 1e-5, 5e-6
ALL_ROWS = 256
SAMPLED = 48  # rows and keys drawn, besides those at the ends and beside bounds
BESIDE_BOUNDS = 12
TWO_HEADS_UP_TO = 16384  # float64 takes long beyond
ARRAYS = {FORWARD: ("out",), BACKWARD: ("grad_query", "grad_key", "grad_value")}


class Verdict(NamedTuple):
    """The worst array of a pass: its largest error and the error allowed."""

    array: str
    error: float
    allowed: float

    @property
    def is_right(self) -> bool:
        return self.error <= self.allowed  # False for NaN


@dataclass(frozen=True)
class Sample:
    """Which heads, rows and keys are compared: heads are pairs (sample, key head)."""

    heads: list[list[int]]
    rows: np.ndarray
    columns: np.ndarray


def choose(cell: Cell, mask: BenchMask) -> Sample:
    """Return the sample of a cell, the same for every provider."""
    if cell.seqlen <= ALL_ROWS:
        heads = [[b, h] for b in range(cell.batch) for h in range(cell.num_heads_k)]
        every = np.arange(cell.seqlen)
        return Sample(heads, every, every)
    first, last = [0, 0], [cell.batch - 1, cell.num_heads_k - 1]
    draw = np.random.default_rng(cell.seed)
    edges = np.unique(np.clip(mask.bounds, 0, cell.seqlen - 1))
    edges = draw.choice(edges, min(len(edges), BESIDE_BOUNDS), replace=False)
    fixed = np.concatenate([[0, cell.seqlen - 1], edges, np.maximum(edges - 1, 0)])
    rows, columns = (
        np.unique(np.concatenate([fixed, draw.integers(0, cell.seqlen, SAMPLED)])) for _ in "qk"
    )
    one_head = first == last or cell.seqlen > TWO_HEADS_UP_TO
    return Sample([last] if one_head else [first, last], rows, columns)


def maths_of(cell: Cell) -> ModuleType:
    """Return the module that computes: PyTorch's for a GPU's cells, numpy's else."""
    return importlib.import_module(
        "harness.exact_torch" if cell.device == "gpu" else "harness.exact"
    )


def digest(array: np.ndarray) -> str:
    """Return what tells an array from others, bit by bit."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


class Reference:
    """The exact and the rounded values of a sample, from the inputs that a provider had."""

    def __init__(
        self, cell: Cell, mask: BenchMask, sample: Sample, inputs: dict[str, np.ndarray]
    ) -> None:
        self._cell = cell
        self._maths = maths_of(cell)
        self._inputs = inputs
        self._exact: dict[str, list[np.ndarray]] = {}
        self._dense: dict[str, list[np.ndarray]] = {}
        group = cell.num_heads // cell.num_heads_k
        for place in range(len(sample.heads)):
            heads = [self._head(place, member) for member in range(group)]
            self._add_rows(heads, mask, sample.rows)
            if BACKWARD in cell.directions:
                self._add_columns(heads, mask, sample.columns)

    def judge(self, arrays: dict[str, np.ndarray], direction: str) -> Verdict:
        """Return the array of a pass that is worst."""
        verdicts = [self._verdict(name, arrays[name]) for name in ARRAYS[direction]]
        return max(verdicts, key=lambda v: np.inf if np.isnan(v.error) else v.error / v.allowed)

    def _verdict(self, name: str, found: np.ndarray) -> Verdict:
        right = np.array(self._exact[name])
        error = float(np.abs(found.reshape(right.shape) - right).max(initial=0.0))
        dense_error = float(np.abs(np.array(self._dense[name]) - right).max(initial=0.0))
        return Verdict(name, error, TIMES_DENSE * dense_error + floor(right, self._cell.dtype))

    def _head(self, place: int, member: int) -> Any:
        members = {"query": member, "grad_out": member}
        return self._maths.make_head(*(self._inputs[x][place, members.get(x, 0)] for x in INPUTS))

    def _add_rows(self, heads: list[Any], mask: BenchMask, rows: np.ndarray) -> None:
        for head in heads:
            for store, rounded in self._both():
                found = self._maths.of_rows(head, mask, rows, rounded)
                store.setdefault("out", []).append(found.out)
                store.setdefault("grad_query", []).append(found.grad_query)

    def _add_columns(self, heads: list[Any], mask: BenchMask, columns: np.ndarray) -> None:
        statistics = [self._maths.row_statistics(head, mask) for head in heads]
        for store, rounded in self._both():
            parts = [
                self._maths.of_columns(head, mask, columns, known, rounded)
                for head, known in zip(heads, statistics, strict=True)
            ]
            for name, gradients in zip(ARRAYS[BACKWARD][1:], zip(*parts, strict=True), strict=True):
                total = np.sum(gradients, axis=0)
                if store is self._dense:
                    total = exact.ROUNDINGS[self._cell.dtype](total)
                store.setdefault(name, []).append(total)

    def _both(self) -> list[tuple[dict[str, list[np.ndarray]], Callable[[Any], Any]]]:
        rounding = self._maths.ROUNDINGS[self._cell.dtype]
        return [(self._exact, self._maths.round_float64), (self._dense, rounding)]


def floor(right: np.ndarray, dtype: str) -> float:
    """Return the error allowed on top of that of the dense maths."""
    if dtype == "float32":
        return FLOAT32_RELATIVE * float(np.abs(right).max(initial=0.0)) + FLOAT32_ABSOLUTE
    rounded = exact.ROUNDINGS[dtype]
    stored = rounded(rounded(right + FLOOR_SHIFT) - FLOOR_SHIFT)
    return TIMES_DENSE * float(np.abs(stored - right).max(initial=0.0))
