"""The visibility rule of each mask for FlexAttention, in the shortest form it can take.

Masks without a rule here read the two intervals of the column, which is right for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from harness.masks import BenchMask

Rule = Callable[[Any, Any, Any, Any], Any]


def rule(mask: BenchMask, tensor: Callable[[np.ndarray], Any]) -> Rule | None:
    """Return the rule of a mask: (batch, head, row, column) -> whether the row sees the column.

    Args:
        mask: any mask.
        tensor: makes what the rule reads of an array of integers.

    Returns:
        The rule; None if every row sees every column.
    """
    if mask.recipe == "full":
        return None
    maker = RULES.get(mask.recipe)
    if maker is None or not _fills_row(mask) or ("left" in mask.arguments and maker is _window):
        return by_bounds(mask, tensor)
    return maker(mask.arguments, tensor)


def by_bounds(mask: BenchMask, tensor: Callable[[np.ndarray], Any]) -> Rule:
    """Return the rule that reads the bounds of the column."""
    lower_start, lower_end, upper_start, upper_end = (tensor(bound) for bound in mask.bounds.T)
    return lambda b, h, i, j: (
        ~(
            ((i >= lower_start[j]) & (i < lower_end[j]))
            | ((i >= upper_start[j]) & (i < upper_end[j]))
        )
    )


def _fills_row(mask: BenchMask) -> bool:
    """Whether there is no padding, which the rules below know nothing of."""
    given = mask.arguments
    if "groups" in given:
        return sum(question + sum(answers) for question, answers in given["groups"]) == mask.seqlen
    return "lengths" not in given or int(np.sum(given["lengths"])) == mask.seqlen


def _causal(given: dict[str, Any], tensor: Callable) -> Rule:
    return lambda b, h, i, j: i >= j


def _window(given: dict[str, Any], tensor: Callable) -> Rule:
    window = given["window"]
    return lambda b, h, i, j: (i >= j) & (i - j < window)


def _global_sliding_window(given: dict[str, Any], tensor: Callable) -> Rule:
    first, left, right = given["num_global"], given["left"], given["right"]
    return lambda b, h, i, j: (i < first) | (j < first) | ((i - j <= left) & (j - i <= right))


def _prefix_lm_causal(given: dict[str, Any], tensor: Callable) -> Rule:
    prefix = given["prefix_length"]
    return lambda b, h, i, j: (i >= j) | (j < prefix)


def _random_eviction(given: dict[str, Any], tensor: Callable) -> Rule:
    evicted = tensor(given["eviction_rows"])
    return lambda b, h, i, j: (i >= j) & (i < evicted[j])


def _qk_sparse(given: dict[str, Any], tensor: Callable) -> Rule:
    span_of = np.arange(-given["seq_len"], 0)  # a number of its own for every token outside
    for number, (start, end) in enumerate(given["spans"]):
        span_of[start:end] = number
    span = tensor(span_of)
    return lambda b, h, i, j: (i >= j) & ((span[i] != span[j]) | (span[j] < 0))


def _number(lengths: Any) -> np.ndarray:
    return np.repeat(np.arange(len(lengths)), lengths)


def _document(given: dict[str, Any], tensor: Callable) -> Rule:
    number = tensor(_number(given["lengths"]))
    return lambda b, h, i, j: number[i] == number[j]


def _causal_document(given: dict[str, Any], tensor: Callable) -> Rule:
    number = tensor(_number(given["lengths"]))
    return lambda b, h, i, j: (i >= j) & (number[i] == number[j])


def _causal_blockwise(given: dict[str, Any], tensor: Callable) -> Rule:
    lengths = given["lengths"]
    number, last = tensor(_number(lengths)), int(np.sum(lengths[:-1]))
    return lambda b, h, i, j: (i >= j) & ((number[i] == number[j]) | (i >= last))


def _prefix_lm_document(given: dict[str, Any], tensor: Callable) -> Rule:
    lengths = np.asarray(given["lengths"])
    number = tensor(_number(lengths))
    prefix_end = np.cumsum(lengths) - lengths + given["prefix_lengths"]
    seen_until = tensor(np.repeat(prefix_end, lengths))
    return lambda b, h, i, j: (number[i] == number[j]) & ((i >= j) | (j < seen_until[j]))


def _share_question(given: dict[str, Any], tensor: Callable) -> Rule:
    groups = [[question, *answers] for question, answers in given["groups"]]
    group = tensor(_number([sum(pieces) for pieces in groups]))
    piece = tensor(_number([length for pieces in groups for length in pieces]))
    asked = [place == 0 for pieces in groups for place, length in enumerate(pieces) if length]
    lengths = [length for pieces in groups for length in pieces if length]
    is_question = tensor(np.repeat(asked, lengths))
    return lambda b, h, i, j: (
        (i >= j) & (group[i] == group[j]) & ((is_question[j] > 0) | (piece[i] == piece[j]))
    )


RULES: dict[str, Callable[[dict[str, Any], Callable], Rule]] = {
    "causal": _causal,
    "sliding_window": _window,
    "global_sliding_window": _global_sliding_window,
    "prefix_lm_causal": _prefix_lm_causal,
    "random_eviction": _random_eviction,
    "document": _document,
    "causal_document": _causal_document,
    "sft": _causal_document,
    "causal_blockwise": _causal_blockwise,
    "prefix_lm_document": _prefix_lm_document,
    "qk_sparse": _qk_sparse,
    "share_question": _share_question,
    "dpo": _share_question,
    "rm": _share_question,
}
