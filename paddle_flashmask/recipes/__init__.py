"""Masks by name: the training recipes and the twelve masks of the FlashMask paper.

One file per recipe, pure numpy, linear in the length of the row. Each module holds the builder, the
rule `is_visible` that says by positions what the builder says by columns, and `EXAMPLES`. Builders
return an `indices.ColumnMask`, in numpy, in the order of the op's arguments.

Here `sft` and its likes are the builders; `importlib.import_module` gives the modules.
Source: arXiv 2410.01359, figure 1a.
"""

from __future__ import annotations

from paddle_flashmask.recipes.causal import causal
from paddle_flashmask.recipes.causal_blockwise import causal_blockwise
from paddle_flashmask.recipes.causal_document import causal_document
from paddle_flashmask.recipes.document import document
from paddle_flashmask.recipes.dpo import dpo
from paddle_flashmask.recipes.full import full
from paddle_flashmask.recipes.global_sliding_window import global_sliding_window
from paddle_flashmask.recipes.prefix_lm_causal import prefix_lm_causal
from paddle_flashmask.recipes.prefix_lm_document import prefix_lm_document
from paddle_flashmask.recipes.qk_sparse import qk_sparse
from paddle_flashmask.recipes.random_eviction import random_eviction
from paddle_flashmask.recipes.rm import rm
from paddle_flashmask.recipes.sft import sft
from paddle_flashmask.recipes.share_question import share_question
from paddle_flashmask.recipes.sliding_window import sliding_window

__all__ = [
    "causal",
    "causal_blockwise",
    "causal_document",
    "document",
    "dpo",
    "full",
    "global_sliding_window",
    "prefix_lm_causal",
    "prefix_lm_document",
    "qk_sparse",
    "random_eviction",
    "rm",
    "sft",
    "share_question",
    "sliding_window",
]
