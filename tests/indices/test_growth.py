"""Memory and work of the helpers grow with the length of the row, never with its square."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from paddle_flashmask import indices
from paddle_flashmask.recipes import sliding_window

SEQ_LEN = 32768
DOCUMENTS = 1000
PACKINGS = 200
BYTES_PER_COLUMN = 1024  # generous for O(S); one bool matrix would take 32768 a column
ROW = {"causal": True, "seqlen_q": SEQ_LEN}
HALF = {"seqlen_q_total": SEQ_LEN, "first_row": 0, "num_rows": SEQ_LEN // 2}


def random_offsets(generator):
    cuts = generator.integers(0, SEQ_LEN, DOCUMENTS - 1)
    return np.concatenate([[0], np.sort(cuts), [SEQ_LEN]])


def random_packing(seed=0):
    return indices.from_cu_seqlens(random_offsets(np.random.default_rng(seed)))


def segment_ids():
    lengths = np.diff(random_offsets(np.random.default_rng(0)))
    return np.repeat(np.arange(DOCUMENTS), lengths)


ACTIONS = {
    "from_cu_seqlens": lambda mask: random_packing(),
    "from_segment_ids": lambda mask: indices.from_segment_ids(segment_ids()),
    "from_position_ids": lambda mask: indices.from_position_ids(np.arange(SEQ_LEN)),
    "to_bounds": lambda mask: indices.to_bounds(mask[0], **ROW),
    "narrow": lambda mask: indices.narrow(mask[0], **ROW),
    "count_visible": lambda mask: indices.count_visible(mask[0], **ROW),
    "visible_per_row": lambda mask: indices.visible_per_row(mask[0], **ROW),
    "tile_statistics": lambda mask: indices.tile_statistics(mask[0], **ROW),
    "exact_tile_counts": lambda mask: indices.exact_tile_counts(mask[0], **ROW),
    "cost": lambda mask: indices.cost(mask[0], num_heads=32, head_dim=128, **ROW),
    "inspect": lambda mask: indices.inspect(mask[0], num_tokens=[SEQ_LEN], window=64, **ROW),
    "intersect": lambda mask: indices.intersect(
        mask, sliding_window(SEQ_LEN, 512), seqlen_q=SEQ_LEN
    ),
    "concatenate": lambda mask: indices.concatenate([mask, mask]),
    "stack": lambda mask: indices.stack([mask, mask], seqlen_q=SEQ_LEN),
    "for_kv_step": lambda mask: indices.for_kv_step(mask, **HALF),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_memory_is_linear(name):
    mask = random_packing()
    tracemalloc.start()
    try:
        ACTIONS[name](mask)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < BYTES_PER_COLUMN * SEQ_LEN


def test_many_packings_are_built_and_counted(capsys):
    generator = np.random.default_rng(0)
    packings = [random_offsets(generator) for _ in range(PACKINGS)]
    seconds = dict.fromkeys(("build", "to_bounds", "tile_statistics", "count_visible"), 0.0)

    def timed(name, function, *arguments, **options):
        begin = time.perf_counter()
        result = function(*arguments, **options)
        seconds[name] += time.perf_counter() - begin
        return result

    for offsets in packings:
        mask = timed("build", indices.from_cu_seqlens, offsets)
        bounds = timed("to_bounds", indices.to_bounds, mask[0], **ROW)
        tiles = timed("tile_statistics", indices.tile_statistics, mask[0], **ROW)
        visible = timed("count_visible", indices.count_visible, mask[0], **ROW)
        lengths = np.diff(offsets)
        assert visible.item() == int((lengths * (lengths + 1) // 2).sum())
        assert bounds.shape == (1, 1, SEQ_LEN, 4)
        assert tiles.total.item() == (SEQ_LEN // 64) ** 2
    with capsys.disabled():
        parts = ", ".join(f"{name} {spent:.3f} s" for name, spent in seconds.items())
        print(f"\n{PACKINGS} packings of {SEQ_LEN}: {parts}")
