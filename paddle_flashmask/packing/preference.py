"""DPO and reward-model packing: prompts with their answers to batches of rows.

A row holds whole groups (see `groups` for the two layouts and their pictures), then padding. What
a loss needs besides the row comes as flat tables over all answers of the batch, in the order of
row, group and answer: N answers, M targets, P pairs.

Default layout "plain": every token stands once, so rows are shorter, one row serves DPO and reward
models alike, and positions are those one counts by hand. Its price is that first tokens need the
target table instead of labels; take "repeated" for a trainer that reads `labels` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.packing.groups import (
    LAYOUTS,
    PAIR_RULES,
    Group,
    LaidGroup,
    checked_group,
    lay_out,
    shortened,
)
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
    PreferenceSample,
    TokenIds,
)

__all__ = ["PackedPreference", "Reference", "pack_dpo", "pack_rm"]

# From a batch to the reference model's log-probability of each answer, [N] floats.
Reference: TypeAlias = Callable[[Batch], Any]
AnySample: TypeAlias = PreferenceSample | tuple[TokenIds, Sequence[TokenIds]]
FloatArray: TypeAlias = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class PackedPreference(PackedRows[Group]):
    """Groups with their places; rows are built when asked for. See `PackedRows`.

    Attributes:
        answer_layout: "plain" or "repeated".
        reference: for each group (by its place in the input) the reference log-probabilities of
            its answers, [n]; empty before `with_reference`.
    """

    answer_layout: str = "plain"
    reference: dict[int, FloatArray] = field(default_factory=dict)

    def build(self, rows: Sequence[int]) -> Batch:
        """Return one batch of the given rows, in the given order.

        Args:
            rows: B row numbers in [0, len(self)).

        Returns:
            Rows: `input_ids`, `labels` (shifted, -100 where not trained; see `groups`) and
            `position_ids` [B, S], int64; `attn_mask_startend_row_indices` [B, 1, S, 1], int32, for
            causal=True.

            Answers: `answer_rows` [N], row in the batch; `answer_groups` [N], group in the batch;
            `answer_samples` [N], number of the sample; `answer_ranks` [N]; `answer_spans` [N, 2],
            half-open span of its tokens; `score_positions` [N], its last token; all int64. After
            `with_reference` also `reference_log_probs` [N], float32 by default.

            Targets: `target_rows`, `target_positions` (of the logit), `target_ids` (the token it
            predicts), `target_answers` [M], int64; `target_weights` [M], float32: 1 for
            weights="token", 1 / (targets of the answer) for "sample".

            Pairs: `pairs` [P, 2], int64, answers (chosen, rejected); `pair_groups` [P], int64. Row
            and spans of a pair are `answer_rows[pairs[:, 0]]` and `answer_spans[pairs]`.

        Raises:
            TypeError: they are no sequence of ints.
            ValueError: a row number is out of range.
        """
        rows = collected("rows", rows)
        shape = (len(rows), self.seq_len)
        batch: Batch = {
            "input_ids": np.full(shape, self.pad_token_id, np.int64),
            "labels": np.full(shape, IGNORE_INDEX, np.int64),
            "position_ids": np.zeros(shape, np.int64),
        }
        indices = np.tile(np.arange(self.seq_len, dtype=np.int32), (len(rows), 1))
        placed: list[_PlacedGroup] = []
        for index, row in enumerate(rows):
            for place in self.row_placements(row):
                laid = lay_out(self.samples[place.sample], self.answer_layout)
                span = slice(place.offset, place.offset + place.length)
                for name in ("input_ids", "labels", "position_ids"):
                    batch[name][index, span] = getattr(laid, name)
                indices[index, span] = laid.ends + place.offset
                placed.append(_PlacedGroup(index, place, laid))
        batch["attn_mask_startend_row_indices"] = indices[:, None, :, None]
        batch.update(self._tables(placed))
        return batch

    def _tables(self, placed: list[_PlacedGroup]) -> Batch:
        groups = [self.samples[place.sample] for _, place, _ in placed]
        counts = np.array([len(group.answers) for group in groups], np.int64)
        first_answers = np.cumsum(counts) - counts
        spans = _joined([laid.answer_spans + place.offset for _, place, laid in placed], 2)
        target_answers = _joined(
            [
                laid.target_answers + first
                for (_, _, laid), first in zip(placed, first_answers, strict=True)
            ]
        )
        tables: Batch = {
            "answer_rows": np.repeat(_ints(row for row, _, _ in placed), counts),
            "answer_groups": np.repeat(np.arange(len(placed)), counts),
            "answer_samples": np.repeat(
                _ints(self.numbers[place.sample] for _, place, _ in placed), counts
            ),
            "answer_ranks": _joined([group.ranks for group in groups]),
            "answer_spans": spans,
            "score_positions": spans[:, 1] - 1,
            "target_positions": _joined(
                [laid.target_positions + place.offset for _, place, laid in placed]
            ),
            "target_ids": _joined([laid.target_ids for _, _, laid in placed]),
            "target_answers": target_answers,
            "pairs": _joined(
                [g.pairs + first for g, first in zip(groups, first_answers, strict=True)], 2
            ),
            "pair_groups": np.repeat(
                np.arange(len(placed)), _ints(len(group.pairs) for group in groups)
            ),
        }
        tables["target_rows"] = tables["answer_rows"][target_answers]
        shares = np.diff(spans, axis=1)[target_answers, 0] if self.weights == "sample" else 1
        tables["target_weights"] = (np.ones(target_answers.size) / shares).astype(np.float32)
        if self.reference:
            tables["reference_log_probs"] = np.concatenate(
                [np.zeros(0, np.float32), *(self.reference[place.sample] for _, place, _ in placed)]
            )
        return tables

    def count_sample(self, place: Placement) -> tuple[int, int]:
        """Return the targets and the visible cells of a placed group."""
        group = self.samples[place.sample]
        lead = 1 if self.answer_layout == "repeated" else 0
        shared = group.prompt.size - lead
        visible = shared * (shared + 1) // 2
        for answer in group.answers:
            own = answer.size + lead
            visible += own * shared + own * (own + 1) // 2
        return sum(answer.size for answer in group.answers), visible

    def unpack_answers(
        self, values: NDArray[Any], *, rows: Sequence[int] | None = None
    ) -> dict[int, tuple[NDArray[Any], ...]]:
        """Return the part of `values` that belongs to each answer behind its prompt.

        Args:
            values: [B, S, ...], anything laid out like a batch, e.g. logits.
            rows: the B row numbers the batch was built from; all rows in order if None.

        Returns:
            For each sample in these rows, by its place in the input, one [p + a, ...] array per
            answer: what a row of prompt + that answer alone would hold.

        Raises:
            ValueError: the shape does not fit rows and seq_len, or a row is out of range.
        """
        numbers = self.check_values(values, rows)
        found: dict[int, tuple[NDArray[Any], ...]] = {}
        for index, row in enumerate(numbers):
            for place in self.row_placements(row):
                laid = lay_out(self.samples[place.sample], self.answer_layout)
                positions = [place.offset + own for own in laid.solo_positions]
                found[place.sample] = tuple(values[index, own] for own in positions)
        return found

    def with_reference(
        self, reference: Reference, *, batch_size: int = 1, dtype: str = "float32"
    ) -> PackedPreference:
        """Return the same rows with the log-probabilities of a frozen model, computed now.

        Args:
            reference: called once per batch, rows in order; returns [N] finite floats, one for
                each answer of the batch: what numpy reads as floats or ints. A bfloat16 Tensor is
                not, since numpy reads its bits: cast it to float32.
            batch_size: rows in a batch.
            dtype: "float32" or "float64", of `reference_log_probs`. float32 keeps about 7 digits,
                1e-4 of the log-probability of a long answer.

        Raises:
            TypeError: batch_size is not an int, or reference returns no floats or ints.
            ValueError: batch_size < 1, dtype is another one, or what reference returns has
                another shape or is not finite.
        """
        check_choice("dtype", dtype, ("float32", "float64"))
        found: dict[int, FloatArray] = {}
        for start, batch in enumerate(self.batches(batch_size)):
            values = _reference_values(reference(batch), dtype)
            count = batch["answer_rows"].size
            if values.shape != (count,):
                raise ValueError(
                    f"reference must return [{count}] log-probabilities, one per answer; "
                    f"got shape {list(values.shape)}"
                )
            if not np.isfinite(values).all():
                raise ValueError("reference must return finite numbers; got NaN or infinity")
            rows = range(start * batch_size, min((start + 1) * batch_size, len(self)))
            places = [place for row in rows for place in self.row_placements(row)]
            ends = np.cumsum([len(self.samples[place.sample].answers) for place in places])
            for place, own in zip(places, np.split(values, ends[:-1]), strict=True):
                found[place.sample] = own
        return replace(self, reference=found)


class _PlacedGroup(NamedTuple):
    row: int  # in the batch
    place: Placement
    laid: LaidGroup


def pack_dpo(
    samples: Iterable[AnySample],
    *,
    seq_len: int,
    pad_token_id: int = 0,
    overlong: str = "raise",
    strategy: str = "first_fit_decreasing",
    weights: str = "token",
    answer_layout: str = "plain",
    pairs: str = "all",
    multiple: int = 1,
    numbers: Sequence[int] | None = None,
) -> PackedPreference:
    """Return prompts with 2 or more ranked answers packed into rows of seq_len positions.

    The result depends on the arguments and the order of the samples alone.

    Args:
        samples: (prompt_ids, answers) with the answers best first, or (prompt_ids, answers,
            ranks); see `PreferenceSample`.
        seq_len: positions in a row, S, at least 1.
        pad_token_id: token id under padding, at least 0.
        overlong: for a group of more than seq_len tokens: "raise" ValueError; "truncate", cut the
            tails of its longest answers to one common limit, and drop it only if prompt and one
            token of each answer do not fit; "drop" it. Counted in `statistics`.
        strategy: "first_fit_decreasing" (fewest rows), "first_fit" or "sequential" (rows hold
            neighbours, in order); see `bins`.
        weights: "token": the log-probability of an answer is the sum over its tokens (DPO);
            "sample": their mean, so that long answers count no more than short ones (SimPO).
        answer_layout: "plain", each token once, or "repeated", each answer led by the prompt's
            last token so that ordinary labels are complete; see `groups`.
        pairs: "all" pairs of different rank, or "best_worst", one pair per group.
        multiple: every group starts at a multiple of this many positions; divides seq_len.
        numbers: how messages and `answer_samples` name the samples; 0, 1, ... if None.

    Returns:
        A `PackedPreference`; `.batches(batch_size)` yields what a trainer needs.

    Raises:
        TypeError: a size is not an int, a sample has another form, or ids are not ints in one
            dimension.
        ValueError: an empty prompt or answer, fewer than 2 answers, ranks that do not fit or are
            all equal, negative ids, an over-long group with "raise", a size out of range or an
            unknown word. Samples are named by their number.

    Example:
        >>> batch = pack_dpo([([1, 2], [[5, 6], [7, 8, 9]])], seq_len=7)[0]
        >>> batch["attn_mask_startend_row_indices"][0, 0, :, 0].tolist()
        [7, 7, 4, 4, 7, 7, 7]
        >>> batch["position_ids"].tolist()
        [[0, 1, 2, 3, 2, 3, 4]]
        >>> batch["target_positions"].tolist(), batch["target_ids"].tolist()
        ([1, 2, 1, 4, 5], [5, 6, 7, 8, 9])
    """
    check_choice("pairs", pairs, PAIR_RULES)
    return _pack(
        samples,
        least_answers=2,
        pairs=pairs,
        seq_len=seq_len,
        pad_token_id=pad_token_id,
        overlong=overlong,
        strategy=strategy,
        weights=weights,
        answer_layout=answer_layout,
        multiple=multiple,
        numbers=numbers,
    )


def pack_rm(
    samples: Iterable[AnySample],
    *,
    seq_len: int,
    pad_token_id: int = 0,
    overlong: str = "raise",
    strategy: str = "first_fit_decreasing",
    weights: str = "token",
    answer_layout: str = "plain",
    multiple: int = 1,
    numbers: Sequence[int] | None = None,
) -> PackedPreference:
    """Return prompts with 1 or more answers to be scored packed into rows of seq_len positions.

    As `pack_dpo`, but one answer or equal ranks are no error: such groups are scored and give no
    pair. Pairs are all pairs of different rank. `score_positions` says where each answer's score
    is read: at its own last token, after truncation the last one kept.

    Args:
        samples: as for `pack_dpo`.
        seq_len: positions in a row, S, at least 1.
        pad_token_id: token id under padding, at least 0.
        overlong: as for `pack_dpo`.
        strategy: as for `pack_dpo`.
        weights: as for `pack_dpo`; of the targets only, scores have none.
        answer_layout: as for `pack_dpo`.
        multiple: every group starts at a multiple of this many positions; divides seq_len.
        numbers: how messages and `answer_samples` name the samples; 0, 1, ... if None.

    Returns:
        A `PackedPreference`.

    Raises:
        TypeError: as for `pack_dpo`.
        ValueError: as for `pack_dpo`, but only 0 answers are too few.

    Example:
        >>> batch = pack_rm([([1, 2], [[3, 4], [5], [6, 7, 8]])], seq_len=8)[0]
        >>> batch["score_positions"].tolist(), batch["pairs"].tolist()
        ([3, 4, 7], [[0, 1], [0, 2], [1, 2]])
    """
    return _pack(
        samples,
        least_answers=1,
        pairs="all",
        seq_len=seq_len,
        pad_token_id=pad_token_id,
        overlong=overlong,
        strategy=strategy,
        weights=weights,
        answer_layout=answer_layout,
        multiple=multiple,
        numbers=numbers,
    )


def _pack(
    samples: Iterable[AnySample],
    *,
    least_answers: int,
    pairs: str,
    seq_len: int,
    pad_token_id: int,
    overlong: str,
    strategy: str,
    weights: str,
    answer_layout: str,
    multiple: int,
    numbers: Sequence[int] | None,
) -> PackedPreference:
    seq_len = check_size("seq_len", seq_len)
    pad_token_id = check_size("pad_token_id", pad_token_id, least=0, most=INT64.max)
    check_choice("weights", weights, WEIGHTS)
    check_choice("answer_layout", answer_layout, LAYOUTS)
    given = collected("samples", samples)
    names = check_numbers(numbers, len(given))
    groups = [
        checked_group(number, sample, least_answers=least_answers, pairs=pairs)
        for number, sample in zip(names, given, strict=True)
    ]
    cut: set[int] = set()
    if overlong == "truncate":
        for number, group in enumerate(groups):
            groups[number] = shortened(group, seq_len, answer_layout)
            if groups[number] is not group:
                cut.add(number)
    layout = plan_rows(
        [group.size(answer_layout) for group in groups],
        seq_len=seq_len,
        overlong="drop" if overlong == "truncate" else overlong,
        strategy=strategy,
        numbers=names,
        multiple=multiple,
    )._replace(truncated=frozenset(cut))
    return PackedPreference(
        samples=tuple(groups),
        numbers=names,
        layout=layout,
        seq_len=seq_len,
        pad_token_id=pad_token_id,
        weights=weights,
        _row_starts=row_starts(layout),
        answer_layout=answer_layout,
    )


def _reference_values(returned: object, dtype: str) -> FloatArray:
    """Return a copy: the callable may fill the same array again for the next batch."""
    values = np.asarray(returned)
    if values.dtype.kind not in "fi":
        raise TypeError(
            "reference must return floats that numpy can read (a bfloat16 Tensor: cast it to "
            f"float32); got {type(returned).__name__} of {values.dtype}"
        )
    return values.astype(dtype)


def _joined(arrays: Sequence[Int64Array], width: int | None = None) -> Int64Array:
    empty = np.zeros((0,) if width is None else (0, width), np.int64)
    return np.concatenate([empty, *arrays])


def _ints(values: Iterable[int]) -> Int64Array:
    return np.fromiter(values, np.int64)
