"""The functions that carry indices through a model of PaddleNLP, and attend with them.

Five of a model's functions are wrapped, once per process. What is no int32 mask of four axes goes
to the original, so models without the flag, and calls without indices, run as before:

* `scaled_dot_product_attention` attends with `flashmask_attention`;
* `_prepare_decoder_attention_mask` would turn the mask into [B, 1, S, S] floats: it returns it;
* `is_casual_mask` would look for a triangle in it: there is none;
* `repeat_kv`, which gives every query head a key head of its own, leaves the heads as they are
  while `forward` of an attention layer runs with indices, in the thread that runs it.
  (`use_flash_attention` of the config would do so too, but for all threads, and on a CPU
  PaddleNLP's own flash path lets generated tokens see the first key only.)
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import paddle

from paddle_flashmask import flashmask_attention
from paddle_flashmask.integrations.paddlenlp.seams import Backbone

__all__ = [
    "CALLS",
    "NON_CAUSAL_WIDTH",
    "Calls",
    "install",
    "is_indices",
    "is_installed",
    "uninstall_all",
]

MASK_RANK = 4
NON_CAUSAL_WIDTH = 4  # four numbers per column say both triangles; one or two are read as causal
ATTEND, IS_CAUSAL, PREPARE, FORWARD, REPEAT = (
    "scaled_dot_product_attention",
    "is_casual_mask",
    "_prepare_decoder_attention_mask",
    "forward",
    "repeat_kv",
)
OURS = "_is_of_flashmask"  # set on the functions that stand in for a model's own
Function = Callable[..., Any]
# (module or class, name, what stood there), in the order of wrapping.
_ORIGINALS: list[tuple[object, str, object]] = []


class Calls:
    """How often our attention ran in place of a model's own; a trainer checks that it rises."""

    count = 0


CALLS = Calls()


def is_indices(attention_mask: object) -> bool:
    """Return whether what a model was given as its mask are startend_row_indices."""
    return (
        isinstance(attention_mask, paddle.Tensor)
        and attention_mask.dtype == paddle.int32
        and len(attention_mask.shape) == MASK_RANK
    )


def install(backbone: Backbone) -> None:
    """Wrap the functions of a backbone's module, if that was not done before."""
    module, kind = backbone.module, getattr(backbone.module, backbone.seam.backbone)
    _wrap(module, ATTEND, _attending)
    _wrap(module, IS_CAUSAL, _never_causal)
    _wrap(kind, PREPARE, _unprepared)
    _wrap(module, REPEAT, _unrepeated)
    _wrap(getattr(module, backbone.seam.attention), FORWARD, _with_own_heads)


def uninstall_all() -> None:
    """Give every module its own functions back."""
    while _ORIGINALS:
        owner, name, original = _ORIGINALS.pop()
        setattr(owner, name, original)


def is_installed(backbone: Backbone) -> bool:
    """Return whether a model still attends with our function: others replace it too."""
    return hasattr(getattr(backbone.module, ATTEND), OURS)


def _wrap(owner: object, name: str, wrapper: Callable[[Function], Function]) -> None:
    kept, original = inspect.getattr_static(owner, name), getattr(owner, name)
    if hasattr(original, OURS):
        return
    wrapped = functools.wraps(original)(wrapper(original))
    setattr(wrapped, OURS, True)
    setattr(owner, name, staticmethod(wrapped) if isinstance(kept, staticmethod) else wrapped)
    _ORIGINALS.append((owner, name, kept))


def _attending(original: Function) -> Function:
    signature = inspect.signature(original)

    def attend(*args: object, **kwargs: object) -> object:
        arguments = signature.bind(*args, **kwargs).arguments
        if not is_indices(arguments["attention_mask"]):
            return original(*args, **kwargs)
        _refuse_what_is_not_supported(arguments)
        indices = arguments["attention_mask"]
        training = arguments.get("training", True)
        # Llama has no dropout on its weights, and no parameter that says whether it trains.
        has_dropout = "training" in signature.parameters
        dropout = arguments["config"].attention_dropout if has_dropout else 0.0
        CALLS.count += 1
        out = flashmask_attention(
            arguments["query_states"],
            arguments["key_states"],
            arguments["value_states"],
            indices,
            causal=indices.shape[-1] != NON_CAUSAL_WIDTH,
            dropout=dropout,
            training=training,
        )
        assert not isinstance(out, list)
        return out.reshape([0, 0, -1])

    return attend


def _refuse_what_is_not_supported(arguments: dict[str, Any]) -> None:
    refused = {
        "output_attentions=True": bool(arguments["output_attentions"]),
        "alibi": arguments.get("alibi") is not None,
        "sequence_parallel": bool(arguments.get("sequence_parallel", False)),
        "sep_parallel (a reshard_layer)": arguments.get("reshard_layer") is not None,
    }
    given = [name for name, is_given in refused.items() if is_given]
    if given:
        raise NotImplementedError(f"flash_mask does not support {', '.join(given)}")


def _never_causal(original: Function) -> Function:
    def is_causal(attention_mask: paddle.Tensor) -> object:
        return False if is_indices(attention_mask) else original(attention_mask)

    return is_causal


def _with_own_heads(original: Function) -> Function:
    signature = inspect.signature(original)

    def forward(layer: paddle.nn.Layer, *args: object, **kwargs: object) -> object:
        arguments = signature.bind(layer, *args, **kwargs).arguments
        if not is_indices(arguments.get("attention_mask")):
            return original(layer, *args, **kwargs)
        _thread.keeps_heads = True
        try:
            return original(layer, *args, **kwargs)
        finally:
            _thread.keeps_heads = False

    return forward


class _Thread(threading.local):
    keeps_heads = False


_thread = _Thread()


def _unrepeated(original: Function) -> Function:
    def repeat(heads: paddle.Tensor, *args: object, **kwargs: object) -> object:
        return heads if _thread.keeps_heads else original(heads, *args, **kwargs)

    return repeat


def _unprepared(original: Function) -> Function:
    def prepare(attention_mask: paddle.Tensor | None, *args: object, **kwargs: object) -> object:
        if is_indices(attention_mask):
            return attention_mask
        return original(attention_mask, *args, **kwargs)

    return prepare
