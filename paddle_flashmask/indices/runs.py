"""The masked rows of a column as sorted runs that do not touch: what two masks are compared by.

A column is expressible if its masked rows make at most two runs: each mask form is two intervals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices.form import INT32_MAX, BoolArray, Int32Array, Int64Array

MAX_RUNS = 2
SHOWN_COLUMNS = 4  # columns that a message lists before it says how many more there are
NO_ROW = INT32_MAX  # start and end of a run that a column does not have


class Runs(NamedTuple):
    """The masked rows of every column as half-open runs from top to bottom.

    Attributes:
        first: [2, B, Hm, Sk], int32, start and end of the first run; INT32_MAX twice if none.
        second: [2, B, Hm, Sk], int32, the second, separated by at least one visible row.
        num_runs: [B, Hm, Sk], int64, how many runs the masked rows make; with more than 2 the first
            two fields do not say the whole.
    """

    first: Int32Array
    second: Int32Array
    num_runs: Int64Array


def disjoint_runs(bounds: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Return the masked rows of each column as two sorted runs that do not touch, empties last.

    Args:
        bounds: [B, Hm, Sk, 4], int32, two half-open intervals as `to_bounds` returns them.

    Returns:
        Two arrays [2, B, Hm, Sk], int32, start and end of a run; INT32_MAX twice where it is none.
    """
    runs = merge_intervals(bounds[..., 0::2], bounds[..., 1::2])
    return runs.first, runs.second


def merge_intervals(starts: Int32Array, ends: Int32Array) -> Runs:
    """Return the union of N intervals per column as runs that do not touch.

    Args:
        starts: [B, Hm, Sk, N], int32, not negative; N at least 1.
        ends: [B, Hm, Sk, N], int32, one past the last row; start >= end is empty.

    Returns:
        The `Runs`; N intervals make up to N of them.
    """
    empty = starts >= ends
    starts = np.where(empty, np.int32(NO_ROW), starts)
    ends = np.where(empty, np.int32(-1), ends)
    order = np.argsort(starts, axis=-1, kind="stable")
    starts = np.moveaxis(np.take_along_axis(starts, order, axis=-1), -1, 0)
    ends = np.moveaxis(np.take_along_axis(ends, order, axis=-1), -1, 0)
    first = np.stack([starts[0], np.where(ends[0] < 0, np.int32(NO_ROW), ends[0])])
    second = np.full_like(first, NO_ROW)
    reach = ends[0]
    num_runs = (starts[0] != NO_ROW).astype(np.int64)
    for start, end in zip(starts[1:], ends[1:], strict=True):
        exists = start != NO_ROW
        opens = exists & (start > reach)
        num_runs += opens
        reach = np.maximum(reach, end)
        second[0] = np.where(opens & (num_runs == MAX_RUNS), start, second[0])
        second[1] = np.where(exists & (num_runs == MAX_RUNS), reach, second[1])
        first[1] = np.where(exists & (num_runs == 1), reach, first[1])
    return Runs(first, second, num_runs)


def runs_to_bounds(runs: Runs, *, diagonal: Int32Array, seqlen_q: int) -> Int32Array:
    """Return bounds that mask exactly the runs, each in the place that its neighbours use.

    A run that starts at row 0 is an upper interval, one that reaches the last row a lower one, so
    that the columns of a tile agree and tiles can be skipped; a column masked everywhere is split
    at its diagonal row for the same reason. Numbers change nothing in what is masked.

    Args:
        runs: the `Runs`, at most 2 in every column.
        diagonal: [Sk], int32, the diagonal row of each column; see `diagonal_rows`.
        seqlen_q: number of query rows, Sq.

    Returns:
        [B, Hm, Sk, 4], int32 in [0, Sq]: lower_start, lower_end, upper_start, upper_end.
    """
    one, start, end = runs.num_runs == 1, runs.first[0], runs.first[1]
    everywhere = one & (start == 0) & (end == seqlen_q)
    only_lower = one & (start > 0) & ((end == seqlen_q) | (start >= diagonal))
    two = runs.num_runs == MAX_RUNS
    lower = np.where(two, runs.second, np.where(only_lower, runs.first, np.int32(seqlen_q)))
    upper = np.where((runs.num_runs > 0) & ~only_lower, runs.first, np.int32(0))
    lower[0] = np.where(everywhere, diagonal, lower[0])
    upper[1] = np.where(everywhere, diagonal, upper[1])
    bounds = np.stack([lower[0], lower[1], upper[0], upper[1]], axis=-1).astype(np.int32)
    return bounds


def refuse_more_runs(subject: str, num_runs: NDArray[np.integer]) -> None:
    """Refuse columns whose masked rows make more runs than two intervals can say.

    Args:
        subject: what the message starts with: the mask that cannot be expressed.
        num_runs: [B, Hm, Sk], the number of runs of masked rows of each column.

    Raises:
        ValueError: a column has more than 2; the message names sample, head and column.
    """
    too_many: BoolArray = num_runs > MAX_RUNS
    if not too_many.any():
        return
    positions = np.argwhere(too_many)
    shown = [
        f"sample {sample} head {head} column {column} ({num_runs[sample, head, column]} runs)"
        for sample, head, column in positions[:SHOWN_COLUMNS]
    ]
    more = len(positions) - len(shown)
    listed = ", ".join(shown) + (f" and {more} more" if more else "")
    columns = "1 column has" if len(positions) == 1 else f"{len(positions)} columns have"
    raise ValueError(
        f"{subject} cannot be expressed: a column holds at most {MAX_RUNS} runs of masked rows, "
        f"but {columns} more: {listed}"
    )
