"""Numbers worked out by hand for masks that people in the field got wrong.

With zero queries and value j + 1 at key j, a row's output is the mean of j + 1 over the keys it
sees, and the gradient of value j under a gradient of ones is the sum of 1 / n over rows that see j.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.recipe_modules import (
    build,
    builder_to_dense,
    mean_of_seen_positions,
    weight_on_columns,
)

PRINTED_DIGITS = 4
SAMPLES = {"lengths": [3, 2, 3]}
PADDED = {"lengths": [3, 2], "seq_len": 8}
WITH_EMPTY = {"lengths": [3, 0, 2, 0]}
PROMPT = {"groups": [(2, [2, 3])]}
RANKED = {"groups": [(2, [2, 1, 3])]}
TWO_WAY = {"lengths": [2, 3]}
PREFIX = {"seq_len": 6, "prefix_length": 3}
WINDOW = {"seq_len": 6, "window": 3}

OUTPUTS = {
    "samples": ("sft", SAMPLES, [1, 1.5, 2, 4, 4.5, 6, 6.5, 7]),
    "empty document": ("sft", WITH_EMPTY, [1, 1.5, 2, 4, 4.5]),
    "padded tail": ("sft", PADDED, [1, 1.5, 2, 4, 4.5, 0, 0, 0]),
    "two answers": ("dpo", PROMPT, [1, 1.5, 2, 2.5, 2.6667, 3.5, 4.2]),
    "three answers": ("rm", RANKED, [1, 1.5, 2, 2.5, 2.6667, 3, 4, 4.8]),
    "prefix": ("prefix_lm_causal", PREFIX, [2, 2, 2, 2.5, 3, 3.5]),
    "two-way documents": ("document", TWO_WAY, [1.5, 1.5, 4, 4, 4]),
    "window": ("sliding_window", WINDOW, [1, 1.5, 2, 3, 4, 5]),
}
VALUE_GRADIENTS = {
    "padded tail": ("sft", PADDED, [1.8333, 0.8333, 0.3333, 1.5, 0.5, 0, 0, 0]),
    "two answers": ("dpo", PROMPT, [2.8667, 1.8667, 0.5833, 0.25, 0.7833, 0.45, 0.2]),
    "two-way documents": ("document", TWO_WAY, [1, 1, 1, 1, 1]),
    "window": ("sliding_window", WINDOW, [1.8333, 1.1667, 1, 1, 0.6667, 0.3333]),
}
NUMBERS = {
    "prefix": ("prefix_lm_causal", PREFIX, [[6] * 6, [0, 0, 0, 3, 4, 5]]),
    "two-way documents": ("document", TWO_WAY, [[2, 2, 5, 5, 5], [0, 0, 2, 2, 2]]),
    "window": ("sliding_window", WINDOW, [[3, 4, 5, 6, 6, 6]]),
}


def parameters(table):
    return [pytest.param(*case, id=name) for name, case in table.items()]


@pytest.mark.parametrize(("name", "arguments", "outputs"), parameters(OUTPUTS))
def test_rows_average_the_keys_they_see(name, arguments, outputs):
    seen = builder_to_dense(build(name, arguments))[0]
    assert np.round(mean_of_seen_positions(seen), PRINTED_DIGITS).tolist() == outputs


@pytest.mark.parametrize(("name", "arguments", "gradients"), parameters(VALUE_GRADIENTS))
def test_values_gather_weight_from_rows_that_see_them(name, arguments, gradients):
    seen = builder_to_dense(build(name, arguments))[0]
    assert np.round(weight_on_columns(seen), PRINTED_DIGITS).tolist() == gradients


@pytest.mark.parametrize(("name", "arguments", "numbers"), parameters(NUMBERS))
def test_columns_hold_the_numbers_worked_out_by_hand(name, arguments, numbers):
    assert build(name, arguments).startend_row_indices[0, 0].T.tolist() == numbers


def test_window_of_three_sees_three_keys_and_itself():
    seen = builder_to_dense(build("sliding_window", WINDOW))[0]
    assert seen.sum(axis=1).tolist() == [1, 2, 3, 3, 3, 3]
    assert seen.diagonal().all()
