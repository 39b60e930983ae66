"""Layers for plain Paddle models: causal attention with rotary positions, and the rotation."""

from __future__ import annotations

from paddle_flashmask.nn.attention import Attend, CausalSelfAttention
from paddle_flashmask.nn.rotary import rotate, rotation

__all__ = ["Attend", "CausalSelfAttention", "rotate", "rotation"]
