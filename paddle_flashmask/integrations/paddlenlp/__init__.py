"""PaddleNLP's trainer with flashmask_attention: see paddlenlp.md beside this folder.

PaddleNLP is imported when something needs it, and the error says what to install. The trainers
`FlashMaskTrainer`, `SftTrainer`, `DpoTrainer` and `RmTrainer` are made at first use, because they
derive from PaddleNLP's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paddle_flashmask.integrations._report import AttentionReport, LayerReport, NotOursError
from paddle_flashmask.integrations.paddlenlp.arguments import FlashMaskArguments
from paddle_flashmask.integrations.paddlenlp.data import (
    PackingCollator,
    RowDataset,
    collate_rows,
)
from paddle_flashmask.integrations.paddlenlp.enabling import disable, enable, report
from paddle_flashmask.integrations.paddlenlp.functional import Redirection, redirect_functional
from paddle_flashmask.integrations.paddlenlp.inputs import model_inputs
from paddle_flashmask.integrations.paddlenlp.objectives import (
    DpoObjective,
    RmObjective,
    SftObjective,
    answer_log_probs,
)
from paddle_flashmask.integrations.paddlenlp.reward_model import RewardModel
from paddle_flashmask.integrations.paddlenlp.trainer import FlashMaskMixin, trainer_class

if TYPE_CHECKING:
    FlashMaskTrainer: type[Any]
    SftTrainer: type[Any]
    DpoTrainer: type[Any]
    RmTrainer: type[Any]

__all__ = [
    "AttentionReport",
    "DpoObjective",
    "DpoTrainer",
    "FlashMaskArguments",
    "FlashMaskMixin",
    "FlashMaskTrainer",
    "LayerReport",
    "NotOursError",
    "PackingCollator",
    "Redirection",
    "RewardModel",
    "RmObjective",
    "RmTrainer",
    "RowDataset",
    "SftObjective",
    "SftTrainer",
    "answer_log_probs",
    "collate_rows",
    "disable",
    "enable",
    "model_inputs",
    "redirect_functional",
    "report",
]

TRAINERS = ("FlashMaskTrainer", "SftTrainer", "DpoTrainer", "RmTrainer")


def __getattr__(name: str) -> object:
    if name in TRAINERS:
        return trainer_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
