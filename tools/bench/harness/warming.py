"""Compile ahead: in many processes at once, since a compiler takes one core and ten seconds a cell.

The processes that are timed later find what these leave in the cache on disk. Its key holds the
code of the mask, the shapes (batch and heads too) and dtypes, not the contents of tensors; so cells
are run here as they will be, once.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import providers

from harness import masks
from harness.cells import Cell
from harness.driver import Asked
from harness.workers import ANSWER_SECONDS, Worker, WorkerError

Start = Callable[[str, Cell], Asked]
GPU_PROCESSES = 10  # at once, by default
# Of a process: tensors as large as query (inputs, out, gradients, copies), and what CUDA takes.
TENSORS, CONTEXT_BYTES = 11, 1 << 30
ELEMENT_BYTES = 2
SHARE_OF_BUDGET = 0.5  # the cells that come later then compile when it is their turn
ONE_COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # there are processes enough


def warm(
    cells: Sequence[Cell], processes: int, start: Start | None = None, seconds: float = math.inf
) -> list[str]:
    """Run what compiles once per cell; return a line for each that failed.

    Args:
        cells: those to be measured.
        processes: how many at once.
        start: a process for a provider and a cell.
        seconds: after which no other cell is begun.
    """
    failed: list[str] = []
    end = time.monotonic() + seconds
    for name, wanted in _by_provider(cells).items():
        waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
        for cell in wanted:
            waiting.put(cell)
        threads = [
            threading.Thread(
                target=_drain, args=(name, waiting, start or start_worker, failed, end)
            )
            for _ in range(min(processes, len(wanted)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return failed


def report(cells: Sequence[Cell], processes: int, budget: float | None = None) -> None:
    """Warm and print how long it took.

    Args:
        cells: those to be measured.
        processes: how many at once.
        budget: seconds of the whole run, of which this takes a share.
    """
    count = sum(len(wanted) for wanted in _by_provider(cells).values())
    if count == 0 or processes == 0:
        return
    begin = time.monotonic()
    processes = min(processes, _affordable(cells))
    print(f"compiling for {count} cells, {processes} at once", flush=True)
    seconds = math.inf if budget is None else budget * SHARE_OF_BUDGET
    for line in warm(cells, processes, seconds=seconds):
        print(line, flush=True)
    print(f"compiled in {time.monotonic() - begin:.0f} s", flush=True)


def start_worker(name: str, cell: Cell) -> Worker:
    """Return a process that compiles by itself alone."""
    return Worker(
        name,
        device=cell.device,
        threads=cell.threads,
        variables=ONE_COMPILER,
        limit=ANSWER_SECONDS,
    )


def _by_provider(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Return the cells that a provider must compile for, without repetitions."""
    found: dict[str, dict[Cell, None]] = {}
    for cell in cells:
        for name in cell.providers:
            provider = providers.find(name, cell.device)
            if not provider.compiles:
                continue
            mask = masks.build(cell.mask, cell.seqlen)
            able = [way for way in cell.directions if not provider.impossible(cell, mask, way)]
            if able:
                fields = {**vars(cell), "providers": (name,), "directions": tuple(able)}
                found.setdefault(name, {})[Cell(**fields)] = None
    return {name: list(wanted) for name, wanted in found.items()}


def _drain(
    name: str, waiting: queue.SimpleQueue[Cell], start: Start, failed: list[str], end: float
) -> None:
    """Take cells until none is left, with one process that is replaced if it dies."""
    worker = None
    while time.monotonic() < end:
        try:
            cell = waiting.get_nowait()
        except queue.Empty:
            break
        worker = worker or start(name, cell)
        try:
            answer = worker.ask(do="warm", cell=asdict(cell))
            failed += [f"  {name} {cell}: {text}" for text in answer["failures"].values()]
        except WorkerError as error:
            failed.append(f"  {name} {cell}: {error}")
            worker.close()
            worker = None
    if worker is not None:
        worker.close()


def _affordable(cells: Sequence[Cell]) -> int:
    """Return how many processes the GPU's free memory is for."""
    if all(cell.device == "cpu" for cell in cells):
        return GPU_PROCESSES
    import torch

    largest = max(cell.batch * cell.seqlen * cell.num_heads * cell.head_dim for cell in cells)
    free, _ = torch.cuda.mem_get_info()
    return max(1, free // (TENSORS * ELEMENT_BYTES * largest + CONTEXT_BYTES))
