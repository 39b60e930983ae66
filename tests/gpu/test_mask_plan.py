"""The plan that GPU kernels build of a mask, read from their workspace, against a numpy model."""

from __future__ import annotations

import numpy as np
import pytest
from support import cases, gpu
from support.cases import AttentionCase, Mask
from support.gpu import capi, torch
from support.inputs import random_inputs
from support.paper_masks import MAKERS, paper_mask

pytestmark = pytest.mark.gpu

COLUMNS = 64  # of a range
KEY_BLOCK = 128
ROW_BLOCKS = {"sm80": 128, "sm90a": 192}  # of the forward; no backward asks for another
ROW_STEP = 64
LONG_BLOCK = 8  # times the mean cost
FEW_ROWS = 64  # up to which the sm80 forward is another (custom_ops/kernels/sm80/few_rows.h)
ALIGNMENT = 256  # bytes
INT32 = np.iinfo(np.int32)


def model_bounds(mask: Mask, rows: int, columns: int) -> np.ndarray:
    """Return [masks, columns padded to key blocks, 4]: masked intervals of columns, clipped."""
    column = np.arange(columns, dtype=np.int64)
    diagonal = column - (columns - rows)
    numbers = np.zeros((1, 1, columns, 0)) if mask.indices is None else mask.indices
    batch, heads, _, width = numbers.shape
    numbers = numbers.reshape(batch * heads, columns, width).astype(np.int64)
    bounds = np.zeros((len(numbers), columns, 4), np.int64)
    bounds[:, :, 0] = bounds[:, :, 1] = rows
    if width:
        bounds[:, :, 0] = numbers[:, :, 0]
    if width == 4:
        bounds[:, :, 1:] = numbers[:, :, 1:]
    elif width == 2:
        bounds[:, :, 1 if mask.causal else 3] = numbers[:, :, 1]
    if mask.window_pair is not None:
        bounds[:, :, 0] = diagonal + mask.window_pair[0] + 1
        bounds[:, :, 3] = diagonal - mask.window_pair[1]
    bounds = bounds.clip(0, rows)
    if mask.causal:
        bounds[:, :, 3] = np.maximum(bounds[:, :, 3], diagonal.clip(0, rows))
    padding = -columns % KEY_BLOCK
    masked = np.broadcast_to([0, rows, 0, 0], (len(numbers), padding, 4))
    return np.concatenate([bounds, masked], axis=1).astype(np.int32)


def model_ranges(bounds: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return [masks, tiles, 8]: cover and touch of the lower, then of the upper interval."""
    masks, padded, _ = bounds.shape
    tiles = padded // COLUMNS
    real = np.arange(padded) < columns
    ranges = []
    for interval in (bounds[:, :, :2], bounds[:, :, 2:]):
        begin, end = interval[..., 0], interval[..., 1]
        full = begin < end
        neutral = np.where(real, full, True)  # padding is no obstacle to a skip
        cover_begin = np.where(neutral, np.where(real, begin, INT32.min), INT32.max)
        cover_end = np.where(neutral, np.where(real, end, INT32.max), INT32.min)
        touch_begin = np.where(full, begin, INT32.max)
        touch_end = np.where(full, end, INT32.min)
        by_tile = (masks, tiles, COLUMNS)
        ranges += [
            cover_begin.reshape(by_tile).max(axis=2),
            cover_end.reshape(by_tile).min(axis=2),
            touch_begin.reshape(by_tile).min(axis=2),
            touch_end.reshape(by_tile).max(axis=2),
        ]
    return np.stack(ranges, axis=2).astype(np.int32)


def is_skipped(ranges: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return [masks, tiles, row blocks]: whether one interval covers all rows of the block."""
    covers = [
        (ranges[:, :, None, first] <= begin) & (ranges[:, :, None, first + 1] >= end)
        for first in (0, 4)
    ]
    return covers[0] | covers[1]


def row_blocks(rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    begin = np.arange(0, rows, size)
    return begin, np.minimum(begin + size, rows)


def model_row_costs(ranges: np.ndarray, rows: int, row_block: int) -> np.ndarray:
    return (~is_skipped(ranges, *row_blocks(rows, row_block))).sum(axis=1)


def model_key_costs(ranges: np.ndarray, rows: int) -> np.ndarray:
    skipped = is_skipped(ranges, *row_blocks(rows, ROW_STEP))
    if skipped.shape[1] % 2:
        skipped = np.concatenate([skipped, np.ones_like(skipped[:, :1])], axis=1)
    return (~(skipped[:, ::2] & skipped[:, 1::2])).sum(axis=2)


def order_of(costs: np.ndarray) -> np.ndarray:
    """Return blocks of each mask by falling cost, of equal ones the later first."""
    last = costs.shape[1] - 1
    return last - np.argsort(-costs[:, ::-1], axis=1, kind="stable")


def places_of(costs: np.ndarray) -> np.ndarray:
    """Return blocks of each mask by place, then the long ones from the last to the first."""
    is_long = costs * costs.shape[1] > LONG_BLOCK * costs.sum(axis=1, keepdims=True)
    place = np.arange(costs.shape[1])
    return np.argsort(np.where(is_long, 2 * costs.shape[1] - place, place), axis=1)


class Plan:
    """The arrays at the start of a workspace, in the order of mask_plan.h."""

    def __init__(
        self, workspace: torch.Tensor, masks: int, rows: int, columns: int, row_block: int
    ) -> None:
        self._bytes = workspace.cpu().numpy()
        self._next = 0
        keys = -(-columns // KEY_BLOCK)
        tiles = keys * (KEY_BLOCK // COLUMNS)
        blocks = -(-rows // row_block)
        self.bounds = self._take(masks, tiles * COLUMNS, 4)
        self.ranges = self._take(masks, tiles, 8)
        self.costs, self.order = self._take(masks, blocks), self._take(masks, blocks)
        self.key_costs, self.key_order = self._take(masks, keys), self._take(masks, keys)
        self.key_sums = self._take(masks, 2).view(np.int64)[:, 0]

    def _take(self, *shape: int) -> np.ndarray:
        size = int(np.prod(shape)) * INT32.dtype.itemsize
        taken = self._bytes[self._next : self._next + size].view(np.int32).reshape(shape)
        self._next += -(-size // ALIGNMENT) * ALIGNMENT
        return taken


@pytest.fixture(params=ROW_BLOCKS, autouse=True)
def kernels(request):
    """Choose the kernels that both passes use, where the library has them."""
    gpu.require_kernels(request.param, "forward")
    with gpu.only_kernels(request.param):
        yield request.param


def plans(
    case: AttentionCase,
    mask: Mask,
    rng: np.random.Generator,
    kernels: str,
    *,
    deterministic: bool = False,
) -> tuple[Plan, Plan]:
    """Return the plans that a forward and a backward leave in their workspaces."""
    inputs = random_inputs(case, rng)
    query, key, value, grad_out = (gpu.tensor(array, case.dtype) for array in inputs[:4])
    common = (gpu.indices_tensor(mask), mask.causal)
    memory = {
        name: torch.full(
            (capi.workspace_bytes(name, query, key, *common, deterministic=deterministic),),
            gpu.POISONED_BYTE,
            dtype=torch.uint8,
            device="cuda",
        )
        for name in ("forward", "backward")
    }
    window = mask.window_pair or capi.NO_WINDOW
    out, lse = capi.forward(query, key, value, *common, window=window, workspace=memory["forward"])
    capi.backward(
        grad_out,
        query,
        key,
        value,
        out,
        lse,
        *common,
        deterministic=deterministic,
        window=window,
        workspace=memory["backward"],
    )
    heads = 1 if mask.indices is None else mask.indices.shape[1]
    sizes = (case.batch * heads, case.seqlen_q, case.seqlen_k)
    return (
        Plan(memory["forward"], *sizes, ROW_BLOCKS[kernels]),
        Plan(memory["backward"], *sizes, ROW_BLOCKS["sm80"]),
    )


def ranges_of(case: AttentionCase, mask: Mask) -> tuple[np.ndarray, np.ndarray]:
    """Return the model's bounds and ranges."""
    bounds = model_bounds(mask, case.seqlen_q, case.seqlen_k)
    if mask.indices is None:
        bounds = np.repeat(bounds, case.batch, axis=0)
    return bounds, model_ranges(bounds, case.seqlen_q, case.seqlen_k)


def check_plans(case: AttentionCase, mask: Mask, rng: np.random.Generator, kernels: str) -> None:
    forward, backward = plans(case, mask, rng, kernels)
    bounds, ranges = ranges_of(case, mask)
    for plan in (forward, backward):
        np.testing.assert_array_equal(plan.bounds, bounds)
        np.testing.assert_array_equal(plan.ranges, ranges)
    if kernels != "sm80" or case.seqlen_q > FEW_ROWS:  # else nothing is ordered
        costs = model_row_costs(ranges, case.seqlen_q, ROW_BLOCKS[kernels])
        np.testing.assert_array_equal(forward.costs, costs)
        np.testing.assert_array_equal(forward.order, order_of(costs))
    key_costs = model_key_costs(ranges, case.seqlen_q)
    np.testing.assert_array_equal(backward.key_costs, key_costs)
    np.testing.assert_array_equal(backward.key_order, order_of(key_costs))
    np.testing.assert_array_equal(backward.key_sums, key_costs.sum(axis=1))


LENGTHS = [(1, 1), (63, 65), (64, 64), (65, 129), (128, 127), (129, 1), (700, 500), (40000, 33000)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", cases.FAMILIES)
def test_plan_equals_the_model(name, lengths, kernels, rng):
    rows, columns = lengths
    if name in cases.STRUCTURED:
        rows = columns
    case = AttentionCase(
        name,
        batch=2,
        seqlen_q=rows,
        seqlen_k=columns,
        num_heads_mask=2,
        head_dim=8,
        dtype="bfloat16",
    )
    check_plans(case, case.make_mask(rng), rng, kernels)


@pytest.mark.parametrize("name", MAKERS)
def test_plan_of_the_papers_masks_equals_the_model(name, kernels, rng):
    case = AttentionCase(seqlen_q=5000, head_dim=8, dtype="bfloat16")
    check_plans(case, paper_mask(name, rng, case.seqlen_q), rng, kernels)


def window_with_sinks(size: int) -> Mask:
    """Return a causal window of 512 rows beside 64 keys that all later rows see."""
    column = np.arange(size)
    starts = np.where(column < 64, size, np.minimum(column + 512, size))
    return Mask(np.broadcast_to(starts, (2, 1, size)).astype(np.int32)[..., None], causal=True)


@pytest.mark.parametrize("size", [1, 129, 700, 9000, 33000])
@pytest.mark.parametrize("name", ["causal", "causal_documents", "sinks"])
def test_ordered_sums_go_by_place_but_for_long_key_blocks(name, size, kernels, rng):
    if kernels != "sm90a":
        pytest.skip("other kernels order such sums without the plan")
    case = AttentionCase(batch=2, seqlen_q=size, seqlen_k=size, head_dim=8, dtype="bfloat16")
    mask = window_with_sinks(size) if name == "sinks" else cases.MASKS[name](rng, 2, 1, size, size)
    _, backward = plans(case, mask, rng, kernels, deterministic=True)
    costs = model_key_costs(ranges_of(case, mask)[1], size)
    places = places_of(costs)
    assert (places != np.arange(costs.shape[1])).any() == (name == "sinks" and size >= 9000)
    np.testing.assert_array_equal(backward.key_order, places)
    np.testing.assert_array_equal(backward.key_sums, costs.sum(axis=1))


@pytest.mark.parametrize("lengths", [(1, 1), (129, 700), (33000, 20000)], ids=str)
def test_plan_of_the_wide_backward_orders_rows_and_keys(lengths, kernels, rng):
    if kernels != "sm90a":
        pytest.skip("other kernels have one backward for all head dims")
    rows, columns = lengths
    case = AttentionCase(
        "four", batch=2, seqlen_q=rows, seqlen_k=columns, head_dim=192, dtype="bfloat16"
    )
    mask = case.make_mask(rng)
    _, backward = plans(case, mask, rng, kernels)
    ranges = ranges_of(case, mask)[1]
    costs = model_row_costs(ranges, rows, ROW_BLOCKS["sm80"])
    np.testing.assert_array_equal(backward.order, order_of(costs))
    np.testing.assert_array_equal(backward.key_order, order_of(model_key_costs(ranges, rows)))
