"""The deterministic backward through the C door: the same bits in every run, and right."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from support import cases, gpu
from support.cases import AttentionCase, Mask
from support.gpu import capi, torch
from support.inputs import assert_right, random_inputs
from support.paper_masks import MAKERS, paper_mask

pytestmark = pytest.mark.gpu

RUNS = 100
# Both kernels, steps of 64 and 128 rows, lists of 96 steps and more, rows and keys without partner.
LENGTHS = [(1, 1), (1, 300), (63, 65), (65, 129), (127, 257), (300, 1), (700, 333), (333, 700)]
GROUPS = [(1, 1, 1), (6, 2, 1), (6, 2, 2), (6, 2, 6), (4, 4, 4)]


class Call(NamedTuple):
    """Tensors of a backward; the mask is indices and whether it is causal."""

    grad_out: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    mask: tuple[torch.Tensor | None, bool]

    def gradients(self, *, deterministic: bool = True) -> tuple[torch.Tensor, ...]:
        return capi.backward(*self[:6], *self.mask, deterministic=deterministic)


def random_call(
    mask: Mask,
    *,
    length: int,
    head_dim: int,
    heads: tuple[int, int] = (8, 8),
    dtype: str = "bfloat16",
) -> Call:
    shapes = [(1, length, count, head_dim) for count in (heads[0], heads[0], heads[1], heads[1])]
    grad_out, query, key, value = (
        torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for shape in shapes
    )
    given = (gpu.indices_tensor(mask), mask.causal)
    return Call(grad_out, query, key, value, *capi.forward(query, key, value, *given), given)


def assert_same_bits(ours: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]) -> None:
    for name, mine, other in zip(("query", "key", "value"), ours, others, strict=True):
        assert torch.equal(mine.view(torch.int16), other.view(torch.int16)), name


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ["causal", "causal_document", "document", "random_eviction"])
def test_gradients_have_the_same_bits_in_every_run(name, head_dim, rng, seed):
    torch.manual_seed(seed)
    call = random_call(paper_mask(name, rng, 2500), length=2500, head_dim=head_dim)
    first = call.gradients()
    for _ in range(RUNS):
        assert_same_bits(call.gradients(), first)


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_all_blocks_at_once_on_the_same_rows_give_the_same_bits(head_dim, seed):
    # 64 key blocks a head all start at row 0, and twice as many fit the device.
    torch.manual_seed(seed)
    call = random_call(Mask(None, causal=False), length=8192, head_dim=head_dim, heads=(4, 4))
    first = call.gradients()
    for _ in range(10):
        assert_same_bits(call.gradients(), first)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_calls_on_two_streams_give_the_bits_of_each_alone(head_dim, rng, seed):
    torch.manual_seed(seed)
    calls = [
        random_call(paper_mask(name, rng, 3000), length=3000, head_dim=head_dim)
        for name in ("causal", "document")
    ]
    alone = [call.gradients() for call in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    for _ in range(10):
        both = []
        for call, stream in zip(calls, streams, strict=True):
            with torch.cuda.stream(stream):
                both.append(call.gradients())
        torch.cuda.synchronize()
        for mine, right in zip(both, alone, strict=True):
            assert_same_bits(mine, right)


# The Hopper kernels take rows in another order if results must be deterministic.
def test_sm80_gradients_of_keys_and_values_are_those_of_the_usual_backward(rng):
    call = random_call(paper_mask("share_question", rng, 3000), length=3000, head_dim=128)
    with gpu.only_kernels("sm80"):
        ours, usual = call.gradients(), call.gradients(deterministic=False)
    assert_same_bits(ours[1:] + ours[1:2], usual[1:] + usual[1:2])


@pytest.mark.parametrize("head_dim", [40, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("mask", ["none", "causal", "window", *cases.RANDOM_FORMS])
def test_gradients_match_dense(mask, lengths, head_dim, rng):
    dtype = "float16" if head_dim == 64 else "bfloat16"
    case = AttentionCase(
        mask, seqlen_q=lengths[0], seqlen_k=lengths[1], head_dim=head_dim, dtype=dtype
    )
    gpu.check_case(case, rng, deterministic=True)


# Few and small: tools/sanitize.sh runs these.
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("mask", ["causal", "two", "four"])
def test_gradients_in_fresh_memory_match_dense(mask, head_dim, rng):
    case = AttentionCase(
        mask, seqlen_q=200, seqlen_k=300, num_heads_k=1, head_dim=head_dim, dtype="bfloat16"
    )
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    ours = gpu.run(inputs, mask, dtype=case.dtype, fresh=True, deterministic=True)
    assert_right(ours, inputs, mask, case.dtype)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("heads", GROUPS, ids=str)
@pytest.mark.parametrize("mask", cases.RANDOM_FORMS)
def test_grouped_and_masked_heads_match_dense(mask, heads, head_dim, rng):
    num_heads, num_heads_k, num_heads_mask = heads
    case = AttentionCase(
        mask,
        batch=2,
        seqlen_q=430,
        num_heads=num_heads,
        num_heads_k=num_heads_k,
        num_heads_mask=num_heads_mask,
        head_dim=head_dim,
        dtype="bfloat16",
    )
    gpu.check_case(case, rng, deterministic=True)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", MAKERS)
def test_masks_of_the_paper_match_dense(name, head_dim, rng):
    case = AttentionCase(seqlen_q=700, head_dim=head_dim, dtype="float16")
    inputs, mask = random_inputs(case, rng), paper_mask(name, rng, case.seqlen_q)
    ours = gpu.run(inputs, mask, dtype=case.dtype, deterministic=True)
    assert_right(ours, inputs, mask, case.dtype)


@pytest.mark.parametrize("sizes", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (2, 0, 0)], ids=str)
def test_empty_tensors_give_zeros(sizes, rng):
    batch, seqlen_q, seqlen_k = sizes
    case = AttentionCase(
        "four", batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k, dtype="bfloat16", head_dim=64
    )
    ours = gpu.run(random_inputs(case, rng), case.make_mask(rng), deterministic=True)
    for array in ours[2:]:
        assert not np.asarray(array).any()


@pytest.mark.parametrize(("dtype", "huge"), [("float16", 3e4), ("bfloat16", 1e30)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_hidden_infinities_reach_no_gradient(head_dim, dtype, huge):
    ends = np.repeat([130, 300], [130, 170]).astype(np.int32)
    mask = Mask(ends[None, None, :, None], causal=True)
    call = random_call(mask, length=300, head_dim=head_dim, dtype=dtype)
    right = call.gradients()
    for tensor in (call.query, call.key, call.value):
        tensor[:, :130] = huge
    out, lse = capi.forward(call.query, call.key, call.value, *call.mask)
    changed = call._replace(out=out, lse=lse).gradients()
    for mine, other in zip(changed, right, strict=True):
        assert bool(other[:, 130:].any())
        assert torch.equal(mine[:, 130:], other[:, 130:])
