"""Why a row sees a column: right against the loops for every cell, and in the words promised."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from support import masks as support

from paddle_flashmask import recipes
from paddle_flashmask.viewer.explanation import explain


@given(support.masks_with_rows())
def test_every_cell_of_random_masks_is_explained_rightly(given_mask):
    mask, seqlen_q = given_mask
    dense = support.dense_by_loops(mask, seqlen_q)
    for sample, head, row, column in np.ndindex(*dense.shape):
        told = explain(mask, row, column, seqlen_q=seqlen_q, sample=sample, head=head)
        assert told.visible == dense[sample, head, row, column]
        ranges = [
            range(int(start), int(end))
            for start, end in re.findall(r"masks rows \[(\d+), (\d+)\)", told.sentence)
        ]
        assert all((row in one) != told.visible for one in ranges)
        assert told.visible or ranges
        verb = "sees" if told.visible else "does not see"
        assert told.sentence.startswith(f"row {row} {verb} column {column}: ")


@pytest.mark.parametrize(
    ("mask", "cell", "sentence"),
    [
        (
            recipes.sft([16, 16]),
            (17, 3),
            "row 17 does not see column 3: the lower interval of column 3 masks rows [16, 32)",
        ),
        (
            recipes.sft([16, 16]),
            (3, 7),
            "row 3 does not see column 7: the causal rule (column 7 is seen from row 7 on) masks "
            "rows [0, 7)",
        ),
        (
            recipes.sft([16, 16]),
            (17, 16),
            "row 17 sees column 16: nothing masks row 17; the lower interval of column 16 masks no "
            "row; the causal rule (column 16 is seen from row 16 on) masks rows [0, 16)",
        ),
        (
            recipes.document([2, 2]),
            (1, 2),
            "row 1 does not see column 2: the upper interval of column 2 masks rows [0, 2)",
        ),
    ],
)
def test_sentences(mask, cell, sentence):
    length = mask.startend_row_indices.shape[2]
    assert explain(mask, *cell, seqlen_q=length).sentence == sentence


def test_unequal_lengths_name_the_corner():
    told = explain(recipes.causal(4), 0, 3, seqlen_q=2)
    assert "column 3 is seen from row 1 on, aligned to the bottom right corner" in told.sentence


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((4, 0), r"row must be in \[0, 4\); got 4"),
        ((0, -1), r"column must be in \[0, 4\); got -1"),
        ((0, 0, 1), r"sample must be in \[0, 1\); got 1"),
        ((0, 0, 0, 2), r"head must be in \[0, 1\); got 2"),
    ],
)
def test_places_out_of_range_are_refused(place, message):
    row, column, *rest = place
    names = dict(zip(("sample", "head"), rest, strict=False))
    with pytest.raises(ValueError, match=message):
        explain(recipes.causal(4), row, column, seqlen_q=4, **names)
