"""Masks whose live tiles come and go along a row, differently for neighbouring rows.

GPU kernels walk lists of live tiles that several groups of rows share, so that a group meets tiles
that are dead for it alone, before, between and after its own.
"""

from __future__ import annotations

import numpy as np
import pytest
from support import gpu
from support.cases import AttentionCase, Mask
from support.dense import ROUNDINGS
from support.inputs import Inputs, assert_right, random_inputs

pytestmark = pytest.mark.gpu

ROWS = 1000
LENGTHS = (900, 4300)  # keys; the longer one has more tiles than a list is handed over at once
RISE = 40.0  # of the scores along the keys, enough for sums to be rescaled many times


def patchwork(rng: np.random.Generator, columns: int, *, edges: str) -> Mask:
    """Return a mask of width 4 that hides random spans of rows, the same for neighbouring keys.

    Args:
        rng: what to draw from.
        columns: keys.
        edges: "tiles" for spans of whole groups of 64 rows and 64 keys, else "any".
    """
    step = 64 if edges == "tiles" else 1
    indices = np.zeros((1, 1, columns, 4), np.int32)
    begin = 0
    while begin < columns:
        end = begin + 64 * int(rng.integers(1, 4)) + (0 if step == 64 else int(rng.integers(64)))
        spans = np.sort(rng.integers(0, ROWS // step + 2, 4)) * step
        indices[0, 0, begin:end] = spans[[2, 3, 0, 1]]  # lower, then upper
        begin = end
    return Mask(indices, causal=False)


def rising(inputs: Inputs, dtype: str) -> Inputs:
    """Return the inputs with keys that all rows score higher the later they come."""
    query, key = inputs.query.copy(), inputs.key.copy()
    query[..., 0] = 1.0
    head_dim = query.shape[-1]
    key[..., 0] = (np.linspace(0.0, RISE, key.shape[1]) * head_dim**0.5)[None, :, None]
    rounded = ROUNDINGS[dtype]
    return inputs._replace(query=rounded(query), key=rounded(key))


@pytest.fixture(params=["sm80", "sm90a"])
def forward_kernels(request):
    """Each forward: by default few blocks of rows and many keys go to the one that splits keys."""
    gpu.require_kernels(request.param, "forward")
    return request.param


@pytest.mark.parametrize("edges", ["tiles", "any"])
@pytest.mark.parametrize("columns", LENGTHS)
@pytest.mark.parametrize(
    ("head_dim", "dtype"), [(64, "float16"), (128, "bfloat16"), (128, "float16")]
)
@pytest.mark.parametrize("are_rising", [False, True], ids=["level", "rising"])
def test_rows_see_their_tiles_and_no_others(
    are_rising, head_dim, dtype, columns, edges, forward_kernels, rng
):
    case = AttentionCase(
        "four", seqlen_q=ROWS, seqlen_k=columns, num_heads=2, head_dim=head_dim, dtype=dtype
    )
    inputs, mask = random_inputs(case, rng), patchwork(rng, columns, edges=edges)
    if are_rising:
        inputs = rising(inputs, dtype)
    ours = gpu.run(inputs, mask, dtype=dtype, forward_kernels=forward_kernels)
    assert_right(ours, inputs, mask, dtype)


def test_items_without_live_tiles_between_others(forward_kernels, rng):
    """Blocks of rows that see nothing leave the rest in step."""
    case = AttentionCase(
        "four", batch=3, seqlen_q=2000, seqlen_k=700, num_heads=4, head_dim=128, dtype="bfloat16"
    )
    inputs = random_inputs(case, rng)
    indices = np.full((case.batch, 1, case.seqlen_k, 4), 0, np.int32)
    for batch in range(case.batch):
        first, second = np.sort(rng.integers(0, case.seqlen_q, 2))
        indices[batch, ..., 0:2] = (first, second)  # rows that no key shows itself to
    mask = Mask(indices, causal=False)
    ours = gpu.run(inputs, mask, dtype=case.dtype, forward_kernels=forward_kernels)
    assert_right(ours, inputs, mask, case.dtype)
