"""Processes of providers: every one has its own framework, threads and peak of memory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle_flashmask

# What is compiled on a GPU is kept on disk for other processes (harness.warming).
COMPILE_CACHES = {
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
}
ANSWER_SECONDS = 180.0  # on a GPU: slow compilers take a minute, a kernel that hangs for ever
WORKER = Path(__file__).resolve().parents[1] / "worker.py"


class WorkerError(RuntimeError):
    """A provider's process ended; the message is its last line."""


class Worker:
    """A process that answers the requests of `harness.session.Session`, or of another script."""

    def __init__(
        self,
        name: str,
        *,
        device: str,
        threads: int,
        script: Path = WORKER,
        variables: dict[str, str] | None = None,
        limit: float | None = None,
    ) -> None:
        """Start the process.

        Args:
            name: of the provider.
            device: "cpu" or "gpu".
            threads: of the CPU.
            script: what runs.
            variables: of the environment, beside those that all have.
            limit: seconds that an answer may take before the process is killed.
        """
        self.name = name
        self._limit = limit
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (see close)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), name, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={
                **os.environ,
                **_variables(threads if device == "cpu" else None),
                **(variables or {}),
            },
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request, or raise WorkerError if the process died of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died before; what it said follows
        line = self._read_line()
        if not line:
            raise WorkerError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        if self._limit is None:
            return self._process.stdout.readline()
        watch = threading.Timer(self._limit, self.kill)
        watch.start()
        try:
            return self._process.stdout.readline()
        finally:
            watch.cancel()

    def kill(self) -> None:
        """End the process, also one that is computing; whoever asked it gets a WorkerError."""
        self._process.kill()

    def close(self) -> None:
        """End the process and what belongs to it."""
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # of a request that it did not read
                    stream.close()
        self._errors.close()

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return f"{lines[-1] if lines else 'no message'} (exit code {code})"


class KeptWorkers:
    """Workers that stay from cell to cell, since a framework on a GPU takes seconds to start."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}

    def borrow(self, name: str, *, device: str) -> BorrowedWorker:
        """Return the worker of that name, started if there is none."""
        if name not in self._workers:
            self._workers[name] = Worker(name, device=device, threads=0, limit=ANSWER_SECONDS)
        return BorrowedWorker(self._workers[name], lambda: self._workers.pop(name))

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()


class BorrowedWorker:
    """A worker for one cell; closing it makes it forget the cell, unless it has died."""

    def __init__(self, worker: Worker, forget: Callable[[], object]) -> None:
        self._worker = worker
        self._forget = forget
        self._has_died = False

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request, or raise WorkerError if the process died of it."""
        try:
            return self._worker.ask(**request)
        except WorkerError:
            self._has_died = True
            self._forget()
            self._worker.close()
            raise

    def close(self) -> None:
        """Make the worker forget the cell; one that dies of it is replaced at the next loan."""
        if not self._has_died:
            with contextlib.suppress(WorkerError):  # the cell's rows are there
                self.ask(do="drop")


def _variables(threads: int | None) -> dict[str, str]:
    """Return the environment: our package from where we have it, so many threads for every library.

    Idle threads sleep: spinning would count as CPU time, and slow down the next provider.
    """
    package = Path(paddle_flashmask.__file__).resolve().parents[1]
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"PYTHONPATH": path}
    if threads is None:
        variables |= COMPILE_CACHES
    else:
        counts = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        variables |= dict.fromkeys(counts, str(threads))
        variables |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
    return variables
