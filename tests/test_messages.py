"""What came is shown short, however long it is."""

from __future__ import annotations

import pytest

from paddle_flashmask import indices, packing, recipes

MANY = 40000
CALLS = {
    "recipes.sft": lambda: recipes.sft("9" * MANY),
    "recipes.dpo": lambda: recipes.dpo([[1] * MANY]),
    "recipes.rm": lambda: recipes.rm({key: 1 for key in range(MANY)}),
    "recipes.qk_sparse": lambda: recipes.qk_sparse(8, [[1] * MANY]),
    "indices.from_position_ids": lambda: indices.from_position_ids([list(range(MANY)), [0]]),
    "indices.from_segment_ids": lambda: indices.from_segment_ids([[1] * MANY, [0]]),
    "packing.from_indices": lambda: packing.from_indices([[1] * MANY, [0]], [1, 1]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_long_arguments_are_cut_in_messages(call):
    with pytest.raises((TypeError, ValueError), match=r"; got .*\.\.\.") as caught:
        call()
    assert len(str(caught.value)) < 300
