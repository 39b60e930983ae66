"""The backward for Hopper: a fixed order of all sums, masked cells that are no numbers, zeros."""

from __future__ import annotations

import numpy as np
import pytest
from support import cases, gpu
from support.cases import AttentionCase, Mask
from support.gpu import capi, torch
from support.inputs import assert_right, random_inputs
from support.tolerance import assert_gradients_agree, assert_same_bits

pytestmark = pytest.mark.gpu

KERNELS = "sm90a"
RUNS = 4


@pytest.fixture(autouse=True)
def _only_hopper():
    gpu.require_kernels(KERNELS, "backward")
    with gpu.only_kernels(KERNELS):
        yield


@pytest.mark.parametrize("heads", [1, 2, 6], ids=lambda heads: f"masks_{heads}")
@pytest.mark.parametrize("head_dim", [40, 64, 72, 88, 96, 104, 120, 128])
@pytest.mark.parametrize("name", ["none", "causal", "window", *cases.RANDOM_FORMS])
def test_deterministic_gradients_match_dense_and_repeat_to_the_bit(name, head_dim, heads, rng):
    case = AttentionCase(
        name,
        batch=2,
        seqlen_q=700,
        seqlen_k=900,
        num_heads=6,
        num_heads_k=2,
        num_heads_mask=heads if name in cases.RANDOM_FORMS else 1,
        head_dim=head_dim,
        dtype="bfloat16" if head_dim == 128 else "float16",
    )
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    first = gpu.run(inputs, mask, dtype=case.dtype, deterministic=True)
    assert_right(first, inputs, mask, case.dtype)
    for _ in range(RUNS - 1):
        assert_same_bits(gpu.run(inputs, mask, dtype=case.dtype, deterministic=True), first)


# More than 64 key blocks: the list of a step's live ones has three words, some without a bit.
@pytest.mark.parametrize("name", ["causal", "global_and_window", "causal_documents", "gap"])
def test_deterministic_gradients_of_many_key_blocks_repeat_to_the_bit(name, rng):
    rows, columns = (8500, 8500)
    case = AttentionCase(seqlen_q=rows, seqlen_k=columns, num_heads=3, num_heads_k=3, head_dim=128)
    inputs = random_inputs(case, rng)
    if name == "gap":  # rows see the first and the last keys only
        indices = np.zeros((1, 1, columns, 4), np.int32)
        indices[:, :, 500:8200, 1] = rows
        mask = Mask(indices, causal=False)
    else:
        mask = cases.MASKS[name](rng, 1, 1, rows, columns)
    first = gpu.run(inputs, mask, deterministic=True)
    for _ in range(RUNS - 1):
        assert_same_bits(gpu.run(inputs, mask, deterministic=True), first)
    assert_gradients_agree(gpu.run(inputs, mask), first)


@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("name", ["causal", *cases.STRUCTURED, "four"])
def test_long_sequences_agree_with_the_sm80_kernels(name, head_dim, rng):
    size = 4200
    case = AttentionCase(seqlen_q=size, num_heads=4, num_heads_k=2, head_dim=head_dim)
    inputs, mask = random_inputs(case, rng), cases.MASKS[name](rng, 1, 1, size, size)
    ours = gpu.run(inputs, mask)
    with gpu.only_kernels("sm80"):
        assert_gradients_agree(ours, gpu.run(inputs, mask))


# Key blocks begin where others are at work, and go round: of three or more a multiprocessor, since
# nobody is at work when the first begin.
@pytest.mark.parametrize("heads_k", [1, 2])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("name", ["none", *cases.STRUCTURED])
def test_rows_that_do_not_fit_the_cache_agree_with_the_sm80_kernels(name, head_dim, heads_k, rng):
    batch, size = 12, 4200
    case = AttentionCase(
        batch=batch, seqlen_q=size, num_heads=2, num_heads_k=heads_k, head_dim=head_dim
    )
    inputs, mask = random_inputs(case, rng), cases.MASKS[name](rng, batch, 1, size, size)
    with gpu.only_kernels("sm80"):
        others = gpu.run(inputs, mask)
    with gpu.long_backwards():
        assert_gradients_agree(gpu.run(inputs, mask), others)


# Many sections of heads, the last smaller than the others; rows and columns end within a step.
@pytest.mark.parametrize("deterministic", [False, True], ids=["any_order", "deterministic"])
@pytest.mark.parametrize("absent", ["none", "grad_out"])
@pytest.mark.parametrize(("heads", "heads_k", "masks"), [(43, 43, 1), (42, 21, 1), (42, 21, 42)])
@pytest.mark.parametrize("head_dim", [56, 64, 96, 128])
def test_many_heads_agree_with_the_sm80_kernels(
    head_dim, heads, heads_k, masks, absent, deterministic
):
    length = 4001
    query, key, value = (
        torch.randn((2, length, count, head_dim), device="cuda", dtype=torch.bfloat16)
        for count in (heads, heads_k, heads_k)
    )
    windows = 700 + 40 * torch.arange(masks, dtype=torch.int32, device="cuda")
    starts = torch.arange(length, dtype=torch.int32, device="cuda") + windows[:, None]
    indices = starts[None, :, :, None].expand(2, -1, -1, 1).contiguous()
    arguments = (query, key, value)
    out, lse = capi.forward(*arguments, indices, True)
    grad_lse = torch.randn_like(lse)
    grad_out = None if absent == "grad_out" else torch.randn_like(out)

    def gradients() -> tuple[torch.Tensor, ...]:
        grads = tuple(torch.full_like(tensor, torch.nan) for tensor in arguments)
        given = (grad_out, *arguments, out, lse, indices, True, None, deterministic)
        return capi.backward(*given, grad_softmax_lse=grad_lse, grads=grads)

    ours = gradients()
    with gpu.only_kernels("sm80"):
        others = gradients()
    for name, mine, other in zip(("query", "key", "value"), ours, others, strict=True):
        bound = 4 * 2.0**-8 * float(other.abs().max())
        worst = float((mine.float() - other.float()).abs().max())
        assert worst <= bound, f"{name}: {worst} > {bound}"  # False for NaN


@pytest.mark.parametrize("head_dim", [64, 96, 128])
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
    right = capi.backward(grad_out, *arguments, out, lse, ends, True, deterministic=True)
    lse[:, :, :cut] = torch.nan
    out[:, :cut] = torch.nan
    ours = capi.backward(grad_out, *arguments, out, lse, ends, True, deterministic=True)
    for name, mine, other in zip(("query", "key", "value"), ours, right, strict=True):
        assert torch.equal(mine[:, cut:], other[:, cut:]), name


@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_keys_that_nobody_sees_get_zeros(head_dim):
    size = 700
    shape = (2, size, 4, head_dim)
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
    indices = torch.zeros((1, 1, size, 2), dtype=torch.int32, device="cuda").expand(2, -1, -1, -1)
    indices = indices.contiguous()
    indices[:, :, 128:520, 1] = size  # masked from row 0 to the last: whole key blocks and parts
    for deterministic in (False, True):
        out, lse = capi.forward(query, key, value, indices, True)
        options = {"deterministic": deterministic}
        gradients = capi.backward(query, query, key, value, out, lse, indices, True, **options)
        for gradient in gradients[1:]:
            assert not bool(gradient[:, 128:520].any())
            assert not bool(gradient.isnan().any())
