"""What builders refuse, and in which words."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.recipe_modules import build, recipe_names

TOO_LARGE = 2**31
COUNT_RANGE = "[0, 2147483647]"

KIND_ERRORS = [
    ("full", {"seq_len": 4.0}, "seq_len must be an int; got float 4.0"),
    ("full", {"seq_len": True}, "seq_len must be an int; got bool True"),
    ("causal", {"seq_len": "4"}, "seq_len must be an int; got str '4'"),
    ("causal", {"seq_len": None}, "seq_len must be an int; got NoneType None"),
    (
        "causal",
        {"seq_len": np.float32(2)},
        f"seq_len must be an int; got float32 {np.float32(2)!r}",
    ),
    (
        "causal",
        {"seq_len": np.bool_(True)},
        f"seq_len must be an int; got {np.bool_.__name__} {np.True_!r}",
    ),
    ("sft", {"lengths": 3}, "lengths must be a list, tuple or integer array; got int 3"),
    ("sft", {"lengths": "32"}, "lengths must be a list, tuple or integer array; got str '32'"),
    ("sft", {"lengths": {3}}, "lengths must be a list, tuple or integer array; got set {3}"),
    ("sft", {"lengths": [3, 2.0]}, "lengths[1] must be an int; got float 2.0"),
    ("sft", {"lengths": [True, 2]}, "lengths[0] must be an int; got bool True"),
    ("sft", {"lengths": np.array([1.0])}, "lengths must hold ints; got an array of float64"),
    ("sft", {"lengths": np.array([True])}, "lengths must hold ints; got an array of bool"),
    ("sft", {"lengths": [3], "seq_len": 3.0}, "seq_len must be an int; got float 3.0"),
    ("document", {"lengths": [[1]]}, "lengths[0] must be an int; got list [1]"),
    (
        "prefix_lm_document",
        {"lengths": [2], "prefix_lengths": [1.5]},
        "prefix_lengths[0] must be an int; got float 1.5",
    ),
    ("dpo", {"groups": 5}, "groups must be a list or tuple; got int 5"),
    (
        "dpo",
        {"groups": (2, [2, 3])},
        "groups[0] must be a pair (question_length, answer_lengths); got 2",
    ),
    (
        "dpo",
        {"groups": [(2, 2, 3)]},
        "groups[0] must be a pair (question_length, answer_lengths); got (2, 2, 3)",
    ),
    (
        "rm",
        {"groups": [(2, 3)]},
        "answer_lengths of groups[0] must be a list, tuple or integer array; got int 3",
    ),
    ("rm", {"groups": [(2.0, [3])]}, "question_length of groups[0] must be an int; got float 2.0"),
    (
        "share_question",
        {"groups": [(2, [3, False])]},
        "answer_lengths of groups[0][1] must be an int; got bool False",
    ),
    ("sliding_window", {"seq_len": 4, "window": 2.0}, "window must be an int; got float 2.0"),
    (
        "sliding_window",
        {"seq_len": 4},
        "sliding_window must get either window, or left and right; "
        "got window=None, left=None, right=None",
    ),
    (
        "sliding_window",
        {"seq_len": 4, "window": 2, "left": 1},
        "sliding_window must get either window, or left and right; "
        "got window=2, left=1, right=None",
    ),
    (
        "sliding_window",
        {"seq_len": 4, "right": 1},
        "sliding_window must get either window, or left and right; "
        "got window=None, left=None, right=1",
    ),
    (
        "qk_sparse",
        {"seq_len": 4, "spans": 2},
        "spans must be a list, tuple or integer array; got int 2",
    ),
    (
        "qk_sparse",
        {"seq_len": 4, "spans": (1, 2)},
        "spans[0] must be a list, tuple or integer array; got int 1",
    ),
    ("qk_sparse", {"seq_len": 4, "spans": [(1, 2.0)]}, "spans[0][1] must be an int; got float 2.0"),
    (
        "random_eviction",
        {"seq_len": 4},
        "random_eviction must get either eviction_rows or seed; got neither",
    ),
    (
        "random_eviction",
        {"seq_len": 1, "seed": 0, "eviction_rows": [1]},
        "random_eviction must get either eviction_rows or seed; got both",
    ),
    (
        "random_eviction",
        {"seq_len": 1, "seed": 0.5},
        "seed must be an int or a numpy Generator; got float 0.5",
    ),
    (
        "random_eviction",
        {"seq_len": 1, "seed": True},
        "seed must be an int or a numpy Generator; got bool True",
    ),
    (
        "random_eviction",
        {"seq_len": 1, "eviction_rows": [[1.0]]},
        "eviction_rows[0][0] must be an int; got float 1.0",
    ),
    (
        "random_eviction",
        {"seq_len": 1, "seed": 0, "num_heads_mask": 1.0},
        "num_heads_mask must be an int; got float 1.0",
    ),
]

VALUE_ERRORS = [
    ("full", {"seq_len": -1}, f"seq_len must be in {COUNT_RANGE}; got -1"),
    ("causal", {"seq_len": TOO_LARGE}, f"seq_len must be in {COUNT_RANGE}; got 2147483648"),
    ("sft", {"lengths": [3, -2]}, f"lengths[1] must be in {COUNT_RANGE}; got -2"),
    ("sft", {"lengths": np.array([3, 1, -2])}, f"lengths[2] must be in {COUNT_RANGE}; got -2"),
    ("sft", {"lengths": [2**70]}, f"lengths[0] must be in {COUNT_RANGE}; got {2**70}"),
    (
        "sft",
        {"lengths": np.array([2**63], np.uint64)},
        f"lengths[0] must be in {COUNT_RANGE}; got {2**63}",
    ),
    ("sft", {"lengths": np.ones((2, 2), int)}, "lengths must have 1 axis; got shape [2, 2]"),
    ("sft", {"lengths": np.array(3)}, "lengths must have 1 axis; got shape []"),
    (
        "sft",
        {"lengths": [2**31 - 1, 1]},
        "the sum of lengths must be at most 2147483647; got 2147483648",
    ),
    (
        "sft",
        {"lengths": [3, 2], "seq_len": 4},
        "seq_len must be at least the sum of lengths, 5; got 4",
    ),
    ("sft", {"lengths": [], "seq_len": -1}, f"seq_len must be in {COUNT_RANGE}; got -1"),
    (
        "causal_document",
        {"lengths": [3], "seq_len": 2},
        "seq_len must be at least the sum of lengths, 3; got 2",
    ),
    (
        "document",
        {"lengths": [3], "seq_len": 2},
        "seq_len must be at least the sum of lengths, 3; got 2",
    ),
    (
        "causal_blockwise",
        {"lengths": [3], "seq_len": 2},
        "seq_len must be at least the sum of lengths, 3; got 2",
    ),
    (
        "dpo",
        {"groups": [(2, [2, 3])], "seq_len": 6},
        "seq_len must be at least the sum of groups, 7; got 6",
    ),
    (
        "rm",
        {"groups": [(2, [2, -3])]},
        "answer_lengths of groups[0][1] must be in [1, 2147483647]; got -3",
    ),
    (
        "share_question",
        {"groups": [(1, [1]), (0, [1])]},
        "question_length of groups[1] must be in [1, 2147483647]; got 0",
    ),
    (
        "sliding_window",
        {"seq_len": 4, "window": 0},
        "window must be in [1, 2147483647]; got 0",
    ),
    (
        "sliding_window",
        {"seq_len": 4, "left": -1, "right": 0},
        f"left must be in {COUNT_RANGE}; got -1",
    ),
    (
        "sliding_window",
        {"seq_len": 4, "left": 0, "right": -1},
        f"right must be in {COUNT_RANGE}; got -1",
    ),
    (
        "global_sliding_window",
        {"seq_len": 4, "num_global": 5, "left": 0, "right": 0},
        "num_global must be at most seq_len, 4; got 5",
    ),
    (
        "global_sliding_window",
        {"seq_len": 4, "num_global": 1, "left": -1, "right": 0},
        f"left must be in {COUNT_RANGE}; got -1",
    ),
    (
        "prefix_lm_causal",
        {"seq_len": 4, "prefix_length": 5},
        "prefix_length must be at most seq_len, 4; got 5",
    ),
    (
        "prefix_lm_document",
        {"lengths": [2, 3], "prefix_lengths": [1]},
        "prefix_lengths must hold one number per document, 2; got 1",
    ),
    (
        "prefix_lm_document",
        {"lengths": [2, 3], "prefix_lengths": [1, 4]},
        "prefix_lengths[1] must be at most lengths[1], 3; got 4",
    ),
    (
        "prefix_lm_document",
        {"lengths": [3], "prefix_lengths": [1], "seq_len": 2},
        "seq_len must be at least the sum of lengths, 3; got 2",
    ),
    (
        "qk_sparse",
        {"seq_len": 9, "spans": [(1, 4), (6, 5)]},
        "spans[1] must be half-open with start <= end <= seq_len, 9; got (6, 5)",
    ),
    (
        "qk_sparse",
        {"seq_len": 9, "spans": [(1, 10)]},
        "spans[0] must be half-open with start <= end <= seq_len, 9; got (1, 10)",
    ),
    (
        "qk_sparse",
        {"seq_len": 9, "spans": [(-1, 2)]},
        f"spans[0][0] must be in {COUNT_RANGE}; got -1",
    ),
    (
        "qk_sparse",
        {"seq_len": 9, "spans": [(4, 6), (2, 5)]},
        "spans must not overlap; got spans[1] = (2, 5) and spans[0] = (4, 6)",
    ),
    (
        "qk_sparse",
        {"seq_len": 9, "spans": [(1, 2, 3)]},
        "spans[0] must be a pair (start, end); got (1, 2, 3)",
    ),
    ("random_eviction", {"seq_len": 1, "seed": -1}, "seed must be at least 0; got -1"),
    (
        "random_eviction",
        {"seq_len": 1, "seed": 0, "num_heads_mask": 0},
        "num_heads_mask must be in [1, 2147483647]; got 0",
    ),
    (
        "random_eviction",
        {"seq_len": 3, "eviction_rows": [1, 2]},
        "eviction_rows must hold one row per key, 3; got 2",
    ),
    (
        "random_eviction",
        {"seq_len": 3, "eviction_rows": [[1, 2, 3], [1, 1, 3]]},
        "eviction_rows[1][1] must be after row 1 and at most 3; got 1",
    ),
    (
        "random_eviction",
        {"seq_len": 3, "eviction_rows": [1, 2, 4]},
        "eviction_rows[2] must be after row 2 and at most 3; got 4",
    ),
    (
        "random_eviction",
        {"seq_len": 2, "eviction_rows": [[1, 2]], "num_heads_mask": 2},
        "eviction_rows must have num_heads_mask rows, 2; got 1",
    ),
]


def parameters(table):
    return [pytest.param(*case, id=f"{case[0]}-{case[2]}") for case in table]


@pytest.mark.parametrize(("name", "arguments", "message"), parameters(KIND_ERRORS))
def test_wrong_kind_is_refused_by_name(name, arguments, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        build(name, arguments)


@pytest.mark.parametrize(("name", "arguments", "message"), parameters(VALUE_ERRORS))
def test_wrong_value_is_refused_by_name(name, arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build(name, arguments)


def test_every_recipe_refuses_something_in_the_tables():
    refusing = {name for name, _, _ in KIND_ERRORS + VALUE_ERRORS}
    assert refusing >= set(recipe_names())
