"""Rotary positions (RoFormer, arXiv 2104.09864), read from position ids.

Component i of the first half of a head is paired with component i of the second, as in Llama. Two
tokens see only the difference of their positions, so it does not matter where a packed sample
stands, but it does where a second answer to one prompt starts.
"""

from __future__ import annotations

import numpy as np
import paddle

__all__ = ["check_rope", "rotate", "rotation"]

POSITION_DTYPES = (paddle.int64, paddle.int32)


def check_rope(head_dim: int, rope_base: float) -> None:
    """Check the sizes of a rotation.

    Raises:
        ValueError: head_dim is odd or not positive, or rope_base is not finite and above 0.
    """
    if head_dim < 2 or head_dim % 2 != 0:
        raise ValueError(f"head_dim must be even and at least 2 to be rotated; got {head_dim}")
    if not 0 < rope_base < float("inf"):
        raise ValueError(f"rope_base must be finite and above 0; got {rope_base}")


def rotation(
    position_ids: paddle.Tensor, head_dim: int, *, rope_base: float = 10000.0
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return cosine and sine of the rotary angles, [B, S, 1, head_dim], float32.

    The angle of pair i at position p is p * rope_base ** (-2 i / head_dim). Computed in float32
    under auto_cast too: bfloat16 holds no position above 256 exactly.

    Args:
        position_ids: [B, S], int64 or int32, from 0 in each packed sample.
        head_dim: width of a head, even.
        rope_base: base of the frequencies, above 0.

    Raises:
        TypeError: position_ids are no tensor of int64 or int32.
        ValueError: they have other axes, or a size breaks a rule.

    Example:
        >>> import paddle
        >>> cosine, sine = rotation(paddle.to_tensor([[0, 1]]), 2)
        >>> [round(float(value), 4) for value in sine.flatten()]
        [0.0, 0.0, 0.8415, 0.8415]
    """
    check_rope(head_dim, rope_base)
    if isinstance(position_ids, np.ndarray) or not hasattr(position_ids, "dtype"):
        raise TypeError(f"position_ids must be a paddle.Tensor; got {type(position_ids).__name__}")
    if position_ids.dtype not in POSITION_DTYPES:
        raise TypeError(f"position_ids must be int64 or int32; got {position_ids.dtype}")
    if len(position_ids.shape) != 2:
        raise ValueError(f"position_ids must be [B, S]; got shape {list(position_ids.shape)}")
    with paddle.amp.auto_cast(enable=False):
        exponent = paddle.arange(0, head_dim, 2, dtype="float32") / head_dim
        angles = position_ids.astype("float32").unsqueeze(-1) * rope_base**-exponent
        both_halves = paddle.concat([angles, angles], axis=-1).unsqueeze(2)
        return both_halves.cos(), both_halves.sin()


def rotate(heads: paddle.Tensor, cosine: paddle.Tensor, sine: paddle.Tensor) -> paddle.Tensor:
    """Return heads turned by their angles, in their own dtype; the product is float32.

    Args:
        heads: [B, S, H, D], floating.
        cosine: [B, S, 1, D], float32, of `rotation`.
        sine: the same.
    """
    with paddle.amp.auto_cast(enable=False):
        wide = heads.astype("float32")
        first, second = paddle.chunk(wide, 2, axis=-1)
        turned = paddle.concat([-second, first], axis=-1)
        return (wide * cosine + turned * sine).astype(heads.dtype)
