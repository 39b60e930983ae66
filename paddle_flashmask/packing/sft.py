"""SFT packing: tokenised samples to batches of rows, with labels that never cross a sample.

A row holds whole samples one after another, then padding. All n tokens of a sample stay, the last
one with the label -100: trainers that drop it first (`input_ids[:-1]`, `labels[1:]`) train on the
same pairs and save one position per sample, but their rows no longer hold the user's tokens.

| tokens     | 10  11   12 | 20   21 |  0 |
| labels     | 11  12 -100 | 21 -100 |-100|  (prompt of the first sample: its token 10)
| positions  |  0   1    2 |  0    1 |  0 |
| indices    |  3   3    3 |  5    5 |  5 |  (padding column j holds j: nobody sees it)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.packing.layout import (
    Layout,
    PackingStatistics,
    Placement,
    check_size,
    plan_rows,
)
from paddle_flashmask.packing.samples import (
    IGNORE_INDEX,
    Int64Array,
    SftSample,
    TokenIds,
    checked_sample,
)

__all__ = ["PackedSft", "pack_sft"]

Batch: TypeAlias = dict[str, NDArray[np.integer]]


@dataclass(frozen=True, eq=False)
class PackedSft:
    """Samples with their places; rows are built when asked for.

    Attributes:
        samples: the samples as int64 arrays, all of them, in input order.
        placements: which sample lies where, sorted by row and offset.
        statistics: counts and fill.
        seq_len: positions in a row, S.
        pad_token_id: token id under padding.
    """

    samples: tuple[tuple[Int64Array, Int64Array], ...]
    placements: tuple[Placement, ...]
    statistics: PackingStatistics
    seq_len: int
    pad_token_id: int
    _row_starts: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.statistics.rows

    def build(self, rows: Sequence[int]) -> Batch:
        """Return one batch of the given rows, in the given order.

        Args:
            rows: B row numbers in [0, len(self)).

        Returns:
            `input_ids` [B, S], int64; `labels` [B, S], int64, shifted: position t holds the token
            t + 1 of the same sample or -100; `position_ids` [B, S], int64, from 0 in each sample
            and 0 under padding; `attn_mask_startend_row_indices` [B, 1, S, 1], int32, for
            causal=True.

        Raises:
            ValueError: a row number is out of range.
        """
        shape = (len(rows), self.seq_len)
        input_ids = np.full(shape, self.pad_token_id, np.int64)
        labels = np.full(shape, IGNORE_INDEX, np.int64)
        position_ids = np.zeros(shape, np.int64)
        indices = np.tile(np.arange(self.seq_len, dtype=np.int32), (len(rows), 1))
        for index, row in enumerate(rows):
            for sample, _, start, length in self.row_placements(row):
                end = start + length
                tokens, targets = self.samples[sample]
                input_ids[index, start:end] = tokens[:length]
                labels[index, start : end - 1] = targets[1:length]
                position_ids[index, start:end] = np.arange(length)
                indices[index, start:end] = end
        return {
            "input_ids": input_ids,
            "labels": labels,
            "position_ids": position_ids,
            "attn_mask_startend_row_indices": indices[:, None, :, None],
        }

    def batches(
        self, batch_size: int, *, row_order: Sequence[int] | None = None, drop_last: bool = False
    ) -> Iterator[Batch]:
        """Return an iterator over batches; see `build` for what a batch holds.

        Args:
            batch_size: rows in a batch, B.
            row_order: rows in the order wanted, e.g. shuffled; all rows in order if None. (Row 0
                holds the longest samples, so training should shuffle.)
            drop_last: leave out a last batch of fewer than batch_size rows.

        Raises:
            TypeError: batch_size is not an int.
            ValueError: batch_size < 1, or a row number is out of range.
        """
        check_size("batch_size", batch_size)
        order = list(range(len(self)) if row_order is None else row_order)
        last = len(order) - len(order) % batch_size if drop_last else len(order)
        starts = range(0, last, batch_size)
        return (self.build(order[start : start + batch_size]) for start in starts)

    def row_placements(self, row: int) -> tuple[Placement, ...]:
        """Return the placements of one row, by offset.

        Raises:
            ValueError: the row number is out of range.
        """
        if not 0 <= row < len(self):
            raise ValueError(f"rows must be in [0, {len(self)}); got {row}")
        return self.placements[self._row_starts[row] : self._row_starts[row + 1]]

    def unpack(
        self, values: NDArray[Any], *, rows: Sequence[int] | None = None
    ) -> dict[int, NDArray[Any]]:
        """Return the part of `values` that belongs to each sample, by sample number.

        Args:
            values: [B, S, ...], anything laid out like a batch, e.g. logits.
            rows: the B row numbers the batch was built from; all rows in order if None.

        Returns:
            For each sample in these rows its [length, ...] slice (a view).

        Raises:
            ValueError: the shape does not fit rows and seq_len, or a row is out of range.
        """
        numbers = range(len(self)) if rows is None else rows
        if values.shape[:2] != (len(numbers), self.seq_len):
            raise ValueError(
                f"values must start with axes [{len(numbers)}, {self.seq_len}] (rows, seq_len); "
                f"got shape {list(values.shape)}"
            )
        return {
            place.sample: values[index, place.offset : place.offset + place.length]
            for index, row in enumerate(numbers)
            for place in self.row_placements(row)
        }


def pack_sft(
    samples: Iterable[SftSample | tuple[TokenIds, TokenIds]],
    *,
    seq_len: int,
    pad_token_id: int = 0,
    overlong: str = "raise",
) -> PackedSft:
    """Return the samples packed into rows of seq_len positions, first-fit decreasing.

    The result depends on the samples and their order alone.

    Args:
        samples: the samples, (input_ids, labels) each, unshifted.
        seq_len: positions in a row, S, at least 1.
        pad_token_id: token id under padding, at least 0.
        overlong: for a sample of more than seq_len tokens: "raise" ValueError; "truncate", keep
            its first seq_len; "drop" it. The last two are counted in `statistics`.

    Returns:
        A `PackedSft`; `.batches(batch_size)` yields what a trainer feeds to the model.

    Raises:
        TypeError: a size is not an int, a sample is not a pair, or ids are not ints in one
            dimension.
        ValueError: an empty sample, labels that do not fit the ids, negative ids, an over-long
            sample with "raise", or a size out of range. Samples are named by their number.

    Example:
        >>> packed = pack_sft([([10, 11, 12], [-100, 11, 12]), ([20, 21], [20, 21])], seq_len=6)
        >>> batch = packed.build([0])
        >>> batch["labels"].tolist()
        [[11, 12, -100, 21, -100, -100]]
        >>> batch["attn_mask_startend_row_indices"][0, 0, :, 0].tolist()
        [3, 3, 3, 5, 5, 5]
    """
    check_size("seq_len", seq_len)
    check_size("pad_token_id", pad_token_id, least=0)
    checked = tuple(checked_sample(number, sample) for number, sample in enumerate(samples))
    layout = plan_rows([len(ids) for ids, _ in checked], seq_len=seq_len, overlong=overlong)
    rows_of = [place.row for place in layout.placements]
    row_starts = np.searchsorted(rows_of, np.arange(layout.rows + 1)).tolist()
    return PackedSft(
        samples=checked,
        placements=layout.placements,
        statistics=_statistics(checked, layout, seq_len),
        seq_len=seq_len,
        pad_token_id=pad_token_id,
        _row_starts=tuple(row_starts),
    )


def _statistics(
    samples: tuple[tuple[Int64Array, Int64Array], ...], layout: Layout, seq_len: int
) -> PackingStatistics:
    lengths = np.array([place.length for place in layout.placements], np.int64)
    trained = sum(
        np.count_nonzero(samples[place.sample][1][1 : place.length] != IGNORE_INDEX)
        for place in layout.placements
    )
    tokens, positions = int(lengths.sum()), layout.rows * seq_len
    visible = int((lengths * (lengths + 1) // 2).sum())
    return PackingStatistics(
        samples=len(samples),
        tokens=tokens,
        trained_tokens=int(trained),
        rows=layout.rows,
        truncated=layout.truncated,
        dropped=layout.dropped,
        padding_fraction=1 - tokens / positions if positions else 0.0,
        density=visible / (positions * seq_len) if positions else 0.0,
    )
