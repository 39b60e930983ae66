"""Where each sample lands: the part of packing that does not depend on the kind of data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from reprlib import repr as short
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices.form import INT32_MAX, is_int
from paddle_flashmask.packing.bins import STRATEGIES

__all__ = [
    "OVERLONG_RULES",
    "Layout",
    "PackingStatistics",
    "Placement",
    "check_choice",
    "check_size",
    "plan_rows",
]

INT64 = np.iinfo(np.int64)  # of token ids and of numbers of samples
OVERLONG_RULES = ("raise", "truncate", "drop")


class Placement(NamedTuple):
    """The place of one sample: row `row`, positions [offset, offset + length).

    Attributes:
        sample: place of the sample in the input, from 0.
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
        truncated: samples cut to fit seq_len.
        dropped: samples left out because they do not fit seq_len.
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
        truncated: samples cut to the row length, by their place in the input.
        dropped: samples left out, by their place in the input.
    """

    placements: tuple[Placement, ...]
    rows: int
    truncated: frozenset[int]
    dropped: frozenset[int]


def check_size(name: str, value: int, *, least: int = 1, most: int = INT32_MAX) -> int:
    """Return an argument as a Python int, which does not overflow.

    Raises:
        TypeError: it is not an int (a bool is none).
        ValueError: it is less than `least` or more than `most`.
    """
    if not is_int(value):
        raise TypeError(f"{name} must be an int; got {type(value).__name__} {short(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}; got {value}")
    return int(value)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Check that an argument is one of a few words.

    Raises:
        ValueError: it is none of them.
    """
    known = tuple(choices)
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}; got {short(value)}")


def plan_rows(
    lengths: Sequence[int],
    *,
    seq_len: int,
    overlong: str,
    strategy: str = "first_fit_decreasing",
    numbers: Sequence[int] | None = None,
    multiple: int = 1,
) -> Layout:
    """Return the place of each sample in rows of seq_len positions.

    Args:
        lengths: tokens of each sample, at least 1.
        seq_len: positions in a row.
        overlong: what becomes of a longer sample: "raise", "truncate" (its first seq_len tokens
            stay) or "drop".
        strategy: which row each sample goes to, a key of `bins.STRATEGIES`.
        numbers: how messages name the samples; from 0 if None.
        multiple: every sample starts at a multiple of this many positions; divides seq_len.

    Returns:
        A `Layout`. Within a row the samples keep their input order.

    Raises:
        TypeError: a size is not an int.
        ValueError: a size is out of range, overlong or strategy is no such rule, multiple does
            not divide seq_len, or a sample is too long for "raise".
    """
    seq_len = check_size("seq_len", seq_len)
    multiple = check_size("multiple", multiple)
    check_choice("overlong", overlong, OVERLONG_RULES)
    check_choice("strategy", strategy, STRATEGIES)
    if seq_len % multiple:
        raise ValueError(f"multiple must divide seq_len={seq_len}; got {multiple}")
    sizes = np.asarray(lengths, np.int64)
    too_long = np.flatnonzero(sizes > seq_len)
    if overlong == "raise" and too_long.size:
        number = int(too_long[0])
        raise ValueError(
            f"samples must have at most seq_len={seq_len} tokens with overlong='raise'; "
            f"sample {number if numbers is None else numbers[number]} has {sizes[number]}"
        )
    kept = np.flatnonzero(sizes <= seq_len) if overlong == "drop" else np.arange(len(sizes))
    kept_sizes = np.minimum(sizes[kept], seq_len)
    rooms = -(-kept_sizes // multiple) * multiple
    placements = _place(kept, kept_sizes, rooms, STRATEGIES[strategy](rooms, seq_len))
    return Layout(
        placements=placements,
        rows=placements[-1].row + 1 if placements else 0,
        truncated=frozenset(too_long.tolist() if overlong == "truncate" else ()),
        dropped=frozenset(too_long.tolist() if overlong == "drop" else ()),
    )


def _place(
    samples: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rooms: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> tuple[Placement, ...]:
    order = np.lexsort((samples, rows))
    placements: list[Placement] = []
    row_before, offset = -1, 0
    for sample, size, room, row in zip(
        *(column[order].tolist() for column in (samples, sizes, rooms, rows)), strict=True
    ):
        if row != row_before:
            row_before, offset = row, 0
        placements.append(Placement(sample, row, offset, size))
        offset += room
    return tuple(placements)
