import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_flashmask.packing import first_fit_decreasing


def first_fit_by_loop(lengths, capacity):
    """The definition: longest first, ties by input order, first bin with room."""
    room, bins = [], {}
    for item in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        fitting = [number for number, left in enumerate(room) if left >= lengths[item]]
        number = fitting[0] if fitting else len(room)
        if not fitting:
            room.append(capacity)
        room[number] -= lengths[item]
        bins[item] = number
    return [bins[item] for item in range(len(lengths))]


@given(st.integers(1, 12).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c)))))
def test_bins_equal_the_definition(case):
    capacity, lengths = case
    assert first_fit_decreasing(lengths, capacity).tolist() == first_fit_by_loop(lengths, capacity)


def test_equal_lengths_keep_input_order():
    assert first_fit_decreasing([2, 2, 2, 2, 2], 4).tolist() == [0, 0, 1, 1, 2]


def test_many_items_are_placed_in_bounded_time():
    lengths = np.random.default_rng(0).integers(1, 4097, 100_000)
    start = time.perf_counter()
    bins = first_fit_decreasing(lengths, 4096)
    assert time.perf_counter() - start < 20  # a loop over bins per item takes minutes
    assert np.bincount(bins, weights=lengths).max() <= 4096


@pytest.mark.parametrize(
    ("lengths", "capacity", "error", "text"),
    [
        ([1.5], 4, TypeError, "lengths must be ints in one dimension; got float64 of shape [1]"),
        (
            [[1, 2]],
            4,
            TypeError,
            "lengths must be ints in one dimension; got int64 of shape [1, 2]",
        ),
        ([1], 0, ValueError, "capacity must be at least 1; got 0"),
        ([3, 5], 4, ValueError, "lengths must be in [1, 4]; got 5 for item 1"),
        ([0], 4, ValueError, "lengths must be in [1, 4]; got 0 for item 0"),
    ],
)
def test_wrong_arguments_are_named(lengths, capacity, error, text):
    with pytest.raises(error) as caught:
        first_fit_decreasing(lengths, capacity)
    assert str(caught.value) == text
