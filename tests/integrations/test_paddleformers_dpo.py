"""PaddleFormers' DPO index lists, corrected: without PaddleFormers."""

from __future__ import annotations

import numpy as np
import pytest

from paddle_flashmask import indices
from paddle_flashmask.integrations.paddleformers.dpo import corrected_index_list


def upstream(prompt, chosen, rejected):
    """Index list and positions as PaddleFormers 1.2.0 writes them."""
    length = prompt + chosen + rejected - 1
    given = [length] * prompt + [prompt + chosen - 1] * (chosen - 1) + [length] * rejected
    positions = [*range(prompt + chosen - 1), *range(prompt - 1, prompt + rejected - 1)]
    return given, positions


@pytest.mark.parametrize("prompt", [1, 2, 5])
@pytest.mark.parametrize("chosen", [1, 2, 4])
@pytest.mark.parametrize("rejected", [1, 2, 4])
def test_no_row_sees_two_tokens_of_one_position(prompt, chosen, rejected):
    given, positions = upstream(prompt, chosen, rejected)
    corrected = corrected_index_list(given, positions)
    field = np.array(corrected, np.int32)[None, None, :, None]
    visible = indices.to_dense(field, causal=True, seqlen_q=len(positions))[0, 0]
    for row, seen in enumerate(visible):
        assert [positions[column] for column in np.flatnonzero(seen)] == list(
            range(positions[row] + 1)
        )
    length, branch = len(positions), prompt + chosen - 1
    assert corrected == [length] * (prompt - 1) + [branch] * chosen + [length] * rejected


def test_corrected_lists_and_those_without_a_repeated_token_stay_as_they_are():
    given, positions = upstream(3, 4, 2)
    corrected = corrected_index_list(given, positions)
    assert corrected != given
    assert corrected_index_list(corrected, positions) == corrected
    plain = [9, 9, 5, 5, 5, 9, 9, 9, 9]  # prompt 2, chosen 3, rejected 4
    assert corrected_index_list(plain, [0, 1, 2, 3, 4, 2, 3, 4, 5]) == plain


@pytest.mark.parametrize(
    ("given", "positions", "message"),
    [
        ([3, 3, 3], [0, 1, 2], "restart once"),
        ([4, 4, 4, 4], [0, 1, 0, 0], "restart once"),
        ([4, 4, 4], [0, 1, 2, 1], "4 positions, 3 indices"),
        ([5, 5, 5, 5, 5], [1, 2, 3, 1, 2], "count from 0"),
        ([5, 5, 5, 5, 5], [0, 1, 2, 1, 2], r"got other numbers at \[1, 2\]"),
        ([2, 3, 3, 5, 5], [0, 1, 2, 1, 2], r"got other numbers at \[0\]"),
    ],
)
def test_lists_of_another_kind_are_refused(given, positions, message):
    with pytest.raises(ValueError, match=message):
        corrected_index_list(given, positions)
