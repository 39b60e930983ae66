"""The mask format: row intervals per key column, their rules and their dense meaning.

A mask is an int32 array `startend_row_indices` of shape [B, Hm, Sk, C] and a flag `causal`.
Column j holds C row numbers that bound at most two half-open intervals of *masked* query rows:

| causal | C | masked rows of column j                                   |
|--------|---|-----------------------------------------------------------|
| True   | 1 | [lower_start, Sq)          and the rows above the diagonal |
| True   | 2 | [lower_start, lower_end)   and the rows above the diagonal |
| False  | 2 | [lower_start, Sq)          and [0, upper_end)              |
| False  | 4 | [lower_start, lower_end)   and [upper_start, upper_end)    |

The diagonal is aligned to the bottom right: row i may see column j only if j <= i + Sk - Sq.
Numbers are signed and count as if clipped to [0, Sq]; start >= end is an empty interval.
Source: `paddle.nn.functional.flashmask_attention` (Paddle 3.3) and arXiv 2410.01359, section 4.

Everything here is numpy and linear in Sk, but for `to_dense`, which is the definition, and
`from_dense`, its inverse. What there is:

* form and meaning: `ColumnMask`, `check`, `to_bounds`, `to_dense`, `is_same`;
* other forms: `from_dense`, `narrow`, `lower_causal`, `collapse_heads`;
* from packed rows: `from_cu_seqlens`, `from_segment_ids`, `from_position_ids`;
* several masks in one, one in parts: `intersect`, `concatenate`, `stack`, `for_kv_step`;
* before a run: `inspect`, `check_values`, `count_visible`, `tile_statistics`,
  `tile_classes`, `cost`.
"""

from __future__ import annotations

from paddle_flashmask.indices.bounds import diagonal_rows, lower_causal, to_bounds
from paddle_flashmask.indices.costs import Cost, cost
from paddle_flashmask.indices.counting import count_visible, visible_per_column, visible_per_row
from paddle_flashmask.indices.dense import from_dense, to_dense
from paddle_flashmask.indices.documents import from_cu_seqlens, from_segment_ids
from paddle_flashmask.indices.exact_tiles import ExactTiles, exact_tile_counts
from paddle_flashmask.indices.findings import Finding, Report
from paddle_flashmask.indices.form import (
    CAUSAL_WIDTHS,
    INT32_MAX,
    NON_CAUSAL_WIDTHS,
    ColumnMask,
    check,
    check_form,
)
from paddle_flashmask.indices.inspection import check_values, inspect
from paddle_flashmask.indices.intersection import intersect
from paddle_flashmask.indices.joining import concatenate, stack
from paddle_flashmask.indices.kv_steps import for_kv_step
from paddle_flashmask.indices.narrowing import collapse_heads, is_same, narrow
from paddle_flashmask.indices.positions import from_position_ids
from paddle_flashmask.indices.tiles import (
    FULL,
    PARTIAL,
    SKIP,
    TileStatistics,
    tile_classes,
    tile_statistics,
)

__all__ = [
    "CAUSAL_WIDTHS",
    "FULL",
    "INT32_MAX",
    "NON_CAUSAL_WIDTHS",
    "PARTIAL",
    "SKIP",
    "ColumnMask",
    "Cost",
    "ExactTiles",
    "Finding",
    "Report",
    "TileStatistics",
    "check",
    "check_form",
    "check_values",
    "collapse_heads",
    "concatenate",
    "cost",
    "count_visible",
    "diagonal_rows",
    "exact_tile_counts",
    "for_kv_step",
    "from_cu_seqlens",
    "from_dense",
    "from_position_ids",
    "from_segment_ids",
    "inspect",
    "intersect",
    "is_same",
    "lower_causal",
    "narrow",
    "stack",
    "tile_classes",
    "tile_statistics",
    "to_bounds",
    "to_dense",
    "visible_per_column",
    "visible_per_row",
]
