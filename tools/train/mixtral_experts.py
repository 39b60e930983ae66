"""Mixtral's experts for newer Paddle: those of PaddleNLP 2.8.1 fail on Paddle 3.3 without our help.

Since Paddle 3 `paddle.where` of one argument gives indices of one axis, where PaddleNLP's block
counts on two; its forward raises. What it means to compute is computed here without indices, every
expert on every token, so it is for small models and for both sides of a comparison.
"""

from __future__ import annotations

import paddle
from paddle import Tensor
from paddle.nn import functional
from paddlenlp.transformers.mixtral.modeling import MixtralSparseMoeBlock

__all__ = ["mend_experts"]


def mend_experts() -> None:
    """Give PaddleNLP's block of experts the forward below."""
    MixtralSparseMoeBlock.forward = _forward


def _forward(block: MixtralSparseMoeBlock, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the experts' output [B, S, hidden_size] and the router's logits [B * S, experts]."""
    tokens = hidden.reshape([-1, hidden.shape[-1]])
    logits = block.gate(tokens)
    shares, chosen = paddle.topk(
        functional.softmax(logits.astype("float32"), axis=1), block.top_k, axis=-1
    )
    shares = shares / shares.sum(axis=-1, keepdim=True)
    one_hot = functional.one_hot(chosen, num_classes=block.num_experts)
    weights = (one_hot * shares.unsqueeze(-1)).sum(axis=1).astype(hidden.dtype)
    outputs = (
        weights[:, number : number + 1] * expert(tokens)
        for number, expert in enumerate(block.experts)
    )
    return sum(outputs, start=paddle.zeros_like(tokens)).reshape(hidden.shape), logits
