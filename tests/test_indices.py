"""The mask format: its checks, dense meaning, lowering and narrowing, against loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import FORMS
from support.dense import visible

from paddle_flashmask import indices

# (rows, columns) small enough to list every mask of every form.
TINY_SIZES = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (1, 3), (3, 2), (2, 3)]


def dense_by_loops(bounds: np.ndarray, causal: bool, seqlen_q: int) -> np.ndarray:
    """The table of the format, cell by cell, in Python's integers."""
    batch, heads, seqlen_k, width = bounds.shape
    dense = np.zeros((batch, heads, seqlen_q, seqlen_k), bool)
    for b, h, i, j in np.ndindex(*dense.shape):
        numbers = [int(number) for number in bounds[b, h, j]]
        if causal and width == 1:
            masked = i >= numbers[0]
        elif causal:
            masked = numbers[0] <= i < numbers[1]
        elif width == 2:
            masked = i >= numbers[0] or i < numbers[1]
        else:
            masked = numbers[0] <= i < numbers[1] or numbers[2] <= i < numbers[3]
        if causal and j > i + seqlen_k - seqlen_q:
            masked = True
        dense[b, h, i, j] = not masked
    return dense


@st.composite
def masks(draw, forms=FORMS):
    """(indices, causal, seqlen_q), bounds out of range and at the ends of int32 as well."""
    causal, width = draw(st.sampled_from(forms))
    seqlen_q, seqlen_k = draw(st.integers(0, 7)), draw(st.integers(0, 7))
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 2)), seqlen_k, width)
    near = st.integers(-2, seqlen_q + 2)
    number = st.one_of(near, near, near, st.sampled_from([-(2**31), 2**31 - 1]))
    size = int(np.prod(shape))
    numbers = draw(st.lists(number, min_size=size, max_size=size))
    return np.array(numbers, np.int32).reshape(shape), causal, seqlen_q


@given(masks())
def test_to_dense_equals_the_table_of_the_format(mask):
    bounds, causal, seqlen_q = mask
    expected = dense_by_loops(bounds, causal, seqlen_q)
    dense = indices.to_dense(bounds, causal=causal, seqlen_q=seqlen_q)
    np.testing.assert_array_equal(dense, expected)


@given(masks())
def test_visibility_of_the_tests_equals_the_table_of_the_format(mask):
    bounds, causal, seqlen_q = mask
    seen = visible(bounds, causal=causal, seqlen_q=seqlen_q, seqlen_k=bounds.shape[2])
    np.testing.assert_array_equal(seen, dense_by_loops(bounds, causal, seqlen_q))


@given(masks())
def test_bounds_say_the_same_as_the_mask(mask):
    bounds, causal, seqlen_q = mask
    four = indices.to_bounds(bounds, causal=causal, seqlen_q=seqlen_q)
    assert four.dtype == np.int32
    np.testing.assert_array_equal(
        dense_by_loops(four, False, seqlen_q), dense_by_loops(bounds, causal, seqlen_q)
    )


@given(masks())
def test_bounds_are_clipped_to_the_rows(mask):
    bounds, causal, seqlen_q = mask
    four = indices.to_bounds(bounds, causal=causal, seqlen_q=seqlen_q)
    assert ((four >= 0) & (four <= seqlen_q)).all()


@given(masks(forms=FORMS[:2]))
def test_lowering_removes_causal_and_says_the_same(mask):
    bounds, _, seqlen_q = mask
    lowered, still_causal = indices.lower_causal(bounds, seqlen_q=seqlen_q)
    assert still_causal is False
    assert lowered.shape[3] == 2 * bounds.shape[3]
    np.testing.assert_array_equal(
        dense_by_loops(lowered, False, seqlen_q), dense_by_loops(bounds, True, seqlen_q)
    )


@given(masks())
def test_narrowing_says_the_same(mask):
    bounds, causal, seqlen_q = mask
    narrowed = indices.narrow(bounds, causal=causal, seqlen_q=seqlen_q)
    assert narrowed.startend_row_indices.dtype == np.int32
    np.testing.assert_array_equal(
        dense_by_loops(narrowed.startend_row_indices, narrowed.causal, seqlen_q),
        dense_by_loops(bounds, causal, seqlen_q),
    )


@given(masks())
def test_narrowing_twice_changes_nothing(mask):
    bounds, causal, seqlen_q = mask
    once = indices.narrow(bounds, causal=causal, seqlen_q=seqlen_q)
    twice = indices.narrow(once.startend_row_indices, causal=once.causal, seqlen_q=seqlen_q)
    assert twice.causal == once.causal
    np.testing.assert_array_equal(twice.startend_row_indices, once.startend_row_indices)


def every_mask(causal: bool, width: int, rows: int, columns: int) -> np.ndarray:
    """All masks of a form as a batch; only the columns' distinct meanings, to keep it small."""
    numbers = list(itertools.product(range(rows + 1), repeat=width))
    if width == 4:
        numbers = _one_for_each_meaning(numbers, rows)
    every = itertools.product(numbers, repeat=columns)
    return np.array(list(every), np.int32).reshape(-1, 1, columns, width)


def _one_for_each_meaning(numbers: list[tuple[int, ...]], rows: int) -> list[tuple[int, ...]]:
    columns = np.array(numbers, np.int32)[:, None, None, :]
    dense = dense_by_loops(columns, False, rows)
    return list({mask.tobytes(): n for mask, n in zip(dense, numbers, strict=True)}.values())


@pytest.mark.parametrize(("rows", "columns"), TINY_SIZES)
def test_narrowing_finds_the_first_form_that_can_say_every_tiny_mask(rows, columns):
    sayable = {}
    for causal, width in FORMS:
        dense = dense_by_loops(every_mask(causal, width, rows, columns), causal, rows)
        sayable[causal, width] = {mask.tobytes() for mask in dense}
    for causal, width in FORMS:
        batch = every_mask(causal, width, rows, columns)
        for mask, dense in zip(batch, dense_by_loops(batch, causal, rows), strict=True):
            first = next(form for form in FORMS if dense.tobytes() in sayable[form])
            narrowed = indices.narrow(mask[None], causal=causal, seqlen_q=rows)
            found = narrowed.causal, narrowed.startend_row_indices.shape[3]
            assert found == first, f"{mask.tolist()} causal={causal}"


@pytest.mark.parametrize(("causal", "width"), FORMS)
@pytest.mark.parametrize(("rows", "columns"), TINY_SIZES)
def test_every_tiny_mask_keeps_its_meaning(rows, columns, causal, width):
    batch = every_mask(causal, width, rows, columns)
    expected = dense_by_loops(batch, causal, rows)
    dense = indices.to_dense(batch, causal=causal, seqlen_q=rows)
    np.testing.assert_array_equal(dense, expected, err_msg="to_dense")
    bounds = indices.to_bounds(batch, causal=causal, seqlen_q=rows)
    np.testing.assert_array_equal(dense_by_loops(bounds, False, rows), expected, "to_bounds")
    if causal:
        lowered = indices.lower_causal(batch, seqlen_q=rows).startend_row_indices
        np.testing.assert_array_equal(dense_by_loops(lowered, False, rows), expected, "lowering")


@pytest.mark.parametrize("order", [0, 1])
def test_narrowing_chooses_one_form_for_all_samples_and_heads(order):
    causal_only = [[3, 3, 0, 0], [3, 3, 0, 1], [3, 3, 0, 2]]
    everything = [[3, 3, 0, 0]] * 3
    pair = [causal_only, everything][:: 1 if order else -1]
    for shape in ((2, 1, 3, 4), (1, 2, 3, 4)):
        bounds = np.array(pair, np.int32).reshape(shape)
        narrowed = indices.narrow(bounds, causal=False, seqlen_q=3)
        assert not narrowed.causal
        assert narrowed.startend_row_indices.shape[3] == 2


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (4, 4, [0, 1, 2, 3]),
        (2, 5, [0, 0, 0, 0, 1]),
        (5, 2, [3, 4]),
        (0, 3, [0, 0, 0]),
        (3, 0, []),
        (1, 3, [0, 0, 0]),
    ],
)
def test_diagonal_is_aligned_to_the_bottom_right(rows, columns, expected):
    assert indices.diagonal_rows(rows, columns).tolist() == expected


@pytest.mark.parametrize("name", ["to_dense", "to_bounds", "narrow", "lower_causal"])
@pytest.mark.parametrize(("causal", "width"), FORMS)
def test_arguments_are_left_unchanged(name, causal, width):
    bounds = np.arange(-3, 3 * width - 3, dtype=np.int32).reshape(1, 1, 3, width)
    bounds.flags.writeable = False
    before = bounds.copy()
    if name == "lower_causal":
        if causal:
            indices.lower_causal(bounds, seqlen_q=3)
    else:
        getattr(indices, name)(bounds, causal=causal, seqlen_q=3)
    np.testing.assert_array_equal(bounds, before)


@pytest.mark.parametrize("seqlen_q", [2**31 - 1, 2**31 - 2])
def test_bounds_are_right_at_the_largest_row_number(seqlen_q):
    bounds = np.array([[[[2**31 - 1]], [[-(2**31)]], [[5]]]], np.int32).reshape(1, 3, 1, 1)
    four = indices.to_bounds(bounds, causal=True, seqlen_q=seqlen_q)
    last = seqlen_q - 1
    assert four[0, :, 0].tolist() == [
        [seqlen_q, seqlen_q, 0, last],
        [0, seqlen_q, 0, last],
        [5, seqlen_q, 0, last],
    ]


GOOD = np.zeros((2, 3, 5, 2), np.int32)
SIZES = {"batch": 2, "num_heads": 6, "num_heads_k": 3, "seqlen_k": 5}

BAD_ARRAYS = [
    ("list", [[[[1]]]], {}, TypeError, ["startend_row_indices", "numpy array", "list"]),
    ("none", None, {}, TypeError, ["startend_row_indices", "NoneType"]),
    ("int64", GOOD.astype(np.int64), {}, TypeError, ["int32", "int64", "Cast"]),
    ("float32", GOOD.astype(np.float32), {}, TypeError, ["int32", "float32"]),
    ("bool", GOOD.astype(bool), {}, TypeError, ["int32", "bool"]),
    ("uint32", GOOD.astype(np.uint32), {}, TypeError, ["int32", "uint32"]),
    ("causal int", GOOD, {"causal": 1}, TypeError, ["causal must be a bool", "int 1"]),
    ("causal none", GOOD, {"causal": None}, TypeError, ["causal must be a bool", "NoneType"]),
    ("rank 3", GOOD[0], {}, ValueError, ["4 axes", "[3, 5, 2]"]),
    ("rank 5", GOOD[None], {}, ValueError, ["4 axes", "[1, 2, 3, 5, 2]"]),
    ("width 3", np.zeros((2, 3, 5, 3), np.int32), {}, ValueError, ["last axis 2 or 4", "got 3"]),
    ("width 1", GOOD[..., :1], {}, ValueError, ["last axis 2 or 4", "causal=False", "got 1"]),
    (
        "width 4 causal",
        np.zeros((2, 3, 5, 4), np.int32),
        {"causal": True},
        ValueError,
        ["last axis 1 or 2", "causal=True", "got 4"],
    ),
    ("width 0", GOOD[..., :0], {}, ValueError, ["last axis", "got 0"]),
    ("batch 1", GOOD[:1], {}, ValueError, ["batch", "2", "got 1", "not broadcast"]),
    ("heads 2", GOOD[:, :2], {}, ValueError, ["1, 3 (key heads) or 6 (query heads)", "got 2"]),
    ("heads 0", GOOD[:, :0], {}, ValueError, ["mask heads", "got 0"]),
    ("length 4", GOOD[:, :, :4], {}, ValueError, ["one column per key, 5", "got 4"]),
]


@pytest.mark.parametrize(
    ("array", "changes", "error", "texts"), [row[1:] for row in BAD_ARRAYS], ids=lambda x: None
)
def test_check_refuses_in_words(array, changes, error, texts):
    with pytest.raises(error) as raised:
        indices.check(array, **{"causal": False, **SIZES, **changes})
    assert all(text in str(raised.value) for text in texts), str(raised.value)


@pytest.mark.parametrize("heads", [1, 3, 6])
def test_check_takes_every_allowed_number_of_mask_heads(heads):
    indices.check(np.zeros((2, heads, 5, 4), np.int32), causal=False, **SIZES)


def test_check_takes_no_mask_heads_never():
    with pytest.raises(ValueError, match="at least 1 mask head"):
        indices.check(GOOD[:, :0], causal=False)


@pytest.mark.parametrize(
    "shape", [(-1, 3, 5, 2), (2, -1, 5, 2), (2, 1, -1, 2), (2, 1, 5, -1), (-1,) * 4]
)
def test_check_form_takes_sizes_that_are_not_known_yet(shape):
    indices.check_form(shape, "int32", causal=False, **SIZES)


@pytest.mark.parametrize(("name", "size"), list(SIZES.items()))
def test_check_form_takes_unknown_sizes_of_query_and_key(name, size):
    indices.check_form((2, 3, 5, 2), "int32", causal=False, **{**SIZES, name: -1})


@pytest.mark.parametrize("name", ["to_dense", "to_bounds", "narrow"])
@pytest.mark.parametrize(
    ("seqlen_q", "error", "text"),
    [
        (-1, ValueError, "-1"),
        (2**31, ValueError, "2147483648"),
        (2.0, TypeError, "float 2.0"),
        (True, TypeError, "bool True"),
        (None, TypeError, "NoneType"),
        ("3", TypeError, "str '3'"),
    ],
)
def test_seqlen_q_is_refused_in_words(name, seqlen_q, error, text):
    with pytest.raises(error, match="seqlen_q must be") as raised:
        getattr(indices, name)(GOOD, causal=False, seqlen_q=seqlen_q)
    assert text in str(raised.value)


def test_lowering_refuses_a_form_that_is_not_causal():
    with pytest.raises(ValueError, match="last axis 1 or 2 with causal=True"):
        indices.lower_causal(np.zeros((1, 1, 3, 4), np.int32), seqlen_q=3)


def test_narrowing_is_linear_in_the_number_of_keys():
    # A dense mask of this length would take 64 GiB.
    length = 2**18
    ends = np.minimum((np.arange(length) // 1000 + 1) * 1000, length)
    four = np.zeros((1, 1, length, 4), np.int32)
    four[0, 0, :, 0], four[0, 0, :, 1], four[0, 0, :, 3] = ends, length, np.arange(length)
    narrowed = indices.narrow(four, causal=False, seqlen_q=length)
    assert narrowed.causal
    np.testing.assert_array_equal(narrowed.startend_row_indices[0, 0, :, 0], ends)
