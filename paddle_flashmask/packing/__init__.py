"""Packing: many short training samples in rows of one length, with the masks that part them.

numpy only, so data workers may import it. One file per kind of training data (`sft`, `preference`
for DPO and reward models with the layouts of `groups`); what they share is the choice of rows
(`bins`, `layout`) and the rows themselves (`rows`). `stream` packs what never ends, `conventions`
takes index fields that Paddle's own trainers made, `positions` reads documents back from position
ids.
"""

from __future__ import annotations

from paddle_flashmask.packing.bins import first_fit, first_fit_decreasing, sequential
from paddle_flashmask.packing.conventions import (
    from_batch,
    from_index_lists,
    from_indices,
    from_pack_offsets,
)
from paddle_flashmask.packing.layout import PackingStatistics, Placement
from paddle_flashmask.packing.positions import document_lengths
from paddle_flashmask.packing.preference import PackedPreference, pack_dpo, pack_rm
from paddle_flashmask.packing.rows import PackedRows
from paddle_flashmask.packing.samples import IGNORE_INDEX, PreferenceSample, SftSample
from paddle_flashmask.packing.sft import PackedSft, pack_sft
from paddle_flashmask.packing.stream import PackedStream

__all__ = [
    "IGNORE_INDEX",
    "PackedPreference",
    "PackedRows",
    "PackedSft",
    "PackedStream",
    "PackingStatistics",
    "Placement",
    "PreferenceSample",
    "SftSample",
    "document_lengths",
    "first_fit",
    "first_fit_decreasing",
    "from_batch",
    "from_index_lists",
    "from_indices",
    "from_pack_offsets",
    "pack_dpo",
    "pack_rm",
    "pack_sft",
    "sequential",
]
