"""Speed, memory and correctness of `flashmask_attention` beside its rivals, on a CPU or a GPU.

    pip install -r tools/bench/requirements.txt         (this package is installed already)
    python tools/bench/attention.py                     README's cells; 2 cores: 10 to 15 minutes
    python tools/bench/attention.py --table             markdown from the CSV
    python tools/bench/attention.py --plot FOLDER       drawings from the CSV
    python tools/bench/attention.py --readme            README's tables from the CSV
    python tools/bench/attention.py --masks causal document:n=8 --seqlens 2048 --threads 2
    python tools/bench/attention.py --device gpu --exclude torch_flex_flash --group 32k --budget 400
    python tools/bench/attention.py --device gpu --table    or --plot FOLDER, or --readme

On a GPU what compiles is compiled for all cells first, in many processes. Rows are written after
each cell. Every provider runs in a process of its own with the same inputs and threads, and is
checked against float64 before it is timed. Providers take turns; reported are medians and
percentiles 20 and 80. Exit code 1: ours was wrong, or a provider failed; 2: one is not installed,
or an argument or the CSV cannot be used.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
import time
from functools import partial

import providers
from harness import gpu_readme, gpu_tables, masks, readme, results, tables, warming
from harness import options as command_line
from harness.cells import Cell
from harness.driver import Asked, Effort, run_cell
from harness.workers import KeptWorkers, Worker

FAILED, NOT_USABLE = 1, 2
PLACES = ("--csv", "--commit")
PLACES_GIVEN = tuple(f"{name}=" for name in PLACES)


def main(arguments: list[str] | None = None) -> int:
    """Measure, or show what was measured; return the exit code."""
    options = command_line.parse(arguments, __doc__ or "")
    if options.table or options.plot or options.readme:
        return show(options)
    cells = command_line.cells(options)
    wrong = report_wrong(cells)
    if wrong is not None:
        print(f"attention.py: ERROR: {wrong}", file=sys.stderr)
        return NOT_USABLE
    if options.list:
        print(*cells, sep="\n")
        return 0
    missing = report_missing(cells)
    if missing:
        print(*missing, sep="\n", file=sys.stderr)
        return NOT_USABLE
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "tools/bench/attention.py", *measured(given)])
    origin = results.source(command, options.commit)
    effort = Effort(options.turns, options.seconds, options.pause)
    begin = time.monotonic()
    warming.report(cells, options.warm, options.budget)
    rows: list[results.Row] = []
    kept = KeptWorkers()
    try:
        for number, cell in enumerate(cells, 1):
            print(f"[{number}/{len(cells)}] {cell}", flush=True)
            found = run_cell(cell, partial(start_worker, kept), effort, origin)
            results.append(options.csv, found)
            print(*map(line, found), sep="\n", flush=True)
            rows += found
            spent = time.monotonic() - begin
            print(f"  {spent:.0f} s since the start", flush=True)
            if options.budget is not None and spent > options.budget and number < len(cells):
                print(f"the budget is spent: {len(cells) - number} cells are left out")
                break
    finally:
        kept.close()
    print(f"{len(rows)} rows appended to {options.csv}")
    return exit_code(rows)


def measured(arguments: list[str]) -> list[str]:
    """Return the arguments without those that say where rows go and of which commit they are."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument not in PLACES and not argument.startswith(PLACES_GIVEN):
            kept.append(argument)
        skip = argument in PLACES
    return kept


def show(options: argparse.Namespace) -> int:
    """Print the table, write README's or draw, from the CSV."""
    on_gpu = options.device == "gpu"
    try:
        rows = results.read(options.csv)
        if options.table:
            print((gpu_tables if on_gpu else tables).markdown(rows))
        if options.readme:
            changed = (gpu_readme if on_gpu else readme).write(readme.README, rows)
            print(f"{readme.README}: {'tables written' if changed else 'tables are up to date'}")
        if options.plot:
            if importlib.util.find_spec("matplotlib") is None:
                raise ValueError("--plot needs matplotlib: pip install matplotlib")
            from harness import drawings, gpu_drawing

            of_cpu = (drawings.draw_density, drawings.draw_memory)
            for draw in (gpu_drawing.draw_rates,) if on_gpu else of_cpu:
                print(*draw(options.plot, rows), sep="\n")
    except ValueError as error:
        print(f"attention.py: ERROR: {error}", file=sys.stderr)
        return NOT_USABLE
    return 0


def report_wrong(cells: list[Cell]) -> str | None:
    """Return why a mask cannot be built, or None if all can."""
    for cell in cells:
        try:
            masks.build(cell.mask, cell.seqlen)
        except (ValueError, TypeError, SyntaxError) as error:
            return f"--masks {cell.mask}, S={cell.seqlen}: {error}"
    return None


def start_worker(kept: KeptWorkers, name: str, cell: Cell) -> Asked:
    """Return a process of a provider: on the CPU one for the cell alone, for its peak of memory."""
    if cell.device == "gpu":
        return kept.borrow(name, device=cell.device)
    return Worker(name, device=cell.device, threads=cell.threads)


def report_missing(cells: list[Cell]) -> list[str]:
    """Return a line for each provider that is asked for but not installed."""
    wanted = dict.fromkeys(
        (name, cell.device) for cell in cells for name in cell.providers if can_run(name, cell)
    )
    lines = []
    for name, device in wanted:
        provider = providers.find(name, device)
        lacking = provider.missing()
        if lacking is not None:
            lines.append(
                f"attention.py: ERROR: {name} needs {lacking}: {provider.install}; "
                f"or leave it out: --exclude {name}"
            )
    return lines


def can_run(name: str, cell: Cell) -> bool:
    """Tell whether a provider can do any direction of a cell, if it is installed."""
    mask = masks.build(cell.mask, cell.seqlen)
    provider = providers.find(name, cell.device)
    return any(provider.impossible(cell, mask, way) is None for way in cell.directions)


def line(row: results.Row) -> str:
    """Return a row for the screen."""
    start = f"  {row.provider:<25}{row.direction:<10}{row.status:<6}"
    if row.status in (results.NOT_APPLICABLE, results.ERROR):
        hint = f" (--exclude {row.provider})" if row.status == results.ERROR else ""
        return f"{start}{row.reason}{hint}"
    spread = f"{row.wall_ms_p20}..{row.wall_ms_p80}"
    core = f"{row.gflops_per_core:>8.4g} GFLOP/s/core" if row.gflops_per_core != "" else ""
    memory = f"{row.peak_mib:>9} MiB" if row.peak_mib != "" else ""
    return (
        f"{start}{row.wall_ms:>10} ms ({spread}) x{row.runs}{core} {row.tflops_visible:>8} TFLOP/s"
        f"{memory}  mask {row.mask_ms} ms  {row.checked} {row.error:.2g} <= {row.allowed:.2g}"
    )


def exit_code(rows: list[results.Row]) -> int:
    """Return 1 if ours is wrong anywhere, or any provider failed; a wrong rival is only shown."""
    for row in rows:
        if row.status == results.ERROR:
            return FAILED
        if row.status == results.WRONG and row.provider.startswith(results.OURS):
            return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
