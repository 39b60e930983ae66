"""Generation: one query row against a cache, bottom-right aligned, with and without padding."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from support.formers import make_model

from paddle_flashmask.integrations import paddleformers


@pytest.mark.parametrize("padded", [False, True])
def test_greedy_answers_equal_those_of_eager(padded, rng):
    ids = rng.integers(3, 97, (2, 9))
    mask = np.ones_like(ids)
    if padded:
        ids[1, :4] = 0  # on the left
        mask[1, :4] = 0
    answers = []
    for attention in (paddleformers.NAME, "eager"):
        model = make_model(attention)
        model.eval()
        found = model.generate(
            paddle.to_tensor(ids),
            attention_mask=paddle.to_tensor(mask),
            max_new_tokens=8,
            decode_strategy="greedy_search",
            use_cache=True,
        )
        answers.append(found[0].numpy())
    assert answers[0].shape == (2, 8)
    assert np.array_equal(*answers)
