"""Builds of the GPU kernels beside each other: who is faster, in turns on the same tensors.

    bash tools/build_capi.sh build/before.so; (a change); bash tools/build_capi.sh build/after.so
    python tools/bench/compare_builds.py build/before.so build/after.so --masks causal document
    python tools/bench/compare_builds.py build/*.so --heads-k 4 --deterministic --runs 9
    python tools/bench/compare_builds.py build/*.so --kernels sm80

Needs a GPU and PyTorch. A call takes 128K tokens. Every array of the first build must agree with
the others' to a few roundings of its largest value (whether they are right is for tools/gpu_test.sh
to say), and deterministic gradients must repeat to the bit. Printed are TFLOP/s on visible cells of
the median of the runs. A run is as many calls as take --seconds, behind one that is not timed, and
the order of runs is drawn anew: the clock of a card depends on what it did in the last tenths of a
second. Exit code 1: builds disagree.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from harness import cells, masks, suite
from harness.cells import BACKWARD, FORWARD, Cell
from harness.meters import TorchMeter
from providers.torch_tensors import torch_inputs

TOOLS = Path(__file__).resolve().parents[1]
WAYS = (FORWARD, BACKWARD)
DETERMINISTIC = "deterministic backward"
BITS = {"bfloat16": 8, "float16": 11}  # of a number, with the one that is not stored
ROUNDINGS_APART = 4
KERNELS = ("auto", "sm80", "sm90a")
Calls = dict[tuple[str, str], Callable[[], Any]]  # by build and way


def main(arguments: list[str] | None = None) -> int:
    """Print a table; return the exit code."""
    options = parse(arguments)
    import torch

    if not torch.cuda.is_available():
        print("compare_builds.py: ERROR: it needs a GPU that PyTorch finds", file=sys.stderr)
        return 2
    builds = {path.stem: load(path) for path in options.builds}
    for build in builds.values():
        build.use_kernels(options.kernels)
    meter = TorchMeter()
    print(row(["mask", "build", *options.ways]), row(["---"] * (2 + len(options.ways))), sep="\n")
    all_agree = True
    for mask in options.masks:
        bench_mask = masks.build(mask, options.cell.seqlen)
        cell = replace(options.cell, mask=mask)
        calls = prepare(cell, bench_mask, builds, options.ways)
        wrong = disagreements(calls, cell, torch)
        rates = measure(calls, cell, bench_mask, options, meter)
        for name in builds:
            found = (f"{rates[name, way]:.0f}" for way in options.ways)
            print(row([mask, name, *found]), flush=True)
        print(*wrong, sep="\n", end="\n" * bool(wrong), flush=True)
        all_agree = all_agree and not wrong
    return 0 if all_agree else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options; `cell` holds the shape, `ways` what is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("builds", nargs="+", type=Path, help="of tools/build_capi.sh")
    parser.add_argument("--masks", nargs="+", default=list(suite.GPU_MASKS), metavar="MASK")
    parser.add_argument("--seqlen", type=int, default=suite.GPU_LENGTH)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--heads", type=int, help="default: 4096 / head_dim")
    parser.add_argument("--heads-k", type=int, help="default: as many as heads")
    parser.add_argument("--dtype", choices=sorted(BITS), default="bfloat16")
    parser.add_argument("--runs", type=int, default=5, help="default: 5")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a run, default: 0.2")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="default: both")
    parser.add_argument("--deterministic", action="store_true", help="that backward too")
    parser.add_argument("--kernels", choices=KERNELS, default="auto", help="default: the best")
    options = parser.parse_args(arguments)
    names = [path.stem for path in options.builds]  # in the table
    if len(set(names)) < len(names):
        parser.error(f"builds must have different file names; got {', '.join(names)}")
    heads = options.heads or suite.GPU_WIDTH // options.head_dim
    options.cell = Cell(
        mask="",
        seqlen=options.seqlen,
        batch=suite.gpu_batch(options.seqlen),
        num_heads=heads,
        num_heads_k=options.heads_k or heads,
        head_dim=options.head_dim,
        dtype=options.dtype,
        device="gpu",
        threads=0,
        providers=(),
    )
    options.ways += [DETERMINISTIC] * options.deterministic
    return options


def load(path: Path) -> ModuleType:
    """Return a copy of tools/capi.py that has loaded this library."""
    spec = importlib.util.spec_from_file_location(f"capi_of_{path.stem}", TOOLS / "capi.py")
    assert spec is not None
    assert spec.loader is not None
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))  # of what capi.py imports
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with mock.patch.dict(os.environ, FLASHMASK_CAPI=str(path.resolve())):
        module.library()
    return module


def prepare(
    cell: Cell, mask: masks.BenchMask, builds: dict[str, ModuleType], ways: list[str]
) -> Calls:
    """Return the call of each build and way, all on the same tensors."""
    import torch

    inputs = torch_inputs(cell)
    query, key, value, grad_out = (inputs[name] for name in ("query", "key", "value", "grad_out"))
    indices, causal = mask.mask
    rows = torch.from_numpy(indices).repeat(cell.batch, 1, 1, 1).cuda()
    calls: Calls = {}
    for name, build in builds.items():
        forward = partial(build.forward, query, key, value, rows, causal)
        calls[name, FORWARD] = forward
        given = (grad_out, query, key, value, *forward(), rows, causal)
        calls[name, BACKWARD] = partial(build.backward, *given)
        calls[name, DETERMINISTIC] = partial(build.backward, *given, deterministic=True)
    return {of: call for of, call in calls.items() if of[1] in ways}


def disagreements(calls: Calls, cell: Cell, torch: Any) -> list[str]:
    """Return a line for each call whose results differ from the first build's, or do not repeat."""
    first = next(iter(calls))[0]
    bound = ROUNDINGS_APART * 2.0 ** -BITS[cell.dtype]
    wrong = []
    for (name, way), call in calls.items():
        for number, (mine, others) in enumerate(zip(call(), calls[first, way](), strict=True)):
            seen = others.isfinite()  # rows that see nothing have lse -inf
            same_odd = (mine == others) | (mine.isnan() & others.isnan())
            unlike = int(torch.where(seen, ~mine.isfinite(), ~same_odd).sum())
            largest = torch.where(seen, others, 0).abs().amax()
            worst = torch.where(seen, mine - others, 0).abs().amax()
            if unlike or not bool(worst <= bound * largest):
                wrong.append(
                    f"{name}, {way}: result {number} is {worst:.3g} off; {largest=:.3g}; "
                    f"{unlike} infinite or NaN otherwise"
                )
        if way == DETERMINISTIC and not all(map(torch.equal, call(), call())):
            wrong.append(f"{name}, {way}: other bits in another run")
    return wrong


def measure(
    calls: Calls,
    cell: Cell,
    mask: masks.BenchMask,
    options: argparse.Namespace,
    meter: TorchMeter,
) -> dict[tuple[str, str], float]:
    """Return TFLOP/s on visible cells of the median run; runs take turns in a random order."""
    seconds: dict[tuple[str, str], list[float]] = {of: [] for of in calls}
    for _ in range(options.runs):
        for of, call in random.sample(list(calls.items()), len(calls)):
            call()
            (first,) = meter.time(call, 1)
            count = max(1, math.ceil(options.seconds / first.wall))
            seconds[of] += [statistics.mean(timing.wall for timing in meter.time(call, count))]
    rates = {}
    for (name, way), found in seconds.items():
        direction = FORWARD if way == FORWARD else BACKWARD
        operations = cells.visible_operations(cell, mask, direction)
        rates[name, way] = operations / statistics.median(found) / 1e12
    return rates


def row(found: list[str]) -> str:
    """Return a row of a markdown table."""
    return f"| {' | '.join(found)} |"


if __name__ == "__main__":
    sys.exit(main())
