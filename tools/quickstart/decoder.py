"""A small Llama-style decoder in plain Paddle, with the attention given as an argument.

RMSNorm before each part, the attention layer of `paddle_flashmask.nn` (rotary positions, grouped
query heads), SwiGLU (arXiv 2002.05202), tied input and output embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import paddle
from paddle import Tensor, nn
from paddle.nn import functional

from paddle_flashmask.nn import Attend, CausalSelfAttention

__all__ = ["Decoder", "DecoderConfig", "RewardModel"]

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

    def __init__(self, config: DecoderConfig, attend: Attend) -> None:
        """Make a model with random weights; call `paddle.seed` before for known ones."""
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size, weight_attr=_init())
        self.blocks = nn.LayerList([_Block(config, attend) for _ in range(config.num_layers)])
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
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden, position_ids, mask)
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
    def __init__(self, config: DecoderConfig, attend: Attend) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.attention_norm = _RMSNorm(hidden)
        self.attention = CausalSelfAttention(
            hidden,
            config.num_heads,
            config.num_heads_k,
            rope_base=config.rope_base,
            weight_attr=_init(),
            attend=attend,
        )
        self.ffn_norm = _RMSNorm(hidden)
        self.gate = _linear(hidden, config.ffn_size)
        self.up = _linear(hidden, config.ffn_size)
        self.down = _linear(config.ffn_size, hidden)

    def forward(self, hidden: Tensor, position_ids: Tensor, mask: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), position_ids, mask)
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
