"""Checked mode, number by number: range, order, and signs that `causal` is the wrong flag."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paddle_flashmask.indices.findings import (
    COLUMN_AXES,
    NUMBER_AXES,
    Finding,
    Inspected,
    list_places,
    places,
    plural,
)
from paddle_flashmask.indices.form import INT32_MAX, BoolArray

PAIR = 2
INTERVALS = {(True, 2): ((0, 1),), (False, 4): ((0, 1), (2, 3))}


def find_numbers_out_of_range(mask: Inspected) -> Iterator[Finding]:
    """Find numbers that no row has: negative, behind the last row, or too large for int32."""
    negative = mask.numbers < 0
    if negative.any():
        yield Finding(
            "negative",
            "error",
            f"{plural(int(negative.sum()), 'number')} below 0, read as 0 here and otherwise by "
            f"other kernels: {places(negative, NUMBER_AXES, mask.numbers)}",
            NUMBER_AXES,
            np.argwhere(negative),
        )
    large = mask.numbers > mask.seqlen_q
    if large.any():
        yield Finding(
            "above_seqlen_q",
            "warning",
            f"{plural(int(large.sum()), 'number')} above seqlen_q, {mask.seqlen_q}, read as "
            f"{mask.seqlen_q}: {places(large, NUMBER_AXES, mask.numbers)}",
            NUMBER_AXES,
            np.argwhere(large),
        )
    wide = (mask.numbers > INT32_MAX) | (mask.numbers < -INT32_MAX - 1)
    if wide.any():
        yield Finding(
            "beyond_int32",
            "error",
            f"{plural(int(wide.sum()), 'number')} that int32 cannot hold, a cast would change "
            f"them: {places(wide, NUMBER_AXES, mask.numbers)}",
            NUMBER_AXES,
            np.argwhere(wide),
        )


def find_inverted_intervals(mask: Inspected) -> Iterator[Finding]:
    """Find intervals that start behind their end; equal numbers are an honest empty interval."""
    for start, end in INTERVALS.get((mask.causal, mask.width), ()):
        inverted: BoolArray = mask.clipped[..., start] > mask.clipped[..., end]
        if not inverted.any():
            continue
        side = "lower" if start == 0 else "upper"
        yield Finding(
            "inverted",
            "warning",
            f"{plural(int(inverted.sum()), 'column')} with {side}_start behind {side}_end, which "
            f"masks no row: {list_places(inverted, COLUMN_AXES)}",
            COLUMN_AXES,
            np.argwhere(inverted),
        )


def find_wrong_flag(mask: Inspected) -> Iterator[Finding]:
    """Find numbers that make sense with the other value of causal, and none with this one."""
    if mask.width != PAIR or mask.numbers.shape[2] == 0:
        return
    first, second = mask.clipped[..., 0], mask.clipped[..., 1]
    if mask.causal:
        fits = (second <= np.clip(mask.diagonal, 0, mask.seqlen_q)) & (first >= second)
        sentence = (
            "with causal=True the second number is lower_end, but in every column of {} it is at "
            "or above the diagonal and no interval masks a row, as if it were upper_end: is "
            "causal=False meant?"
        )
        kind = "upper_end_in_causal"
    else:
        fits = second >= first
        sentence = (
            "with causal=False the second number is upper_end, but in every column of {} it is "
            "at or behind lower_start, so nobody sees anything, as if it were lower_end: is "
            "causal=True meant?"
        )
        kind = "lower_end_in_noncausal"
    trivial = (first == second).all(axis=-1)
    suspect = fits.all(axis=-1) & ~trivial
    if suspect.any():
        yield Finding(
            kind,
            "warning",
            sentence.format(_list_heads(suspect)),
            COLUMN_AXES[:2],
            np.argwhere(suspect),
        )


def find_starts_above_diagonal(mask: Inspected) -> Iterator[Finding]:
    """Find causal columns whose start belongs to the upper triangle, which is masked anyway."""
    if not mask.causal:
        return
    above: BoolArray = mask.clipped[..., 0] < np.clip(mask.diagonal, 0, mask.seqlen_q)
    if mask.width == PAIR:
        above &= mask.clipped[..., 0] < mask.clipped[..., 1]
    if mask.num_tokens is not None:
        column = np.arange(mask.numbers.shape[2])
        above &= (column < mask.num_tokens[:, None])[:, None]
    if above.any():
        yield Finding(
            "start_above_diagonal",
            "warning",
            f"{plural(int(above.sum()), 'column')} with lower_start above the diagonal, where "
            "causal=True masks anyway; a start of upper rows belongs to the form with "
            f"causal=False: {list_places(above, COLUMN_AXES)}",
            COLUMN_AXES,
            np.argwhere(above),
        )


def _list_heads(where: BoolArray) -> str:
    if where.all():
        return "every sample and head"
    return list_places(where, COLUMN_AXES[:2])
