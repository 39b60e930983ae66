"""The backward for Hopper at head dims above 128, where two kernels share the work."""

from __future__ import annotations

import numpy as np
import pytest
from support import cases, gpu
from support.cases import AttentionCase, Mask
from support.gpu import capi, torch
from support.inputs import assert_right, random_inputs
from support.paper_masks import MAKERS, paper_mask
from support.tolerance import assert_same_bits

pytestmark = pytest.mark.gpu

KERNELS = "sm90a"
HEAD_DIMS = (136, 152, 192, 200, 216, 248, 256)  # a part and the whole of what is computed
WHOLE = (192, 256)
LENGTHS = ((1, 1), (63, 65), (127, 257), (129, 64), (257, 383), (640, 193), (1, 300), (300, 1))
RUNS = 4


@pytest.fixture(autouse=True)
def _only_hopper():
    gpu.require_kernels(KERNELS, "backward")
    with gpu.only_kernels(KERNELS):
        yield


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("mask", ["none", "causal", "window", *cases.RANDOM_FORMS])
def test_gradients_match_dense(mask, head_dim, lengths, rng):
    seqlen_q, seqlen_k = lengths
    dtype = gpu.dtype_of(seqlen_q + HEAD_DIMS.index(head_dim))
    case = AttentionCase(
        mask, seqlen_q=seqlen_q, seqlen_k=seqlen_k, num_heads_k=1, head_dim=head_dim, dtype=dtype
    )
    gpu.check_case(case, rng)


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
    gpu.check_case(case, rng, deterministic=masks == 2)


@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("head_dim", WHOLE)
@pytest.mark.parametrize("name", MAKERS)
def test_masks_of_the_paper_match_dense(name, head_dim, dtype, rng):
    case = AttentionCase(seqlen_q=700, head_dim=head_dim, dtype=dtype)
    inputs, mask = random_inputs(case, rng), paper_mask(name, rng, case.seqlen_q)
    assert_right(gpu.run(inputs, mask, dtype=dtype), inputs, mask, dtype)


@pytest.mark.parametrize("grads", ["out", "lse"])
@pytest.mark.parametrize("scale", [0.0, -0.25, 1.0])
@pytest.mark.parametrize("head_dim", WHOLE)
def test_scales_and_absent_gradients_match_dense(head_dim, scale, grads, rng):
    case = AttentionCase(
        "two", seqlen_q=200, head_dim=head_dim, dtype="float16", softmax_scale=scale
    )
    gpu.check_case(case, rng, grads=grads)


# More keys than a batch of the list of live tiles holds; spans of rows that are whole tiles or not.
@pytest.mark.parametrize("step", [64, 1])
@pytest.mark.parametrize("head_dim", WHOLE)
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
    mask = Mask(indices, causal=False)
    assert_right(gpu.run(inputs, mask, dtype=case.dtype), inputs, mask, case.dtype)


# All sums have a fixed order, whether it is asked for or not.
@pytest.mark.parametrize("head_dim", WHOLE)
@pytest.mark.parametrize("name", ["causal", "four", "global_and_window"])
def test_gradients_of_long_sequences_repeat_to_the_bit(name, head_dim, rng):
    size = 4200
    case = AttentionCase(
        name, batch=2, seqlen_q=size, num_heads=4, num_heads_k=2, head_dim=head_dim
    )
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    first = gpu.run(inputs, mask)
    for run in range(RUNS - 1):
        assert_same_bits(gpu.run(inputs, mask, deterministic=run == 0), first)


@pytest.mark.parametrize("head_dim", WHOLE)
def test_what_is_not_seen_may_be_no_number(head_dim):
    """Values and gradients of pairs that are masked do not reach the others."""
    size, cut = 300, 130
    shape = (1, size, 2, head_dim)
    query, key, value, grad_out = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    ends = torch.full((1, 1, size, 1), size, dtype=torch.int32, device="cuda")
    ends[:, :, :cut] = cut
    arguments = (query, key, value)
    out, lse = capi.forward(*arguments, ends, True)
    right = capi.backward(grad_out, *arguments, out, lse, ends, True)
    lse[:, :, :cut] = torch.nan
    out[:, :cut] = torch.nan
    ours = capi.backward(grad_out, *arguments, out, lse, ends, True)
    for name, mine, other in zip(("query", "key", "value"), ours, right, strict=True):
        assert torch.equal(mine[:, cut:], other[:, cut:]), name


@pytest.mark.parametrize(("dtype", "huge"), [("float16", 3e4), ("bfloat16", 1e30)])
@pytest.mark.parametrize("head_dim", WHOLE)
def test_hidden_infinities_reach_no_gradient(head_dim, dtype, huge):
    size, cut = 300, 130
    query, key, value, grad_out = (
        torch.randn((1, size, 4, head_dim), device="cuda").to(getattr(torch, dtype))
        for _ in range(4)
    )
    ends = torch.full((1, 1, size, 1), size, dtype=torch.int32, device="cuda")
    ends[:, :, :cut] = cut
    gradients = []
    for _ in range(2):
        out, lse = capi.forward(query, key, value, ends, True)
        gradients.append(capi.backward(grad_out, query, key, value, out, lse, ends, True))
        for tensor in (query, key, value):
            tensor[:, :cut] = huge
    for mine, other in zip(*gradients, strict=True):
        assert bool(other[:, cut:].any())
        assert torch.equal(mine[:, cut:], other[:, cut:])


@pytest.mark.parametrize("head_dim", WHOLE)
def test_keys_and_rows_that_see_nothing_get_zeros(head_dim):
    size = 700
    shape = (2, size, 4, head_dim)
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
    indices = torch.zeros((2, 1, size, 2), dtype=torch.int32, device="cuda")
    indices[:, :, 128:520, 1] = size  # masked from row 0 to the last: whole key blocks and parts
    indices[:, :, :, 0] = indices[:, :, :, 0].where(indices[:, :, :, 1] == size, 600)
    indices[:, :, :128, 1] = size  # and rows from 600 on see nothing
    indices[:, :, 520:, 1] = size
    out, lse = capi.forward(query, key, value, indices, True)
    grad_query, *others = capi.backward(query, query, key, value, out, lse, indices, True)
    assert not bool(grad_query[:, 600:].any())
    for gradient in others:
        assert not bool(gradient[:, 128:520].any())
    for gradient in (grad_query, *others):
        assert bool(gradient.any())
        assert not bool(gradient.isnan().any())


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_slices_of_packed_tensors_give_the_bits_of_contiguous_ones(head_dim, rng):
    case = AttentionCase(batch=2, seqlen_q=200, head_dim=head_dim, num_heads=3, num_heads_k=3)
    whole = [gpu.tensor(array, "bfloat16") for array in random_inputs(case, rng)[:4]]
    packed = torch.stack(whole, dim=2)  # [B, S, 4, H, D]
    query, key, value, grad_out = packed.unbind(dim=2)
    out, lse = capi.forward(query, key, value, None, True)
    results = torch.full_like(packed, torch.nan)
    grads = tuple(results[:, :, i] for i in range(3))
    capi.backward(grad_out, query, key, value, out, lse, None, True, grads=grads)
    right = capi.backward(whole[3], *whole[:3], out, lse, None, True)
    for mine, other in zip(grads, right, strict=True):
        assert torch.equal(mine, other)
    assert bool(results[:, :, 3].isnan().all())


@pytest.mark.parametrize("sizes", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (2, 0, 0)], ids=str)
@pytest.mark.parametrize("head_dim", WHOLE)
def test_empty_tensors_give_zeros(head_dim, sizes, rng):
    batch, seqlen_q, seqlen_k = sizes
    case = AttentionCase(
        "four",
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        dtype="bfloat16",
        head_dim=head_dim,
    )
    for array in gpu.run(random_inputs(case, rng), case.make_mask(rng))[2:]:
        assert not np.asarray(array).any()
