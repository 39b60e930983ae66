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
from providers.interface import INPUTS, Provider

from harness import check, masks
from harness.cells import BACKWARD, FORWARD, Cell
from harness.meters import Meter

# A call at this length loads what a framework loads at first use, so that the memory measured
# afterwards is that of the cell.
WARM_UP_LENGTH = 128
OF_QUERY = ("query", "grad_out", "out", "grad_query")  # have a head for each query head


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
        """Make inputs and mask, run each direction once; return seconds and bytes.

        A backward that fails is named in the answer and left out from then on.
        """
        self.drop()
        wanted = _cell(cell)
        if not self._class.compiles:
            self._run_small(wanted)
        mask = self._start(wanted)
        gc.collect()
        compiles = self._class.compiles
        if compiles:
            self._provider.build_mask(mask)
        self._meter.start_memory()
        built = self._meter.time(lambda: self._provider.build_mask(mask), 1)[0].wall
        if compiles:
            self._run()
            self._meter.start_memory()
        seconds = self._run()
        # On the CPU a compiler leaves holes in the process's memory that calls then fill.
        hidden = compiles and wanted.device == "cpu"
        peak = None if hidden else self._meter.peak_memory()
        return {
            "mask_seconds": built,
            "seconds": seconds,
            "failures": self._failures,
            "peak_bytes": peak,
            "versions": self._provider.versions(),
            "device_name": self._provider.device_name(),
        }

    def warm(self, cell: dict[str, Any]) -> dict[str, Any]:
        """Run each direction of a cell once, so that what is compiled lies in the cache on disk."""
        self.drop()
        mask = self._start(_cell(cell))
        self._provider.build_mask(mask)
        self._run()
        return {"failures": self._failures, **self.drop()}

    def time(self, direction: str, count: int, untimed: int = 0) -> dict[str, Any]:
        """Return timings of so many calls, made after others that are not timed."""
        call = getattr(self._provider, direction)
        for _ in range(untimed):
            call()
        timings = self._meter.time(call, count)
        return {"timings": [list(timing) for timing in timings]}

    def sample(
        self,
        heads: list[list[int]],
        rows: list[int],
        columns: list[int],
        path: str,
        with_inputs: bool = True,
    ) -> dict[str, Any]:
        """Write some heads of the inputs, rows of out and of the gradients; return digests.

        Args:
            heads: pairs (sample, key head).
            rows: rows of out and of the gradient of query.
            columns: keys whose gradients are wanted.
            path: of the .npz file; arrays [heads, query heads per key head, ...].
            with_inputs: whether inputs are written too; their digests are returned anyway.
        """
        directions = self._provider.cell.directions
        places = {"out": rows} if FORWARD in directions else {}
        if BACKWARD in directions:
            places |= {"grad_query": rows, "grad_key": columns, "grad_value": columns}
        arrays = {name: self._heads(name, heads, places.get(name)) for name in (*INPUTS, *places)}
        digests = {name: check.digest(arrays[name]) for name in INPUTS}
        if not with_inputs:
            arrays = {name: arrays[name] for name in places}
        np.savez(path, **arrays)
        return {"digests": digests}

    def drop(self) -> dict[str, Any]:
        """Forget the cell."""
        if hasattr(self, "_provider"):
            del self._provider, self._meter
            gc.collect()
        return {}

    def _heads(self, name: str, heads: list[list[int]], places: list[int] | None) -> np.ndarray:
        """[heads, query heads per key head, rows, D], float32: all rows or those at places."""
        group = self._provider.cell.num_heads // self._provider.cell.num_heads_k
        found = []
        for batch, head in heads:
            of_query = name in OF_QUERY
            members = range(head * group, (head + 1) * group) if of_query else [head]
            one = [self._provider.head(name, batch, member) for member in members]
            found.append(one if places is None else [array[places] for array in one])
        return np.array(found, np.float32)

    def _start(self, cell: Cell) -> masks.BenchMask:
        """Make a provider with its inputs; return the cell's mask."""
        self._failures: dict[str, str] = {}
        mask = masks.build(cell.mask, cell.seqlen)
        self._provider = self._class(cell)
        self._provider.make_inputs()
        self._meter = self._provider.meter()
        return mask

    def _run_small(self, cell: Cell) -> None:
        mask = self._start(replace(cell, mask="causal", seqlen=WARM_UP_LENGTH))
        self._provider.build_mask(mask)
        self._run()
        self.drop()

    def _run(self) -> dict[str, float]:
        """Return the seconds of each direction."""
        seconds = {}
        for direction in self._provider.cell.directions:
            try:
                if direction == BACKWARD:
                    self._provider.prepare_backward()
                timings = self._meter.time(getattr(self._provider, direction), 1)
            except RuntimeError as error:
                if direction != BACKWARD or FORWARD not in seconds:
                    raise
                self._failures[direction] = str(error).partition("\n")[0]
                able = tuple(seconds)
                self._provider.cell = replace(self._provider.cell, directions=able)
            else:
                seconds[direction] = timings[0].wall
                assert math.isfinite(seconds[direction])
        return seconds


def _cell(fields: dict[str, Any]) -> Cell:
    listed = {name: tuple(fields[name]) for name in ("providers", "directions")}
    return Cell(**{**fields, **listed})
