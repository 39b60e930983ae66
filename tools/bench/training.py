"""Whole training steps through `flashmask_attention` and its rivals: tokens/s, memory, correctness.

    python tools/bench/training.py                      the CPU, Paddle: one core, 6 minutes
    python tools/bench/training.py --device gpu         PyTorch and the C door (tools/capi.py)
    python tools/bench/training.py --table              markdown from the CSV, every length
    python tools/bench/training.py --readme             README's table and drawing, from both CSVs

A step takes one row of S tokens through a stack of Llama-2 7B's blocks (a small one on the CPU):
making the mask, forward, loss, backward, optimizer. Layouts are those of the FlashMask paper: SFT,
LoRA, DPO with 2 answers to a question and given reference log-probabilities, RM with 6. Lengths of
documents follow real data (train_steps/documents.py); `paddle_flashmask.packing` packs the rows.

| attention    | takes                                                                        |
| ------------ | ---------------------------------------------------------------------------- |
| ours         | the index tensor                                                             |
| torch_sdpa   | a dense mask made once a step; PyTorch picks the kernel                      |
| torch_flex   | a block mask made once a step; compiled for each length beforehand           |
| paddle_dense | a dense mask made once a step, for every head                                |

Before timing, loss and gradients of every layout and attention are compared with float64 at a
short length (train_steps/checking.py). After a warm-up each of the steps sees other documents; a
step of 4 s and more is timed once, one of 10 s and more without a warm-up. Tokens/s are those of
this stack, not of a model of full depth. Every row goes to the CSV as soon as it is known. Exit
code 1: ours was wrong, or an attention failed; 2: something is not installed, or an argument or the
CSV cannot be used.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
from pathlib import Path

from attention import measured
from harness import readme, results
from harness.options import RESULTS
from harness.workers import Worker
from train_steps import cells, rows, sizes, summary
from train_steps.driver import Run
from train_steps.layouts import LAYOUTS

FAILED, NOT_USABLE = 1, 2
DRAWINGS = RESULTS
SCRIPT = Path(__file__).with_name("training_worker.py")
NEEDED = {"gpu": ("torch",), "cpu": ("paddle",)}
MINUTES = 60.0


def main(arguments: list[str] | None = None) -> int:
    """Measure, or show what was measured; return the exit code."""
    options = parse(arguments)
    try:
        if options.table or options.readme:
            return show(options)
        missing = [one for one in NEEDED[options.device] if importlib.util.find_spec(one) is None]
        if missing:
            raise ValueError(f"--device {options.device} needs {', '.join(missing)}")
        wanted = cells.cells(options.device, options.layouts, options.seqlens, options.providers)
        if options.list:
            print(*wanted, sep="\n")
            return 0
        given = sys.argv[1:] if arguments is None else arguments
        command = shlex.join(["python", "tools/bench/training.py", *measured(given)])
        return measure(options, wanted, results.source(command, options.commit))
    except ValueError as error:
        print(f"training.py: ERROR: {error}", file=sys.stderr)
        return NOT_USABLE


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=sorted(cells.ROLES), default="cpu")
    add("--layouts", nargs="+", choices=list(LAYOUTS), help="default: all")
    add("--seqlens", nargs="+", type=int, help="default: 4K to 128K, 1K to 4K on the CPU")
    add("--providers", nargs="+", help="default: all of the device")
    add("--blocks", type=int, help="decoder blocks")
    add("--heads-k", type=int, help="key heads; default: as many as query heads")
    add("--threads", type=int, default=1, help="of the CPU")
    add("--turns", type=int, default=len(rows.DOCUMENT_COUNTS), help="timed steps of a cell")
    add("--seconds", type=float, default=60 * MINUTES, help="stop after so many")
    add("--csv", type=Path, help="appended; default: tools/bench/results/training_<device>.csv")
    add("--commit", help="of this tree, if it is a copy without its history")
    add("--list", action="store_true", help="print the cells, measure nothing")
    add("--table", action="store_true", help="print markdown from the CSV, measure nothing")
    add("--readme", action="store_true", help="write README's table and drawing from the CSVs")
    options = parser.parse_args(arguments)
    options.csv = options.csv or csv_of(options.device)
    known = cells.ROLES[options.device]
    for name in options.providers or ():
        if name not in known:
            parser.error(f"provider must be one of {', '.join(known)}; got {name}")
    for name in ("blocks", "heads_k", "threads", "turns"):
        number = getattr(options, name)
        if number is not None and number < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1; got {number}")
    if options.heads_k and sizes.ON_DEVICE[options.device].heads % options.heads_k:
        parser.error(f"--heads-k must divide the query heads; got {options.heads_k}")
    return options


def measure(
    options: argparse.Namespace, wanted: list[cells.TrainCell], origin: results.Source
) -> int:
    """Measure cells into the CSV; return the exit code."""
    stack = sizes.changed(sizes.ON_DEVICE[options.device], options.blocks, options.heads_k)
    threads = options.threads if options.device == "cpu" else 0

    def start(name: str, variables: dict[str, str] | None = None) -> Worker:
        return Worker(
            name, device=options.device, threads=threads, script=SCRIPT, variables=variables
        )

    print(f"{stack.text}; {len(wanted)} cells into {options.csv}", flush=True)
    run = Run(
        start,
        device=options.device,
        sizes=stack,
        threads=threads,
        turns=options.turns,
        seconds=options.seconds,
        origin=origin,
    )
    found = []
    try:
        for line in run.prepare(wanted):
            print(line, flush=True)
        for row in run.rows(wanted):
            rows.append(options.csv, [row])
            print(on_screen(row), flush=True)
            found.append(row)
    finally:
        run.close()
    print(f"{len(found)} of {len(wanted)} cells measured")
    return exit_code(found)


def show(options: argparse.Namespace) -> int:
    """Print the table, or write README's and the drawing, from the CSVs."""
    if options.table:
        print(summary.long_table(rows.read(options.csv), options.device))
    if options.readme:
        gpu, cpu = (rows.read(csv_of(device)) for device in ("gpu", "cpu"))
        changed = readme.put(readme.README, {summary.HEADER: summary.readme_table(gpu, cpu)})
        print(f"{readme.README}: {'table written' if changed else 'table is up to date'}")
        if importlib.util.find_spec("matplotlib") is None:
            raise ValueError("the drawing needs matplotlib: pip install matplotlib")
        from train_steps import drawing

        print(*drawing.draw(DRAWINGS, gpu), sep="\n")
    return 0


def csv_of(device: str) -> Path:
    """Return where rows of a device are kept."""
    return RESULTS / f"training_{device}.csv"


def on_screen(row: rows.Row) -> str:
    """Return a row for the screen."""
    start = f"{row.layout:<5}S={row.seqlen:<7}{row.provider:<13}{row.status:<6}"
    if row.status not in (rows.OK, rows.WRONG):
        return f"{start} {row.reason}"
    return (
        f"{start}{row.step_ms:>9} ms x{row.steps} {row.tokens_per_s:>8} tokens/s "
        f"({row.tokens_per_s_least}..{row.tokens_per_s_most}) {row.peak_gib} GiB {row.kernel} "
        f"loss {row.loss}"
    )


def exit_code(found: list[rows.Row]) -> int:
    """Return 1 if ours is wrong anywhere, or any attention failed."""
    for row in found:
        if row.status == rows.ERROR or (row.provider, row.status) == ("ours", rows.WRONG):
            return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
