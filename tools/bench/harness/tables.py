"""Markdown from rows of the CSV: our times, and how many times longer each rival takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from harness.cells import BACKWARD, FORWARD, count_threads
from harness.results import NOT_APPLICABLE, OK, OURS

Rows = Sequence[dict[str, str]]
SHAPE = ("device", "threads", "batch", "num_heads", "num_heads_k", "head_dim", "dtype")


def clock_of(rows: Iterable[dict[str, str]]) -> str:
    """Return the column that times are compared by: CPU time where there is one."""
    return "cpu_ms" if any(row["cpu_ms"] for row in rows) else "wall_ms"


def markdown(rows: Rows) -> str:
    """Return a table for each device and shape; a line per length and mask."""
    tables = []
    ordered = sorted(rows, key=lambda row: [_number(row[name]) for name in SHAPE])
    for shape, members in groupby(ordered, key=lambda row: tuple(row[name] for name in SHAPE)):
        tables.append(_table(dict(zip(SHAPE, shape, strict=True)), list(members)))
    return "\n\n".join(tables)


def ratio(found: dict[tuple[str, str], dict[str, str]], rival: str, clock: str) -> str:
    """Return the rival's time over ours: forward / both directions; n/a, or what is wrong."""
    parts = []
    for directions in ((FORWARD,), (FORWARD, BACKWARD)):
        mine = [found.get((OURS, direction)) for direction in directions]
        theirs = [found.get((rival, direction)) for direction in directions]
        known = [row for row in mine + theirs if row is not None]
        bad = [row["status"] for row in known if row["status"] != OK]
        if len(known) < 2 * len(directions):
            parts.append("-")
        elif bad:
            parts.append(NOT_APPLICABLE if set(bad) == {NOT_APPLICABLE} else f"**{bad[0]}**")
        else:
            times = [sum(float(row[clock]) for row in side if row) for side in (theirs, mine)]
            parts.append(f"{times[0] / times[1]:.1f}x")
    return " / ".join(parts)


def _table(shape: dict[str, str], rows: Rows) -> str:
    clock = clock_of(rows)
    rivals = [name for name in dict.fromkeys(row["provider"] for row in rows) if name != OURS]
    rivals = [
        name
        for name in rivals
        if any(row["status"] != NOT_APPLICABLE for row in rows if row["provider"] == name)
    ]
    rate = "GFLOP/s per core" if clock == "cpu_ms" else "TFLOP/s"
    titles = ["S", "mask", "density", "ms", rate, *rivals]
    lines = [_caption(shape, clock), "", _line(titles), _line(["---"] * len(titles))]
    ordered = sorted(rows, key=lambda row: (int(row["seqlen"]), row["mask"]))
    for (seqlen, mask), members in groupby(ordered, key=lambda row: (row["seqlen"], row["mask"])):
        found = {(row["provider"], row["direction"]): row for row in members}
        some = next(iter(found.values()))
        column = "gflops_per_core" if clock == "cpu_ms" else "tflops_visible"
        cells = [seqlen, mask, f"{float(some['density']):.3f}"]
        cells += [_pair(found, clock), _pair(found, column)]
        lines.append(_line([*cells, *(ratio(found, rival, clock) for rival in rivals)]))
    return "\n".join(lines)


def _caption(shape: dict[str, str], clock: str) -> str:
    heads = shape["num_heads"]
    if shape["num_heads_k"] != heads:
        heads += f":{shape['num_heads_k']}"
    threads = f", {count_threads(int(shape['threads']))}" if clock == "cpu_ms" else ""
    time = "CPU time of all threads" if clock == "cpu_ms" else "GPU time"
    return (
        f"{shape['device']}{threads}, {shape['dtype']}, B={shape['batch']}, H={heads}, "
        f"D={shape['head_dim']}; {time} of ours, forward / backward; its rate on visible cells; "
        "then how many times longer others take, forward / forward and backward:"
    )


def _pair(found: dict[tuple[str, str], dict[str, str]], column: str) -> str:
    rows = [found.get((OURS, direction)) for direction in (FORWARD, BACKWARD)]
    parts = []
    for row in rows:
        if row is None or not row[column]:
            parts.append("-")
        else:
            parts.append(f"{float(row[column]):.3g}" if row["status"] == OK else "**wrong**")
    return " / ".join(parts)


def _number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (0, text)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
