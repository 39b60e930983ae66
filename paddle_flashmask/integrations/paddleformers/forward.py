"""The attention function that PaddleFormers' `AttentionInterface` calls."""

from __future__ import annotations

import paddle

from paddle_flashmask.attention import flashmask_attention
from paddle_flashmask.integrations.paddleformers import calls, parallel
from paddle_flashmask.integrations.paddleformers.fields import (
    MaskFields,
    mask_fields,
    narrowed_by_window,
)
from paddle_flashmask.integrations.paddleformers.foreign import Foreign

__all__ = ["attention_forward"]

# What Phi-3 passes besides, having used it already.
WITHOUT_EFFECT = frozenset({"position_ids", "use_cache"})


def attention_forward(
    module: Foreign,
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    attention_mask: paddle.Tensor | None = None,
    attn_mask_startend_row_indices: paddle.Tensor | None = None,
    dropout: float = 0.0,
    sink: paddle.Tensor | None = None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: object,
) -> tuple[paddle.Tensor, None]:
    """Return attention for a layer of PaddleFormers, as its own functions do.

    Args:
        module: the layer; its `config`, `training`, `sliding_window` and `is_causal` are read.
        query: [B, Hq, Sq, D], float32, float16 or bfloat16.
        key: [B, Hk, Sk, D]; Hq a multiple of Hk.
        value: [B, Hk, Sk, D].
        attention_mask: dense, see `fields`; None with indices.
        attn_mask_startend_row_indices: [B, Hm, Sk, C] or [B, Hm, Sk], int32 or int64, half-open
            intervals of masked rows, Hm of the whole model; None: nothing but causal and a window.
        dropout: probability; only 0 is supported while training.
        sink: only None is supported.
        scaling: factor of the scores; None: 1 / sqrt(D).
        is_causal: whether rows above the diagonal are masked; None: as the width of the indices
            says, else as the layer says, else True.
        options: `sliding_window`, tokens that a row sees, itself included; others are refused.

    Returns:
        [B, Sq, Hq * D], dtype of query, and None for the weights, which are never formed.

    Raises:
        TypeError: an argument is of the wrong kind, or is not known.
        ValueError: a shape or value breaks a rule, or two masks came.
        NotImplementedError: an argument or a parallel setting that is not supported.
    """
    window = _window(module, options)
    if sink is not None:
        raise NotImplementedError(
            f"sink is not supported, only None; got a Tensor of shape {list(sink.shape)}"
        )
    config = getattr(module, "config", None)
    parallel.refuse_split_sequences(config)
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    whole_mask = attention_mask
    if (
        attention_mask is not None
        and paddle.in_dynamic_mode()
        and 0 < seqlen_k < attention_mask.shape[-1]
    ):
        # The cache of a layer with a window keeps the last keys only; masks are of all.
        attention_mask = attention_mask[..., -seqlen_k:]
    default_causal = bool(getattr(module, "is_causal", True))

    def made() -> MaskFields:
        return mask_fields(
            attn_mask_startend_row_indices,
            attention_mask,
            is_causal,
            default_causal=default_causal,
            seqlen_q=seqlen_q,
        )

    is_dense = attention_mask is not None and attn_mask_startend_row_indices is None
    if is_dense:
        fields = calls.once_per_call(whole_mask, made, is_causal, default_causal, seqlen_k)
    else:
        fields = made()
    if fields.startend_row_indices is not None:
        own = parallel.own_mask_heads(
            fields.startend_row_indices, config, num_heads=query.shape[1], num_heads_k=key.shape[1]
        )
        fields = MaskFields(own, fields.causal)
    window_size = None
    if window is not None and fields.startend_row_indices is None:
        window_size = (window - 1, 0 if fields.causal else window - 1)
    elif window is not None:
        fields = narrowed_by_window(
            fields, window, seqlen_q=seqlen_q, seqlen_k=seqlen_k, on_host=is_dense
        )
    out = flashmask_attention(
        query.transpose([0, 2, 1, 3]),
        key.transpose([0, 2, 1, 3]),
        value.transpose([0, 2, 1, 3]),
        fields.startend_row_indices,
        fields.causal,
        dropout=dropout,
        window_size=window_size,
        training=bool(module.training),
        softmax_scale=scaling,
    )
    assert isinstance(out, paddle.Tensor) or not paddle.in_dynamic_mode()
    calls.record(module, seqlen_k, has_mask=fields.startend_row_indices is not None)
    return out.reshape([0, 0, out.shape[2] * out.shape[3]]), None  # type: ignore[union-attr]


def _window(module: Foreign, options: dict[str, object]) -> int | None:
    """Return how many tokens a row sees; what the layer's configuration says of it comes first."""
    unknown = {name for name in options if name not in (*WITHOUT_EFFECT, "sliding_window")}
    if unknown:
        raise TypeError(
            "attention takes no argument but those of its signature, sliding_window and "
            f"{', '.join(sorted(WITHOUT_EFFECT))}; got {', '.join(sorted(unknown))}"
        )
    window = options.get("sliding_window", getattr(module, "sliding_window", None))
    types = getattr(getattr(module, "config", None), "layer_types", None)
    number = getattr(module, "layer_idx", None)
    if types and number is not None and types[number] != "sliding_attention":
        return None
    if window is None or (isinstance(window, int) and not isinstance(window, bool) and window > 0):
        return window
    raise ValueError(f"sliding_window must be None or an int of at least 1; got {window!r}")
