"""Packed rows for PaddleNLP's Trainer: a data set with its collator, and a packing collator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import paddle

from paddle_flashmask.packing import PackedRows
from paddle_flashmask.packing.rows import Batch
from paddle_flashmask.packing.stream import Packer

__all__ = ["PackingCollator", "RowDataset", "collate_rows"]

# Fields of a sample by the first of them, as `packing` takes samples.
SAMPLE_FIELDS = {"input_ids": ("input_ids", "labels"), "prompt_ids": ("prompt_ids", "answers")}


class Row(NamedTuple):
    """A row of packed samples, not yet built."""

    packed: PackedRows[Any]
    number: int


class RowDataset(paddle.io.Dataset[Row]):
    """The rows of `pack_sft`, `pack_dpo` or `pack_rm`; batches come from `collate_rows`.

    Example:
        >>> from paddle_flashmask.packing import pack_sft
        >>> rows = RowDataset(pack_sft([([1, 2], [1, 2]), ([3], [3])], seq_len=3))
        >>> collate_rows([rows[0]])["input_ids"].tolist()
        [[1, 2, 3]]
    """

    def __init__(self, packed: PackedRows[Any]) -> None:
        """Take packed samples."""
        super().__init__()
        self.packed = packed

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.packed)

    def __getitem__(self, row: int) -> Row:
        """Return a row.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < len(self.packed):
            raise IndexError(f"row must be in [0, {len(self.packed)}); got {row}")
        return Row(self.packed, int(row))


def collate_rows(rows: Sequence[Row]) -> Batch:
    """Return the batch of some rows of one `RowDataset`; see `build` of what was packed.

    A trainer has one collator for training and evaluation, so a row knows where it comes from.

    Raises:
        TypeError: an item is not of a RowDataset.
        ValueError: they come from several.
    """
    for row in rows:
        if not isinstance(row, Row):
            raise TypeError(f"collate_rows takes rows of a RowDataset; got {type(row).__name__}")
    packed = rows[0].packed
    if any(row.packed is not packed for row in rows):
        raise ValueError("the rows of a batch must come from one RowDataset; got several")
    return packed.build([row.number for row in rows])


class PackingCollator:
    """Packs the samples of each batch anew, for data sets that cannot be packed beforehand.

    Example:
        >>> from functools import partial
        >>> from paddle_flashmask.packing import pack_sft
        >>> collate = PackingCollator(partial(pack_sft, seq_len=4))
        >>> samples = [{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [3], "labels": [3]}]
        >>> collate(samples)["attn_mask_startend_row_indices"].ravel().tolist()
        [2, 2, 3, 3]
    """

    def __init__(self, pack: Packer) -> None:
        """Remember how to pack.

        Args:
            pack: `functools.partial` of `pack_sft`, `pack_dpo` or `pack_rm` with its options.
        """
        self.pack = pack

    def __call__(self, samples: Sequence[Any]) -> Batch:
        """Return one batch of as few rows as the samples need.

        Args:
            samples: as `pack` takes them, or dicts: input_ids and labels (unshifted), or
                prompt_ids, answers and, if wanted, ranks.

        Raises:
            TypeError: see `pack`.
            ValueError: a dict lacks a field, all samples were dropped, or see `pack`.
        """
        packed = self.pack([_sample(sample) for sample in samples])
        if len(packed) == 0:
            raise ValueError(f"no row is left: all {len(samples)} samples were dropped")
        return packed.build(range(len(packed)))


def _sample(sample: object) -> object:
    if not isinstance(sample, Mapping):
        return sample
    for first, names in SAMPLE_FIELDS.items():
        if first in sample:
            missing = [name for name in names if name not in sample]
            if missing:
                break
            ranks = [sample["ranks"]] if sample.get("ranks") is not None else []
            return (*(sample[name] for name in names), *ranks)
    wanted = " or ".join(" and ".join(names) for names in SAMPLE_FIELDS.values())
    raise ValueError(
        f"a sample must have {wanted}; got {', '.join(sorted(map(str, sample))) or 'no field'} "
        "(remove_unused_columns=False keeps what the model's forward does not name)"
    )
