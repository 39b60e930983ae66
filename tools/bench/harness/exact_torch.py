"""The maths of `harness.exact` in PyTorch, on a GPU where there is one: for cells of a GPU.

There all rows of a long sequence take milliseconds that take numpy many seconds. Names, rules and
roundings are those of `harness.exact`; results come back as numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.exact import Array, Rows
from harness.masks import BenchMask

Rounding = Callable[[Tensor], Tensor]
FLOAT32_LAST_BIT = 1 << 29  # of the 52 bits behind the point of a float64
BLOCK_CELLS = 1 << 25  # scores at a time: 256 MiB in float64


class Head(NamedTuple):
    """One query head and its key head, each [S, D], float64."""

    query: Tensor
    key: Tensor
    value: Tensor
    grad_out: Tensor


def make_head(*arrays: Array) -> Head:
    """Return a head of arrays [S, D] in the order of its fields."""
    place = "cuda" if torch.cuda.is_available() else "cpu"
    return Head(*(torch.from_numpy(array).to(place).double() for array in arrays))


def round_float64(tensor: Tensor) -> Tensor:
    return tensor


def round_float32(tensor: Tensor) -> Tensor:
    return tensor.float().double()


def round_float16(tensor: Tensor) -> Tensor:
    """Round once, though PyTorch goes by way of float32: what that lacks leaves its last bit 1."""
    bits = tensor.view(torch.int64)
    kept = bits & -FLOAT32_LAST_BIT
    return (
        torch.where(kept == bits, kept, kept | FLOAT32_LAST_BIT).view(torch.float64).half().double()
    )


def round_bfloat16(tensor: Tensor) -> Tensor:
    return tensor.float().bfloat16().double()


ROUNDINGS: dict[str, Rounding] = {
    "float32": round_float32,
    "float16": round_float16,
    "bfloat16": round_bfloat16,
}


def of_rows(head: Head, mask: BenchMask, rows: Array, rounded: Rounding = round_float64) -> Rows:
    """Return what rows give; rows that see nothing give 0 and lse -inf."""
    scale = head.query.shape[1] ** -0.5
    chosen = torch.from_numpy(rows).to(head.query.device)
    scores = rounded(rounded(head.query[chosen] @ head.key.T) * scale)
    weights, sums, shift = _exponentials(scores, _bounds(head, mask), chosen)
    weights = rounded(weights / torch.where(sums == 0, 1.0, sums))
    out = rounded(weights @ head.value)
    grad_weights = rounded(head.grad_out[chosen] @ head.value.T)
    mean = (grad_weights * weights).sum(1)
    grad_scores = rounded(rounded(weights * (grad_weights - mean[:, None])) * scale)
    grad_query = rounded(grad_scores @ head.key)
    lse = (sums.log() + shift)[:, 0]
    return Rows(*(found.cpu().numpy() for found in (out, grad_query, lse, mean)))


def row_statistics(head: Head, mask: BenchMask) -> tuple[Tensor, Tensor]:
    """Return lse and mean of grad_weights of all rows, [S] each, in float64."""
    scale = head.query.shape[1] ** -0.5
    bounds = _bounds(head, mask)
    parts = []
    for rows in torch.arange(mask.seqlen, device=bounds.device).split(
        max(1, BLOCK_CELLS // mask.seqlen)
    ):
        scores = (head.query[rows] @ head.key.T).mul_(scale)
        weights, sums, shift = _exponentials(scores, bounds, rows)
        lse = (sums.log() + shift)[:, 0]
        grad_weights = head.grad_out[rows] @ head.value.T
        total = grad_weights.mul_(weights).sum(1)
        parts.append((lse, total / torch.where(sums == 0, 1.0, sums)[:, 0]))
    lse, mean = (torch.cat(part) for part in zip(*parts, strict=True))
    return lse, mean


def of_columns(
    head: Head,
    mask: BenchMask,
    columns: Array,
    statistics: tuple[Tensor, Tensor],
    rounded: Rounding = round_float64,
) -> tuple[Array, Array]:
    """Return the gradients of keys and values, [C, D], from one query head."""
    lse, mean = statistics
    scale = head.query.shape[1] ** -0.5
    chosen = torch.from_numpy(columns).to(lse.device)
    rows = torch.arange(mask.seqlen, device=lse.device)
    scores = rounded(rounded(head.query @ head.key[chosen].T) * scale)
    scores.masked_fill_(_hidden(_bounds(head, mask)[chosen], rows), -torch.inf)
    weights = rounded((scores - torch.where(lse.isneginf(), 0.0, lse)[:, None]).exp_())
    grad_weights = rounded(head.grad_out @ head.value[chosen].T)
    grad_scores = rounded(rounded(weights * (grad_weights - mean[:, None])) * scale)
    gradients = (rounded(grad_scores.T @ head.query), rounded(weights.T @ head.grad_out))
    return gradients[0].cpu().numpy(), gradients[1].cpu().numpy()


def _bounds(head: Head, mask: BenchMask) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(mask.bounds)).to(head.query.device)


def _hidden(bounds: Tensor, rows: Tensor) -> Tensor:
    """[R, C], bool, True where a row does not see a column."""
    lower_start, lower_end, upper_start, upper_end = bounds.T
    row = rows[:, None]
    return ((row >= lower_start) & (row < lower_end)) | ((row >= upper_start) & (row < upper_end))


def _exponentials(scores: Tensor, bounds: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights before the division, [R, C] in the memory of scores, their sums and shifts."""
    scores.masked_fill_(_hidden(bounds, rows), -torch.inf)
    shift = scores.amax(1, keepdim=True)
    shift = torch.where(shift.isneginf(), 0.0, shift)
    weights = scores.sub_(shift).exp_()
    return weights, weights.sum(1, keepdim=True), shift
