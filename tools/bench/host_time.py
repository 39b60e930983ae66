"""Host time of a call of the GPU kernels: what the caller's thread spends until it may go on.

    python tools/bench/host_time.py [--calls 40] [--loops 9]

Needs a GPU, PyTorch and the library of tools/build_capi.sh (FLASHMASK_CAPI). Tensors are small, so
that the device keeps up; the time of a loop of calls is taken without waiting for the device, and
the median of the loops is printed, in microseconds a call: of the C interface alone, with its
argument prepared, and of tools/capi.py with PyTorch's allocations.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

MICRO = 1e6
HEADS, LENGTH = 2, 256
HEAD_DIMS = (64, 128, 256)
KERNELS = {"sm80": ((8, 0), (99, 0)), "sm90a": ((9, 0), (9, 0))}  # from, to compute capability
RESTRICTION = "FLASHMASK_GPU_KERNELS"  # what the library is restricted to without us
WORKSPACE_BYTES = 1 << 24  # more than any of these calls works in
HEADER = ("kernels", "head_dim", "call", "C interface", "tools/capi.py")
Call = Callable[..., Any]


def main(arguments: list[str] | None = None) -> int:
    """Print a table; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--calls", type=int, default=40, help="in a loop; default: 40")
    parser.add_argument("--loops", type=int, default=9, help="default: 9")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        print("host_time.py: ERROR: it needs PyTorch: pip install torch", file=sys.stderr)
        return 2
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    import capi
    import torch

    if not torch.cuda.is_available():
        print("host_time.py: ERROR: it needs a GPU that PyTorch finds", file=sys.stderr)
        return 2
    print(row(HEADER), row(["---"] * len(HEADER)), sep="\n")
    for kernels, (least, most) in KERNELS.items():
        if kernels not in capi.info() or not least <= torch.cuda.get_device_capability() <= most:
            continue
        capi.use_kernels(kernels)
        for head_dim in HEAD_DIMS:
            for way, call in calls(capi, torch, head_dim).items():
                both = (prepared(capi, torch, call), call)
                found = [median(each, options.calls, options.loops, torch) for each in both]
                print(row([kernels, str(head_dim), way, *(f"{x:.1f}" for x in found)]), flush=True)
    capi.use_kernels(os.environ.get(RESTRICTION, "auto"))
    return 0


def row(cells: Any) -> str:
    """Return a row of a markdown table."""
    return f"| {' | '.join(cells)} |"


def calls(capi: Any, torch: Any, head_dim: int) -> dict[str, Call]:
    """Return the calls to be timed, by what they are called; each takes arguments of capi's.

    Args:
        capi: the module of tools/.
        torch: PyTorch.
        head_dim: of the tensors.
    """
    shape = (1, LENGTH, HEADS, head_dim)
    query, key, value, grad_out = (
        torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(4)
    )
    starts = torch.full((1, 1, LENGTH, 1), LENGTH, dtype=torch.int32, device="cuda")
    out, lse = capi.forward(query, key, value, starts, True)
    given = (grad_out, query, key, value, out, lse, starts, True, None)
    return {
        "forward": partial(capi.forward, query, key, value, starts, True),
        "backward": partial(capi.backward, *given),
        "deterministic backward": partial(capi.backward, *given, True),
    }


@dataclass(frozen=True)
class Repeated:
    """A call of the C interface, with the memory that its argument points to."""

    ask: Call
    results: Any
    workspace: Any

    def __call__(self) -> None:
        self.ask()


def prepared(capi: Any, torch: Any, call: Call) -> Repeated:
    """Return what `call` asks of the library, to be asked again with the same memory."""
    library, asked = capi.library(), []

    class Recorder:
        def __getattr__(self, name: str) -> Call:
            def ask(*arguments: Any) -> Any:
                asked.append(partial(getattr(library, name), *arguments))
                return asked[-1]()

            return ask

    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    with mock.patch.object(capi, "library", return_value=Recorder()):
        results = call(workspace=workspace)
    return Repeated(asked[-1], results, workspace)


def median(call: Call, count: int, loops: int, torch: Any) -> float:
    """Return microseconds a call, the median of some loops."""
    found = []
    for _ in range(loops + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - begin) / count * MICRO)
    torch.cuda.synchronize()
    return statistics.median(found[1:])


if __name__ == "__main__":
    sys.exit(main())
