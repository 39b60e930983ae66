"""SFT packing: tokenised samples to batches of rows, with labels that never cross a sample.

A row holds whole samples one after another, then padding. All n tokens of a sample stay, the last
one with the label -100: trainers that drop it first (`input_ids[:-1]`, `labels[1:]`) train on the
same pairs and save one position per sample, but their rows no longer hold the user's tokens.

| tokens     | 10  11   12 | 20   21 |  0 |
| labels     | 11  12 -100 | 21 -100 |-100|  (prompt of the first sample: its token 10)
| positions  |  0   1    2 |  0    1 |  0 |
| indices    |  3   3    3 |  5    5 |  5 |  (padding column j holds j: nobody sees it)
| weights    |  1   1    0 |  1    0 |  0 |  (by sample: 1/2 1/2 0, 1 0)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paddle_flashmask.packing.layout import INT64, Placement, check_choice, check_size, plan_rows
from paddle_flashmask.packing.rows import (
    WEIGHTS,
    Batch,
    PackedRows,
    check_numbers,
    collected,
    row_starts,
)
from paddle_flashmask.packing.samples import (
    IGNORE_INDEX,
    Int64Array,
    SftSample,
    TokenIds,
    checked_sample,
)

__all__ = ["PackedSft", "pack_sft"]


@dataclass(frozen=True, eq=False)
class PackedSft(PackedRows[tuple[Int64Array, Int64Array]]):
    """Samples with their places; rows are built when asked for. See `PackedRows`."""

    def build(self, rows: Sequence[int]) -> Batch:
        """Return one batch of the given rows, in the given order.

        Args:
            rows: B row numbers in [0, len(self)).

        Returns:
            `input_ids` [B, S], int64; `labels` [B, S], int64, shifted: position t holds the token
            t + 1 of the same sample or -100; `position_ids` [B, S], int64, from 0 in each sample
            and 0 under padding; `loss_weights` [B, S], float32, 0 without a label, else 1 for
            weights="token" and 1 / (labels of the sample) for "sample";
            `attn_mask_startend_row_indices` [B, 1, S, 1], int32, for causal=True.

        Raises:
            TypeError: they are no sequence of ints.
            ValueError: a row number is out of range.
        """
        rows = collected("rows", rows)
        shape = (len(rows), self.seq_len)
        input_ids = np.full(shape, self.pad_token_id, np.int64)
        labels = np.full(shape, IGNORE_INDEX, np.int64)
        position_ids = np.zeros(shape, np.int64)
        loss_weights = np.zeros(shape, np.float32)
        indices = np.tile(np.arange(self.seq_len, dtype=np.int32), (len(rows), 1))
        for index, row in enumerate(rows):
            for place in self.row_placements(row):
                sample, _, start, length = place
                end = start + length
                tokens, targets = self.samples[sample]
                input_ids[index, start:end] = tokens[:length]
                labels[index, start : end - 1] = targets[1:length]
                position_ids[index, start:end] = np.arange(length)
                indices[index, start:end] = end
                trained = labels[index, start:end] != IGNORE_INDEX
                share = max(1, np.count_nonzero(trained)) if self.weights == "sample" else 1
                loss_weights[index, start:end] = trained / share
        return {
            "input_ids": input_ids,
            "labels": labels,
            "position_ids": position_ids,
            "loss_weights": loss_weights,
            "attn_mask_startend_row_indices": indices[:, None, :, None],
        }

    def count_sample(self, place: Placement) -> tuple[int, int]:
        """Return the trained tokens and the visible cells of a placed sample."""
        targets = self.samples[place.sample][1][1 : place.length]
        trained = int(np.count_nonzero(targets != IGNORE_INDEX))
        return trained, place.length * (place.length + 1) // 2


def pack_sft(
    samples: Iterable[SftSample | tuple[TokenIds, TokenIds]],
    *,
    seq_len: int,
    pad_token_id: int = 0,
    overlong: str = "raise",
    strategy: str = "first_fit_decreasing",
    weights: str = "token",
    numbers: Sequence[int] | None = None,
) -> PackedSft:
    """Return the samples packed into rows of seq_len positions.

    The result depends on the arguments and the order of the samples alone.

    Args:
        samples: the samples, (input_ids, labels) each, unshifted.
        seq_len: positions in a row, S, at least 1.
        pad_token_id: token id under padding, at least 0.
        overlong: for a sample of more than seq_len tokens: "raise" ValueError; "truncate", keep
            its first seq_len; "drop" it. The last two are counted in `statistics`.
        strategy: "first_fit_decreasing" (fewest rows), "first_fit" or "sequential" (rows hold
            neighbours, in order); see `bins`.
        weights: what weighs the same in a loss, every trained "token" or every "sample".
        numbers: how messages name the samples, e.g. by line of a file; 0, 1, ... if None.

    Returns:
        A `PackedSft`; `.batches(batch_size)` yields what a trainer feeds to the model.

    Raises:
        TypeError: a size is not an int, a sample is not a pair, or ids are not ints in one
            dimension.
        ValueError: an empty sample, labels that do not fit the ids, negative ids, an over-long
            sample with "raise", a size out of range or an unknown word. Samples are named by
            their number.

    Example:
        >>> packed = pack_sft([([10, 11, 12], [-100, 11, 12]), ([20, 21], [20, 21])], seq_len=6)
        >>> batch = packed.build([0])
        >>> batch["labels"].tolist()
        [[11, 12, -100, 21, -100, -100]]
        >>> batch["attn_mask_startend_row_indices"][0, 0, :, 0].tolist()
        [3, 3, 3, 5, 5, 5]
    """
    seq_len = check_size("seq_len", seq_len)
    pad_token_id = check_size("pad_token_id", pad_token_id, least=0, most=INT64.max)
    check_choice("weights", weights, WEIGHTS)
    given = collected("samples", samples)
    names = check_numbers(numbers, len(given))
    checked = tuple(map(checked_sample, names, given))
    layout = plan_rows(
        [len(ids) for ids, _ in checked],
        seq_len=seq_len,
        overlong=overlong,
        strategy=strategy,
        numbers=names,
    )
    return PackedSft(checked, names, layout, seq_len, pad_token_id, weights, row_starts(layout))
