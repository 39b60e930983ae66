"""Which bin each item goes to: three strategies, none slower than O(n log n).

| strategy             | items are taken     | each goes into              | good for              |
|----------------------|---------------------|-----------------------------|-----------------------|
| first_fit_decreasing | from long to short  | the first bin with room     | the fewest rows       |
| first_fit            | in their order      | the first bin with room     | streams               |
| sequential           | in their order      | the last bin, or a new one  | the order of the data |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["STRATEGIES", "Strategy", "first_fit", "first_fit_decreasing", "sequential"]

Strategy: TypeAlias = Callable[[Sequence[int] | NDArray[np.integer], int], NDArray[np.int64]]


def first_fit_decreasing(
    lengths: Sequence[int] | NDArray[np.integer], capacity: int
) -> NDArray[np.int64]:
    """Return for each item the number of its bin.

    Items are taken from longest to shortest, equal ones in input order, and each goes into the
    first bin that still has room; bins are numbered as they are opened. The same lengths always
    give the same bins. Uses at most 11/9 of the fewest bins, plus one (Dosa 2007).

    Args:
        lengths: [n], ints in [1, capacity].
        capacity: room of every bin, at least 1.

    Returns:
        [n], int64, bin numbers 0, 1, ... without gaps.

    Raises:
        TypeError: lengths are not ints in one dimension.
        ValueError: capacity < 1, or a length is outside [1, capacity].

    Example:
        >>> first_fit_decreasing([2, 5, 3, 2], 6).tolist()
        [1, 0, 1, 2]
    """
    sizes = _checked(lengths, capacity)
    return _first_fit(sizes, np.argsort(-sizes, kind="stable"), capacity)


def first_fit(lengths: Sequence[int] | NDArray[np.integer], capacity: int) -> NDArray[np.int64]:
    """Return for each item the number of its bin, each put into the first bin with room.

    Args:
        lengths: [n], ints in [1, capacity].
        capacity: room of every bin, at least 1.

    Returns:
        [n], int64, bin numbers 0, 1, ... without gaps.

    Raises:
        TypeError: lengths are not ints in one dimension.
        ValueError: capacity < 1, or a length is outside [1, capacity].

    Example:
        >>> first_fit([2, 5, 3, 2], 6).tolist()
        [0, 1, 0, 2]
    """
    sizes = _checked(lengths, capacity)
    return _first_fit(sizes, np.arange(sizes.size), capacity)


def sequential(lengths: Sequence[int] | NDArray[np.integer], capacity: int) -> NDArray[np.int64]:
    """Return for each item the number of its bin; bins hold runs of neighbours, in order.

    Args:
        lengths: [n], ints in [1, capacity].
        capacity: room of every bin, at least 1.

    Returns:
        [n], int64, bin numbers 0, 1, ... without gaps, never falling.

    Raises:
        TypeError: lengths are not ints in one dimension.
        ValueError: capacity < 1, or a length is outside [1, capacity].

    Example:
        >>> sequential([2, 5, 1, 2], 6).tolist()
        [0, 1, 1, 2]
    """
    sizes = _checked(lengths, capacity)
    bins = np.empty(sizes.size, np.int64)
    number, room = -1, 0
    for item, size in enumerate(sizes.tolist()):
        if size > room:
            number, room = number + 1, capacity
        bins[item] = number
        room -= size
    return bins


STRATEGIES: dict[str, Strategy] = {
    "first_fit_decreasing": first_fit_decreasing,
    "first_fit": first_fit,
    "sequential": sequential,
}


def _checked(lengths: Sequence[int] | NDArray[np.integer], capacity: int) -> NDArray[np.int64]:
    sizes = np.asarray(lengths)
    if sizes.size == 0:
        return np.zeros(0, np.int64)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        raise TypeError(
            f"lengths must be ints in one dimension; got {sizes.dtype} of shape {list(sizes.shape)}"
        )
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1; got {capacity}")
    wrong = np.flatnonzero((sizes < 1) | (sizes > capacity))
    if wrong.size:
        item = int(wrong[0])
        raise ValueError(f"lengths must be in [1, {capacity}]; got {sizes[item]} for item {item}")
    return sizes.astype(np.int64)


def _first_fit(
    sizes: NDArray[np.integer], order: NDArray[np.int64], capacity: int
) -> NDArray[np.int64]:
    """Place the items in the given order, each in the first bin with room.

    `room` is a binary tree in an array: leaf `leaves + b` is the room left in bin b, an inner node
    is the larger of its children, so the first fitting bin is found by going down to the left
    wherever the left child is large enough. A bin not opened yet is a leaf with all its room.
    """
    if sizes.size == 0:
        return np.zeros(0, np.int64)
    leaves = 1 << (len(sizes) - 1).bit_length()
    room = [capacity] * (2 * leaves)
    bins = np.empty(len(sizes), np.int64)
    for item, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < size:
                node += 1
        bins[item] = node - leaves
        room[node] -= size
        node //= 2
        while node:
            largest = max(room[2 * node], room[2 * node + 1])
            if room[node] == largest:
                break
            room[node] = largest
            node //= 2
    return bins
