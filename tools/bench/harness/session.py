"""One provider in one process: prepares a cell, warms up, times, hands out samples.

Requests and answers are dictionaries that fit in JSON; `worker.py` carries them through a pipe.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from providers.interface import GRADIENTS, INPUTS, Provider

from harness import masks
from harness.cells import BACKWARD, Cell
from harness.meters import Meter

# A call at this length loads what a framework loads at first use, so that the memory measured
# afterwards is that of the cell.
WARM_UP_LENGTH = 128


class Session:
    """Requests are methods: `session.handle({"do": "time", ...})`."""

    def __init__(self, provider_class: type[Provider]) -> None:
        self._class = provider_class
        self._provider: Provider
        self._meter: Meter

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        arguments = dict(request)
        action: Callable[..., dict[str, Any]] = getattr(self, arguments.pop("do"))
        return action(**arguments)

    def prepare(self, cell: dict[str, Any]) -> dict[str, Any]:
        """Make inputs and mask, run each direction once; return seconds and bytes."""
        self.drop()
        wanted = _cell(cell)
        if not self._class.compiles:
            self._run_small(wanted)
        mask = masks.build(wanted.mask, wanted.seqlen)
        self._provider = self._class(wanted)
        self._provider.make_inputs()
        self._meter = self._provider.meter()
        gc.collect()
        compiles = self._class.compiles
        if compiles:
            self._provider.build_mask(mask)
        self._meter.start_memory()
        built = self._meter.time(lambda: self._provider.build_mask(mask), 1)[0].wall
        if compiles:
            self._run(wanted)
            self._meter.start_memory()
        seconds = self._run(wanted)
        # On the CPU a compiler leaves holes in the process's memory that calls then fill.
        hidden = compiles and wanted.device == "cpu"
        peak = None if hidden else self._meter.peak_memory()
        return {
            "mask_seconds": built,
            "seconds": seconds,
            "peak_bytes": peak,
            "versions": self._provider.versions(),
            "device_name": self._provider.device_name(),
        }

    def time(self, direction: str, count: int) -> dict[str, Any]:
        """Return timings of so many calls."""
        timings = self._meter.time(getattr(self._provider, direction), count)
        return {"timings": [list(timing) for timing in timings]}

    def sample(
        self, heads: list[list[int]], rows: list[int], columns: list[int], path: str
    ) -> dict[str, Any]:
        """Write the inputs of some heads, and some rows of out and of the gradients.

        Args:
            heads: pairs (sample, key head).
            rows: rows of out and of the gradient of query.
            columns: keys whose gradients are wanted.
            path: of the .npz file; arrays [heads, query heads per key head, ...].
        """
        provider, cell = self._provider, self._provider.cell
        group = cell.num_heads // cell.num_heads_k
        places = {"out": rows, "grad_query": rows, "grad_key": columns, "grad_value": columns}
        names = [*INPUTS, "out", *(GRADIENTS if BACKWARD in cell.directions else ())]
        arrays = {}
        for name in names:
            of_query = name in ("query", "grad_out", "out", "grad_query")
            found = []
            for batch, head in heads:
                members = range(head * group, (head + 1) * group) if of_query else [head]
                one = [provider.head(name, batch, member) for member in members]
                found.append([array[places[name]] if name in places else array for array in one])
            arrays[name] = np.array(found, np.float32)
        np.savez(path, **arrays)
        return {}

    def drop(self) -> dict[str, Any]:
        """Forget the cell."""
        if hasattr(self, "_provider"):
            del self._provider, self._meter
            gc.collect()
        return {}

    def _run_small(self, cell: Cell) -> None:
        small = replace(cell, mask="causal", seqlen=WARM_UP_LENGTH)
        self._provider = self._class(small)
        self._provider.make_inputs()
        self._provider.build_mask(masks.build(small.mask, small.seqlen))
        self._meter = self._provider.meter()
        self._run(small)
        self.drop()

    def _run(self, cell: Cell) -> dict[str, float]:
        seconds = {}
        for direction in cell.directions:
            if direction == BACKWARD:
                self._provider.prepare_backward()
            timings = self._meter.time(getattr(self._provider, direction), 1)
            seconds[direction] = timings[0].wall
            assert math.isfinite(seconds[direction])
        return seconds


def _cell(fields: dict[str, Any]) -> Cell:
    listed = {name: tuple(fields[name]) for name in ("providers", "directions")}
    return Cell(**{**fields, **listed})
