"""Rows of figures: one per cell, provider and direction; appended to a CSV and read from it."""

from __future__ import annotations

import csv
import datetime
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from harness.cells import Cell, live_operations, visible_operations
from harness.check import Verdict
from harness.masks import BenchMask
from harness.meters import Timing

GIGA, TERA = 1e9, 1e12
MILLI, MIB = 1e3, 2**20
SPREAD = (20, 80)  # percentiles beside the median

# What tells a row from one of another cell.
KEY = ("device", "threads", "batch", "num_heads", "num_heads_k", "seqlen", "head_dim")
KEY += ("dtype", "mask", "provider", "direction")

OURS = "ours"
OK, WRONG, NOT_APPLICABLE, ERROR = "ok", "wrong", "n/a", "error"


@dataclass(frozen=True)
class Row:
    """A line of the CSV; "" where nothing was measured. Times in ms, memory in MiB.

    wall is the GPU's clock on a GPU. peak_mib is what the provider took for mask, forward and
    backward beyond the inputs. gflops_per_core is by CPU time over all threads.
    """

    date: str
    commit: str
    device: str
    threads: int
    versions: str
    batch: int
    num_heads: int
    num_heads_k: int
    seqlen: int
    head_dim: int
    dtype: str
    mask: str
    density: float
    live_density: float
    provider: str
    direction: str
    status: str
    reason: str = ""
    runs: int | str = ""
    wall_ms: float | str = ""
    wall_ms_p20: float | str = ""
    wall_ms_p80: float | str = ""
    cpu_ms: float | str = ""
    cpu_ms_p20: float | str = ""
    cpu_ms_p80: float | str = ""
    tflops_visible: float | str = ""
    tflops_live: float | str = ""
    gflops_per_core: float | str = ""
    peak_mib: float | str = ""
    mask_ms: float | str = ""
    checked: str = ""
    error: float | str = ""
    allowed: float | str = ""
    command: str = ""


@dataclass(frozen=True)
class Source:
    """Where a run comes from, the same for all rows."""

    date: str
    commit: str
    device: str
    command: str


def source(command: str, commit: str | None = None) -> Source:
    """Describe this run: time, commit (with + if the tree was changed), processor.

    Args:
        command: the command line.
        commit: where the tree is a copy without its history; None: what git says.
    """
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    now = datetime.datetime.now(datetime.timezone.utc)
    commit = commit or (git("rev-parse", "--short", "HEAD") or "unknown") + changed
    return Source(now.isoformat(timespec="seconds"), commit, _processor(), command)


def row(
    origin: Source, cell: Cell, mask: BenchMask, provider: str, direction: str, **rest: Any
) -> Row:
    """Return a row with the columns that the cell gives."""
    shape = {
        name: getattr(cell, name)
        for name in ("batch", "num_heads", "num_heads_k", "seqlen", "head_dim", "dtype", "mask")
    }
    rest = {"device": origin.device, "versions": "", **rest}
    return Row(
        date=origin.date,
        commit=origin.commit,
        command=origin.command,
        threads=cell.threads,
        density=_short(mask.density),
        live_density=_short(mask.live / mask.seqlen**2),
        provider=provider,
        direction=direction,
        **shape,
        **rest,
    )


def figures(
    cell: Cell, mask: BenchMask, direction: str, timings: Sequence[Timing]
) -> dict[str, Any]:
    """Return the columns that timings give."""
    columns: dict[str, Any] = {"runs": len(timings)}
    for name in Timing._fields:
        seconds = np.array([getattr(timing, name) for timing in timings])
        if np.isnan(seconds).any():
            continue
        low, high = np.percentile(seconds, SPREAD)
        columns[f"{name}_ms"] = _short(MILLI * float(np.median(seconds)))
        columns[f"{name}_ms_p20"] = _short(MILLI * float(low))
        columns[f"{name}_ms_p80"] = _short(MILLI * float(high))
    visible = visible_operations(cell, mask, direction)
    rate = MILLI / columns["wall_ms"] / TERA
    columns["tflops_visible"] = _short(visible * rate)
    columns["tflops_live"] = _short(live_operations(cell, mask, direction) * rate)
    if "cpu_ms" in columns:
        columns["gflops_per_core"] = _short(visible * MILLI / columns["cpu_ms"] / GIGA)
    return columns


def verdict_columns(verdict: Verdict) -> dict[str, Any]:
    """Return the columns that a check gives."""
    return {
        "status": OK if verdict.is_right else WRONG,
        "checked": verdict.array,
        "error": _short(verdict.error),
        "allowed": _short(verdict.allowed),
    }


def append(path: Path, rows: Iterable[Any], kind: type = Row) -> None:
    """Append rows of a kind; a file with other columns is refused with ValueError."""
    names = [field.name for field in fields(kind)]
    is_new = not path.exists()
    if not is_new:
        with path.open(newline="", encoding="utf-8") as file:
            found = next(csv.reader(file), [])
        if found != names:
            raise ValueError(f"{path} has other columns; move it away. Expected: {names}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(one) for one in rows)


def read(path: Path, kind: type = Row, key: Sequence[str] = KEY) -> list[dict[str, str]]:
    """Return the rows of a CSV as text; of rows measured again only the last.

    But a rival's row is of the run that measured ours last, if that has one: only there did they
    take turns.

    Args:
        path: of the CSV.
        kind: of its rows.
        key: columns that are equal in rows of which only the last counts.

    Raises:
        ValueError: there is no such file, or it is not of this benchmark.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; measure first, or name another with --csv")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if list(reader.fieldnames or ()) != [field.name for field in fields(kind)]:
            raise ValueError(f"{path} has other columns than this benchmark writes")
        rows = list(reader)
    latest = {tuple(one[name] for name in key): one for one in rows}
    of_cell = [name for name in key if name != "provider"]
    last_run = {
        tuple(one[name] for name in of_cell): one["date"]
        for one in latest.values()
        if one["provider"] == OURS
    }
    for one in rows:
        if one["date"] == last_run.get(tuple(one[name] for name in of_cell)):
            latest[tuple(one[name] for name in key)] = one
    return list(latest.values())


def _short(number: float) -> float:
    return float(f"{number:.5g}")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
