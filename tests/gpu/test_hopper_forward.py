"""The forward for Hopper alone, at head dims whose tiles differ from those up to 64 and 128."""

from __future__ import annotations

import numpy as np
import pytest
from support import cases, dense, gpu, tolerance
from support.cases import AttentionCase, Mask
from support.gpu import capi, torch
from support.inputs import Inputs, exact, random_inputs
from support.paper_masks import MAKERS, paper_mask

pytestmark = pytest.mark.gpu

KERNELS = "sm90a"
# A part and the whole of what is computed.
HEAD_DIMS = (72, 88, 96, 104, 136, 152, 192, 200, 216, 248, 256)
LENGTHS = ((1, 1), (63, 65), (127, 257), (129, 64), (257, 383), (640, 193))
RUNS = 4


@pytest.fixture(autouse=True)
def _only_hopper():
    gpu.require_kernels(KERNELS, "forward")
    with gpu.only_kernels(KERNELS):
        yield


def run(
    inputs: Inputs, mask: Mask, dtype: str, softmax_scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return out and softmax_lse, written into poisoned memory between margins."""
    query, key, value = (gpu.tensor(array, dtype) for array in inputs[:3])
    indices, window = gpu.indices_tensor(mask), mask.window_pair or capi.NO_WINDOW
    size = capi.workspace_bytes("forward", query, key, indices, mask.causal)
    out = gpu.Guarded(tuple(query.shape), query.dtype)
    lse = gpu.Guarded(inputs.grad_lse.shape, torch.float32)
    workspace = gpu.Guarded((size,), torch.uint8)
    capi.forward(
        query,
        key,
        value,
        indices,
        mask.causal,
        softmax_scale,
        window=window,
        out=out.tensor,
        softmax_lse=lse.tensor,
        workspace=workspace.tensor,
    )
    for each in (out, lse, workspace):
        each.assert_margins_untouched()
    return gpu.to_numpy(out.tensor), gpu.to_numpy(lse.tensor)


def check(inputs: Inputs, mask: Mask, dtype: str, softmax_scale: float | None = None) -> None:
    ours = run(inputs, mask, dtype, softmax_scale)
    right = exact(inputs, mask, softmax_scale=softmax_scale)
    rounded = dense.ROUNDINGS[dtype]
    coarse = exact(inputs, mask, softmax_scale=softmax_scale, rounded=rounded)
    tolerance.assert_array_close("out", ours[0], right.out, coarse.out, dtype)
    tolerance.assert_array_close("softmax_lse", ours[1], right.softmax_lse, None, "float32")
    empty = np.isneginf(right.softmax_lse).transpose(0, 2, 1)
    assert not ours[0][empty].any(), "out of a row that sees nothing is not exactly 0"


def check_case(case: AttentionCase, rng: np.random.Generator) -> None:
    check(random_inputs(case, rng), case.make_mask(rng), case.dtype, case.softmax_scale)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("mask", ["none", "causal", "window", *cases.RANDOM_FORMS])
def test_results_match_dense(mask, head_dim, lengths, rng):
    seqlen_q, seqlen_k = lengths
    dtype = gpu.dtype_of(seqlen_q + HEAD_DIMS.index(head_dim))
    case = AttentionCase(
        mask, seqlen_q=seqlen_q, seqlen_k=seqlen_k, num_heads_k=1, head_dim=head_dim, dtype=dtype
    )
    check_case(case, rng)


@pytest.mark.parametrize("masks", [1, 2, 6], ids=lambda heads: f"masks_{heads}")
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("mask", ["cut_rows", "documents", "four"])
def test_grouped_heads_with_masks_of_their_own_match_dense(mask, head_dim, masks, rng):
    case = AttentionCase(
        mask,
        batch=3,
        seqlen_q=333,
        num_heads=6,
        num_heads_k=2,
        num_heads_mask=masks,
        head_dim=head_dim,
        dtype=gpu.dtype_of(masks),
    )
    check_case(case, rng)


@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("head_dim", [96, 192, 256])
@pytest.mark.parametrize("name", MAKERS)
def test_masks_of_the_paper_match_dense(name, head_dim, dtype, rng):
    case = AttentionCase(seqlen_q=700, head_dim=head_dim, dtype=dtype)
    check(random_inputs(case, rng), paper_mask(name, rng, case.seqlen_q), dtype)


@pytest.mark.parametrize("scale", [0.0, -0.25, 1.0])
@pytest.mark.parametrize("head_dim", [96, 192, 256])
def test_scales_match_dense(head_dim, scale, rng):
    case = AttentionCase(
        "two", seqlen_q=200, head_dim=head_dim, dtype="float16", softmax_scale=scale
    )
    check_case(case, rng)


# More keys than a batch of the list of live tiles holds; spans of rows that are whole tiles or not.
@pytest.mark.parametrize("step", [64, 1])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_tiles_that_come_and_go_along_a_row_match_dense(head_dim, step, rng):
    rows, columns = 600, 4300
    case = AttentionCase(
        seqlen_q=rows, seqlen_k=columns, num_heads=2, head_dim=head_dim, dtype="bfloat16"
    )
    inputs = random_inputs(case, rng)
    indices = np.zeros((1, 1, columns, 4), np.int32)
    begin = 0
    while begin < columns:
        end = begin + 64 * int(rng.integers(1, 4)) + int(rng.integers(step))
        spans = np.sort(rng.integers(0, rows // step + 2, 4)) * step
        indices[0, 0, begin:end] = spans[[2, 3, 0, 1]]  # lower, then upper
        begin = end
    check(inputs, Mask(indices, causal=False), case.dtype)


@pytest.mark.parametrize("head_dim", [96, 192, 256])
def test_blocks_of_rows_that_see_nothing_give_zeros_every_time(head_dim):
    shape = (1, 2048, 64, head_dim)
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    indices = torch.full((1, 1, shape[1], 1), 128, dtype=torch.int32, device="cuda")
    for _ in range(20):
        out, lse = capi.forward(query, key, value, indices, True)
        assert not bool(out[:, 128:].any())
        assert bool(torch.isneginf(lse[:, :, 128:]).all())


@pytest.mark.parametrize("head_dim", [96, 192, 256])
@pytest.mark.parametrize("name", ["causal", "four", "global_and_window"])
def test_long_sequences_repeat_to_the_bit(name, head_dim, rng):
    size = 4200
    case = AttentionCase(name, batch=2, seqlen_q=size, num_heads=4, head_dim=head_dim)
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    first = run(inputs, mask, "bfloat16")
    for _ in range(RUNS - 1):
        again = run(inputs, mask, "bfloat16")
        assert again[0].tobytes() == first[0].tobytes()
        assert again[1].tobytes() == first[1].tobytes()


@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_slices_of_a_packed_tensor_give_the_bits_of_contiguous_ones(head_dim, dtype, rng):
    case = AttentionCase(batch=2, seqlen_q=200, head_dim=head_dim, num_heads=3, num_heads_k=3)
    whole = [gpu.tensor(array, dtype) for array in random_inputs(case, rng)[:3]]
    packed = torch.stack(whole, dim=2)  # [B, S, 3, H, D]
    results = torch.full_like(packed, torch.nan)
    out, lse = capi.forward(*packed.unbind(dim=2), None, True, out=results[:, :, 1])
    right, right_lse = capi.forward(*whole, None, True)
    assert torch.equal(out, right)
    assert torch.equal(lse, right_lse)
    assert bool(results[:, :, [0, 2]].isnan().all())


@pytest.mark.parametrize("sizes", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (2, 0, 0)], ids=str)
@pytest.mark.parametrize("head_dim", [96, 256])
def test_empty_tensors_give_empty_rows(head_dim, sizes, rng):
    batch, seqlen_q, seqlen_k = sizes
    case = AttentionCase(
        batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k, dtype="bfloat16", head_dim=head_dim
    )
    out, lse = run(random_inputs(case, rng), Mask(None, causal=False), case.dtype)
    assert np.isneginf(lse).all()
    assert not out.any()
