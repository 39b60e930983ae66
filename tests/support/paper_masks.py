"""The twelve masks of the FlashMask paper at any length, from the recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from support.cases import Mask, document_lengths
from support.recipe_modules import build

Arguments = dict[str, Any]


def _spans(rng: np.random.Generator, size: int) -> list[tuple[int, int]]:
    begin, middle, end = np.sort(rng.integers(0, size + 1, 3)).tolist()
    return [(begin, middle), (middle, end)]


def _lengths(rng: np.random.Generator, size: int) -> Arguments:
    return {"lengths": document_lengths(rng, size)}


def _prefix_documents(rng: np.random.Generator, size: int) -> Arguments:
    lengths = document_lengths(rng, size)
    return {"lengths": lengths, "prefix_lengths": [int(rng.integers(n + 1)) for n in lengths]}


def _groups(rng: np.random.Generator, size: int) -> Arguments:
    groups = []
    for length in document_lengths(rng, size):
        if length > 1:  # a question and an answer; the rest is padding
            question = int(rng.integers(1, length))
            groups.append((question, document_lengths(rng, length - question)))
    return {"groups": groups, "seq_len": size}


def _eviction(rng: np.random.Generator, size: int) -> Arguments:
    column = np.arange(size)
    return {"seq_len": size, "eviction_rows": column + 1 + rng.integers(0, size - column)}


MAKERS: dict[str, Callable[[np.random.Generator, int], Arguments]] = {
    "full": lambda rng, size: {"seq_len": size},
    "causal": lambda rng, size: {"seq_len": size},
    "sliding_window": lambda rng, size: {"seq_len": size, "window": 1 + size // 5},
    "causal_document": _lengths,
    "document": _lengths,
    "share_question": _groups,
    "global_sliding_window": lambda rng, size: {
        "seq_len": size,
        "num_global": 1 + size // 20,
        "left": size // 6,
        "right": size // 9,
    },
    "causal_blockwise": _lengths,
    "prefix_lm_causal": lambda rng, size: {
        "seq_len": size,
        "prefix_length": int(rng.integers(size + 1)),
    },
    "prefix_lm_document": _prefix_documents,
    "qk_sparse": lambda rng, size: {"seq_len": size, "spans": _spans(rng, size)},
    "random_eviction": _eviction,
}


def paper_mask(name: str, rng: np.random.Generator, size: int) -> Mask:
    made = build(name, MAKERS[name](rng, size))
    return Mask(made.startend_row_indices, made.causal)
