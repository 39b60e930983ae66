"""A small Llama-style decoder in plain Paddle, with the attention given as an argument.

RMSNorm before each part, rotary embedding from position ids (RoFormer, arXiv 2104.09864), grouped
query heads (arXiv 2305.13245), SwiGLU (arXiv 2002.05202), tied input and output embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import paddle
from paddle import Tensor, nn
from paddle.nn import functional

__all__ = ["Attention", "Decoder", "DecoderConfig", "RewardModel"]

# (query [B, S, Hq, D], key [B, S, Hk, D], value [B, S, Hk, D], mask) -> [B, S, Hq, D]
Attention: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
INIT_STD = 0.02  # standard deviation of initial weights, as in GPT-2


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the model.

    Attributes:
        vocab_size: number of token ids.
        hidden_size: width of a token's vector.
        num_layers: decoder blocks.
        num_heads: query heads, Hq.
        num_heads_k: key heads, Hk.
        ffn_size: inner width of SwiGLU.
        rope_base: base of the rotary frequencies.
    """

    vocab_size: int
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    num_heads_k: int = 2
    ffn_size: int = 352
    rope_base: float = 10000.0

    @property
    def head_dim(self) -> int:
        """Return the width of one head, D."""
        return self.hidden_size // self.num_heads


class Decoder(nn.Layer):  # type: ignore[misc]
    """Token ids to logits."""

    def __init__(self, config: DecoderConfig, attention: Attention) -> None:
        """Make a model with random weights; call `paddle.seed` before for known ones."""
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size, weight_attr=_init())
        self.blocks = nn.LayerList([_Block(config, attention) for _ in range(config.num_layers)])
        self.norm = _RMSNorm(config.hidden_size)

    def forward(self, input_ids: Tensor, position_ids: Tensor, mask: Tensor) -> Tensor:
        """Return logits.

        Args:
            input_ids: [B, S], int64.
            position_ids: [B, S], int64.
            mask: whatever the attention takes.

        Returns:
            [B, S, vocab_size], float32.
        """
        hidden = self.hidden(input_ids, position_ids, mask)
        return paddle.matmul(hidden, self.embedding.weight, transpose_y=True)

    def hidden(self, input_ids: Tensor, position_ids: Tensor, mask: Tensor) -> Tensor:
        """Return the last hidden states, [B, S, hidden_size]; arguments as for `forward`."""
        rotation = _rotation(position_ids, self.config)
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden, rotation, mask)
        return self.norm(hidden)


class RewardModel(nn.Layer):  # type: ignore[misc]
    """Token ids to a score at every position: a decoder with a score head instead of logits."""

    def __init__(self, decoder: Decoder) -> None:
        """Make a model on top of a decoder, whose weights it shares and trains."""
        super().__init__()
        self.decoder = decoder
        self.score = _linear(decoder.config.hidden_size, 1)

    def forward(self, input_ids: Tensor, position_ids: Tensor, mask: Tensor) -> Tensor:
        """Return scores [B, S], float32; arguments as for `Decoder`."""
        return self.score(self.decoder.hidden(input_ids, position_ids, mask)).squeeze(-1)


class _Block(nn.Layer):  # type: ignore[misc]
    def __init__(self, config: DecoderConfig, attention: Attention) -> None:
        super().__init__()
        self.config, self.attention = config, attention
        hidden, head_dim = config.hidden_size, config.head_dim
        self.attention_norm = _RMSNorm(hidden)
        self.query = _linear(hidden, config.num_heads * head_dim)
        self.key = _linear(hidden, config.num_heads_k * head_dim)
        self.value = _linear(hidden, config.num_heads_k * head_dim)
        self.output = _linear(config.num_heads * head_dim, hidden)
        self.ffn_norm = _RMSNorm(hidden)
        self.gate = _linear(hidden, config.ffn_size)
        self.up = _linear(hidden, config.ffn_size)
        self.down = _linear(config.ffn_size, hidden)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        normed = self.attention_norm(hidden)
        batch, seqlen, _ = normed.shape
        heads, heads_k, head_dim = (
            self.config.num_heads,
            self.config.num_heads_k,
            self.config.head_dim,
        )
        query = _rotate(self.query(normed).reshape([batch, seqlen, heads, head_dim]), rotation)
        key = _rotate(self.key(normed).reshape([batch, seqlen, heads_k, head_dim]), rotation)
        value = self.value(normed).reshape([batch, seqlen, heads_k, head_dim])
        mixed = self.attention(query, key, value, mask)
        hidden = hidden + self.output(mixed.reshape([batch, seqlen, heads * head_dim]))
        normed = self.ffn_norm(hidden)
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class _RMSNorm(nn.Layer):  # type: ignore[misc]
    def __init__(self, size: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = self.create_parameter(
            [size], default_initializer=nn.initializer.Constant(1.0)
        )
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        mean_square = hidden.square().mean(axis=-1, keepdim=True)
        return hidden * paddle.rsqrt(mean_square + self.epsilon) * self.weight


def _init() -> paddle.ParamAttr:
    return paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, INIT_STD))


def _linear(size_in: int, size_out: int) -> nn.Linear:
    return nn.Linear(size_in, size_out, weight_attr=_init(), bias_attr=False)


def _rotation(position_ids: Tensor, config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the rotary angles, [B, S, 1, D] each."""
    exponent = paddle.arange(0, config.head_dim, 2, dtype="float32") / config.head_dim
    angles = position_ids.astype("float32").unsqueeze(-1) * config.rope_base**-exponent
    both_halves = paddle.concat([angles, angles], axis=-1).unsqueeze(2)
    return both_halves.cos(), both_halves.sin()


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    first, second = paddle.chunk(heads, 2, axis=-1)
    return heads * cosine + paddle.concat([-second, first], axis=-1) * sine
