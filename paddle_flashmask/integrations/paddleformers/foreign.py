"""What of PaddleFormers we hold on to, and the names for its objects and its batch field."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

__all__ = ["FIELD", "Foreign", "Seams", "seams"]

# An object of PaddleFormers, which is not there when types are checked.
Foreign: TypeAlias = Any

# The batch field with the indices, [B, 1|Hk|Hq, S, C].
FIELD = "attn_mask_startend_row_indices"
INSTALL_HINT = "pip install --no-build-isolation '.[paddleformers]' in the project's folder"


class Seams(NamedTuple):
    """Classes and modules of PaddleFormers that `register` changes.

    Attributes:
        interface: AttentionInterface.
        trainer: the module whose DEFAULT_CALLBACKS every trainer starts with.
        model: PretrainedModel.
        preference_data: BaseDPODataSet.
    """

    interface: Foreign
    trainer: Foreign
    model: Foreign
    preference_data: Foreign


def seams() -> Seams:
    """Import PaddleFormers and return them.

    Raises:
        ImportError: it is not installed, or does not import with what is installed beside it.
    """
    try:
        from paddleformers.datasets.DPODataset import BaseDPODataSet
        from paddleformers.nn.attention.interface import AttentionInterface
        from paddleformers.trainer import trainer
        from paddleformers.transformers.model_utils import PretrainedModel
    except ImportError as error:
        raise ImportError(
            f"paddle_flashmask.integrations.paddleformers needs PaddleFormers, which does not "
            f"import ({error}); install it with its pins: {INSTALL_HINT}"
        ) from error
    return Seams(AttentionInterface, trainer, PretrainedModel, BaseDPODataSet)
