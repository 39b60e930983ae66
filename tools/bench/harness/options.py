"""The command line, and the cells that it asks for."""

from __future__ import annotations

import argparse
import math
from itertools import product
from pathlib import Path

from providers import ON_DEVICE, OPTIONAL

from harness import suite
from harness.cells import DIRECTIONS, Cell
from harness.driver import SECONDS, Effort
from harness.exact import ROUNDINGS
from harness.masks import PRESETS
from harness.warming import GPU_PROCESSES

RESULTS = Path(__file__).resolve().parents[1] / "results"
SHAPE = ("seqlens", "batch", "heads", "heads_k", "head_dim", "dtype", "masks", "threads")


def parse(arguments: list[str] | None, description: str) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=sorted(ON_DEVICE), default="cpu")
    add("--providers", nargs="+", metavar="NAME", help="default: all of the device")
    add("--exclude", nargs="+", metavar="NAME", default=[], help="providers to leave out")
    add("--pass", dest="direction", choices=(*DIRECTIONS, "both"), default="both")
    add(
        "--group",
        nargs="+",
        choices=tuple(suite.GPU_GROUPS),
        default=[],
        help="of the default cells of a GPU; default: all but sm80, matrix and small",
    )
    shape = parser.add_argument_group("shape: any of these replaces the default cells")
    add = shape.add_argument
    add(
        "--masks",
        nargs="+",
        metavar="MASK",
        help=f"name[:argument=value;...]: {', '.join(PRESETS)}, or another recipe",
    )
    add("--seqlens", nargs="+", type=_positive)
    add("--batch", type=_positive)
    add("--heads", type=_positive)
    add("--heads-k", type=_positive, help="default: as many as --heads")
    add("--head-dim", nargs="+", type=_positive)
    add("--dtype", nargs="+", choices=sorted(ROUNDINGS))
    add("--threads", nargs="+", type=_positive, help="of the CPU, the same for all providers")
    _add_effort(parser)
    _add_output(parser)
    options = parser.parse_args(arguments)
    options.csv = options.csv or RESULTS / f"{options.device}.csv"
    if options.seconds is None:
        options.seconds = SECONDS[options.device]
    if options.warm is None:
        options.warm = GPU_PROCESSES if options.device == "gpu" else 0
    _refuse_wrong(parser, options)
    return options


def cells(options: argparse.Namespace) -> list[Cell]:
    """Return the cells that are asked for, without excluded providers."""
    if _has_shape(options):
        found = _product(options)
    else:
        found = suite.cpu_cells() if options.device == "cpu" else suite.gpu_cells(options.group)
    directions = DIRECTIONS if options.direction == "both" else (options.direction,)
    chosen = []
    for cell in found:
        names = options.providers or cell.providers
        if options.providers and len(cell.providers) == 1:
            names = [name for name in cell.providers if name in options.providers]
        names = tuple(name for name in names if name not in options.exclude)
        if names:
            fields = {**vars(cell), "providers": names, "directions": directions}
            chosen.append(Cell(**fields))
    return chosen


def default_heads(device: str) -> int:
    """Return the heads of the default cells."""
    return 8 if device == "cpu" else 32


def _add_effort(parser: argparse.ArgumentParser) -> None:
    effort = parser.add_argument_group("effort")
    effort.add_argument("--turns", type=_positive, default=Effort.turns)
    effort.add_argument(
        "--seconds",
        type=float,
        help="of one provider, direction and cell, if turns allow; default: "
        + ", ".join(f"{count:g} on a {device}" for device, count in SECONDS.items()),
    )
    effort.add_argument(
        "--pause",
        type=float,
        default=Effort.pause,
        metavar="SECONDS",
        help="before each turn, so that every provider finds a card that has rested; default: 0",
    )
    effort.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="end after the cell that exceeds it; its rows are kept",
    )
    effort.add_argument(
        "--warm",
        type=int,
        metavar="N",
        help="compile for all cells first, N processes at once; 0: not; "
        f"default: {GPU_PROCESSES} on a gpu, as far as its memory goes, else 0",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument(
        "--csv", type=Path, help="appended; default: tools/bench/results/<device>.csv"
    )
    output.add_argument(
        "--commit", help="of this tree, if it is a copy without its history; default: what git says"
    )
    output.add_argument(
        "--table", action="store_true", help="print markdown from the CSV, measure nothing"
    )
    output.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="draw from the CSV, measure nothing"
    )
    output.add_argument(
        "--readme", action="store_true", help="write README's tables from the CSV, measure nothing"
    )
    output.add_argument("--list", action="store_true", help="print the cells, measure nothing")


def _refuse_wrong(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with an error if options do not go together."""
    if options.group and (options.device != "gpu" or _has_shape(options)):
        parser.error("--group must come with --device gpu and without a shape")
    if not 0 <= options.pause < math.inf:
        parser.error(f"--pause must be at least 0 and finite; got {options.pause:g}")
    known = ON_DEVICE[options.device] + OPTIONAL[options.device]
    for name in [*(options.providers or ()), *options.exclude]:
        if name not in known:
            parser.error(f"provider must be one of {', '.join(known)}; got {name}")
    if options.heads_k and (options.heads or default_heads(options.device)) % options.heads_k:
        parser.error(f"--heads must be a multiple of --heads-k; got {options.heads_k}")


def _has_shape(options: argparse.Namespace) -> bool:
    return any(getattr(options, name) is not None for name in SHAPE)


def _product(options: argparse.Namespace) -> list[Cell]:
    on_cpu = options.device == "cpu"
    heads = options.heads or default_heads(options.device)
    threads = (options.threads or [1, 2]) if on_cpu else [0]
    return [
        Cell(
            mask=mask,
            seqlen=seqlen,
            batch=options.batch or (1 if on_cpu else suite.gpu_batch(seqlen)),
            num_heads=heads,
            num_heads_k=options.heads_k or heads,
            head_dim=head_dim,
            dtype=dtype,
            device=options.device,
            threads=count,
            providers=ON_DEVICE[options.device],
        )
        for seqlen, head_dim, dtype, count, mask in product(
            options.seqlens or ([suite.MIDDLE] if on_cpu else [32768]),
            options.head_dim or [64 if on_cpu else 128],
            options.dtype or ["float32" if on_cpu else "bfloat16"],
            threads,
            options.masks or (suite.README_MASKS if on_cpu else tuple(PRESETS)),
        )
    ]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {text}")
    return number
