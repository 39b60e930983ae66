"""What is special to `sft`: the numbers of packed samples and of their padding."""

from __future__ import annotations

import numpy as np
import pytest
from support.recipe_modules import builder_to_dense

from paddle_flashmask import indices
from paddle_flashmask.recipes import causal, causal_document, sft


def lower_starts(mask: indices.ColumnMask) -> list[int]:
    return mask.startend_row_indices[0, 0, :, 0].tolist()


def test_each_column_ends_with_its_sample():
    mask = sft([3, 2, 3])
    assert lower_starts(mask) == [3, 3, 3, 5, 5, 8, 8, 8]
    assert mask.startend_row_indices.shape == (1, 1, 8, 1)
    assert mask.causal is True


def test_one_sample_is_plain_causal():
    assert lower_starts(sft([5])) == lower_starts(causal(5))


def test_padding_column_starts_masked_rows_at_itself():
    assert lower_starts(sft([3, 2], seq_len=8)) == [3, 3, 3, 5, 5, 5, 6, 7]


def test_padding_sees_nothing_and_nobody_sees_it():
    seen = builder_to_dense(sft([3, 2], seq_len=8))[0]
    assert not seen[5:].any()
    assert not seen[:, 5:].any()
    np.testing.assert_array_equal(seen[:5, :5], builder_to_dense(sft([3, 2]))[0])


@pytest.mark.parametrize("lengths", [[3, 0, 2, 0], [0, 0, 3, 2], (3, 2), np.array([3, 2])])
def test_empty_samples_leave_no_trace(lengths):
    assert lower_starts(sft(lengths)) == [3, 3, 3, 5, 5]


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
def test_no_token_at_all_gives_indices_of_length_zero(lengths):
    assert sft(lengths).startend_row_indices.shape == (1, 1, 0, 1)


def test_no_token_at_all_in_a_padded_row_gives_padding_only():
    assert lower_starts(sft([0], seq_len=3)) == [0, 1, 2]


def test_mask_is_that_of_causal_documents():
    assert lower_starts(sft([2, 1, 4], 9)) == lower_starts(causal_document([2, 1, 4], 9))


def test_sum_of_small_integer_types_does_not_wrap():
    mask = sft(np.array([200, 200], np.uint8))
    assert lower_starts(mask) == [200] * 200 + [400] * 200
