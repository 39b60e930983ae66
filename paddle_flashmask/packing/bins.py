"""First-fit decreasing: which bin each item goes to, in O(n log n)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["first_fit_decreasing"]


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
    return _first_fit(sizes, np.argsort(-sizes.astype(np.int64), kind="stable"), capacity)


def _first_fit(
    sizes: NDArray[np.integer], order: NDArray[np.int64], capacity: int
) -> NDArray[np.int64]:
    """Place the items in the given order, each in the first bin with room.

    `room` is a binary tree in an array: leaf `leaves + b` is the room left in bin b, an inner node
    is the larger of its children, so the first fitting bin is found by going down to the left
    wherever the left child is large enough. A bin not opened yet is a leaf with all its room.
    """
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
