"""Rows of packed samples of any kind: where things lie, batches, and the way back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from reprlib import repr as short
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices.form import is_int
from paddle_flashmask.packing.layout import (
    INT64,
    Layout,
    PackingStatistics,
    Placement,
    check_size,
)

__all__ = ["WEIGHTS", "Batch", "PackedRows", "check_numbers", "collected", "row_starts"]

WEIGHTS = ("token", "sample")

Batch: TypeAlias = dict[str, NDArray[Any]]
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class PackedRows(ABC, Generic[Item]):
    """Samples with their places; rows are built when asked for.

    Map style: `len(packed)` rows, `packed[row]` a batch of one. For Paddle's `DataLoader` pass
    `range(len(packed))` as the data set and `packed.build` as `collate_fn`.

    Attributes:
        samples: the samples as int64 arrays, all of them, in input order.
        numbers: how each sample is named; 0, 1, ... unless the caller gave others.
        layout: places of the samples, and how many were cut or left out.
        seq_len: positions in a row, S.
        pad_token_id: token id under padding.
        weights: "token" or "sample", what weighs the same in a loss.
    """

    samples: tuple[Item, ...]
    numbers: tuple[int, ...]
    layout: Layout
    seq_len: int
    pad_token_id: int
    weights: str
    _row_starts: tuple[int, ...]

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Return which sample lies where, sorted by row and offset."""
        return self.layout.placements

    @cached_property
    def statistics(self) -> PackingStatistics:
        """Return counts and fill of all rows."""
        return replace(
            self.count(range(len(self))),
            samples=len(self.samples),
            dropped=len(self.layout.dropped),
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.layout.rows

    def __getitem__(self, row: int) -> Batch:
        """Return a batch of one row; see `build`.

        Raises:
            TypeError: the row number is not an int.
            IndexError: the row number is not in [0, len(self)).
        """
        check_row("row", row)
        if not 0 <= row < len(self):
            raise IndexError(f"row must be in [0, {len(self)}); got {row}")
        return self.build([row])

    @abstractmethod
    def build(self, rows: Sequence[int]) -> Batch:
        """Return one batch of the given rows, in the given order."""

    @abstractmethod
    def count_sample(self, place: Placement) -> tuple[int, int]:
        """Return the trained tokens and the visible cells of a placed sample."""

    def batches(
        self,
        batch_size: int,
        *,
        row_order: Sequence[int] | None = None,
        seed: int | None = None,
        drop_last: bool = False,
    ) -> Iterator[Batch]:
        """Return an iterator over batches; see `build` for what a batch holds.

        Args:
            batch_size: rows in a batch, B.
            row_order: rows in the order wanted; all rows in order if None. (First-fit decreasing
                puts the longest samples in row 0, so training should shuffle.)
            seed: shuffle all rows; the same seed always gives the same order. Not with row_order.
            drop_last: leave out a last batch of fewer than batch_size rows.

        Raises:
            TypeError: batch_size, seed or a row number is not an int.
            ValueError: batch_size < 1, seed < 0, a row number is out of range, or both orders are
                given.
        """
        batch_size = check_size("batch_size", batch_size)
        if seed is not None and row_order is not None:
            raise ValueError("row_order and seed must not be given together; got both")
        order = list(range(len(self)) if row_order is None else collected("row_order", row_order))
        for row in () if row_order is None else order:
            self.row_placements(row)  # which raises
        if seed is not None:
            seed = check_size("seed", seed, least=0, most=INT64.max)
            order = np.random.default_rng(seed).permutation(len(self)).tolist()
        last = len(order) - len(order) % batch_size if drop_last else len(order)
        starts = range(0, last, batch_size)
        return (self.build(order[start : start + batch_size]) for start in starts)

    def row_placements(self, row: int) -> tuple[Placement, ...]:
        """Return the placements of one row, by offset.

        Raises:
            TypeError: the row number is not an int.
            ValueError: the row number is out of range.
        """
        check_row("rows", row)
        if not 0 <= row < len(self):
            raise ValueError(f"rows must be in [0, {len(self)}); got {row}")
        return self.placements[self._row_starts[row] : self._row_starts[row + 1]]

    def unpack(
        self, values: NDArray[Any], *, rows: Sequence[int] | None = None
    ) -> dict[int, NDArray[Any]]:
        """Return the part of `values` that belongs to each sample, by its place in the input.

        Args:
            values: [B, S, ...], anything laid out like a batch, e.g. logits.
            rows: the B row numbers the batch was built from; all rows in order if None.

        Returns:
            For each sample in these rows its [length, ...] slice (a view).

        Raises:
            ValueError: the shape does not fit rows and seq_len, or a row is out of range.
        """
        numbers = self.check_values(values, rows)
        return {
            place.sample: values[index, place.offset : place.offset + place.length]
            for index, row in enumerate(numbers)
            for place in self.row_placements(row)
        }

    def check_values(self, values: NDArray[Any], rows: Sequence[int] | None) -> Sequence[int]:
        """Return the rows that `values` [B, S, ...] belongs to; all of them if None.

        Raises:
            TypeError: the values are no array, or the rows no sequence.
            ValueError: the shape does not fit rows and seq_len.
        """
        if not hasattr(values, "shape"):
            raise TypeError(f"values must be an array; got {type(values).__name__}")
        numbers = range(len(self)) if rows is None else collected("rows", rows)
        if values.shape[:2] != (len(numbers), self.seq_len):
            raise ValueError(
                f"values must start with axes [{len(numbers)}, {self.seq_len}] (rows, seq_len); "
                f"got shape {list(values.shape)}"
            )
        return numbers

    def count(self, rows: Sequence[int]) -> PackingStatistics:
        """Return the statistics of some rows; nothing in them was dropped.

        Raises:
            TypeError: they are no sequence of ints.
            ValueError: a row number is out of range.
        """
        rows = collected("rows", rows)
        places = [place for row in rows for place in self.row_placements(row)]
        counts = [self.count_sample(place) for place in places]
        tokens, positions = sum(place.length for place in places), len(rows) * self.seq_len
        visible = sum(visible for _, visible in counts)
        return PackingStatistics(
            samples=len(places),
            tokens=tokens,
            trained_tokens=sum(trained for trained, _ in counts),
            rows=len(rows),
            truncated=sum(place.sample in self.layout.truncated for place in places),
            dropped=0,
            padding_fraction=1 - tokens / positions if positions else 0.0,
            density=visible / (positions * self.seq_len) if positions else 0.0,
        )


def row_starts(layout: Layout) -> tuple[int, ...]:
    """Return for each row where its placements start, and the end of all: [rows + 1] ints."""
    rows_of = [place.row for place in layout.placements]
    return tuple(np.searchsorted(rows_of, np.arange(layout.rows + 1)).tolist())


def collected(name: str, values: Iterable[Item]) -> tuple[Item, ...]:
    """Return what an argument iterates over; sequences of the old protocol do too.

    Raises:
        TypeError: it does not.
    """
    kind = type(values)
    is_iterable = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    if not is_iterable or getattr(values, "ndim", 1) == 0:
        raise TypeError(f"{name} must be a sequence; got {kind.__name__}")
    return tuple(values)


def check_row(name: str, row: object) -> None:
    """Raise if the number of a row is not an int.

    Raises:
        TypeError: it is something else.
    """
    if not is_int(row):
        raise TypeError(f"{name} must be ints of rows; got {type(row).__name__} {short(row)}")


def check_numbers(numbers: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Return how each of `count` samples is named; 0, 1, ... for None.

    Raises:
        TypeError: a number is not an int.
        ValueError: there are not as many numbers as samples.
    """
    if numbers is None:
        return tuple(range(count))
    given = collected("numbers", numbers)
    if len(given) != count:
        raise ValueError(f"numbers must name all {count} samples; got {len(given)} numbers")
    return tuple(
        check_size(f"numbers[{place}]", number, least=INT64.min, most=INT64.max)
        for place, number in enumerate(given)
    )
