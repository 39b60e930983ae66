"""Forward calls with few rows: decoding shapes, packed heads, keys split among thread blocks."""

from __future__ import annotations

import numpy as np
import pytest
from support import dense, gpu, tolerance
from support.cases import AttentionCase, Mask
from support.gpu import capi, torch
from support.inputs import Inputs, exact, random_inputs

pytestmark = pytest.mark.gpu

BUCKETS = (64, 96, 128, 192, 256)
GROUPS = (1, 2, 4, 8, 32)  # query heads of a key head
# Rows and keys: one split and many, packed rows of one block and several, odd ends.
LENGTHS = [(1, 1), (1, 63), (1, 1000), (2, 5000), (5, 777), (16, 2049), (64, 1500), (130, 3001)]
MASKS = ["none", "causal", "window", "four", "causal_1", "cut_rows"]
RUNS = 20


@pytest.fixture(autouse=True)
def _sm80():
    """By default these shapes go to sm80, but short ones only where there is nothing newer."""
    with gpu.only_kernels("sm80"):
        yield


def forward(
    inputs: Inputs, mask: Mask, dtype: str, *, fresh: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return out and lse, with results and workspace poisoned and fenced before.

    With `fresh` memory is what the allocator gives, for tools that watch it.
    """
    query, key, value = (gpu.tensor(array, dtype) for array in inputs[:3])
    common = (gpu.indices_tensor(mask), mask.causal)
    if fresh:
        out, lse = capi.forward(query, key, value, *common)
        return gpu.to_numpy(out), gpu.to_numpy(lse)
    size = capi.workspace_bytes("forward", query, key, *common)
    fenced = [
        gpu.Guarded(query.shape, query.dtype),
        gpu.Guarded((query.shape[0], query.shape[2], query.shape[1]), torch.float32),
        gpu.Guarded((size,), torch.uint8),
    ]
    out, lse, workspace = (each.tensor for each in fenced)
    capi.forward(
        query,
        key,
        value,
        *common,
        window=mask.window_pair or capi.NO_WINDOW,
        out=out,
        softmax_lse=lse,
        workspace=workspace,
    )
    for each in fenced:
        each.assert_margins_untouched()
    return gpu.to_numpy(out), gpu.to_numpy(lse)


def check(
    case: AttentionCase, rng: np.random.Generator, mask: Mask | None = None, *, fresh: bool = False
) -> None:
    inputs = random_inputs(case, rng)
    mask = case.make_mask(rng) if mask is None else mask
    out, lse = forward(inputs, mask, case.dtype, fresh=fresh)
    right = exact(inputs, mask)
    coarse = exact(inputs, mask, rounded=dense.ROUNDINGS[case.dtype])
    tolerance.assert_array_close("out", out, right.out, coarse.out, case.dtype)
    tolerance.assert_array_close("softmax_lse", lse, right.softmax_lse, None, "float32")
    assert not out.transpose(0, 2, 1, 3)[np.isneginf(right.softmax_lse)].any()


@pytest.mark.parametrize("head_dim", [40, *BUCKETS])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_results_match_dense(mask, lengths, head_dim, rng):
    case = AttentionCase(
        mask,
        seqlen_q=lengths[0],
        seqlen_k=lengths[1],
        num_heads=4,
        num_heads_k=2,
        head_dim=head_dim,
        dtype="float16" if head_dim in (64, 192) else "bfloat16",
    )
    check(case, rng)


# Few and small: tools/sanitize.sh runs these.
@pytest.mark.parametrize("head_dim", [40, 96, 128, 256])
@pytest.mark.parametrize("mask", ["causal_1", "four"])
def test_results_in_fresh_memory_match_dense(mask, head_dim, rng):
    case = AttentionCase(
        mask, seqlen_q=3, seqlen_k=700, num_heads_k=1, head_dim=head_dim, dtype="bfloat16"
    )
    check(case, rng, fresh=True)


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("head_dim", BUCKETS)
def test_grouped_heads_and_masks_of_heads_match_dense(head_dim, group, rows, rng):
    for num_heads_mask in {1, 2, 2 * group}:
        case = AttentionCase(
            "four",
            batch=2,
            seqlen_q=rows,
            seqlen_k=1100,
            num_heads=2 * group,
            num_heads_k=2,
            num_heads_mask=num_heads_mask,
            head_dim=head_dim,
            dtype="bfloat16" if rows == 3 else "float16",
        )
        check(case, rng)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_more_keys_than_a_list_of_live_tiles_holds_match_dense(head_dim, rng):
    columns = 70000
    case = AttentionCase(
        seqlen_q=2,
        seqlen_k=columns,
        num_heads=2,
        num_heads_k=1,
        head_dim=head_dim,
        dtype="bfloat16",
    )
    check(case, rng, Mask(None, causal=True))
    # Keys that nobody sees lie before, between and after the others.
    indices = np.full((1, 1, columns, 1), 0, np.int32)
    indices[:, :, 300:1000] = 2
    indices[:, :, 40000:66000] = 2
    check(case, rng, Mask(indices, causal=True))
    check(case, rng, Mask(np.zeros_like(indices), causal=True))


def test_many_calls_at_once_are_not_split(rng):
    case = AttentionCase(
        "causal_1",
        batch=70,
        seqlen_q=1,
        seqlen_k=1100,
        num_heads=16,
        num_heads_k=8,
        head_dim=64,
        dtype="float16",
    )
    check(case, rng)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_results_have_the_same_bits_in_every_run(head_dim, rng):
    case = AttentionCase(
        "four", seqlen_q=4, seqlen_k=9000, num_heads=8, num_heads_k=2, head_dim=head_dim
    )
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    first = forward(inputs, mask, "bfloat16")
    for _ in range(RUNS):
        for ours, right in zip(forward(inputs, mask, "bfloat16"), first, strict=True):
            assert ours.tobytes() == right.tobytes()


def test_slices_and_strides_give_the_bits_of_contiguous_tensors():
    packed = torch.randn(2, 3000, 6, 128, device="cuda", dtype=torch.float16)
    query, key, value = packed[:, :5, :4], packed[:, :, 4:5], packed[:, :, 5:6]
    results = torch.full((2, 5, 7, 128), torch.nan, device="cuda", dtype=torch.float16)
    out, lse = capi.forward(query, key, value, None, True, out=results[:, :, 2:6])
    right, right_lse = capi.forward(
        query.contiguous(), key.contiguous(), value.contiguous(), None, True
    )
    assert torch.equal(out, right)
    assert torch.equal(lse, right_lse)
    assert bool(results[:, :, :2].isnan().all())
    assert bool(results[:, :, 6:].isnan().all())


def test_a_captured_graph_replays_on_new_inputs():
    query, key, value = (
        torch.randn(1, length, heads, 128, device="cuda", dtype=torch.bfloat16)
        for length, heads in ((1, 8), (5000, 2), (5000, 2))
    )
    out, lse = torch.empty_like(query), torch.empty(1, 8, 1, device="cuda")
    given = {"out": out, "softmax_lse": lse}
    given["workspace"] = torch.empty(
        capi.workspace_bytes("forward", query, key, None, True), dtype=torch.uint8, device="cuda"
    )
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        capi.forward(query, key, value, None, True, **given)  # loads the kernels
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        capi.forward(query, key, value, None, True, **given)
    query.copy_(torch.randn_like(query))
    out.fill_(torch.nan)
    graph.replay()
    right, right_lse = capi.forward(query, key, value, None, True)
    assert torch.equal(out, right)
    assert torch.equal(lse, right_lse)


def test_rows_of_many_keys_go_to_the_split_kernels_by_default():
    shape = (1, 1, 8, 64)
    query = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    key = torch.randn(1, 5000, 2, 64, device="cuda", dtype=torch.bfloat16)
    ours = capi.forward(query, key, key, None, True)
    with gpu.only_kernels("auto"):
        chosen = capi.forward(query, key, key, None, True)
    for mine, right in zip(chosen, ours, strict=True):
        assert torch.equal(mine, right)
