"""A causal self-attention layer for plain models: projections, rotary positions, FlashMask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import paddle

from paddle_flashmask.attention import flashmask_attention
from paddle_flashmask.nn.rotary import check_rope, rotate, rotation

__all__ = ["Attend", "CausalSelfAttention"]

# (query [B, S, Hq, D], key [B, S, Hk, D], value [B, S, Hk, D], mask) -> [B, S, Hq, D]
Attend: TypeAlias = Callable[
    [paddle.Tensor, paddle.Tensor, paddle.Tensor, "paddle.Tensor | None"], paddle.Tensor
]


class CausalSelfAttention(paddle.nn.Layer):
    """Attention of a decoder over itself: grouped query heads, rotary positions, packed rows.

    out = output(attend(rotate(query(x)), rotate(key(x)), value(x))), with grouped heads as in
    arXiv 2305.13245 and rotation as in `paddle_flashmask.nn.rotary`. There is no dropout and no
    cache.

    Attributes:
        query: linear layer, hidden_size to num_heads * head_dim.
        key: linear layer, hidden_size to num_heads_k * head_dim.
        value: as key.
        output: linear layer, num_heads * head_dim to hidden_size.

    Example:
        >>> import paddle
        >>> from paddle_flashmask.packing import pack_sft
        >>> batch = pack_sft([([1, 2, 3], [1, 2, 3]), ([4, 5], [4, 5])], seq_len=6).build([0])
        >>> layer = CausalSelfAttention(hidden_size=32, num_heads=4, num_heads_k=2)
        >>> positions = paddle.to_tensor(batch["position_ids"])
        >>> indices = paddle.to_tensor(batch["attn_mask_startend_row_indices"])
        >>> list(layer(paddle.ones([1, 6, 32]), positions, indices).shape)
        [1, 6, 32]
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_heads_k: int | None = None,
        *,
        head_dim: int | None = None,
        rope_base: float = 10000.0,
        bias: bool = False,
        weight_attr: paddle.ParamAttr | None = None,
        attend: Attend | None = None,
    ) -> None:
        """Make the layer with random weights.

        Args:
            hidden_size: width of a token's vector.
            num_heads: query heads, Hq.
            num_heads_k: key and value heads, Hk, that divide Hq; None: as many as num_heads.
            head_dim: width of a head, D, even; None: hidden_size / num_heads.
            rope_base: base of the rotary frequencies.
            bias: whether query, key and value have a bias (the output has none).
            weight_attr: how weights are made; None: as `paddle.nn.Linear` does.
            attend: what attends in place of `flashmask_attention(..., causal=True)`; it is given
                query, key, value and what `forward` got as its mask.

        Raises:
            TypeError: a size is not an int, or attend cannot be called.
            ValueError: a size is out of range or does not divide another.
        """
        super().__init__()
        num_heads_k = num_heads if num_heads_k is None else num_heads_k
        _check_sizes(hidden_size, num_heads, num_heads_k, head_dim)
        head_dim = hidden_size // num_heads if head_dim is None else head_dim
        check_rope(head_dim, rope_base)
        if attend is not None and not callable(attend):
            raise TypeError(f"attend must be callable or None; got {type(attend).__name__}")
        self.hidden_size, self.head_dim, self.rope_base = hidden_size, head_dim, rope_base
        self.num_heads, self.num_heads_k = num_heads, num_heads_k
        self._attend = _flashmask if attend is None else attend

        def linear(size_in: int, size_out: int, has_bias: bool) -> paddle.nn.Linear:
            bias_attr = None if has_bias else False
            return paddle.nn.Linear(size_in, size_out, weight_attr=weight_attr, bias_attr=bias_attr)

        self.query = linear(hidden_size, num_heads * head_dim, bias)
        self.key = linear(hidden_size, num_heads_k * head_dim, bias)
        self.value = linear(hidden_size, num_heads_k * head_dim, bias)
        self.output = linear(num_heads * head_dim, hidden_size, False)

    def forward(
        self,
        hidden: paddle.Tensor,
        position_ids: paddle.Tensor,
        startend_row_indices: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Return the attention's output.

        Args:
            hidden: [B, S, hidden_size], floating.
            position_ids: [B, S], int64 or int32: `position_ids` of `paddle_flashmask.packing`.
            startend_row_indices: [B, 1|Hk|Hq, S, 1|2], int32, read with causal=True; None: plain
                causal. With an `attend` of your own: whatever that takes.

        Returns:
            [B, S, hidden_size], dtype of hidden.

        Raises:
            TypeError: an argument is of the wrong kind or dtype.
            ValueError: a shape breaks a rule.
        """
        _check_hidden(hidden, self.hidden_size)
        _check_positions(position_ids, hidden)
        cosine, sine = rotation(position_ids, self.head_dim, rope_base=self.rope_base)
        # 0 copies the axis, also where a static graph does not know its size; of a tensor without
        # elements it would be the size.
        rows = [0, 0]
        if paddle.in_dynamic_mode() and 0 in hidden.shape:
            rows = hidden.shape[:2]
        query = self.query(hidden).reshape([*rows, self.num_heads, self.head_dim])
        key = self.key(hidden).reshape([*rows, self.num_heads_k, self.head_dim])
        value = self.value(hidden).reshape([*rows, self.num_heads_k, self.head_dim])
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        mixed = self._attend(query, key, value, startend_row_indices)
        out: paddle.Tensor = self.output(mixed.reshape([*rows, self.num_heads * self.head_dim]))
        return out

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        return (
            f"hidden_size={self.hidden_size}, num_heads={self.num_heads}, "
            f"num_heads_k={self.num_heads_k}, head_dim={self.head_dim}"
        )


def _flashmask(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    startend_row_indices: paddle.Tensor | None,
) -> paddle.Tensor:
    out = flashmask_attention(query, key, value, startend_row_indices, causal=True)
    assert not isinstance(out, list)
    return out


def _check_sizes(hidden_size: int, num_heads: int, num_heads_k: int, head_dim: int | None) -> None:
    _check_size("hidden_size", hidden_size)
    _check_size("num_heads", num_heads)
    _check_size("num_heads_k", num_heads_k)
    if num_heads % num_heads_k != 0:
        raise ValueError(f"num_heads_k must divide num_heads={num_heads}; got {num_heads_k}")
    if head_dim is not None:
        _check_size("head_dim", head_dim)
    elif hidden_size % num_heads != 0:
        raise ValueError(
            f"num_heads must divide hidden_size={hidden_size} unless head_dim is given; "
            f"got {num_heads}"
        )


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int; got {type(value).__name__} {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {value}")


def _check_hidden(hidden: paddle.Tensor, hidden_size: int) -> None:
    if not hasattr(hidden, "dtype") or isinstance(hidden, np.ndarray):
        raise TypeError(f"hidden must be a paddle.Tensor; got {type(hidden).__name__}")
    if len(hidden.shape) != 3 or hidden.shape[2] not in (hidden_size, -1):
        raise ValueError(f"hidden must be [B, S, {hidden_size}]; got shape {list(hidden.shape)}")


def _check_positions(position_ids: paddle.Tensor, hidden: paddle.Tensor) -> None:
    """Check the sizes that are known (-1 is not); `rotation` checks kind and axes."""
    shape = getattr(position_ids, "shape", ())
    if len(shape) != 2:
        return
    for axis in (0, 1):
        if -1 not in (shape[axis], hidden.shape[axis]) and shape[axis] != hidden.shape[axis]:
            raise ValueError(
                f"position_ids must be [B, S] = {list(hidden.shape[:2])}; got shape {list(shape)}"
            )
