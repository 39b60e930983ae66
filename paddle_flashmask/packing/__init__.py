"""Packing: many short training samples in rows of one length, with the masks that part them.

numpy only, so data workers may import it. One file per kind of training data (`sft`); what they
share is the choice of rows (`bins`, `layout`). `positions` reads documents back from position ids.
"""

from __future__ import annotations

from paddle_flashmask.packing.bins import first_fit_decreasing
from paddle_flashmask.packing.layout import PackingStatistics, Placement
from paddle_flashmask.packing.positions import document_lengths
from paddle_flashmask.packing.samples import IGNORE_INDEX, SftSample
from paddle_flashmask.packing.sft import PackedSft, pack_sft

__all__ = [
    "IGNORE_INDEX",
    "PackedSft",
    "PackingStatistics",
    "Placement",
    "SftSample",
    "document_lengths",
    "first_fit_decreasing",
    "pack_sft",
]
