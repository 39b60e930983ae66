"""The numbers of the summary, against counting cell by cell; the rates, against the CSV."""

from __future__ import annotations

import re

import numpy as np
import pytest
from harness import masks, results
from harness.options import RESULTS
from hypothesis import given
from hypothesis import strategies as st
from support import masks as support

from paddle_flashmask import indices, recipes
from paddle_flashmask.viewer import rates
from paddle_flashmask.viewer.summary import Shape, causal_cells, summarize

CSV = results.read(RESULTS / "cpu.csv")
HEADS, HEAD_DIM = 8, 64
THREADS = "2"
FLOPS_PER_CELL = 3.5 * 4 * HEADS * HEAD_DIM  # forward, and 2.5 times that for the backward


def milliseconds(dtype, seqlen, mask, provider) -> float | None:
    """Return the CPU time of forward and backward by the CSV."""
    wanted = (dtype, str(seqlen), mask, provider, THREADS, str(HEAD_DIM), "ok")
    names = ("dtype", "seqlen", "mask", "provider", "threads", "head_dim", "status")
    found = [row for row in CSV if tuple(row[name] for name in names) == wanted]
    return sum(float(row["cpu_ms"]) for row in found) if len(found) == 2 else None


def live_cells(mask, seqlen) -> int:
    tiles = indices.tile_statistics(mask[0], causal=mask[1], seqlen_q=seqlen)
    return int(tiles.live.sum()) * rates.TILE**2


@pytest.mark.parametrize(("dtype", "seqlen"), rates.MEASURED)
def test_rates_are_those_of_the_csv(dtype, seqlen):
    def rate(provider, cells):
        time = milliseconds(dtype, seqlen, "causal", provider)
        return time and float(f"{FLOPS_PER_CELL * cells / time / 1e6:.3g}")

    assert rates.MEASURED[dtype, seqlen] == (
        rate("ours", live_cells(recipes.causal(seqlen), seqlen)),
        rate("paddle_dense", seqlen**2),
        rate("torch_sdpa", seqlen**2),
    )


def measured_masks() -> list[tuple[str, int, str]]:
    known = {(row["dtype"], int(row["seqlen"]), row["mask"]) for row in CSV}
    return sorted(one for one in known if one[:2] in rates.MEASURED)


@pytest.mark.parametrize(("dtype", "seqlen", "spec"), measured_masks())
def test_estimate_is_within_a_third_of_what_was_measured(dtype, seqlen, spec):
    mask = masks.build(spec, seqlen).mask
    live = live_cells(mask, seqlen) // rates.TILE**2
    total = (seqlen // rates.TILE) ** 2
    counts = {"live_tiles": live, "causal_tiles": total, "all_tiles": total}
    found = rates.estimate(**counts, cells=seqlen**2, seqlen=seqlen, dtype=dtype)
    ours = milliseconds(dtype, seqlen, spec, "ours")
    for rival in ("paddle_dense", "torch_sdpa"):
        theirs, told = milliseconds(dtype, seqlen, spec, rival), getattr(found, rival)
        if theirs is not None and told is not None:
            assert theirs / ours / (4 / 3) <= told <= theirs / ours * (4 / 3)


def test_there_is_no_estimate_where_nothing_was_measured():
    counts = {"causal_tiles": 1, "all_tiles": 1, "cells": 64}
    none = rates.estimate(live_tiles=0, **counts, seqlen=4096, dtype="float32")
    assert none == "no tile is computed"
    short = rates.estimate(live_tiles=1, **counts, seqlen=500, dtype="float32")
    assert short == "the shortest length measured is 1024"
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16; got 'float64'"):
        rates.estimate(live_tiles=1, **counts, seqlen=4096, dtype="float64")


@given(st.integers(0, 9), st.integers(0, 9))
def test_causal_cells_are_counted(seqlen_q, seqlen_k):
    seen = [j <= i + seqlen_k - seqlen_q for i in range(seqlen_q) for j in range(seqlen_k)]
    assert causal_cells(seqlen_q, seqlen_k) == sum(seen)


@given(support.masks_with_rows(), st.sampled_from([1, 2, 4]))
def test_summary_counts_what_the_loops_count(given_mask, tile):
    mask, seqlen_q = given_mask
    batch, heads, seqlen_k, _ = mask.startend_row_indices.shape
    dense = support.dense_by_loops(mask, seqlen_q)
    shape = Shape(num_heads=2 * heads, head_dim=16, dtype="float32", tile=tile)
    told = "\n".join(summarize(mask, seqlen_q=seqlen_q, shape=shape))
    seen = int(dense.sum())
    assert f": {seen} of {dense.size} cells visible" in told
    tiles = indices.tile_statistics(
        mask[0], causal=mask.causal, seqlen_q=seqlen_q, tile_rows=tile, tile_columns=tile
    )
    kinds = [int(kind.sum()) for kind in (tiles.skip, tiles.partial, tiles.full)]
    assert "{} skip, {} partial, {} full".format(*kinds) in told
    assert f"forward {4 * 16 * 2 * seen / 1e9:.4g} G" in told
    saved = [float(one) for one in re.findall(r"(-?[\d.]+)% of the FLOPs", told)]
    whole = 2 * heads * batch
    plain = [whole * causal_cells(seqlen_q, seqlen_k), whole * seqlen_q * seqlen_k]
    expected = [100 * (1 - 2 * seen / cells) if cells else 0 for cells in plain]
    assert saved == [pytest.approx(one, abs=0.0501) for one in expected]


def test_few_rows_have_no_estimate():
    mask = indices.ColumnMask(np.full((1, 1, 4096, 1), 2, np.int32), True)
    lines = summarize(mask, seqlen_q=2, shape=Shape(HEADS, HEAD_DIM, "float32", 64))
    assert any("none, the shortest length measured is" in line for line in lines)
