"""README's table of speed and line of memory, written from the rows of the CSV.

They are found in README by how they begin, so nothing marks where they begin or end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from harness.cells import BACKWARD, FORWARD
from harness.results import OK, OURS
from harness.suite import DTYPES, LONG, MEMORY_MASK, README_MASKS, SEQLENS, THREADS
from harness.tables import Rows

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
    OURS: "ours",
    "paddle_dense": "Paddle with a dense mask",
    "torch_sdpa": "torch SDPA with one",
}
SPEED = "mask, S of "  # how the table begins
MEMORY = "Peak memory beyond the inputs"  # how the line begins
DRAWN = "[drawn](tools/bench/results/memory_by_length.svg)"
FIXED = {"threads": str(THREADS), "batch": "1", "num_heads": "8", "head_dim": "64"}
NOT_MEASURED = "-"
KIB = 1024


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

    def rate(self, dtype: str, seqlen: int, mask: str, direction: str) -> str:
        """Return our GFLOP/s per core."""
        row = self.get(dtype, seqlen, mask, OURS, direction)
        return f"{float(row['gflops_per_core']):.3g}"

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


def texts(rows: Rows) -> dict[str, str]:
    """Return README's table and line by how they begin; a row that is missing is a ValueError."""
    figures = Figures(rows)
    return {f"| {SPEED}": _speed(figures), MEMORY: _memory(figures)}


def write(path: Path, rows: Rows) -> bool:
    """Put table and line into a file in place of the old; tell if it changed."""
    return put(path, texts(rows))


def put(path: Path, found: Mapping[str, str]) -> bool:
    """Put tables and lines into a file in place of those that begin alike; tell if it changed.

    Args:
        path: of the file.
        found: the texts, by how the first line of each begins.
    """
    old = path.read_text(encoding="utf-8")
    new = old
    for start, text in found.items():
        new = _replace(new, text, path, start)
    path.write_text(new, encoding="utf-8")
    return new != old


def _replace(whole: str, text: str, path: Path, start: str) -> str:
    lines = whole.split("\n")
    firsts = [number for number, line in enumerate(lines) if line.startswith(start)]
    if len(firsts) != 1:
        raise ValueError(f"{path} must have one line that begins with {start}")
    first = firsts[0]
    last = first + 1
    while start.startswith("|") and last < len(lines) and lines[last].startswith("|"):
        last += 1
    return "\n".join([*lines[:first], text, *lines[last:]])


def _speed(figures: Figures) -> str:
    kinds = list(product(DTYPES, BOTH))
    titles = [f"{SPEED}{lengths(SEQLENS)}", *map(", ".join, kinds)]
    titles += [title for title, _ in RIVALS.values()]
    body = []
    for mask in README_MASKS:
        cells = [[figures.rate(dtype, at, mask, way) for at in SEQLENS] for dtype, way in kinds]
        for rival, (_, ways) in RIVALS.items():
            cells.append([figures.ratio(at, mask, rival, ways) for at in SEQLENS])
        body.append([MASK_WORDS[mask], *map(" / ".join, cells)])
    return markdown([titles, *body])


def _memory(figures: Figures) -> str:
    seqlens = (*SEQLENS, *LONG)
    peaks = [
        f"{words} {' / '.join(figures.peak(at, provider) for at in seqlens)}"
        for provider, words in MEMORY_WORDS.items()
    ]
    what = f"float32, {MASK_WORDS[MEMORY_MASK]}, S of {lengths(seqlens)} ({DRAWN})"
    return f"{MEMORY}, {what}, MiB: {'; '.join(peaks)}."


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table; the first line holds its titles."""
    rule = ["---"] * len(lines[0])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))


def lengths(seqlens: Sequence[int]) -> str:
    """Return "32K / 64K"."""
    return " / ".join(map(length, seqlens))


def length(seqlen: int) -> str:
    """Return "32K"; if it is no multiple of 1024, its digits."""
    return f"{seqlen}" if seqlen % KIB else f"{seqlen // KIB}K"
