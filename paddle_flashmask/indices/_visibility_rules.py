"""Checked mode, by what is seen: rows that see nothing, keys that nobody sees, seen padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paddle_flashmask.indices.bounds import to_bounds
from paddle_flashmask.indices.counting import masked_below, visible_per_column, visible_per_row
from paddle_flashmask.indices.findings import (
    COLUMN_AXES,
    ROW_AXES,
    Finding,
    Inspected,
    list_places,
    plural,
)
from paddle_flashmask.indices.form import BoolArray


def find_rows_that_see_nothing(mask: Inspected) -> Iterator[Finding]:
    """Find rows that see nothing, those of padding apart from the others."""
    seen = visible_per_row(mask.clipped, causal=mask.causal, seqlen_q=mask.seqlen_q)
    blind: BoolArray = seen == 0
    if not blind.any():
        return
    padding = blind & _is_padding_row(mask, blind)
    others = blind & ~padding
    if others.any():
        yield Finding(
            "blind_row",
            "warning",
            f"{plural(int(others.sum()), 'row')} that see nothing, so their output is 0: "
            f"{list_places(others, ROW_AXES)}",
            ROW_AXES,
            np.argwhere(others),
        )
    if padding.any():
        yield Finding(
            "padding_row",
            "note",
            f"{plural(int(padding.sum()), 'row')} of padding that see nothing, so their output is "
            f"0: {list_places(padding, ROW_AXES)}",
            ROW_AXES,
            np.argwhere(padding),
        )


def find_keys_nobody_sees(mask: Inspected) -> Iterator[Finding]:
    """Find columns masked in every row."""
    hidden = _hidden_keys(mask)
    if hidden.any():
        yield Finding(
            "hidden_key",
            "note",
            f"{plural(int(hidden.sum()), 'key')} that nobody sees: "
            f"{list_places(hidden, COLUMN_AXES)}",
            COLUMN_AXES,
            np.argwhere(hidden),
        )


def find_padding_that_is_seen(mask: Inspected) -> Iterator[Finding]:
    """Find padding columns that a real row sees, and those that only rows of padding see."""
    if mask.num_tokens is None:
        return
    seqlen_k = mask.clipped.shape[2]
    bounds = to_bounds(mask.clipped, causal=mask.causal, seqlen_q=mask.seqlen_q)
    is_padding = (np.arange(seqlen_k) >= mask.num_tokens[:, None])[:, None]
    real_rows = np.clip(mask.num_tokens - (seqlen_k - mask.seqlen_q), 0, mask.seqlen_q)
    limit = real_rows.astype(np.int32).reshape(-1, 1, 1, 1)
    seen_by_real = limit[..., 0] - masked_below(bounds, limit)
    seen = mask.seqlen_q - masked_below(bounds, mask.seqlen_q) > 0
    by_real: BoolArray = is_padding & (seen_by_real > 0)
    if by_real.any():
        yield Finding(
            "padding_seen",
            "error",
            f"{plural(int(by_real.sum()), 'key')} of padding that rows of real tokens see: "
            f"{list_places(by_real, COLUMN_AXES)}",
            COLUMN_AXES,
            np.argwhere(by_real),
        )
    by_padding: BoolArray = is_padding & seen & ~by_real
    if by_padding.any():
        yield Finding(
            "padding_seen_by_padding",
            "note",
            f"{plural(int(by_padding.sum()), 'key')} of padding that only rows of padding see: "
            f"{list_places(by_padding, COLUMN_AXES)}",
            COLUMN_AXES,
            np.argwhere(by_padding),
        )


def _hidden_keys(mask: Inspected) -> BoolArray:
    hidden: BoolArray = (
        visible_per_column(mask.clipped, causal=mask.causal, seqlen_q=mask.seqlen_q) == 0
    )
    if mask.seqlen_q == 0:  # nothing is hidden from no row
        hidden[...] = False
    return hidden


def _is_padding_row(mask: Inspected, blind: BoolArray) -> BoolArray:
    """Return whether a blind row is one of padding; broadcasts to [B, Hm, Sq].

    If num_tokens does not say so, rows count as padding whose own key, the one on the diagonal, is
    seen by nobody; but not if no row of the head sees anything.
    """
    if mask.num_tokens is not None:
        own_key = np.arange(mask.seqlen_q) + (mask.clipped.shape[2] - mask.seqlen_q)
        is_padding: BoolArray = own_key >= mask.num_tokens[:, None, None]
        return is_padding
    batch, heads = mask.clipped.shape[:2]
    hidden = np.zeros((batch, heads, mask.seqlen_q), bool)
    inside = (mask.diagonal >= 0) & (mask.diagonal < mask.seqlen_q)
    hidden[:, :, mask.diagonal[inside]] = _hidden_keys(mask)[:, :, inside]
    return hidden & ~blind.all(axis=-1, keepdims=True)
