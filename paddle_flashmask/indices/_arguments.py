"""The argument rules that functions of the package share: masks, counts, integer arrays."""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as short
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices.form import INT32_MAX, ColumnMask, Int64Array, check, is_int

Integers: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | NDArray[np.integer]


def check_count(name: str, value: object, *, at_least: int = 0, at_most: int = INT32_MAX) -> int:
    """Return a count as a Python int.

    Args:
        name: what the message calls it.
        value: the argument as it came.
        at_least: the smallest value allowed.
        at_most: the largest value allowed.

    Raises:
        TypeError: it is not an int.
        ValueError: it is out of range.
    """
    if not is_int(value):
        raise TypeError(f"{name} must be an int; got {type(value).__name__} {short(value)}")
    if not at_least <= value <= at_most:
        raise ValueError(f"{name} must be in [{at_least}, {at_most}]; got {value}")
    return int(value)


def check_mask(name: str, mask: object) -> ColumnMask:
    """Return an argument that must be a `ColumnMask` of the right form.

    Raises:
        TypeError: it is something else, or its indices are no int32 numpy array.
        ValueError: rank or width break a rule; see `check`.
    """
    if not isinstance(mask, ColumnMask):
        raise TypeError(
            f"{name} must be a ColumnMask(startend_row_indices, causal); got {type(mask).__name__}"
        )
    check(mask.startend_row_indices, causal=mask.causal)
    return mask


def check_integers(name: str, values: object) -> Int64Array:
    """Return a list, tuple or array of integers, of any rank, as int64.

    Raises:
        TypeError: it is something else, or holds something else than integers.
        ValueError: its lists differ in length.
    """
    if not isinstance(values, (list, tuple, np.ndarray)):
        kind = type(values).__name__
        raise TypeError(
            f"{name} must be a list, tuple or integer array; got {kind} {short(values)}"
        )
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must have rows of one length; got {short(values)}") from None
    if array.size == 0 and not isinstance(values, np.ndarray):
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold ints; got an array of {array.dtype}")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must hold ints of 64 bits; got {array.max()}")
    return array.astype(np.int64)


def check_rows(name: str, values: object) -> Int64Array:
    """Return integers of one packed row or of a batch of them as [B, S].

    Args:
        name: what the message calls them.
        values: [S] or [B, S], integers.

    Raises:
        TypeError: they are no integers.
        ValueError: they have another rank.
    """
    array = check_integers(name, values)
    if array.ndim not in (1, 2):
        raise ValueError(
            f"{name} must have axes [batch, seqlen] or [seqlen]; got shape {list(array.shape)}"
        )
    return np.atleast_2d(array)
