"""What checked mode reports: findings, each with a kind, all positions and a plain sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices.form import BoolArray, Int32Array, Int64Array

Severity: TypeAlias = Literal["error", "warning", "note"]
COLUMN_AXES = ("sample", "head", "column")
ROW_AXES = ("sample", "head", "row")
NUMBER_AXES = ("sample", "head", "column", "number")
SHOWN_POSITIONS = 4  # positions that a sentence lists before it says how many more there are


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, doubtful or worth knowing about a mask.

    Attributes:
        kind: a word to filter by; see `inspect` for the list.
        severity: "error" (certainly not meant), "warning" (probably not), "note" (a fact).
        sentence: what was found and where, in plain words.
        axes: what the columns of positions are: sample, head, column or row, number.
        positions: [N, len(axes)], int64, every place; [0, 0] if it is about the whole.
    """

    kind: str
    severity: Severity
    sentence: str
    axes: tuple[str, ...] = ()
    positions: Int64Array = field(
        default_factory=lambda: np.zeros((0, 0), np.int64), compare=False, repr=False
    )


@dataclass(frozen=True)
class Report:
    """The findings of `inspect`, most severe first.

    Attributes:
        findings: in the order error, warning, note.
    """

    findings: tuple[Finding, ...]

    def of_kind(self, kind: str) -> tuple[Finding, ...]:
        """Return the findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    @property
    def is_sound(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return all(finding.severity == "note" for finding in self.findings)

    def __str__(self) -> str:
        """Return one line per finding."""
        lines = [f"{one.severity} ({one.kind}): {one.sentence}" for one in self.findings]
        return "\n".join(lines) or "nothing found"


@dataclass(frozen=True, eq=False)
class Inspected:
    """A mask of the right form, as the rules look at it.

    Attributes:
        numbers: [B, Hm, Sk, C], int64, as they came.
        clipped: [B, Hm, Sk, C], int32, clipped to [0, Sq]: as kernels read them.
        causal: the flag they are read with.
        seqlen_q: number of query rows, Sq.
        diagonal: [Sk], int64, the row j - (Sk - Sq) of column j, not clipped.
        num_tokens: [B], int64, real keys of each sample, or None.
        window: tokens that a row should see, itself included, or None.
    """

    numbers: Int64Array
    clipped: Int32Array
    causal: bool
    seqlen_q: int
    diagonal: Int64Array
    num_tokens: Int64Array | None
    window: int | None

    @property
    def width(self) -> int:
        """Numbers per column, C."""
        return int(self.numbers.shape[3])


def places(where: BoolArray, axes: tuple[str, ...], values: NDArray[np.integer]) -> str:
    """Return the first places of a bool array as text, each with its value.

    Args:
        where: bool, one axis per name in axes.
        axes: names of the axes.
        values: what stood there, of the shape of where.
    """
    found = np.argwhere(where)
    shown = [
        " ".join(f"{axis} {place}" for axis, place in zip(axes, position, strict=True))
        + f" ({values[tuple(position)]})"
        for position in found[:SHOWN_POSITIONS]
    ]
    more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    return ", ".join(shown) + more


def list_places(where: BoolArray, axes: tuple[str, ...]) -> str:
    """Return the first places of a bool array as text, runs of neighbours as "8 to 11".

    Args:
        where: bool, one axis per name in axes; the last is the one that runs go along.
        axes: names of the axes.
    """
    edges = np.zeros((*where.shape[:-1], where.shape[-1] + 2), bool)
    edges[..., 1:-1] = where
    starts = np.argwhere(edges[..., 1:] & ~edges[..., :-1])
    ends = np.argwhere(edges[..., :-1] & ~edges[..., 1:])[:, -1]
    shown = []
    for position, end in list(zip(starts, ends, strict=True))[:SHOWN_POSITIONS]:
        leading = " ".join(
            f"{axis} {place}" for axis, place in zip(axes[:-1], position[:-1], strict=True)
        )
        first, last = position[-1], end - 1
        run = f"{axes[-1]} {first}" if first == last else f"{axes[-1]}s {first} to {last}"
        shown.append(f"{leading} {run}")
    more = f" and {len(starts) - len(shown)} more places" if len(starts) > len(shown) else ""
    return ", ".join(shown) + more


def plural(count: int, one: str) -> str:
    """Return a count with its noun: "1 row", "2 rows"."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
