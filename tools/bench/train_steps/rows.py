"""Rows of the CSV: one per attention, layout and length."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import results
from harness.results import MILLI, Source

from train_steps import layouts
from train_steps.cells import TrainCell
from train_steps.layouts import DOCUMENT_COUNTS, LAYOUTS
from train_steps.sizes import StackSizes

OK, WRONG, DOES_NOT_FIT, ERROR = "ok", "wrong", "does not fit", "error"
GIB = 2**30
KEY = ("device", "threads", "layout", "seqlen", "provider", "hidden", "blocks", "heads_k")


@dataclass(frozen=True)
class Row:
    """A line of the CSV; "" where nothing was measured. A step is one row of `seqlen` tokens.

    tokens_per_s counts tokens of the timed steps over their seconds; least and most are of single
    steps, whose documents differ. cpu_ms is the mean CPU time of a step over all threads. peak_gib
    is the peak of all that the process held, weights and optimizer included: what the framework
    allocated on a GPU, resident memory on the CPU.
    """

    date: str
    commit: str
    device: str
    threads: int
    versions: str
    layout: str
    seqlen: int
    documents: str
    density: float
    hidden: int
    blocks: int
    heads: int
    heads_k: int
    head_dim: int
    ffn: int
    vocab: int
    trained: str
    optimizer: str
    recompute: str
    dtype: str
    provider: str
    status: str
    reason: str = ""
    kernel: str = ""
    warm_ups: int | str = ""
    steps: int | str = ""
    step_ms: float | str = ""
    cpu_ms: float | str = ""
    tokens_per_s: float | str = ""
    tokens_per_s_least: float | str = ""
    tokens_per_s_most: float | str = ""
    peak_gib: float | str = ""
    loss: float | str = ""
    checked_seqlen: int | str = ""
    checked: str = ""
    error: float | str = ""
    allowed: float | str = ""
    loss_error: float | str = ""
    loss_allowed: float | str = ""
    command: str = ""


SETTINGS = {
    "gpu": {"dtype": "bfloat16", "recompute": "every block", "optimizer": "AdamW, bfloat16, fused"},
    "cpu": {"dtype": "float32", "recompute": "none", "optimizer": "AdamW, float32"},
}
CHECK_COLUMNS = ("checked_seqlen", "checked", "error", "allowed", "loss_error", "loss_allowed")


def make(
    origin: Source,
    cell: TrainCell,
    *,
    sizes: StackSizes,
    device: str,
    threads: int,
    check: dict[str, Any],
    answer: dict[str, Any],
) -> Row:
    """Return a row from the answers of a session to `check` and `measure`."""
    layout = LAYOUTS[cell.layout]
    rows = [layouts.batch(layout, cell.seqlen, count, sizes.vocab) for count in DOCUMENT_COUNTS]
    adapters = f"adapters of rank {layout.adapters} on query, key, value, output"
    columns: dict[str, Any] = {
        name: _short(value) for name, value in check.items() if name in CHECK_COLUMNS
    }
    columns |= {name: answer.get(name, "") for name in ("kernel", "warm_ups", "reason")}
    status = answer["status"]
    if status == OK:
        columns |= _figures(cell, answer)
        if not check.get("is_right", False):
            status = WRONG
    return Row(
        date=origin.date,
        commit=origin.commit,
        device=answer.get("device_name") or origin.device,
        threads=threads,
        versions=answer.get("versions", ""),
        layout=cell.layout,
        seqlen=cell.seqlen,
        documents=" ".join(str(_count(one)) for one in rows),
        density=_short(sum(map(layouts.density, rows)) / len(rows)),
        **asdict(sizes),
        trained=adapters if layout.adapters else "all weights",
        **SETTINGS[device],
        provider=cell.provider,
        status=status,
        command=origin.command,
        **columns,
    )


def append(path: Path, rows: list[Row]) -> None:
    """Append rows; a file with other columns is refused with ValueError."""
    results.append(path, rows, Row)


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV as text; of rows measured again only the last."""
    return results.read(path, Row, KEY)


def _figures(cell: TrainCell, answer: dict[str, Any]) -> dict[str, Any]:
    seconds = answer["seconds"]
    columns = {
        "steps": len(seconds),
        "step_ms": _short(MILLI * sum(seconds) / len(seconds)),
        "tokens_per_s": _short(cell.seqlen * len(seconds) / sum(seconds)),
        "tokens_per_s_least": _short(cell.seqlen / max(seconds)),
        "tokens_per_s_most": _short(cell.seqlen / min(seconds)),
        "loss": _short(answer["loss"]),
    }
    if answer.get("cpu_seconds"):
        columns["cpu_ms"] = _short(MILLI * sum(answer["cpu_seconds"]) / len(seconds))
    if answer.get("peak_bytes") is not None:
        columns["peak_gib"] = _short(answer["peak_bytes"] / GIB)
    return columns


def _count(rows: layouts.Batch) -> int:
    """Return the documents of a row: those whose position is 0, padding aside."""
    return int((rows["position_ids"] == 0).sum())


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
