"""The losses of `paddle_flashmask.losses` in PyTorch, without ever holding all logits.

Logits are made for `CHUNK` positions at a time and again in the backward, as trainers' fused
losses do: at 128K tokens and 32000 ids all of them in float32 would take 16 GB.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from train_steps.torch_attention import Attention
from train_steps.torch_stack import Stack

Tensors = dict[str, Tensor]

CHUNK = 8192
BETA = 0.1  # of DPO


def loss(name: str, stack: Stack, batch: Tensors, attention: Attention) -> Tensor:
    """Return the loss of a layout on a batch, [], float32; the mask is made here."""
    attend = attention.begin(batch["attn_mask_startend_row_indices"], stack.embedding.dtype)
    hidden = stack(batch["input_ids"], batch["position_ids"], attend)
    kind = {"sft": _sft, "lora": _sft, "dpo": _dpo, "rm": _rm}[name]
    return kind(hidden, stack.head, batch)


def _sft(hidden: Tensor, head: Tensor, batch: Tensors) -> Tensor:
    labels = batch["labels"].flatten()
    weights = (labels >= 0).float()
    log_probs = _log_probs(hidden.flatten(0, 1), head, labels.clamp(min=0))
    return -(log_probs * weights).sum() / weights.sum()


def _dpo(hidden: Tensor, head: Tensor, batch: Tensors) -> Tensor:
    places = hidden[batch["target_rows"], batch["target_positions"]]
    log_probs = _log_probs(places, head, batch["target_ids"])
    answers = torch.zeros_like(batch["reference_log_probs"], dtype=log_probs.dtype)
    answers = answers.index_add(0, batch["target_answers"], log_probs)
    margins = BETA * _differences(answers - batch["reference_log_probs"], batch["pairs"])
    return -functional.logsigmoid(margins).mean()


def _rm(hidden: Tensor, head: Tensor, batch: Tensors) -> Tensor:
    read = hidden[batch["answer_rows"], batch["score_positions"]]
    scores = functional.linear(read, head).squeeze(-1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    losses = -functional.logsigmoid(_differences(scores, batch["pairs"]))
    # All groups here have as many pairs, so the mean over groups is that over pairs.
    return losses.mean()


def _differences(values: Tensor, pairs: Tensor) -> Tensor:
    return values[pairs[:, 0]] - values[pairs[:, 1]]


def _log_probs(hidden: Tensor, head: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probability of an id at each position, [N], float32."""
    parts = [
        checkpoint(_chunk_log_probs, part, head, own, use_reentrant=False)
        for part, own in zip(hidden.split(CHUNK), ids.split(CHUNK), strict=True)
    ]
    return torch.cat(parts)


def _chunk_log_probs(hidden: Tensor, head: Tensor, ids: Tensor) -> Tensor:
    logits = functional.linear(hidden, head)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return -functional.cross_entropy(logits, ids, reduction="none")
