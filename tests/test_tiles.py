"""What the CPU kernel did with its tiles, and that skipping changes no bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import calls, cases, tolerance
from support.cases import TILE, AttentionCase, Mask

from paddle_flashmask import _ops


@pytest.fixture
def switches():
    """Put the switches of the kernel back after a test."""
    yield
    _ops.set_tile_skipping(True)
    _ops.set_cpu_isa("auto")


# What the kernel did with its tiles.


def tile_classes(seen: np.ndarray, num_heads: int) -> tuple[int, int, int]:
    """Count dead, mixed and wholly visible tiles over all query heads, from a dense mask."""
    dead = mixed = full = 0
    seen = np.repeat(seen, num_heads // seen.shape[1], axis=1)
    _, _, rows, columns = seen.shape
    for batch, head in np.ndindex(*seen.shape[:2]):
        for row in range(0, rows, TILE):
            for column in range(0, columns, TILE):
                tile = seen[batch, head, row : row + TILE, column : column + TILE]
                if not tile.any():
                    dead += 1
                elif tile.all() and tile.shape[1] == TILE:
                    full += 1
                else:
                    mixed += 1
    return dead, mixed, full


def count_tiles(inputs, mask: Mask) -> _ops.TileCounters:
    _ops.reset_tile_counters()
    calls.run(inputs, mask)
    return _ops.tile_counters()


def tile_case(mask: str, length: int = 300) -> AttentionCase:
    return AttentionCase(
        mask, batch=2, seqlen_q=length, num_heads=4, num_heads_k=2, num_heads_mask=2, head_dim=8
    )


EXACT_FAMILIES = ("none", "causal", "window", "causal_window", "causal_documents", "documents")


@pytest.mark.parametrize("length", [1, 64, 65, 300, 320])
@pytest.mark.parametrize("mask", [*EXACT_FAMILIES, "cut_rows", "prefix"])
def test_skipped_tiles_are_exactly_the_dead_ones(mask, length, rng):
    case = tile_case(mask, length)
    inputs, made = calls.random_inputs(case, rng), case.make_mask(rng)
    seen = np.broadcast_to(s := calls.visible(inputs, made), (2, *s.shape[1:]))
    dead, mixed, full = tile_classes(seen, case.num_heads)
    counted = count_tiles(inputs, made)
    assert counted == _ops.TileCounters(dead, mixed, full, dead, mixed, full)


@pytest.mark.parametrize("mask", cases.RANDOM_FORMS + cases.STRUCTURED)
def test_skipped_tiles_are_dead_and_full_tiles_visible(mask, rng):
    case = tile_case(mask)
    inputs, made = calls.random_inputs(case, rng), case.make_mask(rng)
    dead, mixed, full = tile_classes(calls.visible(inputs, made), case.num_heads)
    counted = count_tiles(inputs, made)
    assert counted.forward_skipped <= dead
    assert counted.forward_full <= full
    total = counted.forward_skipped + counted.forward_partial + counted.forward_full
    assert total == dead + mixed + full


@pytest.mark.parametrize("mask", cases.FAMILIES)
def test_backward_classes_tiles_as_the_forward_does(mask, rng):
    case = tile_case(mask)
    counted = count_tiles(calls.random_inputs(case, rng), case.make_mask(rng))
    forward = counted.forward_skipped, counted.forward_partial, counted.forward_full
    assert forward == (counted.backward_skipped, counted.backward_partial, counted.backward_full)


@pytest.mark.parametrize(("rows", "columns"), [(1, 129), (129, 1), (64, 320), (320, 64), (65, 63)])
@pytest.mark.parametrize("causal", [True, False])
def test_skipped_tiles_are_the_dead_ones_of_unequal_lengths(rows, columns, causal, rng):
    case = AttentionCase(seqlen_q=rows, seqlen_k=columns, head_dim=8)
    mask = Mask(None, causal)
    inputs = calls.random_inputs(case, rng)
    dead, mixed, full = tile_classes(calls.visible(inputs, mask), case.num_heads)
    assert count_tiles(inputs, mask) == _ops.TileCounters(dead, mixed, full, dead, mixed, full)


@pytest.mark.parametrize("documents", [1, 2, 5, 10])
def test_more_documents_skip_more_tiles(documents, rng):
    length = 10 * TILE
    part = length // documents // TILE
    ends = cases.document_bounds([part * TILE] * documents)[1].astype(np.int32)
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length, num_heads=1, num_heads_k=1), rng)
    counted = count_tiles(inputs, Mask(ends[None, None, :, None], causal=True))
    live = documents * part * (part + 1) // 2
    assert counted.forward_skipped == 100 - live
    assert counted.backward_skipped == 100 - live


def test_switched_off_skipping_runs_every_tile(switches, rng):
    case = tile_case("causal_documents")
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    _ops.set_tile_skipping(False)
    counted = count_tiles(inputs, mask)
    assert counted == _ops.TileCounters(0, 200, 0, 0, 200, 0)


def test_reset_sets_counters_to_zero(rng):
    count_tiles(calls.random_inputs(tile_case("none"), rng), Mask(None, False))
    _ops.reset_tile_counters()
    assert _ops.tile_counters() == _ops.TileCounters(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("mask", cases.FAMILIES)
def test_skipping_tiles_changes_no_bit(mask, dtype, switches, rng):
    case = AttentionCase(mask, batch=2, seqlen_q=200, num_heads=4, num_heads_mask=4, dtype=dtype)
    inputs, made = calls.random_inputs(case, rng), case.make_mask(rng)
    skipping = calls.run(inputs, made, dtype=dtype)
    _ops.set_tile_skipping(False)
    tolerance.assert_same_bits(skipping, calls.run(inputs, made, dtype=dtype))


@given(
    st.sampled_from(cases.RANDOM_FORMS),
    st.integers(1, 200),
    st.integers(1, 200),
    st.integers(0, 2**32 - 1),
)
def test_skipping_tiles_changes_no_bit_of_any_mask(form, rows, columns, seed):
    rng = np.random.default_rng(seed)
    case = AttentionCase(form, seqlen_q=rows, seqlen_k=columns, num_heads_mask=2, head_dim=8)
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    # Half of the bounds at multiples of the tile: only those can make whole tiles dead.
    on_tile = rng.random(mask.indices.shape) < rng.choice([0.0, 0.5, 1.0])
    rounded = np.where(on_tile, mask.indices // TILE * TILE, mask.indices).astype(np.int32)
    mask = Mask(rounded, mask.causal)
    try:
        skipping = calls.run(inputs, mask)
        _ops.set_tile_skipping(False)
        tolerance.assert_same_bits(skipping, calls.run(inputs, mask))
    finally:
        _ops.set_tile_skipping(True)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_any_packed_documents_equal_documents_alone(lengths, seed):
    rng = np.random.default_rng(seed)
    inputs = calls.random_inputs(AttentionCase(seqlen_q=sum(lengths), head_dim=8), rng)
    ends = cases.document_bounds(lengths)[1].astype(np.int32)
    packed = calls.run(inputs, Mask(ends[None, None, :, None], causal=True))
    for end in np.unique(ends):
        rows = np.flatnonzero(ends == end)
        part = calls.Inputs(*(array[:, rows] for array in inputs[:4]), inputs.grad_lse[:, :, rows])
        mine = [array[:, :, rows] if array.ndim == 3 else array[:, rows] for array in packed]
        calls.assert_right(calls.Results(*mine), part, Mask(None, causal=True), "float32")
