"""Where each sample lands: the part of packing that does not depend on the kind of data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.packing.bins import first_fit_decreasing

__all__ = ["OVERLONG_RULES", "Layout", "PackingStatistics", "Placement", "check_size", "plan_rows"]

OVERLONG_RULES = ("raise", "truncate", "drop")


class Placement(NamedTuple):
    """The place of one sample: row `row`, positions [offset, offset + length).

    Attributes:
        sample: number of the sample in the input, from 0.
        row: number of the row, from 0.
        offset: first position in the row.
        length: number of tokens kept, less than the sample's own only if it was truncated.
    """

    sample: int
    row: int
    offset: int
    length: int


@dataclass(frozen=True)
class PackingStatistics:
    """What came in, what was kept, and how full the rows are.

    Attributes:
        samples: samples received, those dropped included.
        tokens: tokens in the rows, without padding.
        trained_tokens: positions with a label.
        rows: rows made.
        truncated: samples cut to seq_len.
        dropped: samples left out because they are longer than seq_len.
        padding_fraction: padded positions over all positions, in [0, 1); 0 without rows.
        density: visible cells over all cells of the rows' masks, in (0, 1]; 0 without rows.
    """

    samples: int
    tokens: int
    trained_tokens: int
    rows: int
    truncated: int
    dropped: int
    padding_fraction: float
    density: float


class Layout(NamedTuple):
    """The places of all samples that were kept.

    Attributes:
        placements: sorted by row, then offset.
        rows: number of rows.
        truncated: samples cut to the row length.
        dropped: samples left out.
    """

    placements: tuple[Placement, ...]
    rows: int
    truncated: int
    dropped: int


def check_size(name: str, value: int, *, least: int = 1) -> None:
    """Check that an argument is an int of at least `least`.

    Raises:
        TypeError: it is not an int (a bool is none).
        ValueError: it is less.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int; got {type(value).__name__} {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}")


def plan_rows(lengths: Sequence[int], *, seq_len: int, overlong: str) -> Layout:
    """Return the place of each sample in rows of seq_len positions, first-fit decreasing.

    Args:
        lengths: tokens of each sample, at least 1.
        seq_len: positions in a row.
        overlong: what becomes of a longer sample: "raise", "truncate" (its first seq_len tokens
            stay) or "drop".

    Returns:
        A `Layout`. Within a row the samples keep their input order.

    Raises:
        TypeError: seq_len is not an int.
        ValueError: seq_len < 1, overlong is no such rule, or a sample is too long for "raise".
    """
    check_size("seq_len", seq_len)
    if overlong not in OVERLONG_RULES:
        raise ValueError(f"overlong must be one of {', '.join(OVERLONG_RULES)}; got {overlong!r}")
    sizes = np.asarray(lengths, np.int64)
    too_long = np.flatnonzero(sizes > seq_len)
    if overlong == "raise" and too_long.size:
        number = int(too_long[0])
        raise ValueError(
            f"samples must have at most seq_len={seq_len} tokens with overlong='raise'; "
            f"sample {number} has {sizes[number]}"
        )
    kept = np.flatnonzero(sizes <= seq_len) if overlong == "drop" else np.arange(len(sizes))
    kept_sizes = np.minimum(sizes[kept], seq_len)
    placements = _place(kept, kept_sizes, first_fit_decreasing(kept_sizes, seq_len))
    return Layout(
        placements=placements,
        rows=placements[-1].row + 1 if placements else 0,
        truncated=int(too_long.size) if overlong == "truncate" else 0,
        dropped=int(too_long.size) if overlong == "drop" else 0,
    )


def _place(
    samples: NDArray[np.int64], sizes: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[Placement, ...]:
    order = np.lexsort((samples, rows))
    placements: list[Placement] = []
    row_before, offset = -1, 0
    for sample, size, row in zip(
        samples[order].tolist(), sizes[order].tolist(), rows[order].tolist(), strict=True
    ):
        if row != row_before:
            row_before, offset = row, 0
        placements.append(Placement(sample, row, offset, size))
        offset += size
    return tuple(placements)
