"""A score head on a decoder of PaddleNLP."""

from __future__ import annotations

from typing import Any

import paddle

from paddle_flashmask.integrations.paddlenlp.seams import find_backbones

__all__ = ["RewardModel"]


class RewardModel(paddle.nn.Layer):
    """Token ids to a score at every position: a decoder with one linear layer on top.

    Attributes:
        backbone: the decoder, whose weights are shared with the model it came from.
        score: hidden_size to 1, no bias.
        config: the decoder's.
    """

    def __init__(self, model: paddle.nn.Layer) -> None:
        """Put a new score head on the decoder of a model.

        Args:
            model: a Llama or Mixtral model, with or without its language-model head.

        Raises:
            NotImplementedError: the model has no seam, or its router's logits are wanted: their
                loss belongs to the language model.
        """
        super().__init__()
        self.backbone = find_backbones(model)[0].layer
        self.config: Any = self.backbone.config
        if getattr(self.config, "output_router_logits", False):
            raise NotImplementedError("RewardModel does not support config.output_router_logits")
        deviation = self.config.initializer_range
        weight_attr = paddle.ParamAttr(initializer=paddle.nn.initializer.Normal(0.0, deviation))
        self.score = paddle.nn.Linear(
            self.config.hidden_size, 1, weight_attr=weight_attr, bias_attr=False
        )

    def forward(
        self,
        input_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        attention_mask: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Return scores [B, S]; `losses.answer_scores` reads them at each answer's last token.

        Args:
            input_ids: [B, S], int64.
            position_ids: [B, S], int64.
            attention_mask: as the decoder takes it; indices if `enable` has seen the model.
        """
        outputs = self.backbone(
            input_ids, position_ids=position_ids, attention_mask=attention_mask, return_dict=True
        )
        scores: paddle.Tensor = self.score(outputs.last_hidden_state).squeeze(-1)
        return scores
