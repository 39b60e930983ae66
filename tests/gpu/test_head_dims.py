"""Every bucket of head dims, with the tiles of every size of device, all kinds of heads, masks."""

from __future__ import annotations

import numpy as np
import pytest
from support import cases, gpu
from support.cases import AttentionCase, Mask
from support.gpu import capi, torch
from support.inputs import assert_right, random_inputs
from support.paper_masks import paper_mask

pytestmark = pytest.mark.gpu

BUCKETS = (64, 96, 128, 192, 256)
# One below, between and at the ends of the buckets that few other tests reach.
HEAD_DIMS = (72, 88, 96, 104, 136, 192, 200, 256)
GROUPS = (1, 2, 4, 8, 32)  # query heads of a key head
DEVICES = (None, *gpu.SMALLER_DEVICES)
RUNS = 5


def device_name(size: int | None) -> str:
    return "here" if size is None else f"{size // 1024}KB"


@pytest.fixture(autouse=True)
def _sm80():
    """Newer kernels have tests of their own, and would take some of these calls."""
    with gpu.only_kernels("sm80"):
        yield


@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("mask", ["causal", "window", *cases.RANDOM_FORMS, "documents", "cut_rows"])
def test_results_match_dense(mask, head_dim, dtype, rng):
    case = AttentionCase(
        mask,
        seqlen_q=333,
        seqlen_k=333 if mask == "documents" else 257,
        num_heads=4,
        num_heads_k=2,
        num_heads_mask=1 if mask in ("causal", "window") else 2,
        head_dim=head_dim,
        dtype=dtype,
    )
    gpu.check_case(case, rng)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("head_dim", BUCKETS)
def test_grouped_heads_match_dense(head_dim, group, rng):
    for num_heads_mask in {1, 2, 2 * group}:
        case = AttentionCase(
            "four",
            seqlen_q=150,
            num_heads=2 * group,
            num_heads_k=2,
            num_heads_mask=num_heads_mask,
            head_dim=head_dim,
            dtype="bfloat16" if group % 4 else "float16",
        )
        gpu.check_case(case, rng)


@pytest.mark.parametrize("deterministic", [False, True], ids=["usual", "deterministic"])
@pytest.mark.parametrize("size", DEVICES, ids=device_name)
@pytest.mark.parametrize("head_dim", BUCKETS)
def test_tiles_of_every_device_match_dense(head_dim, size, deterministic, rng):
    with gpu.tiles_of_device(size):
        for mask, dtype in (("causal", "bfloat16"), ("four", "float16"), ("causal_1", "bfloat16")):
            for lengths in ((200, 300), (129, 65)):
                case = AttentionCase(
                    mask,
                    batch=2,
                    seqlen_q=lengths[0],
                    seqlen_k=lengths[1],
                    num_heads=4,
                    num_heads_k=2,
                    head_dim=head_dim,
                    dtype=dtype,
                )
                gpu.check_case(case, rng, deterministic=deterministic)


@pytest.mark.parametrize("size", DEVICES, ids=device_name)
@pytest.mark.parametrize("head_dim", BUCKETS)
def test_deterministic_gradients_repeat_to_the_bit(head_dim, size, rng):
    case = AttentionCase(seqlen_q=2500, num_heads=6, num_heads_k=3, head_dim=head_dim)
    inputs = random_inputs(case, rng)
    with gpu.tiles_of_device(size):
        for name in ("causal", "document", "random_eviction"):
            mask = paper_mask(name, rng, case.seqlen_q)
            first = gpu.run(inputs, mask, deterministic=True)
            for _ in range(RUNS):
                again = gpu.run(inputs, mask, deterministic=True)
                for ours, right in zip(again, first, strict=True):
                    assert ours.tobytes() == right.tobytes()


# More live tiles than the shortest list of the forward (256 tiles of 64 keys) and of the backward
# (96 steps) hold.
@pytest.mark.parametrize("size", DEVICES, ids=device_name)
@pytest.mark.parametrize("head_dim", [192, 256])
def test_long_lists_of_live_tiles_match_dense(head_dim, size, rng):
    dtype = "bfloat16"
    for rows, columns in ((70, 33000), (9000, 70)):
        case = AttentionCase(
            seqlen_q=rows,
            seqlen_k=columns,
            num_heads=1,
            num_heads_k=1,
            head_dim=head_dim,
            dtype=dtype,
        )
        inputs, mask = random_inputs(case, rng), Mask(None, causal=False)
        with gpu.tiles_of_device(size):
            ours = gpu.run(inputs, mask, dtype=dtype)
        assert_right(ours, inputs, mask, dtype)


@pytest.mark.usefixtures("short_calls")  # a window's blocks do not go round
@pytest.mark.parametrize("head_dim", [64, 256])
def test_a_million_rows_and_keys_have_right_samples(head_dim, rng, seed):
    torch.manual_seed(seed)
    length, window, samples = 2**20, 3072, 40
    shape = (1, length, 1, head_dim)
    query, key, value, grad_out = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    given = {"window": (window, 0)}
    out, lse = capi.forward(query, key, value, None, True, **given)
    gradients = capi.backward(grad_out, query, key, value, out, lse, None, True, **given)
    # What rows of the last sixteenth give depends on that much of the tensors alone, in tiles that
    # begin where they do in the whole.
    part = length // 16
    begin = length - part
    alone = [x[:, begin - window :].contiguous() for x in (query, key, value, grad_out)]
    alone_out, alone_lse = capi.forward(*alone[:3], None, True, **given)
    right = capi.backward(alone[3], *alone[:3], alone_out, alone_lse, None, True, **given)
    rows = torch.from_numpy(np.r_[0, part - 1, rng.integers(0, part, samples)]).cuda()
    assert torch.equal(out[:, begin + rows], alone_out[:, window + rows])
    assert torch.equal(lse[..., begin + rows], alone_lse[..., window + rows])
    for ours, theirs in zip(gradients[1:], right[1:], strict=True):
        assert torch.equal(ours[:, begin + rows], theirs[:, window + rows])
    # Sums of the query gradient have no fixed order, but here few key blocks add to a row.
    torch.testing.assert_close(gradients[0][:, begin + rows], right[0][:, window + rows])
