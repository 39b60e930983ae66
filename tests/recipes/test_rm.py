"""What is special to `rm`: any number of answers to rank in a group."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.recipe_modules import builder_to_dense

from paddle_flashmask import indices
from paddle_flashmask.recipes import dpo, rm


def lower_starts(mask: indices.ColumnMask) -> list[int]:
    return mask.startend_row_indices[0, 0, :, 0].tolist()


def test_three_answers_end_each_at_their_own_last_token():
    mask = rm([(2, [2, 1, 3])])
    assert lower_starts(mask) == [8, 8, 4, 4, 5, 8, 8, 8]
    assert mask.startend_row_indices.shape == (1, 1, 8, 1)
    assert mask.causal is True


@pytest.mark.parametrize("answers", [[1], [2, 2], [1, 2, 3, 4, 5]])
def test_last_token_of_an_answer_sees_prompt_and_whole_answer(answers):
    seen = builder_to_dense(rm([(3, answers)]))[0]
    last_tokens = 3 + np.cumsum(answers) - 1
    assert seen[last_tokens].sum(axis=1).tolist() == [3 + answer for answer in answers]


def test_swapped_answers_swap_what_they_see():
    seen = builder_to_dense(rm([(2, [2, 1, 3])]))[0]
    swapped = builder_to_dense(rm([(2, [3, 1, 2])]))[0]
    order = [0, 1, 6, 7, 5, 2, 3, 4]
    np.testing.assert_array_equal(swapped[np.ix_(order, order)], seen)


def test_padding_sees_nothing_and_nobody_sees_it():
    seen = builder_to_dense(rm([(1, [1, 1, 1])], seq_len=6))[0]
    assert not seen[4:].any()
    assert not seen[:, 4:].any()


def test_mask_is_that_of_dpo():
    groups = [(2, [2, 1, 3]), (1, [1])]
    assert lower_starts(rm(groups, 12)) == lower_starts(dpo(groups, 12))


def test_empty_answer_is_refused_by_group_number():
    message = "answer_lengths of groups[2][2] must be in [1, 2147483647]; got 0"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        rm([(1, [1]), (1, [1]), (2, [1, 1, 0])])
