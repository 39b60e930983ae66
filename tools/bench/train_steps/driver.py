"""Cells one after another: every attention in a process of its own, until the time is up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Protocol

from harness.results import Source
from harness.warming import ONE_COMPILER
from harness.workers import WorkerError

from train_steps import rows
from train_steps.cells import CHECKED_SEQLEN, COMPILED, TrainCell
from train_steps.sizes import StackSizes

TIME_IS_UP = "time is up"


class Asked(Protocol):
    """An attention that can be asked: `harness.workers.Worker`."""

    def ask(self, **request: Any) -> dict[str, Any]: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class Start(Protocol):
    """What starts a process of an attention, with variables of its environment."""

    def __call__(self, name: str, variables: dict[str, str] | None = None) -> Asked: ...


class Run:
    """Cells of one device and stack.

    On a GPU processes stay from cell to cell, since a framework takes seconds to start; one that
    died is started again for its next cell. What compiles does so before anything is timed.
    """

    def __init__(
        self,
        start: Start,
        *,
        device: str,
        sizes: StackSizes,
        threads: int,
        turns: int,
        seconds: float,
        origin: Source,
    ) -> None:
        self._start, self._device, self._sizes = start, device, sizes
        self._threads, self._turns, self._origin = threads, turns, origin
        self._deadline = time.monotonic() + seconds
        self._workers: dict[str, Asked] = {}
        self._checks: dict[tuple[str, str], dict[str, Any]] = {}

    def prepare(self, cells: list[TrainCell]) -> Iterator[str]:
        """Compile and check, all attentions at once; yield lines for the screen.

        A compiler takes one core and up to a minute for a length, so that processes of their own
        compile first, one for each length: those that are timed find it in the cache on disk.
        """
        compiled = sorted({(c.provider, c.seqlen) for c in cells if c.provider in COMPILED})
        if compiled:
            start = time.monotonic()
            with ThreadPoolExecutor(len(compiled)) as pool:
                failed = list(filter(None, pool.map(lambda one: self._compile(*one), compiled)))
            yield f"compiled {len(compiled)} lengths in {time.monotonic() - start:.1f} s"
            yield from failed
        names = list(dict.fromkeys(cell.provider for cell in cells))
        with ThreadPoolExecutor(len(names)) as pool:
            yield from pool.map(lambda name: self._prepare(name, cells), names)

    def rows(self, cells: list[TrainCell]) -> Iterator[rows.Row]:
        """Measure and yield a row per cell; longer ones than one that did not fit are left out."""
        shortest: dict[tuple[str, str], int] = {}
        for cell in cells:
            key = (cell.provider, cell.layout)
            if self._left() <= 0:
                return
            if cell.seqlen > shortest.get(key, cell.seqlen):
                continue
            answer = self._ask(cell.provider, do="measure", **self._of(cell), turns=self._turns)
            if answer.get("reason") == TIME_IS_UP:
                return
            if answer["status"] == rows.DOES_NOT_FIT:
                shortest[key] = cell.seqlen
            if self._device == "cpu":  # its peak of memory is the process's
                self._end(cell.provider)
            check = self._checks.get(key, {})
            yield rows.make(
                self._origin,
                cell,
                sizes=self._sizes,
                device=self._device,
                threads=self._threads,
                check=check,
                answer=answer,
            )

    def close(self) -> None:
        """End all processes."""
        for name in list(self._workers):
            self._end(name)

    def _compile(self, name: str, seqlen: int) -> str | None:
        """Compile for a length; return why that failed, or None."""
        worker = self._start(name, ONE_COMPILER)
        watch = threading.Timer(max(0.0, self._left()), worker.kill)
        watch.start()
        try:
            worker.ask(do="compile", sizes=asdict(self._sizes), seqlens=[seqlen])
        except WorkerError as error:
            return f"{name} at S={seqlen} was not compiled: {error}"
        finally:
            watch.cancel()
            worker.close()
        return None

    def _end(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.close()

    def _prepare(self, name: str, cells: list[TrainCell]) -> str:
        own = [cell for cell in cells if cell.provider == name]
        checked = CHECKED_SEQLEN[self._device]
        seqlens = sorted({cell.seqlen for cell in own} | {checked})
        sizes = asdict(self._sizes)
        start = time.monotonic()
        compiled = self._ask(name, do="compile", sizes=sizes, seqlens=seqlens)
        words = [f"compiled in {compiled.get('seconds', 0.0):.1f} s {compiled.get('reason', '')}"]
        for layout in dict.fromkeys(cell.layout for cell in own):
            answer = self._ask(name, do="check", sizes=sizes, layout=layout, seqlen=checked)
            self._checks[name, layout] = answer
            words.append(f"{layout} {_verdict(answer)}")
        return f"{name}: {'; '.join(words)} ({time.monotonic() - start:.1f} s)"

    def _of(self, cell: TrainCell) -> dict[str, Any]:
        return {"sizes": asdict(self._sizes), "layout": cell.layout, "seqlen": cell.seqlen}

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _ask(self, name: str, **request: Any) -> dict[str, Any]:
        """Return the answer; of a process that died, or was ended at the deadline, an error."""
        if name not in self._workers:
            self._workers[name] = self._start(name)
        worker = self._workers[name]
        watch = threading.Timer(max(0.0, self._left()), worker.kill)
        watch.start()
        try:
            return worker.ask(**request)
        except WorkerError as error:
            self._end(name)
            reason = TIME_IS_UP if self._left() <= 0 else str(error)
            return {"status": rows.ERROR, "reason": reason}
        finally:
            watch.cancel()


def _verdict(answer: dict[str, Any]) -> str:
    if "is_right" not in answer:
        return f"not checked: {answer['reason']}"
    word = "right" if answer["is_right"] else "WRONG"
    return (
        f"{word}: {answer['checked']} {answer['error']:.2g} <= {answer['allowed']:.2g}, "
        f"loss {answer['loss_error']:.2g} <= {answer['loss_allowed']:.2g}"
    )
