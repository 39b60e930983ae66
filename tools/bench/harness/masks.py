"""Masks by name: the twelve of the FlashMask paper with default sizes, and any recipe as it is.

A mask is written `name` or `name:argument=value;argument=value`, values as Python literals:
`causal`, `document:n=8`, `sft:lengths=[3000,1096]`. The arguments of the twelve are those of their
function below; with any other argument the name means the recipe itself.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from paddle_flashmask import indices, recipes
from paddle_flashmask.indices import ColumnMask

TILE = 128  # rows and columns of the tiles that "live" cells are counted by
TOKENS_PER_DOCUMENT = 4096
DIRICHLET_WEIGHT = 2.0
WINDOW, NUM_GLOBAL = 1024, 64  # of long rows; short ones take a share of the row
WINDOW_SHARE, GLOBAL_SHARE = 4, 16
ANSWERS = (2, 7)  # half-open range of answers per question
QUESTION_SHARE = (0.2, 0.4)
SHARE_QUESTION_SEED, EVICTION_SEED = 7, 3
DROPPED_SPANS = ((0.2, 0.35), (0.55, 0.7))

Preset = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class BenchMask:
    """A mask with the recipe that made it, for one row of `seqlen` tokens, all heads alike."""

    spec: str
    recipe: str
    arguments: dict[str, Any]
    mask: ColumnMask

    @property
    def seqlen(self) -> int:
        return self.mask.startend_row_indices.shape[2]

    @cached_property
    def bounds(self) -> np.ndarray:
        """[S, 4], int32: lower_start, lower_end, upper_start, upper_end of masked rows."""
        rows, causal = self.mask
        return indices.to_bounds(rows, causal=causal, seqlen_q=self.seqlen)[0, 0]

    @cached_property
    def visible(self) -> int:
        """Cells that a row sees, exactly."""
        rows, causal = self.mask
        return int(indices.count_visible(rows, causal=causal, seqlen_q=self.seqlen)[0, 0])

    @cached_property
    def live(self) -> int:
        """Cells of the tiles that hold a visible cell, in whole tiles."""
        rows, causal = self.mask
        tiles = indices.exact_tile_counts(
            rows, causal=causal, seqlen_q=self.seqlen, tile_rows=TILE, tile_columns=TILE
        )
        return int((tiles.mixed + tiles.clear)[0, 0]) * TILE * TILE

    @cached_property
    def has_blind_row(self) -> bool:
        """Whether a row sees nothing."""
        rows, causal = self.mask
        return bool((indices.visible_per_row(rows, causal=causal, seqlen_q=self.seqlen) == 0).any())

    @property
    def density(self) -> float:
        return self.visible / self.seqlen**2

    def seen(self, rows: np.ndarray, columns: np.ndarray | slice = slice(None)) -> np.ndarray:
        """[R, C], bool, True where a row sees a column."""
        bounds = self.bounds[columns]
        row = rows[:, None]
        masked = (row >= bounds[:, 0]) & (row < bounds[:, 1])
        masked |= (row >= bounds[:, 2]) & (row < bounds[:, 3])
        return ~masked


def document_lengths(seqlen: int, n: int | None, seed: int, at_least: int = 2) -> np.ndarray:
    """Return the lengths of about n documents, drawn from a Dirichlet distribution."""
    n = n or max(at_least, seqlen // TOKENS_PER_DOCUMENT)
    if seqlen < 2:
        return np.array([seqlen])
    weights = np.random.default_rng(seed).dirichlet(np.full(n, DIRICHLET_WEIGHT))
    cuts = np.unique(np.clip((np.cumsum(weights)[:-1] * seqlen).astype(int), 1, seqlen - 1))
    return np.diff(np.concatenate([[0], cuts, [seqlen]]))


def full(seqlen: int) -> dict[str, Any]:
    return {"seq_len": seqlen}


def sliding_window(seqlen: int, w: int | None = None) -> dict[str, Any]:
    return {"seq_len": seqlen, "window": w or min(WINDOW, max(1, seqlen // WINDOW_SHARE))}


def document(seqlen: int, n: int | None = None, seed: int = 0) -> dict[str, Any]:
    return {"lengths": document_lengths(seqlen, n, seed)}


def causal_blockwise(seqlen: int, n: int | None = None, seed: int = 0) -> dict[str, Any]:
    return {"lengths": document_lengths(seqlen, n, seed, at_least=4)}


def share_question(seqlen: int, n: int | None = None, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed + SHARE_QUESTION_SEED)
    groups = []
    for length in document_lengths(seqlen, n, seed).tolist():
        answers = int(draw.integers(*ANSWERS))
        question = 1
        if length > answers + 1:
            question = max(1, int(length * draw.uniform(*QUESTION_SHARE)))
        sizes = [(length - question) // answers] * answers
        sizes[-1] += length - question - sum(sizes)
        groups.append((question, [size for size in sizes if size > 0]))
    return {"groups": groups, "seq_len": seqlen}


def global_sliding_window(seqlen: int, g: int | None = None, w: int | None = None) -> dict:
    width = sliding_window(seqlen, w)["window"] - 1
    num_global = g or min(NUM_GLOBAL, max(1, seqlen // GLOBAL_SHARE))
    return {"seq_len": seqlen, "num_global": num_global, "left": width, "right": width}


def prefix_lm_causal(seqlen: int, frac: float = 0.3) -> dict[str, Any]:
    return {"seq_len": seqlen, "prefix_length": int(seqlen * frac)}


def prefix_lm_document(
    seqlen: int, n: int | None = None, seed: int = 0, frac: float = 0.3
) -> dict[str, Any]:
    lengths = document_lengths(seqlen, n, seed)
    return {"lengths": lengths, "prefix_lengths": (lengths * frac).astype(int)}


def qk_sparse(seqlen: int, spans: tuple[tuple[float, float], ...] = DROPPED_SPANS) -> dict:
    ends = [(int(seqlen * start), int(seqlen * end)) for start, end in spans]
    return {"seq_len": seqlen, "spans": ends}


def random_eviction(seqlen: int, seed: int = 0) -> dict[str, Any]:
    share = np.random.default_rng(seed + EVICTION_SEED).random(seqlen)
    column = np.arange(seqlen)
    rows = np.minimum(column + 1 + (share * (seqlen - column)).astype(int), seqlen)
    return {"seq_len": seqlen, "eviction_rows": rows}


PRESETS: dict[str, Preset] = {
    "full": full,
    "causal": full,
    "sliding_window": sliding_window,
    "causal_document": document,
    "document": document,
    "share_question": share_question,
    "global_sliding_window": global_sliding_window,
    "causal_blockwise": causal_blockwise,
    "prefix_lm_causal": prefix_lm_causal,
    "prefix_lm_document": prefix_lm_document,
    "qk_sparse": qk_sparse,
    "random_eviction": random_eviction,
}


def build(spec: str, seqlen: int) -> BenchMask:
    """Return the mask that a text names; ValueError or TypeError if it does not fit."""
    name, _, rest = spec.partition(":")
    if name not in recipes.__all__:
        raise ValueError(f"mask must be one of {', '.join(recipes.__all__)}; got {name!r}")
    given = {}
    for part in filter(None, rest.split(";")):
        key, equals, text = part.partition("=")
        if not equals:
            raise ValueError(f"arguments of a mask must be name=value; got {part!r} in {spec!r}")
        given[key] = ast.literal_eval(text)
    recipe = getattr(recipes, name)
    preset = PRESETS.get(name)
    if preset is not None and set(given) <= set(inspect.signature(preset).parameters):
        given = preset(seqlen, **given)
    elif "seq_len" in inspect.signature(recipe).parameters:
        given.setdefault("seq_len", seqlen)
    mask = recipe(**given)
    if mask.startend_row_indices.shape[1:3] != (1, seqlen):
        shape = list(mask.startend_row_indices.shape)
        raise ValueError(f"{spec!r} must give one head of {seqlen} columns; got {shape}")
    return BenchMask(spec, name, given, mask)
