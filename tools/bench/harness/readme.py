"""README's tables of speed and memory, written from the rows of the CSV.

A table is found in README by its header line, so nothing marks where it begins or ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.cells import BACKWARD, FORWARD
from harness.results import OK
from harness.suite import LONG, MEMORY_MASK, README_MASKS, SEQLENS, THREADS
from harness.tables import OURS, Rows

README = Path(__file__).resolve().parents[3] / "README.md"
BOTH = (FORWARD, BACKWARD)
MASK_WORDS = dict(zip(README_MASKS, ("causal", "8 causal documents", "8 documents"), strict=True))
# Rivals in float32: what the column is called, and which directions are compared.
RIVALS = {
    "paddle_dense": ("Paddle, dense mask", BOTH),
    "torch_sdpa": ("torch SDPA, dense mask", BOTH),
    "torch_flex": ("torch FlexAttention", (FORWARD,)),
}
MEMORY_WORDS = {
    OURS: "ours, MiB",
    "paddle_dense": "Paddle, dense mask, MiB",
    "torch_sdpa": "torch SDPA, dense mask, MiB",
}
FIXED = {"threads": str(THREADS), "batch": "1", "num_heads": "8", "head_dim": "64"}
NOT_MEASURED = "-"


class Figures:
    """The rows of README's shape, by what varies."""

    def __init__(self, rows: Rows) -> None:
        names = ("dtype", "seqlen", "mask", "provider", "direction")
        self.rows = {
            tuple(row[name] for name in names): row
            for row in rows
            if row["status"] == OK and all(row[name] == text for name, text in FIXED.items())
        }

    def get(
        self, dtype: str, seqlen: int, mask: str, provider: str, direction: str
    ) -> dict[str, str]:
        """Return a row; a missing one is a ValueError."""
        found = self.rows.get((dtype, str(seqlen), mask, provider, direction))
        if found is None:
            what = f"{provider}, {direction}, {mask}, S={seqlen}, {dtype}"
            raise ValueError(f"README needs a row that the CSV lacks: {what}; measure it first")
        return found

    def rates(self, dtype: str, seqlen: int, mask: str) -> str:
        """Return our GFLOP/s per core, forward / backward."""
        found = [self.get(dtype, seqlen, mask, OURS, way) for way in BOTH]
        return " / ".join(f"{float(row['gflops_per_core']):.3g}" for row in found)

    def ratio(self, seqlen: int, mask: str, rival: str, directions: Sequence[str]) -> str:
        """Return how many times longer a rival takes in float32."""
        times = [
            sum(
                float(self.get("float32", seqlen, mask, provider, way)["cpu_ms"])
                for way in directions
            )
            for provider in (rival, OURS)
        ]
        return f"{times[0] / times[1]:.1f}x"

    def peak(self, seqlen: int, provider: str) -> str:
        """Return the peak memory of forward and backward, or a dash."""
        key = ("float32", str(seqlen), MEMORY_MASK, provider, BACKWARD)
        return f"{float(self.rows[key]['peak_mib']):.0f}" if key in self.rows else NOT_MEASURED


def tables(rows: Rows) -> list[str]:
    """Return README's tables; a row that is missing is a ValueError."""
    return [_speed(Figures(rows)), _memory(Figures(rows))]


def write(path: Path, rows: Rows) -> bool:
    """Put the tables into a file in place of those with the same header; tell if it changed."""
    return put(path, tables(rows))


def put(path: Path, found: Sequence[str], start: str | None = None) -> bool:
    """Put tables into a file in place of those with the same header; tell if it changed.

    Args:
        path: of the file.
        found: the tables.
        start: how the header begins, if it may have changed; None: it is the same.
    """
    old = path.read_text(encoding="utf-8")
    new = old
    for table in found:
        new = _replace(new, table, path, start or table.partition("\n")[0])
    path.write_text(new, encoding="utf-8")
    return new != old


def _replace(text: str, table: str, path: Path, start: str) -> str:
    lines = text.split("\n")
    headers = [number for number, line in enumerate(lines) if line.startswith(start)]
    if len(headers) != 1:
        raise ValueError(f"{path} must have one table with the header {start}")
    first = last = headers[0]
    while last < len(lines) and lines[last].startswith("|"):
        last += 1
    return "\n".join([*lines[:first], table, *lines[last:]])


def _speed(figures: Figures) -> str:
    titles = ["S", "mask", "float32", "bfloat16", *(title for title, _ in RIVALS.values())]
    body = [
        [
            str(seqlen),
            MASK_WORDS[mask],
            *(figures.rates(dtype, seqlen, mask) for dtype in ("float32", "bfloat16")),
            *(figures.ratio(seqlen, mask, rival, ways) for rival, (_, ways) in RIVALS.items()),
        ]
        for seqlen in SEQLENS
        for mask in README_MASKS
    ]
    return markdown([titles, *body])


def _memory(figures: Figures) -> str:
    lengths = (*SEQLENS, *LONG)
    body = [
        [words, *(figures.peak(seqlen, provider) for seqlen in lengths)]
        for provider, words in MEMORY_WORDS.items()
    ]
    return markdown([["S", *map(str, lengths)], *body])


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table; the first line holds its titles."""
    rule = ["---"] * len(lines[0])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))
