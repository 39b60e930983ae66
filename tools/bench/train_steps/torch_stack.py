"""The stack in PyTorch: embedding, decoder blocks, norm, head; its attention is an argument.

RMSNorm before each part, rotary positions (two halves), SwiGLU, an untied head, or a score head for
reward models. Every block is recomputed in the backward, as in the paper's runs; adapters (LoRA,
arXiv 2106.09685) stand beside the four projections of the attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from train_steps.layouts import Layout
from train_steps.sizes import StackSizes

# (query [B, S, Hq, D], key [B, S, Hk, D], value [B, S, Hk, D]) -> [B, S, Hq, D]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

EPSILON = 1e-5  # of RMSNorm, as Llama-2's
ROPE_BASE = 10000.0
INIT_STD = 0.02
# Small, so that an untrained model's log-probabilities are near those of the uniform reference.
HEAD_STD = 0.002
ADAPTER_SCALE = 2.0  # alpha 16 over rank 8


class Stack(nn.Module):
    """Token ids to the last hidden states; `head` or `score` make the rest."""

    def __init__(
        self, sizes: StackSizes, layout: Layout, *, place: str, dtype: torch.dtype, seed: int = 0
    ) -> None:
        """Make a model with random weights; the same seed gives the same ones."""
        super().__init__()
        self.sizes = sizes
        with torch.device(place):
            self.embedding = nn.Parameter(torch.empty(sizes.vocab, sizes.hidden, dtype=dtype))
            blocks = [_Block(sizes, layout.adapters, dtype) for _ in range(sizes.blocks)]
            self.blocks = nn.ModuleList(blocks)
            self.norm = nn.Parameter(torch.ones(sizes.hidden, dtype=dtype))
            outputs = 1 if layout.name == "rm" else sizes.vocab
            self.head = nn.Parameter(torch.empty(outputs, sizes.hidden, dtype=dtype))
        generator = torch.Generator(place).manual_seed(seed)
        for name, weight in self.named_parameters():
            if not name.endswith("norm"):
                std = HEAD_STD if name == "head" and outputs > 1 else INIT_STD
                nn.init.normal_(weight, std=std, generator=generator)
            weight.requires_grad_(not layout.adapters or ".adapter" in name)

    def forward(self, input_ids: Tensor, position_ids: Tensor, attend: Attend) -> Tensor:
        """Return the last hidden states.

        Args:
            input_ids: [B, S], int64.
            position_ids: [B, S], int64.
            attend: attention with the mask of this batch.

        Returns:
            [B, S, hidden], dtype of the weights.
        """
        hidden = functional.embedding(input_ids, self.embedding)
        rotation = _rotation(position_ids, self.sizes.head_dim, hidden.dtype)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, rotation, attend, use_reentrant=False)
        return functional.rms_norm(hidden, hidden.shape[-1:], self.norm, EPSILON)

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the weights that are trained, by name."""
        return {name: one for name, one in self.named_parameters() if one.requires_grad}


class _Projection(nn.Module):
    """A linear layer without bias, and an adapter beside it if its rank is not 0."""

    def __init__(self, size_in: int, size_out: int, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_out, size_in, dtype=dtype))
        self.rank = rank
        if rank:
            self.adapter_in = nn.Parameter(torch.empty(rank, size_in, dtype=dtype))
            # Not 0 as in training, so that the check sees the gradient of both halves.
            self.adapter_out = nn.Parameter(torch.empty(size_out, rank, dtype=dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        out = functional.linear(hidden, self.weight)
        if self.rank:
            narrow = functional.linear(hidden, self.adapter_in)
            out = out + functional.linear(narrow, self.adapter_out) * ADAPTER_SCALE
        return out


class _Block(nn.Module):
    def __init__(self, sizes: StackSizes, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, head_dim = sizes.hidden, sizes.head_dim
        self.head_dim = head_dim
        self.attention_norm = nn.Parameter(torch.ones(hidden, dtype=dtype))
        self.query = _Projection(hidden, sizes.heads * head_dim, rank, dtype)
        self.key = _Projection(hidden, sizes.heads_k * head_dim, rank, dtype)
        self.value = _Projection(hidden, sizes.heads_k * head_dim, rank, dtype)
        self.output = _Projection(sizes.heads * head_dim, hidden, rank, dtype)
        self.ffn_norm = nn.Parameter(torch.ones(hidden, dtype=dtype))
        self.gate = _Projection(hidden, sizes.ffn, 0, dtype)
        self.up = _Projection(hidden, sizes.ffn, 0, dtype)
        self.down = _Projection(sizes.ffn, hidden, 0, dtype)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        heads = (*hidden.shape[:2], -1, self.head_dim)
        normed = functional.rms_norm(hidden, hidden.shape[-1:], self.attention_norm, EPSILON)
        query = _rotate(self.query(normed).view(heads), rotation)
        key = _rotate(self.key(normed).view(heads), rotation)
        mixed = attend(query, key, self.value(normed).view(heads))
        hidden = hidden + self.output(mixed.reshape(*hidden.shape[:2], -1))
        normed = functional.rms_norm(hidden, hidden.shape[-1:], self.ffn_norm, EPSILON)
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def _rotation(position_ids: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosine and sine, [B, S, 1, D / 2]."""
    wide = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, head_dim, 2, device=position_ids.device, dtype=wide) / head_dim
    angles = position_ids[:, :, None, None].to(wide) * ROPE_BASE**-exponents
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def gradients(loss: Tensor, stack: Stack) -> dict[str, Any]:
    """Return the gradients of the trained weights, by name."""
    trained = stack.trained()
    found = torch.autograd.grad(loss, list(trained.values()))
    return dict(zip(trained, found, strict=True))
