"""Packing what does not fit in memory or never ends: a bounded buffer over a stream of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from paddle_flashmask.packing.layout import INT64, PackingStatistics, check_size
from paddle_flashmask.packing.rows import Batch, PackedRows

__all__ = ["PackedStream", "Packer"]

# pack_sft, pack_dpo or pack_rm with its options: called as pack(samples, numbers=numbers).
Packer: TypeAlias = Callable[..., PackedRows[Any]]
RATIOS = ("padding_fraction", "density")


class PackedStream:
    """An iterable of batches over a stream of samples, read as far as needed.

    `buffer_size` samples are read and packed, full batches go out, and the samples of the rows
    that fill no batch (fewer than batch_size, the last ones) are packed again with the next
    `buffer_size` samples. With "sequential" and no seed, samples come out in the order of the
    stream. The same stream, arguments and seed always give the same batches.

    For Paddle's `DataLoader` wrap it in an `IterableDataset` and pass `batch_size=None`. Each of
    its workers iterates the whole stream: take one, or give each a part of the samples.

    Attributes:
        statistics: of the batches given out so far by the newest iterator, and what was dropped
            on the way.

    Example:
        >>> from functools import partial
        >>> from paddle_flashmask.packing import pack_sft
        >>> samples = (([n], [n]) for n in range(1, 8))
        >>> pack = partial(pack_sft, seq_len=2)
        >>> stream = PackedStream(samples, pack, batch_size=2, buffer_size=5)
        >>> [batch["input_ids"].tolist() for batch in stream]
        [[[1, 2], [3, 4]], [[5, 6], [7, 0]]]
    """

    def __init__(
        self,
        samples: Iterable[Any],
        pack: Packer,
        *,
        batch_size: int,
        buffer_size: int = 1000,
        seed: int | None = None,
        drop_last: bool = False,
    ) -> None:
        """Remember what to pack; nothing is read before iteration.

        Args:
            samples: as `pack` takes them; iterated anew for each iterator.
            pack: `functools.partial` of `pack_sft`, `pack_dpo` or `pack_rm` with its options.
            batch_size: rows in a batch, B.
            buffer_size: samples read at a time; more make fuller rows and better shuffling.
            seed: shuffle the samples of each reading before they are packed, and the rows before
                they go out; None keeps the order that packing gives.
            drop_last: leave out a last batch of fewer than batch_size rows.

        Raises:
            TypeError: a size or the seed is not an int.
            ValueError: a size is less than 1, or the seed less than 0.
        """
        if seed is not None:
            seed = check_size("seed", seed, least=0, most=INT64.max)
        batch_size = check_size("batch_size", batch_size)
        buffer_size = check_size("buffer_size", buffer_size)
        self._samples, self._pack = samples, pack
        self._batch_size, self._buffer_size = batch_size, buffer_size
        self._seed, self._drop_last = seed, drop_last
        self._is_spent = False
        self.statistics = PackingStatistics(0, 0, 0, 0, 0, 0, 0.0, 0.0)

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; `pack` names wrong samples by their number in the stream.

        Raises:
            TypeError: see `pack`.
            ValueError: see `pack`; or the samples are a generator, or another iterator, that was
                begun before.
        """
        if self._is_spent:
            raise ValueError(
                "samples must be iterable anew for each iterator, as a list or a data set is; got "
                f"{type(self._samples).__name__}, which was begun before"
            )
        self._is_spent = iter(self._samples) is self._samples
        self.statistics = PackingStatistics(0, 0, 0, 0, 0, 0, 0.0, 0.0)
        random = None if self._seed is None else np.random.default_rng(self._seed)
        numbered = enumerate(self._samples)
        carried: list[tuple[int, Any]] = []
        while True:
            read = list(islice(numbered, self._buffer_size))
            at_end = len(read) < self._buffer_size
            buffer = carried + read
            if random is not None:
                buffer = [buffer[index] for index in random.permutation(len(buffer))]
            packed = self._pack(
                [sample for _, sample in buffer], numbers=[number for number, _ in buffer]
            )
            self._count_dropped(packed)
            ready = len(packed) - (0 if at_end else len(packed) % self._batch_size)
            yield from self._batches(packed, ready, random)
            if at_end:
                return
            carried = [
                buffer[place.sample]
                for row in range(ready, len(packed))
                for place in packed.row_placements(row)
            ]

    def _batches(
        self, packed: PackedRows[Any], ready: int, random: np.random.Generator | None
    ) -> Iterator[Batch]:
        order = np.arange(ready) if random is None else random.permutation(ready)
        for start in range(0, ready, self._batch_size):
            rows = order[start : start + self._batch_size].tolist()
            if len(rows) < self._batch_size and self._drop_last:
                return
            self.statistics = _sum(self.statistics, packed.count(rows))
            yield packed.build(rows)

    def _count_dropped(self, packed: PackedRows[Any]) -> None:
        dropped = len(packed.layout.dropped)
        left_out = PackingStatistics(dropped, 0, 0, 0, 0, dropped, 0.0, 0.0)
        self.statistics = _sum(self.statistics, left_out)


def _sum(first: PackingStatistics, second: PackingStatistics) -> PackingStatistics:
    """Return the statistics of both; ratios are weighted by rows, which are all equally long."""
    rows = max(1, first.rows + second.rows)
    values = {}
    for name in (entry.name for entry in fields(PackingStatistics)):
        mine, other = getattr(first, name), getattr(second, name)
        weighted = (mine * first.rows + other * second.rows) / rows
        values[name] = weighted if name in RATIOS else mine + other
    return PackingStatistics(**values)
