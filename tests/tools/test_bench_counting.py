"""Masks by name, visible and live cells, operations: against loops over cells."""

import numpy as np
import pytest
from harness import masks
from harness.cells import BACKWARD, FORWARD, live_operations, visible_operations
from providers import flex_rules
from support.fake_provider import cell

SPECS = [*masks.PRESETS, "sft:lengths=[100, 150]", "dpo:groups=[(40, [60, 90])]", "document:n=5"]
LENGTH = 250


def seen_by_hand(mask):
    bounds = mask.bounds
    seen = np.ones((mask.seqlen, mask.seqlen), bool)
    for column, (low, low_end, up, up_end) in enumerate(bounds):
        seen[low:low_end, column] = False
        seen[up:up_end, column] = False
    return seen


@pytest.mark.parametrize("spec", SPECS)
def test_operations_are_those_of_the_cells_counted_one_by_one(spec):
    mask = masks.build(spec, LENGTH)
    shape = cell(mask=spec, seqlen=LENGTH)
    seen = seen_by_hand(mask)
    tiles = [
        seen[row : row + masks.TILE, column : column + masks.TILE].any()
        for row in range(0, LENGTH, masks.TILE)
        for column in range(0, LENGTH, masks.TILE)
    ]
    per_cell = 2 * 2 * shape.head_dim * shape.batch * shape.num_heads
    assert visible_operations(shape, mask, FORWARD) == per_cell * seen.sum()
    assert visible_operations(shape, mask, BACKWARD) == per_cell * seen.sum() * 5 / 2
    assert live_operations(shape, mask, FORWARD) == per_cell * sum(tiles) * 128 * 128
    assert mask.has_blind_row == (~seen.any(axis=1)).any()
    assert np.array_equal(mask.seen(np.arange(LENGTH)), seen)
    assert np.array_equal(mask.seen(np.array([7]), np.array([3, 9])), seen[7:8, [3, 9]])


PADDED = ["sft:lengths=[100, 50]", "rm:groups=[(40, [60, 90])]", "sliding_window:left=3;right=9"]


@pytest.mark.parametrize("spec", [*SPECS, *PADDED])
def test_rules_for_flex_attention_see_what_the_mask_sees(spec):
    mask = masks.build(spec, LENGTH)
    is_seen = flex_rules.rule(mask, np.asarray)
    row, column = np.ogrid[:LENGTH, :LENGTH]
    if is_seen is None:
        assert mask.visible == LENGTH**2
    else:
        assert np.array_equal(is_seen(0, 0, row, column), mask.seen(np.arange(LENGTH)))


def test_defaults_have_the_densities_that_were_compared_on_the_gpu():
    found = {name: round(masks.build(name, 32768).density, 3) for name in masks.PRESETS}
    assert found == {
        "full": 1.0,
        "causal": 0.5,
        "sliding_window": 0.031,
        "causal_document": 0.101,
        "document": 0.203,
        "share_question": 0.072,
        "global_sliding_window": 0.065,
        "causal_blockwise": 0.143,
        "prefix_lm_causal": 0.545,
        "prefix_lm_document": 0.11,
        "qk_sparse": 0.478,
        "random_eviction": 0.25,
    }


def test_drawn_masks_are_the_same_every_time():
    drawn = ("document", "share_question", "random_eviction")
    assert [masks.build(name, 4096).visible for name in drawn] == [8659456, 2907574, 4158434]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("windowed", "mask must be one of"),
        ("document:8", "must be name=value"),
        ("random_eviction:seed=1;num_heads_mask=2", "must give one head of 8 columns"),
    ],
)
def test_masks_that_do_not_fit_are_refused(spec, text):
    with pytest.raises(ValueError, match=text):
        masks.build(spec, 8)
