"""The GPU kernels, emulated on the CPU, against dense maths in float64: no GPU is needed.

Every launch draws whether products are worked out at once or when they are waited for, and every
pass of the scheduler how many copies are done and how far a warp runs, so that what is not waited
for is likely missed. A test that fails prints how to draw the same again. Speed, memory order
between blocks and what hardware forbids are for tests/gpu.
"""

from __future__ import annotations

import os

import capi_layout
import numpy as np
import pytest
from support import cases, dense
from support.cases import AttentionCase, Mask
from support.inputs import assert_right, random_inputs
from support.tolerance import assert_same_bits

KERNELS = ("sm80", "sm90a")
HEAD_DIMS = (40, 64, 96, 128, 192, 256)
MULTIPROCESSORS = "FLASHMASK_EMULATED_MULTIPROCESSORS"
LONG_BLOCK = 8  # times the mean steps: such key blocks come last (kernels/common/mask_plan.h)
LONG_SIZE = 2700
ORDERS = 3  # of events that are tried where few of them tell right from wrong
FORMS = ("none", "causal", "window", "causal_1", "causal_2", "two", "four")


def check(door, kernels, case, rng, **options):
    """Run a case and compare it; return what it gave."""
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    with door.only_kernels(kernels):
        found = door.run(inputs, mask, dtype=case.dtype, **options)
    options.pop("deterministic", None)
    assert_right(found, inputs, mask, case.dtype, **options)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("kernels", KERNELS)
def test_results_match_dense(kernels, head_dim, form, door, rng):
    case = AttentionCase(
        form,
        seqlen_q=int(rng.integers(65, 260)),
        seqlen_k=int(rng.integers(65, 260)),
        num_heads=2,
        num_heads_k=int(rng.integers(1, 3)),
        head_dim=head_dim,
        dtype=str(rng.choice(["float16", "bfloat16"])),
    )
    check(door, kernels, case, rng)


@pytest.mark.parametrize("form", cases.STRUCTURED)
@pytest.mark.parametrize("kernels", KERNELS)
def test_structured_masks_match_dense(kernels, form, door, rng):
    size = int(rng.integers(300, 520))
    case = AttentionCase(form, seqlen_q=size, seqlen_k=size, head_dim=64, dtype="bfloat16")
    check(door, kernels, case, rng)


@pytest.mark.parametrize("num_heads_mask", [1, 2, 6])
@pytest.mark.parametrize("head_dim", [64, 128, 192])
@pytest.mark.parametrize("kernels", KERNELS)
def test_groups_and_masks_of_heads_match_dense(kernels, head_dim, num_heads_mask, door, rng):
    case = AttentionCase(
        "four",
        batch=2,
        seqlen_q=150,
        seqlen_k=200,
        num_heads=6,
        num_heads_k=2,
        num_heads_mask=num_heads_mask,
        head_dim=head_dim,
        dtype="bfloat16",
    )
    check(door, kernels, case, rng)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 700), (16, 1100), (129, 1), (63, 65)], ids=str)
@pytest.mark.parametrize("kernels", KERNELS)
def test_few_rows_and_columns_match_dense(kernels, lengths, door, rng):
    rows, columns = lengths
    case = AttentionCase("four", seqlen_q=rows, seqlen_k=columns, head_dim=64, dtype="float16")
    check(door, kernels, case, rng)


@pytest.mark.parametrize("grads", ["out", "lse"])
@pytest.mark.parametrize("scale", [0.0, -0.3])
@pytest.mark.parametrize("kernels", KERNELS)
def test_scales_and_absent_gradients_match_dense(kernels, scale, grads, door, rng):
    case = AttentionCase("causal_1", seqlen_q=140, seqlen_k=170, head_dim=128, dtype="bfloat16")
    check(door, kernels, case, rng, softmax_scale=scale, grads=grads)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("kernels", KERNELS)
def test_blocks_that_see_nothing_match_dense(kernels, head_dim, door, rng, order_seed):
    # Rows from 128 on see no key, keys from 128 on are seen by no row: no loop waits for a tile.
    size, hidden_from = 260, 128
    starts = np.where(np.arange(size) < hidden_from, hidden_from, 0).astype(np.int32)
    ends = np.zeros(size, np.int32)
    mask = Mask(np.stack([starts, ends], axis=-1)[None, None], causal=False)
    case = square(size, head_dim, 2, 1)
    inputs = random_inputs(case, rng)
    for seed in range(order_seed, order_seed + ORDERS):
        door.draw_from(seed)
        with door.only_kernels(kernels):
            found = door.run(inputs, mask, dtype=case.dtype)
        assert_right(found, inputs, mask, case.dtype)
        for result in (found.out, *found[2:]):
            assert (result[:, hidden_from:] == 0).all()


# With a scale of 1 scores are large: weights of one tile and maxima of the next must keep in step.
@pytest.mark.parametrize(("step", "scale"), [(64, None), (24, None), (24, 1.0)])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_halves_of_tiles_that_nobody_sees_are_not_touched(
    head_dim, step, scale, door, rng, order_seed
):
    # A tile is 128 keys: either half, or both, may be dead, whole or partial for 64 rows.
    size = int(rng.integers(600, 700))
    case, mask = square(size, head_dim, 2, 1), cases.spans_of_rows(rng, size, size, step)
    inputs = random_inputs(case, rng)
    unseen = ~dense.visible(mask.indices, causal=mask.causal, seqlen_q=size, seqlen_k=size).any(
        axis=(0, 1, 2)
    )
    key, value = inputs.key.copy(), inputs.value.copy()
    key[:, unseen] = value[:, unseen] = np.nan
    poisoned = inputs._replace(key=key, value=value)
    for seed in range(order_seed, order_seed + ORDERS):
        door.draw_from(seed)
        with door.only_kernels("sm90a"):
            found = door.run(inputs, mask, dtype=case.dtype, softmax_scale=scale)
            door.draw_from(seed)
            same = door.run(poisoned, mask, dtype=case.dtype, softmax_scale=scale)
        assert_right(found, inputs, mask, case.dtype, softmax_scale=scale)
        np.testing.assert_array_equal(same.out, found.out)
        np.testing.assert_array_equal(same.softmax_lse, found.softmax_lse)


@pytest.mark.parametrize("name", ["causal", "causal_documents"])
@pytest.mark.parametrize("head_dim", [64, 128, 192])
def test_waves_of_key_blocks_match_dense(head_dim, name, door, rng, monkeypatch):
    # Of every second wave of two blocks the rows are taken from the first on, if columns are long.
    monkeypatch.setitem(os.environ, MULTIPROCESSORS, "2")
    door.want_backward_items(0)
    door.limit_section_bytes(None)
    size = 600
    case = square(size, head_dim, 4, 1)
    inputs, mask = random_inputs(case, rng), cases.MASKS[name](rng, 1, 1, size, size)
    with door.only_kernels("sm90a"):
        found = door.run(inputs, mask, dtype=case.dtype)
    assert_right(found, inputs, mask, case.dtype)


def window_with_sinks(size: int, window: int) -> Mask:
    """Return a causal window beside one key block that all later rows see."""
    column = np.arange(size)
    starts = np.where(column < 128, size, np.minimum(column + window, size))
    return Mask(starts.astype(np.int32)[None, None, :, None], causal=True)


def live_steps(mask: Mask, size: int) -> np.ndarray:
    """Return how many steps of 64 rows each block of 128 keys is seen from."""
    seen = dense.visible(mask.indices, causal=mask.causal, seqlen_q=size, seqlen_k=size)[0, 0]
    by_rows = np.logical_or.reduceat(seen, np.arange(0, size, 64), axis=0)
    return np.logical_or.reduceat(by_rows, np.arange(0, size, 128), axis=1).sum(axis=0)


@pytest.mark.parametrize("heads", [(2, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("name", ["causal", "causal_documents"])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("kernels", KERNELS)
def test_ordered_sums_are_those_of_one_multiprocessor(
    kernels, head_dim, name, heads, door, rng, monkeypatch
):
    size = 600 if kernels == "sm90a" else 300
    case = square(size, head_dim, *heads)
    check_ordered_sums(
        door, kernels, case, cases.MASKS[name](rng, 1, 1, size, size), rng, monkeypatch
    )


@pytest.mark.parametrize("head_dim", [64, 128])
def test_ordered_sums_with_a_long_key_block_are_those_of_one_multiprocessor(
    head_dim, door, rng, monkeypatch
):
    case, mask = square(LONG_SIZE, head_dim, 2, 2), window_with_sinks(LONG_SIZE, 64)
    costs = live_steps(mask, LONG_SIZE)
    assert costs.max() * len(costs) > LONG_BLOCK * costs.sum()
    check_ordered_sums(door, "sm90a", case, mask, rng, monkeypatch)


@pytest.mark.parametrize(("head_dim", "heads"), [(64, (4, 2)), (192, (4, 2)), (128, (24, 3))])
def test_long_key_blocks_of_groups_match_dense(head_dim, heads, door, rng, monkeypatch):
    # They are worked on before all others. The sums of two of the three key heads fit a section.
    monkeypatch.setitem(os.environ, MULTIPROCESSORS, "5")
    door.want_backward_items(0)
    door.limit_section_bytes(None)
    case, mask = square(LONG_SIZE, head_dim, *heads), window_with_sinks(LONG_SIZE, 64)
    costs = live_steps(mask, LONG_SIZE)
    assert costs.max() * len(costs) > LONG_BLOCK * costs.sum()
    inputs = random_inputs(case, rng)
    with door.only_kernels("sm90a"):
        found = door.run(inputs, mask, dtype=case.dtype)
    assert_right(found, inputs, mask, case.dtype)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("num_heads_mask", [1, 12])
@pytest.mark.parametrize("head_dim", [64, 128, 192])
@pytest.mark.parametrize("kernels", KERNELS)
def test_key_blocks_shared_by_heads_match_dense(
    kernels, head_dim, num_heads_mask, deterministic, door, rng
):
    # Two or three shares of six heads.
    key_blocks = 2 * (4 if head_dim == 192 else 2)
    wanted = key_blocks * int(rng.integers(2, 4))
    # The wide backward of sm90a wants a third of what is said.
    door.want_backward_items(3 * wanted if (kernels, head_dim) == ("sm90a", 192) else wanted)
    case = AttentionCase(
        "four",
        seqlen_q=150,
        seqlen_k=int(rng.integers(200, 257)),
        num_heads=12,
        num_heads_k=2,
        num_heads_mask=num_heads_mask,
        head_dim=head_dim,
        dtype=str(rng.choice(["float16", "bfloat16"])),
    )
    check(door, kernels, case, rng, deterministic=deterministic)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("form", ["none", "window", "two"])
@pytest.mark.parametrize("head_dim", [64, 128, 192])
def test_key_blocks_shared_by_rows_match_dense(head_dim, form, deterministic, door, rng):
    # Three shares, of which a window leaves some without a live step.
    door.want_backward_items(1000)
    case = AttentionCase(
        form,
        seqlen_q=int(rng.integers(3072, 3200)),
        seqlen_k=int(rng.integers(100, 200)),
        head_dim=head_dim,
        dtype="bfloat16",
    )
    check(door, "sm90a", case, rng, deterministic=deterministic)


def rows_seen_by(*blocks: tuple[int, int]) -> Mask:
    """Return a mask of so many blocks of 128 keys, each seen from some rows alone."""
    begins, ends = (np.repeat(np.array(x, np.int32), 128) for x in zip(*blocks, strict=True))
    return Mask(np.stack([ends, begins], axis=-1)[None, None], causal=False)


@pytest.mark.parametrize(
    ("heads", "rows"),
    [((4, 4), (0, 1600)), ((4, 4), (200, 1500)), ((8, 4), (200, 1500))],
    ids=str,
)
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_key_blocks_that_go_round_match_dense(head_dim, rows, heads, door, rng, monkeypatch):
    # Blocks that see the same rows begin where others are, so that sums have other bits. Two short
    # blocks part the others in time.
    monkeypatch.setitem(os.environ, MULTIPROCESSORS, "3")
    door.want_backward_items(0)
    mask = rows_seen_by(*[rows] * 4, (0, 300), (600, 1200))
    case = AttentionCase(
        seqlen_q=int(rng.integers(1550, 1600)),
        seqlen_k=6 * 128,
        num_heads=heads[0],
        num_heads_k=heads[1],
        head_dim=head_dim,
        dtype="float16",
    )
    inputs = random_inputs(case, rng)
    with door.only_kernels("sm90a"):
        door.limit_section_bytes(0)
        found = door.run(inputs, mask, dtype=case.dtype)
        door.limit_section_bytes(None)
        short = door.run(inputs, mask, dtype=case.dtype)
    assert_right(found, inputs, mask, case.dtype)
    if heads[0] == heads[1]:  # of groups, short calls take rows from the last one on as well
        assert found.grad_key.tobytes() != short.grad_key.tobytes()


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 192])
def test_shares_without_rows_see_no_others(head_dim, deterministic, door, rng):
    # Each key block has one run of steps, so two of three shares have none.
    size, rows = 3072, 256
    door.want_backward_items(1000)
    case = AttentionCase(
        seqlen_q=size, seqlen_k=256, num_heads=1, num_heads_k=1, head_dim=head_dim, dtype="bfloat16"
    )
    inputs = random_inputs(case, rng)
    for row, first_key in ((0, 128), (size - 1, 0)):  # it sees the other keys
        query, grad_out = inputs.query.copy(), inputs.grad_out.copy()
        query[:, row], grad_out[:, row] = np.nan, np.nan
        mask = rows_seen_by((0, rows), (size - rows, size))
        with door.only_kernels("sm90a"):
            found = door.run(
                inputs._replace(query=query, grad_out=grad_out),
                mask,
                dtype=case.dtype,
                deterministic=deterministic,
            )
        for grads in (found.grad_key, found.grad_value):
            assert np.isfinite(grads[:, first_key : first_key + 128]).all()
            assert np.isnan(grads[:, 128 - first_key : 256 - first_key]).any()
        assert np.isfinite(np.delete(found.grad_query, row, axis=1)).all()


def test_ordered_sums_of_shares_in_two_sections_end(door, rng, monkeypatch):
    # The sums of three shares of a head would be more than a section may hold, and shares wait for
    # each other where the runs of a key block begin elsewhere than its neighbour's.
    monkeypatch.setitem(os.environ, MULTIPROCESSORS, "1")
    size = 33100
    door.want_backward_items(12)
    door.limit_section_bytes(None)
    case = AttentionCase(
        seqlen_q=size, seqlen_k=256, num_heads=1, num_heads_k=1, head_dim=128, dtype="bfloat16"
    )
    inputs, mask = random_inputs(case, rng), rows_seen_by((0, size - 256), (0, size))
    with door.only_kernels("sm90a"):
        found = door.run(inputs, mask, dtype=case.dtype, deterministic=True)
    assert_right(found, inputs, mask, case.dtype)


def square(size: int, head_dim: int, num_heads: int, num_heads_k: int) -> AttentionCase:
    return AttentionCase(
        seqlen_q=size,
        seqlen_k=size,
        num_heads=num_heads,
        num_heads_k=num_heads_k,
        head_dim=head_dim,
        dtype="bfloat16",
    )


def check_ordered_sums(door, kernels, case, mask, rng, monkeypatch):
    """Compare deterministic gradients of one multiprocessor and of five, bit by bit."""
    inputs = random_inputs(case, rng)
    found = []
    for count in ("1", "5"):
        monkeypatch.setitem(os.environ, MULTIPROCESSORS, count)
        with door.only_kernels(kernels):
            found.append(door.run(inputs, mask, dtype=case.dtype, deterministic=True))
    assert_right(found[0], inputs, mask, case.dtype)
    assert_same_bits(*found)


NO_TENSORS = (0, *capi_layout.NO_WINDOW, *capi_layout.NO_TENSOR * 4, 0, *capi_layout.NO_BACKWARD)
MAX_SEQLEN = 2**31 - 2**13
UNFIT = {
    "batch": ({"batch": -1}, "batch and lengths must not be negative"),
    "seqlen_q": ({"seqlen_q": MAX_SEQLEN + 1}, f"lengths at most {MAX_SEQLEN}, .* got batch 0,"),
    "seqlen_k": ({"seqlen_k": MAX_SEQLEN + 1}, f"lengths at most {MAX_SEQLEN}, .* got batch 0,"),
    "heads": ({"num_heads": 0}, "heads at least 1; got .* heads 0, 4 and 1"),
    "batch x heads": ({"batch": 2**62}, "num_heads must be at most 2147483647; got batch 4611686"),
    "heads of none": ({"num_heads": 2**62}, "num_heads must be at most 2147483647; got batch 0"),
}


@pytest.mark.parametrize(("heads", "length"), [((71, 1), 67000), ((28, 4), 16384)], ids=str)
@pytest.mark.parametrize("kernels", KERNELS)
def test_shares_of_key_blocks_take_little_memory(kernels, heads, length, door):
    # Groups of prime size: the next number of shares would be all heads, 1.2 GB and 224 MB.
    sizes = capi_layout.SIZES.pack(
        *(1, 1024, length, *heads, 1, 128), capi_layout.BFLOAT16, 0, 1.0, True, 0, False
    )
    with door.only_kernels(kernels):
        wanted = []
        for items in (-1, 0):
            door.want_backward_items(items)
            wanted.append(door.workspace_bytes("backward", sizes, NO_TENSORS))
    assert 0 <= wanted[0] - wanted[1] <= 132 << 20


def call_without_memory(door, name, *, batch=0, seqlen_q=1, seqlen_k=1, num_heads=4):
    sizes = (batch, seqlen_q, seqlen_k, num_heads, 4, 1, 64)
    options = (capi_layout.BFLOAT16, 0, 1.0, True, 0, False)
    door.call(name, capi_layout.SIZES.pack(*sizes, *options), NO_TENSORS)


@pytest.mark.parametrize(("changes", "text"), UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_sizes_that_do_not_fit_are_refused(name, changes, text, door):
    with pytest.raises(RuntimeError, match=text):
        call_without_memory(door, name, **changes)


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_an_empty_call_may_be_as_large_as_any(name, door):
    most = {"seqlen_q": MAX_SEQLEN, "seqlen_k": MAX_SEQLEN, "num_heads": 2**31 - 4}
    call_without_memory(door, name, **most)


def test_the_order_of_events_is_that_of_the_seed(door, rng, order_seed):
    case, mask = square(200, 64, 2, 2), Mask(None, causal=True)
    inputs = random_inputs(case, rng)
    last = []
    for seed in (order_seed, order_seed, order_seed + 1):
        door.draw_from(seed)
        with door.only_kernels("sm90a"):
            door.run(inputs, mask, dtype=case.dtype)
        last.append(door.draw())
    assert last[0] == last[1]
    assert last[0] != last[2]


def test_a_wrong_call_is_an_error(door, rng):
    case = AttentionCase("causal", head_dim=64, dtype="bfloat16")
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    with pytest.raises(RuntimeError, match="softmax_scale"):
        door.run(inputs, mask, dtype="bfloat16", softmax_scale=float("nan"))
