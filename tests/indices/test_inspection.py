"""Checked mode: what is found, where, and in which words."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import masks as support
from support.recipe_modules import build, recipe_module, recipe_names

from paddle_flashmask.indices import check_values, inspect
from paddle_flashmask.recipes import (
    causal_blockwise,
    causal_document,
    document,
    qk_sparse,
    sliding_window,
)


def look(mask, seqlen_q=None, **options):
    indices = mask.startend_row_indices
    rows = indices.shape[2] if seqlen_q is None else seqlen_q
    return inspect(indices, causal=mask.causal, seqlen_q=rows, **options)


def positions(report, *kinds):
    return {
        tuple(place) for kind in kinds for one in report.of_kind(kind) for place in one.positions
    }


def where(flags):
    return {tuple(place) for place in np.argwhere(flags)}


@given(support.masks_with_rows())
def test_positions_are_those_of_numbers_and_cells(drawn):
    mask, seqlen_q = drawn
    report = look(mask, seqlen_q)
    numbers = mask.startend_row_indices
    visible = support.dense_by_loops(mask, seqlen_q)
    assert positions(report, "negative") == where(numbers < 0)
    assert positions(report, "above_seqlen_q") == where(numbers > seqlen_q)
    assert positions(report, "blind_row", "padding_row") == where(~visible.any(axis=3))
    hidden = ~visible.any(axis=2) if seqlen_q else np.zeros((0, 0, 0), bool)
    assert positions(report, "hidden_key") == where(hidden)
    clipped = np.clip(numbers, 0, seqlen_q)
    inverted = set()
    for start in {(True, 2): (0,), (False, 4): (0, 2)}.get((mask.causal, numbers.shape[3]), ()):
        inverted |= where(clipped[..., start] > clipped[..., start + 1])
    assert positions(report, "inverted") == inverted


@given(drawn=support.masks_with_rows(), data=st.data())
def test_seen_padding_is_what_rows_of_tokens_see(drawn, data):
    mask, seqlen_q = drawn
    batch, _, seqlen_k, _ = mask.startend_row_indices.shape
    tokens = data.draw(st.lists(st.integers(0, seqlen_k), min_size=batch, max_size=batch))
    report = look(mask, seqlen_q, num_tokens=tokens)
    visible = support.dense_by_loops(mask, seqlen_q)
    by_real, by_padding, blind = set(), set(), set()
    for sample, head, row, column in np.ndindex(*visible.shape):
        if column >= tokens[sample] and visible[sample, head, row, column]:
            is_real = row + seqlen_k - seqlen_q < tokens[sample]
            (by_real if is_real else by_padding).add((sample, head, column))
    for sample, head, row in where(~visible.any(axis=3)):
        if row + seqlen_k - seqlen_q < tokens[sample]:
            blind.add((sample, head, row))
    assert positions(report, "padding_seen") == by_real
    assert positions(report, "padding_seen_by_padding") == by_padding - by_real
    assert positions(report, "blind_row") == blind


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_sound(name):
    for arguments in recipe_module(name).EXAMPLES.values():
        mask = build(name, arguments)
        kinds = {one.kind for one in look(mask).findings if one.severity != "note"}
        nobody_sees = not support.dense_by_loops(mask, mask.startend_row_indices.shape[2]).any()
        may_be_blind = nobody_sees or name == "qk_sparse"  # dropped tokens do not see themselves
        assert kinds <= ({"blind_row"} if may_be_blind else set()), arguments


def test_document_mask_read_as_causal_is_told():
    indices = document([3, 2, 4], 12).startend_row_indices
    report = inspect(indices, causal=True, seqlen_q=12)
    assert positions(report, "upper_end_in_causal") == {(0, 0)}
    assert not look(document([3, 2, 4], 12)).of_kind("upper_end_in_causal")


@pytest.mark.parametrize(
    "mask", [causal_blockwise([3, 4, 2], 12), qk_sparse(9, [(1, 4), (6, 8)])], ids=["block", "qk"]
)
def test_causal_pair_read_as_two_way_is_told(mask):
    indices = mask.startend_row_indices
    report = inspect(indices, causal=False, seqlen_q=indices.shape[2])
    assert positions(report, "lower_end_in_noncausal") == {(0, 0)}
    assert not look(mask).of_kind("upper_end_in_causal")


def test_a_row_whose_key_is_seen_is_blind_and_padding_is_not():
    report = look(support.filled(False, [3, 4, 1, 2], *[[3, 4, 0, 2]] * 2, [0, 4, 0, 0]))
    assert positions(report, "blind_row") == {(0, 0, 1)}
    assert positions(report, "padding_row") == {(0, 0, 3)}


def test_a_head_in_which_no_row_sees_anything_is_blind_unless_it_is_all_padding():
    nothing = support.filled(False, [0, 0], [1, 1], [2, 2])
    assert positions(look(nothing), "blind_row") == {(0, 0, row) for row in range(3)}
    assert look(nothing, num_tokens=[0]).is_sound


def test_one_row_that_sees_padding_is_enough():
    report = look(support.filled(False, [3, 0], [3, 0], [2, 1]), num_tokens=[2])
    assert positions(report, "padding_seen") == {(0, 0, 2)}


def test_inverted_causal_pairs_behind_the_diagonal_are_no_upper_ends():
    report = look(support.filled(True, [3, 2], [3, 2], [3, 2]))
    assert [one.kind for one in report.findings] == ["inverted"]


def test_the_start_of_an_upper_triangle_in_causal_is_told():
    report = look(support.filled(True, [3], [0], [0]), 3)
    assert positions(report, "start_above_diagonal") == {(0, 0, 1), (0, 0, 2)}
    padded = look(support.filled(True, [1], [1], [1]), 3, num_tokens=[2])
    assert positions(padded, "start_above_diagonal") == set()


WINDOWS = [
    (sliding_window(20, 3), 3),
    (sliding_window(20, 19), 19),
    (sliding_window(20, left=2, right=5), 3),
    (sliding_window(3, 1), 1),
    (sliding_window(20, 20), None),
    (causal_document([5, 5, 5]), None),
    (causal_document([1, 9, 1]), None),
]


@pytest.mark.parametrize(("mask", "tokens"), WINDOWS)
def test_the_width_of_a_window_is_told_in_tokens(mask, tokens):
    found = look(mask).of_kind("window")
    if tokens is None:
        assert found == ()
        return
    unit = "1 token" if tokens == 1 else f"{tokens} tokens"
    assert f"a row sees {unit}, itself included (window_size={tokens - 1})" in found[0].sentence


def test_a_window_inside_documents_is_told():
    ends = causal_document([40, 40], 90).startend_row_indices
    window = sliding_window(90, 5).startend_row_indices
    report = inspect(np.minimum(ends, window), causal=True, seqlen_q=90)
    assert "a row sees 5 tokens" in report.of_kind("window")[0].sentence


def test_the_window_of_more_keys_than_rows_counts_from_the_diagonal():
    report = inspect(np.array([[[[0], [0], [1], [2], [3]]]], np.int32), causal=True, seqlen_q=3)
    assert "a row sees 1 token," in report.of_kind("window")[0].sentence


def test_one_token_too_many_is_hinted_at_and_refused_where_the_width_is_known():
    mask = sliding_window(6, 3)  # the model says 2 tokens, the op's window_size says 2 others
    hint = "if 16 tokens were meant, it is one too wide"
    assert hint in look(sliding_window(40, 17)).of_kind("window")[0].sentence
    assert hint not in look(sliding_window(40, 16)).of_kind("window")[0].sentence
    assert look(mask, window=3).is_sound
    too_wide = look(mask, window=2).of_kind("window_too_wide")
    assert {tuple(place) for place in too_wide[0].positions} == {(0, 0, j) for j in range(4)}
    assert [one.kind for one in look(mask, window=4).findings] == ["window_too_narrow", "window"]
    assert look(causal_document([2, 2, 2]), window=2).is_sound
    assert look(causal_document([3, 2]), window=2).of_kind("window_too_wide")


SENTENCES = [
    (
        np.array([[[[-1, 3], [3, 3], [3, -2]]]], np.int32),
        False,
        {},
        "error (negative): 2 numbers below 0, read as 0 here and otherwise by other kernels: "
        "sample 0 head 0 column 0 number 0 (-1), sample 0 head 0 column 2 number 1 (-2)",
    ),
    (
        np.array([[[[4], [3], [3]]]], np.int32),
        True,
        {},
        "warning (above_seqlen_q): 1 number above seqlen_q, 3, read as 3: "
        "sample 0 head 0 column 0 number 0 (4)",
    ),
    (
        np.full((1, 1, 3, 1), 2**31),
        True,
        {},
        "error (beyond_int32): 3 numbers that int32 cannot hold, a cast would change them: "
        "sample 0 head 0 column 0 number 0 (2147483648), "
        "sample 0 head 0 column 1 number 0 (2147483648), "
        "sample 0 head 0 column 2 number 0 (2147483648)",
    ),
    (
        np.array([[[[3, 3, 0, 0], [1, 2, 3, 1], [1, 2, 2, 0]]]], np.int32),
        False,
        {},
        "warning (inverted): 2 columns with upper_start behind upper_end, which masks no row: "
        "sample 0 head 0 columns 1 to 2",
    ),
    (
        np.array([[[[3, 2], [3, 3], [3, 3]]]], np.int32),
        True,
        {},
        "warning (inverted): 1 column with lower_start behind lower_end, which masks no row: "
        "sample 0 head 0 column 0",
    ),
    (
        np.array([[[[3, 0], [3, 1], [3, 2]]]], np.int32),
        True,
        {},
        "warning (upper_end_in_causal): with causal=True the second number is lower_end, but in "
        "every column of every sample and head it is at or above the diagonal and no interval "
        "masks a row, as if it were upper_end: is causal=False meant?",
    ),
    (
        np.array([[[[1, 3], [2, 3], [3, 3]]], [[[3, 0]] * 3]], np.int32),
        False,
        {},
        "warning (lower_end_in_noncausal): with causal=False the second number is upper_end, but "
        "in every column of sample 0 head 0 it is at or behind lower_start, so nobody sees "
        "anything, as if it were lower_end: is causal=True meant?",
    ),
    (
        np.array([[[[3], [0], [3]]]], np.int32),
        True,
        {},
        "warning (start_above_diagonal): 1 column with lower_start above the diagonal, where "
        "causal=True masks anyway; a start of upper rows belongs to the form with causal=False: "
        "sample 0 head 0 column 1",
    ),
    (
        np.array([[[[1], [2], [2]]]], np.int32),
        True,
        {},
        "note (padding_row): 1 row of padding that see nothing, so their output is 0: "
        "sample 0 head 0 row 2",
    ),
    (
        np.array([[[[2, 0], [2, 0], [2, 0]]]], np.int32),
        False,
        {},
        "warning (blind_row): 1 row that see nothing, so their output is 0: sample 0 head 0 row 2",
    ),
    (
        np.array([[[[3], [1], [3]]]], np.int32),
        True,
        {},
        "note (hidden_key): 1 key that nobody sees: sample 0 head 0 column 1",
    ),
    (
        np.array([[[[3, 0], [3, 0], [3, 0]]]], np.int32),
        False,
        {"num_tokens": [2]},
        "error (padding_seen): 1 key of padding that rows of real tokens see: "
        "sample 0 head 0 column 2",
    ),
    (
        np.array([[[[3], [3], [3]]]], np.int32),
        True,
        {"num_tokens": [2]},
        "note (padding_seen_by_padding): 1 key of padding that only rows of padding see: "
        "sample 0 head 0 column 2",
    ),
    (
        np.array([[[[2], [3], [3]]]], np.int32),
        True,
        {"window": 1},
        "error (window_too_wide): 2 columns seen from more than 1 tokens: "
        "sample 0 head 0 column 0 (2), sample 0 head 0 column 1 (2)",
    ),
    (
        np.array([[[[1], [2], [3]]]], np.int32),
        True,
        {"window": 2},
        "error (window_too_narrow): a row should see 2 tokens, itself included, but sees "
        "sample 0 head 0 (1)",
    ),
    (
        np.full((1, 1, 3, 1), 3, np.int64),
        True,
        {},
        "error (dtype): the dtype must be int32; got int64, and its numbers are whole",
    ),
    (
        np.full((1, 1, 3, 1), 2.0**62),
        True,
        {},
        "error (dtype): the dtype must be int32; got float64, and its numbers are whole",
    ),
    (
        np.full((1, 1, 3, 1), np.nan, np.float32),
        True,
        {},
        "error (dtype): the dtype must be int32; got float32, and its numbers cannot be read as "
        "whole ones",
    ),
    (
        np.full((1, 1, 3, 1), 2.5),
        True,
        {},
        "error (dtype): the dtype must be int32; got float64, and its numbers cannot be read as "
        "whole ones",
    ),
    (
        np.full((1, 1, 3, 1), 2**63, np.uint64),
        True,
        {},
        "error (dtype): the dtype must be int32; got uint64, and its numbers cannot be read as "
        "whole ones",
    ),
    (
        np.full((1, 1, 3, 1), 3, np.int32),
        False,
        {},
        "error (form): startend_row_indices must have last axis 2 or 4 with causal=False; "
        "got 1 in shape [1, 1, 3, 1]; is causal=True meant?",
    ),
    (
        np.full((1, 1, 3, 3), 3, np.int32),
        True,
        {},
        "error (form): startend_row_indices must have last axis 1 or 2 with causal=True; "
        "got 3 in shape [1, 1, 3, 3]",
    ),
    (
        np.full((1, 3, 1), 3, np.int32),
        True,
        {},
        "error (form): startend_row_indices must have 4 axes [batch, mask heads, seqlen_k, 1|2|4]; "
        "got shape [1, 3, 1]",
    ),
]


@pytest.mark.parametrize(("indices", "causal", "options", "line"), SENTENCES)
def test_findings_are_told_in_words_and_refused_but_for_notes(indices, causal, options, line):
    report = inspect(indices, causal=causal, seqlen_q=3, **options)
    assert line in str(report).splitlines()
    if report.is_sound:
        check_values(indices, causal=causal, seqlen_q=3, **options)
        return
    with pytest.raises(ValueError, match=r"^startend_row_indices must be sound; got\n") as caught:
        check_values(indices, causal=causal, seqlen_q=3, **options)
    assert (line in str(caught.value).splitlines()) == (not line.startswith("note"))
    kinds = {one.kind for one in report.findings}
    check_values(indices, causal=causal, seqlen_q=3, **options, allow=kinds)


def test_a_mask_without_findings_says_so_and_the_worst_comes_first():
    assert str(look(causal_document([3]))) == "nothing found"
    mixed = inspect(np.array([[[[1], [0], [-9]]]], np.int32), causal=True, seqlen_q=3)
    severities = [one.severity for one in mixed.findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert {"error", "warning", "note"} == set(severities)


def test_long_lists_of_places_are_cut():
    row = look(support.filled(True, *[[-1]] * 7), 7).of_kind("negative")[0]
    assert row.sentence.endswith("column 3 number 0 (-1) and 3 more")
    assert len(row.positions) == 7
    hidden = look(support.filled(True, *[[11], [0]] * 5), 11).of_kind("hidden_key")[0]
    assert hidden.sentence.endswith("column 7 and 1 more places")


BAD_VALUES = [
    ({"num_tokens": [1, 2]}, "num_tokens must hold one number per sample, 1; got shape [2]"),
    ({"num_tokens": [4]}, "num_tokens[0] must be in [0, 3]; got 4"),
    ({"window": 0}, "window must be in [1, 2147483647]; got 0"),
]
BAD_KINDS = [
    ({"num_tokens": [1.0]}, "num_tokens must hold ints; got an array of float64"),
    ({"window": 2.0}, "window must be an int; got float 2.0"),
    ({"seqlen_q": 3.0}, "seqlen_q must be an int; got float 3.0"),
    ({"causal": 1}, "causal must be a bool; got int 1"),
]


@pytest.mark.parametrize(("options", "message"), BAD_VALUES)
def test_values_are_refused_in_words(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        inspect(np.full((1, 1, 3, 1), 3, np.int32), causal=True, seqlen_q=3, **options)


@pytest.mark.parametrize(("options", "message"), BAD_KINDS)
def test_kinds_are_refused_in_words(options, message):
    arguments = {"causal": True, "seqlen_q": 3, **options}
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        inspect(np.full((1, 1, 3, 1), 3, np.int32), **arguments)


def test_lists_and_a_single_kind_are_refused():
    message = "startend_row_indices must be a numpy array; got list"
    with pytest.raises(TypeError, match=f"^{message}$"):
        inspect([[[[3]]]], causal=True, seqlen_q=3)
    with pytest.raises(TypeError, match=r"^allow must be a collection of kinds; got str 'dtype'$"):
        check_values(np.zeros((1, 1, 1, 1)), causal=True, seqlen_q=1, allow="dtype")
