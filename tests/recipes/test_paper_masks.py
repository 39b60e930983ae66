"""The twelve masks of the FlashMask paper against dense formulas over a grid of positions."""

from __future__ import annotations

import numpy as np
import pytest
from support.recipe_modules import build, builder_to_dense

LENGTHS = [6, 5, 0, 5, 1, 9]
SEQ_LEN = sum(LENGTHS)
PADDED = SEQ_LEN + 3
GROUPS = [(3, [2, 4]), (1, [5]), (2, [1, 1, 3, 4])]
PREFIXES = [2, 5, 0, 0, 1, 4]
SPANS = [(4, 9), (9, 11), (20, 26)]
EVICTION_ROWS = np.minimum(np.arange(SEQ_LEN) * 7 % 11 + np.arange(SEQ_LEN) + 1, SEQ_LEN)

i, j = np.indices((SEQ_LEN, SEQ_LEN))
part = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
same_part = part[:, None] == part
prefix_end = (np.cumsum(LENGTHS) - LENGTHS + PREFIXES)[part]

pieces = [(group, piece) for group, (q, a) in enumerate(GROUPS) for piece in range(len(a) + 1)]
piece_lengths = [length for q, a in GROUPS for length in (q, *a)]
group_of, piece_of = np.repeat(np.array(pieces), piece_lengths, axis=0).T
same_group = group_of[:, None] == group_of
in_question = piece_of == 0
same_answer = piece_of[:, None] == piece_of

span_of = np.full(SEQ_LEN, -1)
for number, (start, end) in enumerate(SPANS):
    span_of[start:end] = number
both_dropped = (span_of[:, None] == span_of) & (span_of >= 0)

CASES = {
    "full": ({"seq_len": SEQ_LEN}, np.ones((SEQ_LEN, SEQ_LEN), bool)),
    "causal": ({"seq_len": SEQ_LEN}, j <= i),
    "sliding_window": ({"seq_len": SEQ_LEN, "window": 5}, (i - j >= 0) & (i - j < 5)),
    "causal_document": ({"lengths": LENGTHS}, same_part & (j <= i)),
    "document": ({"lengths": LENGTHS}, same_part),
    "share_question": ({"groups": GROUPS}, (j <= i) & same_group & (in_question | same_answer)),
    "global_sliding_window": (
        {"seq_len": SEQ_LEN, "num_global": 3, "left": 4, "right": 2},
        (i < 3) | (j < 3) | ((i - j <= 4) & (j - i <= 2)),
    ),
    "causal_blockwise": ({"lengths": LENGTHS}, (j <= i) & (same_part | (part == 5)[:, None])),
    "prefix_lm_causal": ({"seq_len": SEQ_LEN, "prefix_length": 7}, (j <= i) | (j < 7)),
    "prefix_lm_document": (
        {"lengths": LENGTHS, "prefix_lengths": PREFIXES},
        same_part & ((j <= i) | (j < prefix_end)),
    ),
    "qk_sparse": ({"seq_len": SEQ_LEN, "spans": SPANS}, (j <= i) & ~both_dropped),
    "random_eviction": (
        {"seq_len": SEQ_LEN, "eviction_rows": EVICTION_ROWS},
        (j <= i) & (i < EVICTION_ROWS),
    ),
}
CASE_PARAMETERS = [pytest.param(name, *case, id=name) for name, case in CASES.items()]
TWO_WAY_WINDOW = {"seq_len": SEQ_LEN, "left": 4, "right": 2}


def test_there_are_twelve():
    assert len(CASES) == 12
    assert sum(piece_lengths) == SEQ_LEN


@pytest.mark.parametrize(("name", "arguments", "formula"), CASE_PARAMETERS)
def test_builder_equals_formula(name, arguments, formula):
    np.testing.assert_array_equal(builder_to_dense(build(name, arguments))[0], formula)


def test_two_way_window_equals_formula():
    seen = builder_to_dense(build("sliding_window", TWO_WAY_WINDOW))[0]
    np.testing.assert_array_equal(seen, (i - j <= 4) & (j - i <= 2))


@pytest.mark.parametrize(
    ("name", "arguments", "formula"),
    [case for case in CASE_PARAMETERS if {"lengths", "groups"} & set(case.values[1])],
)
def test_padding_leaves_real_tokens_alone_and_is_seen_by_nobody(name, arguments, formula):
    seen = builder_to_dense(build(name, {**arguments, "seq_len": PADDED}))[0]
    np.testing.assert_array_equal(seen[:SEQ_LEN, :SEQ_LEN], formula)
    assert not seen[:, SEQ_LEN:].any()
    sees_nothing = not seen[SEQ_LEN:].any()
    sees_all_blocks = seen[SEQ_LEN:, :SEQ_LEN].all()
    assert sees_all_blocks if name == "causal_blockwise" else sees_nothing


@pytest.mark.parametrize(
    ("name", "arguments", "numbers"),
    [
        ("document", {"lengths": [1, 1], "seq_len": 4}, [[1, 0], [2, 1], [2, 2], [3, 3]]),
        (
            "prefix_lm_document",
            {"lengths": [2], "prefix_lengths": [1], "seq_len": 4},
            [[2, 0], [2, 1], [2, 2], [3, 3]],
        ),
        (
            "causal_blockwise",
            {"lengths": [1, 1, 1], "seq_len": 5},
            [[1, 2], [2, 2], [5, 5], [3, 5], [4, 5]],
        ),
    ],
)
def test_padding_column_holds_its_own_number(name, arguments, numbers):
    assert build(name, arguments).startend_row_indices[0, 0].tolist() == numbers


def test_same_seed_gives_same_eviction_and_heads_differ():
    arguments = {"seq_len": 64, "num_heads_mask": 2}
    first = build("random_eviction", {**arguments, "seed": 5}).startend_row_indices
    again = build("random_eviction", {**arguments, "seed": np.random.default_rng(5)})
    np.testing.assert_array_equal(first, again.startend_row_indices)
    assert (first[0, 0] != first[0, 1]).any()
    other = build("random_eviction", {**arguments, "seed": 6}).startend_row_indices
    assert (first != other).any()


def test_generator_moves_on_between_draws():
    generator = np.random.default_rng(5)
    first, second = (build("random_eviction", {"seq_len": 64, "seed": generator}) for _ in range(2))
    assert (first.startend_row_indices != second.startend_row_indices).any()


def test_drawn_eviction_never_hides_a_token_from_itself():
    mask = build("random_eviction", {"seq_len": 50, "seed": 3, "num_heads_mask": 4})
    seen = builder_to_dense(mask)
    assert seen[:, np.arange(50), np.arange(50)].all()
