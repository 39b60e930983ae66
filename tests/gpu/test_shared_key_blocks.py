"""Backwards whose key blocks are shared among work items, against those whose are not."""

from __future__ import annotations

import pytest
from support import cases, gpu
from support.cases import AttentionCase
from support.gpu import capi
from support.inputs import random_inputs
from support.tolerance import assert_gradients_agree, assert_same_bits

pytestmark = pytest.mark.gpu

RUNS = 3
ROWS = 3300  # for runs of steps: shares of 1024 rows at least


def check(case, wanted, rng):
    """Compare a backward that shares key blocks for so many items with one that does not.

    Deterministic gradients must agree as well, and repeat to the bit.
    """
    mask, inputs = case.make_mask(rng), random_inputs(case, rng)
    try:
        capi.want_backward_items(wanted)
        shared = gpu.run(inputs, mask, dtype=case.dtype)
        ordered = [gpu.run(inputs, mask, dtype=case.dtype, deterministic=True) for _ in range(RUNS)]
        capi.want_backward_items(0)
        whole = gpu.run(inputs, mask, dtype=case.dtype)
    finally:
        capi.want_backward_items(None)
    for again in ordered[1:]:
        assert_same_bits(again, ordered[0])
    assert_gradients_agree(ordered[0], whole, case.dtype)
    assert_gradients_agree(shared, whole, case.dtype)


@pytest.mark.parametrize("wanted", [20, 528, 4000])
@pytest.mark.parametrize("heads", [(12, 2, 1), (12, 2, 12), (7, 1, 1)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 88, 128, 192, 256])
@pytest.mark.parametrize("kernels", ["sm80", "sm90a"])
def test_shares_of_heads_sum_to_whole_key_blocks(kernels, head_dim, heads, wanted, rng):
    gpu.require_kernels(kernels, "backward")
    name = str(rng.choice(["none", "causal", "window", *cases.RANDOM_FORMS]))
    case = AttentionCase(
        name,
        batch=int(rng.integers(1, 3)),
        seqlen_q=int(rng.integers(300, 900)),
        seqlen_k=int(rng.integers(300, 900)),
        num_heads=heads[0],
        num_heads_k=heads[1],
        num_heads_mask=heads[2] if name in cases.RANDOM_FORMS else 1,
        head_dim=head_dim,
        dtype=str(rng.choice(gpu.DTYPES)),
    )
    with gpu.only_kernels(kernels):
        check(case, wanted, rng)


@pytest.mark.parametrize("name", ["none", "causal", "window", *cases.STRUCTURED, "four"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_shares_of_rows_sum_to_whole_key_blocks(head_dim, name, rng):
    gpu.require_kernels("sm90a", "backward")
    sizes = {"seqlen_q": ROWS, "num_heads": 4, "num_heads_k": 2, "head_dim": head_dim}
    with gpu.only_kernels("sm90a"):
        check(AttentionCase(name, **sizes, dtype="bfloat16"), 4000, rng)
