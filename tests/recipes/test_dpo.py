"""What is special to `dpo`: answers that share a prompt and do not see each other."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.recipe_modules import builder_to_dense

from paddle_flashmask import indices
from paddle_flashmask.recipes import causal, dpo, share_question


def lower_starts(mask: indices.ColumnMask) -> list[int]:
    return mask.startend_row_indices[0, 0, :, 0].tolist()


def test_prompt_lasts_to_the_group_and_answers_to_themselves():
    mask = dpo([(2, [2, 3])])
    assert lower_starts(mask) == [7, 7, 4, 4, 7, 7, 7]
    assert mask.startend_row_indices.shape == (1, 1, 7, 1)
    assert mask.causal is True


def test_second_group_repeats_the_first_shifted():
    alone = lower_starts(dpo([(2, [2, 3])]))
    assert lower_starts(dpo([(2, [2, 3])] * 2)) == alone + [end + 7 for end in alone]


def test_answers_are_blind_to_each_other():
    seen = builder_to_dense(dpo([(2, [2, 3])]))[0]
    chosen, rejected = slice(2, 4), slice(4, 7)
    assert not seen[rejected, chosen].any()
    assert not seen[chosen, rejected].any()
    assert seen[2:, :2].all()


def test_each_answer_sees_what_it_sees_in_a_row_of_its_own():
    seen = builder_to_dense(dpo([(2, [2, 3])]))[0]
    prompt = [0, 1]
    for answer in ([2, 3], [4, 5, 6]):
        tokens = prompt + answer
        alone = builder_to_dense(causal(len(tokens)))[0]
        np.testing.assert_array_equal(seen[np.ix_(tokens, tokens)], alone)


def test_one_answer_is_plain_causal():
    assert lower_starts(dpo([(2, [3])])) == lower_starts(causal(5))


def test_padding_sees_nothing_and_nobody_sees_it():
    mask = dpo([(1, [1, 2])], seq_len=7)
    seen = builder_to_dense(mask)[0]
    assert lower_starts(mask) == [4, 2, 4, 4, 4, 5, 6]
    assert not seen[4:].any()
    assert not seen[:, 4:].any()


def test_mask_is_that_of_shared_question():
    groups = [(2, [1, 2]), (1, [3, 1, 1])]
    assert lower_starts(dpo(groups, 13)) == lower_starts(share_question(groups, 13))


def test_no_group_gives_indices_of_length_zero():
    assert dpo([]).startend_row_indices.shape == (1, 1, 0, 1)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([(1, [1]), (0, [2, 3])], "question_length of groups[1] must be in [1, 2147483647]; got 0"),
        ([(2, [2, 0])], "answer_lengths of groups[0][1] must be in [1, 2147483647]; got 0"),
        ([(2, [])], "answer_lengths of groups[0] must hold at least 1 answer; got none"),
    ],
)
def test_empty_prompt_or_answer_is_refused_by_group_number(groups, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        dpo(groups)
