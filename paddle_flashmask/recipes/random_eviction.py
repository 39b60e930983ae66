"""Random eviction: causal, but a key drops out of the cache at some later row.

Key 0 is evicted before row 3, key 1 before row 2, key 3 before row 4; 2 and 4 stay:

    # . . . .
    # # . . .
    # . # . .
    . . # # .
    . . # . #
"""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as short
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.indices._arguments import check_count
from paddle_flashmask.indices.form import is_int
from paddle_flashmask.recipes._arguments import (
    Counts,
    Int64Array,
    check_counts,
)
from paddle_flashmask.recipes._spans import to_mask

__all__ = ["EXAMPLES", "is_visible", "random_eviction"]

EvictionRows: TypeAlias = Counts | Sequence[Counts] | NDArray[np.integer]

EXAMPLES: dict[str, dict[str, Any]] = {
    "given rows": {"seq_len": 5, "eviction_rows": [3, 2, 5, 4, 5]},
    "given rows for two heads": {"seq_len": 3, "eviction_rows": [[3, 3, 3], [1, 2, 3]]},
    "drawn rows": {"seq_len": 8, "seed": 0},
    "drawn rows for three heads": {"seq_len": 6, "seed": 1, "num_heads_mask": 3},
    "one token": {"seq_len": 1, "seed": 0},
    "no token": {"seq_len": 0, "seed": 0},
}


def random_eviction(
    seq_len: int,
    *,
    eviction_rows: EvictionRows | None = None,
    seed: int | np.random.Generator | None = None,
    num_heads_mask: int | None = None,
) -> ColumnMask:
    """Return the causal mask of keys that are evicted at given or drawn rows.

    Give either `eviction_rows` or `seed`; nothing is drawn that the arguments do not fix.

    Args:
        seq_len: length of the row, S.
        eviction_rows: [S] or [Hm, S]: the first row that does not see key j any more, in (j, S];
            S for a key that stays.
        seed: a seed for `numpy.random.default_rng`, or a generator to draw from. Each key's row is
            uniform over (j, S], drawn head by head and key by key.
        num_heads_mask: mask heads, Hm; None for those of eviction_rows, or 1.

    Returns:
        A causal `ColumnMask` with int32 indices [1, Hm, S, 1]: lower_start is the eviction row.

    Raises:
        TypeError: a number is not an int, or neither or both of eviction_rows and seed are given.
        ValueError: a row is not in (j, S], or the rows do not fit seq_len and num_heads_mask.

    Example:
        >>> mask = random_eviction(4, eviction_rows=[3, 2, 4, 4])
        >>> mask.startend_row_indices[0, 0, :, 0].tolist()
        [3, 2, 4, 4]
    """
    length = check_count("seq_len", seq_len)
    heads = None
    if num_heads_mask is not None:
        heads = check_count("num_heads_mask", num_heads_mask, at_least=1)
    if (eviction_rows is None) == (seed is None):
        given = "neither" if seed is None else "both"
        raise TypeError(f"random_eviction must get either eviction_rows or seed; got {given}")
    if seed is None:
        rows = _check_eviction_rows(eviction_rows, length)
        if heads not in (None, len(rows)):
            raise ValueError(
                f"eviction_rows must have num_heads_mask rows, {heads}; got {len(rows)}"
            )
        return to_mask(rows, causal=True)
    generator = _check_seed(seed)
    first_later_row = np.arange(1, length + 1)
    drawn = generator.integers(first_later_row, length, size=(heads or 1, length), endpoint=True)
    return to_mask(drawn, causal=True)


def is_visible(
    row: int,
    column: int,
    *,
    seq_len: int,
    eviction_rows: EvictionRows | None = None,
    seed: int | None = None,
    num_heads_mask: int | None = None,
    head: int = 0,
) -> bool:
    """Tell whether `row` sees `column` in a mask head: not later, and not evicted before.

    Args:
        row: position of the query.
        column: position of the key.
        seq_len: as for `random_eviction`.
        eviction_rows: as for `random_eviction`.
        seed: as for `random_eviction`, but no generator, since that draws anew each time.
        num_heads_mask: as for `random_eviction`.
        head: number of the mask head.
    """
    if column > row:
        return False
    if eviction_rows is not None:
        return bool(row < np.atleast_2d(np.array(eviction_rows))[head, column])
    generator = np.random.default_rng(seed)
    drawn = [
        [int(generator.integers(key + 1, seq_len + 1)) for key in range(seq_len)]
        for _ in range(num_heads_mask or 1)
    ]
    return row < drawn[head][column]


def _check_eviction_rows(eviction_rows: object, seq_len: int) -> Int64Array:
    """Return the rows as [Hm, S], int64, each in (j, S]."""
    per_head = {"eviction_rows": eviction_rows}
    if _is_list(eviction_rows) and len(eviction_rows) > 0 and _is_list(eviction_rows[0]):
        per_head = {f"eviction_rows[{head}]": rows for head, rows in enumerate(eviction_rows)}
    checked = []
    for name, rows in per_head.items():
        counts = check_counts(name, rows)
        if counts.size != seq_len:
            raise ValueError(f"{name} must hold one row per key, {seq_len}; got {counts.size}")
        for key in np.flatnonzero((counts <= np.arange(seq_len)) | (counts > seq_len))[:1]:
            raise ValueError(
                f"{name}[{key}] must be after row {key} and at most {seq_len}; got {counts[key]}"
            )
        checked.append(counts)
    return np.stack(checked)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _check_seed(seed: object) -> np.random.Generator:
    if isinstance(seed, np.random.Generator):
        return seed
    if not is_int(seed):
        raise TypeError(
            f"seed must be an int or a numpy Generator; got {type(seed).__name__} {short(seed)}"
        )
    if seed < 0:
        raise ValueError(f"seed must be at least 0; got {seed}")
    return np.random.default_rng(seed)
