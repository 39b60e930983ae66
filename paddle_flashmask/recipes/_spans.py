"""Spans of tokens in a packed row: where documents and groups start and end, and the padding.

Padding is the tail of a row behind its last document. Column j of padding holds j, as the start of
the masked rows below and, in two-way masks, as the end of the masked rows above; so nobody sees it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.recipes._arguments import (
    Int64Array,
    check_counts,
    check_groups,
    check_seq_len,
)


class Spans(NamedTuple):
    """For each token the half-open span [start, end) of rows that its document covers.

    Attributes:
        start: [T], int64, first row of the token's document.
        end: [T], int64, one past its last row.
    """

    start: Int64Array
    end: Int64Array


def document_spans(lengths: Int64Array) -> Spans:
    """Return the span of each token's document.

    Args:
        lengths: [N], int64, tokens of each document; empty documents leave no trace.
    """
    ends = np.cumsum(lengths)
    return Spans(np.repeat(ends - lengths, lengths), np.repeat(ends, lengths))


def pad(real: Int64Array, seq_len: int) -> Int64Array:
    """Return the numbers of the real columns, then j for each padding column j.

    Args:
        real: [T], int64, one number per real token.
        seq_len: length of the row, at least T.

    Returns:
        [seq_len], int64.
    """
    return np.concatenate([real, np.arange(real.size, seq_len, dtype=np.int64)])


def to_mask(*numbers: Int64Array, causal: bool) -> ColumnMask:
    """Return the mask of columns given number by number.

    Args:
        *numbers: C arrays, [S] or [Hm, S]: the bounds in the order of the mask format.
        causal: the flag they are to be read with.

    Returns:
        A `ColumnMask` with int32 indices [1, Hm, S, C].
    """
    stacked = np.stack([np.atleast_2d(number) for number in numbers], axis=-1)
    return ColumnMask(stacked.astype(np.int32)[None], causal=causal)


def mask_causal_documents(lengths: object, seq_len: object) -> ColumnMask:
    """Return the causal mask of documents that do not see each other; see `causal_document`."""
    checked = check_counts("lengths", lengths)
    row_length = check_seq_len(seq_len, tokens=int(checked.sum()), source="lengths")
    return to_mask(pad(document_spans(checked).end, row_length), causal=True)


def mask_question_groups(groups: object, seq_len: object) -> ColumnMask:
    """Return the causal mask of answers that share their question; see `share_question`."""
    lengths, per_group = check_groups(groups)
    row_length = check_seq_len(seq_len, tokens=int(lengths.sum()), source="groups")
    seen_until = np.cumsum(lengths)
    last_piece = np.cumsum(per_group) - 1
    question = last_piece - per_group + 1
    seen_until[question] = seen_until[last_piece]
    return to_mask(pad(np.repeat(seen_until, lengths), row_length), causal=True)
