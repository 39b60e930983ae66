"""Attention and its gradients in float64 for some rows and keys of one head, with a dense mask.

The same maths again with every intermediate rounded to a dtype tells what that dtype costs. Works
block of rows by block of rows, so memory is O(S).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from harness.masks import BenchMask

Array = np.ndarray
Rounding = Callable[[Array], Array]
BLOCK = 512  # rows at a time
MOST_THREADS = 8  # each holds a few blocks of scores


class Head(NamedTuple):
    """One query head and its key head, each [S, D], float64."""

    query: Array
    key: Array
    value: Array
    grad_out: Array


class Rows(NamedTuple):
    """Of some rows: out and grad_query [R, D], lse and the mean of grad_weights [R]."""

    out: Array
    grad_query: Array
    softmax_lse: Array
    mean: Array


def make_head(*arrays: Array) -> Head:
    """Return a head of arrays [S, D] in the order of its fields."""
    return Head(*(array.astype(np.float64) for array in arrays))


def round_float64(array: Array) -> Array:
    return array


def round_float32(array: Array) -> Array:
    return array.astype(np.float32).astype(np.float64)


def round_float16(array: Array) -> Array:
    return array.astype(np.float16).astype(np.float64)


def round_bfloat16(array: Array) -> Array:
    """Round to 8 significant bits, halves to even."""
    bits = array.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


ROUNDINGS: dict[str, Rounding] = {
    "float32": round_float32,
    "float16": round_float16,
    "bfloat16": round_bfloat16,
}


def of_rows(head: Head, mask: BenchMask, rows: Array, rounded: Rounding = round_float64) -> Rows:
    """Return what rows give; rows that see nothing give 0 and lse -inf."""
    scale = head.query.shape[1] ** -0.5
    scores = rounded(rounded(head.query[rows] @ head.key.T) * scale)
    scores = np.where(mask.seen(rows), scores, -np.inf)
    largest = scores.max(axis=1, keepdims=True)
    shift = np.where(np.isneginf(largest), 0.0, largest)
    weights = np.exp(scores - shift)
    sums = weights.sum(axis=1, keepdims=True)
    weights = rounded(weights / np.where(sums == 0, 1.0, sums))
    with np.errstate(divide="ignore"):
        lse = (np.log(sums) + shift)[:, 0]
    out = rounded(weights @ head.value)
    grad_weights = rounded(head.grad_out[rows] @ head.value.T)
    mean = (grad_weights * weights).sum(axis=1)
    grad_scores = rounded(rounded(weights * (grad_weights - mean[:, None])) * scale)
    return Rows(out, rounded(grad_scores @ head.key), lse, mean)


def row_statistics(head: Head, mask: BenchMask) -> tuple[Array, Array]:
    """Return lse and mean of grad_weights of all rows, [S] each, in float64."""

    def block(first: int) -> Rows:
        return of_rows(head, mask, np.arange(first, min(first + BLOCK, mask.seqlen)))

    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        blocks = list(pool.map(block, range(0, mask.seqlen, BLOCK)))
    lse = np.concatenate([block.softmax_lse for block in blocks])
    return lse, np.concatenate([block.mean for block in blocks])


def of_columns(
    head: Head,
    mask: BenchMask,
    columns: Array,
    statistics: tuple[Array, Array],
    rounded: Rounding = round_float64,
) -> tuple[Array, Array]:
    """Return the gradients of keys and values, [C, D], from one query head."""
    lse, mean = statistics
    scale = head.query.shape[1] ** -0.5
    seen = mask.seen(np.arange(mask.seqlen), columns)
    scores = rounded(rounded(head.query @ head.key[columns].T) * scale)
    shift = np.where(np.isneginf(lse), 0.0, lse)[:, None]
    weights = np.zeros_like(scores)
    np.exp(scores - shift, where=seen, out=weights)
    weights = rounded(weights)
    grad_weights = rounded(head.grad_out @ head.value[columns].T)
    grad_scores = rounded(rounded(weights * (grad_weights - mean[:, None])) * scale)
    return rounded(grad_scores.T @ head.query), rounded(weights.T @ head.grad_out)
