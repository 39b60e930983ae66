"""The GPU kernels through the C door against the definition in float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support import cases, dense, gpu, tolerance
from support.cases import AttentionCase, Mask
from support.gpu import capi, torch
from support.inputs import Inputs, assert_right, count_inputs, exact, random_inputs
from support.paper_masks import MAKERS, paper_mask

pytestmark = pytest.mark.gpu

HUGE = {"float16": 3e4, "bfloat16": 1e30}
NAMES = ("query", "key", "value")


def ids(case: object) -> str:
    return str(case)


def all_of(table: list[AttentionCase]) -> list[AttentionCase]:
    """The cases that the kernels serve, in their dtypes, each once."""
    served = [case for case in table if case.head_dim <= gpu.MAX_HEAD_DIM]
    return list(dict.fromkeys(gpu.on_gpu(case, number) for number, case in enumerate(served)))


TABLES = {
    "forms": cases.form_cases,
    "lengths": cases.length_cases,
    "heads": cases.head_cases,
    "head_dims": cases.head_dim_cases,
    "scales": cases.scale_cases,
}
TABLE_CASES = [case for table in TABLES.values() for case in all_of(table())]
# Both kernels, all forms, lengths around their tiles of 64 and 128.
EDGE_CASES = [
    AttentionCase(mask, seqlen_q=q, seqlen_k=k, head_dim=head_dim, dtype=dtype)
    for q, k in ((127, 257), (129, 64), (255, 129), (257, 383), (640, 640))
    for head_dim, dtype in ((64, "float16"), (96, "bfloat16"), (128, "bfloat16"), (256, "float16"))
    for mask in ("causal", "window", *cases.RANDOM_FORMS)
]
LONG_CASES = [
    AttentionCase(
        mask,
        batch=2,
        seqlen_q=q,
        seqlen_k=k,
        num_heads=6,
        num_heads_k=2,
        num_heads_mask=heads,
        head_dim=head_dim,
        dtype=dtype,
    )
    for mask in cases.RANDOM_FORMS
    for q, k, heads, head_dim, dtype in (
        (1300, 1300, 1, 128, "bfloat16"),
        (333, 1515, 2, 64, "float16"),
        (1515, 333, 6, 80, "bfloat16"),
    )
]


@pytest.mark.parametrize("case", [*TABLE_CASES, *EDGE_CASES, *LONG_CASES], ids=ids)
def test_results_match_dense(case, rng):
    gpu.check_case(case, rng)


# Few and small: tools/sanitize.sh runs these.
@pytest.mark.parametrize("lengths", [(65, 129), (200, 300)], ids=str)
@pytest.mark.parametrize("head_dim", [40, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("mask", ["causal", "causal_2", "two", "four", "cut_rows"])
def test_results_in_fresh_memory_match_dense(mask, head_dim, lengths, rng):
    seqlen_q, seqlen_k = lengths
    case = AttentionCase(
        mask,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        num_heads_k=1,
        head_dim=head_dim,
        dtype="float16" if head_dim == 64 else "bfloat16",
    )
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    ours = gpu.run(inputs, mask, dtype=case.dtype, fresh=True)
    assert_right(ours, inputs, mask, case.dtype)


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_blocks_of_rows_that_see_nothing_give_zeros_every_time(head_dim):
    # Rows from 128 on see nothing, so that most blocks of the kernel have no tile to walk.
    shape = (1, 4096, 64, head_dim)
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    indices = torch.full((1, 1, shape[1], 1), 128, dtype=torch.int32, device="cuda")
    for _ in range(20):
        out, lse = capi.forward(query, key, value, indices, True)
        assert not bool(out[:, 128:].any())
        assert bool(torch.isneginf(lse[:, :, 128:]).all())
        gradients = capi.backward(query, query, key, value, out, lse, indices, True)
        for gradient in gradients:
            assert not bool(gradient[:, 128:].any())


@pytest.mark.parametrize("grads", ["out", "lse"])
@pytest.mark.parametrize("dtype", gpu.DTYPES)
def test_gradients_of_one_output_alone_match_dense(grads, dtype, rng):
    gpu.check_case(AttentionCase("four", seqlen_q=200, head_dim=64, dtype=dtype), rng, grads=grads)


@pytest.mark.parametrize("heads_per_key", [1, 3, 8])
@pytest.mark.parametrize("num_heads_k", [1, 2])
def test_grouped_heads_match_dense(heads_per_key, num_heads_k, rng):
    case = AttentionCase(
        "documents",
        batch=3,
        seqlen_q=190,
        num_heads=heads_per_key * num_heads_k,
        num_heads_k=num_heads_k,
        num_heads_mask=num_heads_k,
        head_dim=128,
        dtype="bfloat16",
    )
    gpu.check_case(case, rng)


@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("name", MAKERS)
def test_masks_of_the_paper_match_dense(name, head_dim, dtype, rng):
    case = AttentionCase(seqlen_q=700, head_dim=head_dim, dtype=dtype)
    inputs, mask = random_inputs(case, rng), paper_mask(name, rng, case.seqlen_q)
    assert_right(gpu.run(inputs, mask, dtype=dtype), inputs, mask, dtype)


@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ["causal_documents", "global_and_window", "four"])
def test_count_probe_gives_means_and_logarithms(name, head_dim, dtype, rng):
    # v_j = j + 1 is exact in both dtypes up to 2^8 + 1.
    size = 256
    inputs = count_inputs(1, size, size, 2, 1, head_dim)
    mask = cases.MASKS[name](rng, 1, 1, size, size)
    ours = gpu.run(inputs, mask, dtype=dtype)
    right, coarse = exact(inputs, mask), exact(inputs, mask, rounded=dense.ROUNDINGS[dtype])
    # Not the gradients of query and key: they start from out . grad_out, and where all lanes of out
    # are equal, so are their roundings, which then add up instead of cancelling.
    for array in ("out", "grad_value"):
        arrays = (getattr(results, array) for results in (ours, right, coarse))
        tolerance.assert_array_close(array, *arrays, dtype)
    seen = dense.visible(mask.indices, causal=mask.causal, seqlen_q=size, seqlen_k=size)[0, 0]
    with np.errstate(divide="ignore"):
        counts = np.log(seen.sum(axis=1))
    lse = np.broadcast_to(counts, ours.softmax_lse.shape)
    tolerance.assert_array_close("softmax_lse", ours.softmax_lse, lse, None, "float32")


@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_replaced_tokens_leave_rows_that_do_not_see_them_unchanged(head_dim, dtype, rng):
    cut, size = 130, 300
    case = AttentionCase(seqlen_q=size, num_heads=4, head_dim=head_dim, dtype=dtype)
    inputs = random_inputs(case, rng)
    changed = [array.copy() for array in inputs[:3]]
    for array in changed:
        array[:, :cut] = HUGE[dtype] * rng.choice([-1.0, 1.0], array[:, :cut].shape)
    ends = np.repeat([cut, size], [cut, size - cut])
    mask = Mask(ends.astype(np.int32)[None, None, :, None], causal=True)
    ours = gpu.run(inputs, mask, dtype=dtype)
    others = gpu.run(Inputs(*changed, *inputs[3:]), mask, dtype=dtype)
    for name in ("out", "grad_key", "grad_value"):
        mine, other = getattr(ours, name)[:, cut:], getattr(others, name)[:, cut:]
        assert mine.tobytes() == other.tobytes(), name
    assert ours.softmax_lse[:, :, cut:].tobytes() == others.softmax_lse[:, :, cut:].tobytes()
    # The gradient of query sums in no fixed order, but only over tiles that the row sees.
    right = exact(inputs, mask).grad_query[:, cut:]
    coarse = exact(inputs, mask, rounded=dense.ROUNDINGS[dtype]).grad_query[:, cut:]
    tolerance.assert_array_close("grad_query", others.grad_query[:, cut:], right, coarse, dtype)


@pytest.mark.parametrize("dtype", gpu.DTYPES)
def test_packed_documents_match_each_alone(dtype, rng):
    lengths = [1, 63, 130, 200]
    starts = np.cumsum([0, *lengths])
    case = AttentionCase(seqlen_q=int(starts[-1]), num_heads=4, head_dim=128, dtype=dtype)
    inputs = random_inputs(case, rng)
    ends = np.repeat(starts[1:], lengths).astype(np.int32)
    ours = gpu.run(inputs, Mask(ends[None, None, :, None], causal=True), dtype=dtype)
    for start, length in zip(starts, lengths, strict=False):
        part = slice(start, start + length)
        alone = Inputs(*(x[:, part] for x in inputs[:4]), inputs.grad_lse[:, :, part])
        packed = dense.Results(
            ours.out[:, part], ours.softmax_lse[:, :, part], *(x[:, part] for x in ours[2:])
        )
        assert_right(packed, alone, Mask(None, causal=True), dtype)


@pytest.mark.usefixtures("short_calls")
@pytest.mark.parametrize("head_dim", [64, 128])
def test_repeated_calls_give_the_same_bits_but_for_the_query_gradient(head_dim, rng):
    case = AttentionCase("four", batch=2, seqlen_q=700, head_dim=head_dim, dtype="bfloat16")
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    first = gpu.run(inputs, mask)
    for _ in range(5):
        gpu.assert_same_bits_but_query_gradient(gpu.run(inputs, mask), first)


@pytest.mark.parametrize("sizes", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (2, 0, 0)], ids=str)
@pytest.mark.parametrize("mask", ["none", "causal_1", "four"])
def test_empty_tensors_give_empty_rows(sizes, mask, rng):
    batch, seqlen_q, seqlen_k = sizes
    case = AttentionCase(
        mask, batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k, dtype="bfloat16", head_dim=64
    )
    inputs = random_inputs(case, rng)
    ours = gpu.run(inputs, case.make_mask(rng))
    assert np.isneginf(ours.softmax_lse).all()
    for array in (ours.out, *ours[2:]):
        assert not array.any()


@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("head_dim", [40, 64, 96, 128, 192, 256])
def test_slices_of_packed_tensors_give_the_bits_of_contiguous_ones(head_dim, dtype, rng):
    case = AttentionCase(batch=2, seqlen_q=200, head_dim=head_dim, num_heads=3, num_heads_k=3)
    inputs = random_inputs(dataclasses.replace(case, dtype=dtype), rng)
    whole = [gpu.tensor(array, dtype) for array in inputs[:4]]
    packed = torch.stack(whole, dim=2)  # [B, S, 4, H, D]
    query, key, value, grad_out = packed.unbind(dim=2)
    assert not query.is_contiguous()
    results, gradients = torch.full_like(packed, torch.nan), torch.full_like(packed, torch.nan)
    out, lse = capi.forward(query, key, value, None, True, out=results[:, :, 1])
    right, right_lse = capi.forward(*whole[:3], None, True)
    assert torch.equal(out, right)
    assert torch.equal(lse, right_lse)
    strided = capi.backward(
        grad_out, query, key, value, out, lse, None, True, grads=gradients.unbind(dim=2)[:3]
    )
    contiguous = capi.backward(whole[3], *whole[:3], right, right_lse, None, True)
    for name, mine, other in zip(NAMES[1:], strided[1:], contiguous[1:], strict=True):
        assert torch.equal(mine, other), name
    for left_alone in (results[:, :, 0], results[:, :, 2:], gradients[:, :, 3]):
        assert bool(left_alone.isnan().all())
    ours = dense.Results(*map(gpu.to_numpy, (out, lse, *strided)))
    no_lse = inputs._replace(grad_lse=np.zeros_like(inputs.grad_lse))
    assert_right(ours, no_lse, Mask(None, causal=True), dtype)
