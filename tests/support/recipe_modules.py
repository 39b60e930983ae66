"""The recipe modules found in the package's folder, and their rules made dense cell by cell."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import numpy as np

import paddle_flashmask.recipes
from paddle_flashmask import indices


def recipe_names() -> list[str]:
    modules = pkgutil.iter_modules(paddle_flashmask.recipes.__path__)
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def recipe_module(name: str) -> ModuleType:
    return importlib.import_module(f"paddle_flashmask.recipes.{name}")


def build(name: str, arguments: dict[str, Any]) -> indices.ColumnMask:
    return getattr(recipe_module(name), name)(**arguments)


def builder_to_dense(mask: indices.ColumnMask) -> np.ndarray:
    seq_len = mask.startend_row_indices.shape[2]
    dense = indices.to_dense(mask.startend_row_indices, causal=mask.causal, seqlen_q=seq_len)
    return dense[0]


def rule_to_dense(
    name: str, arguments: dict[str, Any], *, num_heads_mask: int, seq_len: int
) -> np.ndarray:
    is_visible = recipe_module(name).is_visible
    knows_heads = "head" in inspect.signature(is_visible).parameters
    dense = np.zeros((num_heads_mask, seq_len, seq_len), bool)
    for head, row, column in np.ndindex(*dense.shape):
        extra = {"head": head} if knows_heads else {}
        dense[head, row, column] = is_visible(row, column, **arguments, **extra)
    return dense


def assert_mask_equals_rule(name: str, mask: indices.ColumnMask, arguments: dict[str, Any]) -> None:
    _, heads, seq_len, _ = mask.startend_row_indices.shape
    rule = rule_to_dense(name, arguments, num_heads_mask=heads, seq_len=seq_len)
    np.testing.assert_array_equal(builder_to_dense(mask), rule, err_msg=f"{name} {arguments}")


def mean_of_seen_positions(dense: np.ndarray) -> list[float]:
    """Return for each row the mean of j + 1 over the columns it sees, 0 where it sees none."""
    weights = dense / np.maximum(dense.sum(axis=1, keepdims=True), 1)
    return (weights @ np.arange(1, dense.shape[1] + 1)).tolist()


def weight_on_columns(dense: np.ndarray) -> list[float]:
    """Return for each column the sum of 1 / (columns seen) over the rows that see it."""
    return (dense / np.maximum(dense.sum(axis=1, keepdims=True), 1)).sum(axis=0).tolist()
