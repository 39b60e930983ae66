"""Time and memory: of the process on the CPU, by events and the framework's allocator on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

KIB = 1024
# Larger than any cache on the chip (50 MB on an H200): written between calls to empty it.
CACHE_FLUSH_BYTES = 256 * KIB**2


class Timing(NamedTuple):
    """One call: seconds of the wall clock (of the GPU's clock there) and of all CPU threads."""

    wall: float
    cpu: float


class Meter(Protocol):
    """What a provider is measured with."""

    def time(self, function: Callable[[], None], count: int) -> list[Timing]:
        """Return timings of count calls, or one that is their mean."""

    def start_memory(self) -> None:
        """Forget the peak of the past."""

    def peak_memory(self) -> int:
        """Return bytes at the peak since `start_memory` beyond those held then."""


class CpuMeter:
    """Calls in a row are timed as one, so that short ones are longer than the clock's grain."""

    def time(self, function: Callable[[], None], count: int) -> list[Timing]:
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(count):
            function()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return [Timing(wall / count, cpu / count)]

    def start_memory(self) -> None:
        """Reset the peak (Linux: proc(5), clear_refs)."""
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._held = _status_bytes("VmRSS")

    def peak_memory(self) -> int:
        return max(0, _status_bytes("VmHWM") - self._held)


class EventMeter:
    """Every call between two events, the cache emptied before; subclasses name the framework."""

    def event(self) -> Any:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def synchronize(self) -> None:
        raise NotImplementedError

    def time(self, function: Callable[[], None], count: int) -> list[Timing]:
        pairs = []
        for _ in range(count):
            self.flush()
            start, end = self.event(), self.event()
            start.record()
            function()
            end.record()
            pairs.append((start, end))
        self.synchronize()
        # elapsed_time is in milliseconds.
        return [Timing(start.elapsed_time(end) / 1e3, float("nan")) for start, end in pairs]


class TorchMeter(EventMeter):
    """PyTorch on a GPU."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._scratch = torch.empty(CACHE_FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def flush(self) -> None:
        self._scratch.zero_()

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def start_memory(self) -> None:
        self.synchronize()
        self._cuda.reset_peak_memory_stats()
        self._held = self._cuda.memory_allocated()

    def peak_memory(self) -> int:
        self.synchronize()
        return self._cuda.max_memory_allocated() - self._held


class PaddleMeter(EventMeter):
    """Paddle on a GPU."""

    def __init__(self) -> None:
        import paddle

        self._paddle = paddle
        self._scratch = paddle.empty([CACHE_FLUSH_BYTES], "int8")

    def event(self) -> Any:
        return self._paddle.device.cuda.Event(enable_timing=True)

    def flush(self) -> None:
        self._scratch.zero_()

    def synchronize(self) -> None:
        self._paddle.device.cuda.synchronize()

    def start_memory(self) -> None:
        self.synchronize()
        self._paddle.device.cuda.reset_max_memory_allocated()
        self._held = self._paddle.device.cuda.memory_allocated()

    def peak_memory(self) -> int:
        self.synchronize()
        return self._paddle.device.cuda.max_memory_allocated() - self._held


def peak_resident() -> int:
    """Return the peak of this process's resident memory in bytes, since the last reset."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIB
    raise OSError(f"/proc/self/status has no {name} line")
