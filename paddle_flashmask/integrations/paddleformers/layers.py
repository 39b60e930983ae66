"""The attention layers of a model, and which attention each of them asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paddle_flashmask.integrations._report import AttentionReport, LayerReport, own_layer
from paddle_flashmask.integrations.paddleformers.foreign import Foreign
from paddle_flashmask.integrations.paddleformers.forward import attention_forward

if TYPE_CHECKING:
    from paddle import nn

__all__ = ["NAME", "chooses_ours", "chosen", "interface_layers", "report"]

NAME = "paddle_flashmask"
# How PaddleFormers' models look attention up, by the name that config._attn_implementation holds.
INTERFACE = "ALL_ATTENTION_FUNCTIONS"

_known: dict[type, bool] = {}


def report(model: nn.Layer, *, strict: bool = False, dtype: str | None = None) -> AttentionReport:
    """Return which attention each layer of a model runs, and why not ours.

    Args:
        model: a model of PaddleFormers, or what wraps one (LoRA).
        strict: whether to raise unless every layer runs ours.
        dtype: of the calls, if auto_cast makes it another than that of the weights.

    Raises:
        NotOursError: strict, and a layer runs another attention or there is no layer.
    """
    layers = (_layer_report(name, layer, dtype) for name, layer in _attention_layers(model))
    return AttentionReport.of(layers, strict=strict)


def interface_layers(model: nn.Layer) -> Iterator[tuple[str, nn.Layer]]:
    """Yield path and layer of the layers that look attention up in the interface."""
    for name, layer in model.named_sublayers(include_self=True):
        if _asks_interface(type(layer)):
            yield name, layer


def chosen(layer: nn.Layer) -> str | None:
    """Return the name of the attention that a layer asks for.

    Some layers (ERNIE-4.5, Gemma-3) keep the name that the configuration held when they were made.
    """
    config = getattr(layer, "config", None)
    name = getattr(layer, "attn_implementation", getattr(config, "_attn_implementation", None))
    return None if name is None else str(name)


def chooses_ours(model: nn.Layer) -> bool:
    """Return whether a model's configuration, or one inside it, names ours."""
    config = getattr(model, "config", None)
    inner = [getattr(config, name, None) for name in ("text_config", "llm_config")]
    return any(getattr(one, "_attn_implementation", None) == NAME for one in (config, *inner))


def _attention_layers(model: nn.Layer) -> Iterator[tuple[str, nn.Layer]]:
    """Yield also what is called attention and does not look it up; the innermost of those."""
    named = [
        (name, layer)
        for name, layer in model.named_sublayers(include_self=True)
        if _asks_interface(type(layer)) or _is_called_attention(layer)
    ]
    for name, layer in named:
        inner = [other for other, _ in named if other != name and other.startswith(f"{name}.")]
        if _asks_interface(type(layer)) or not inner:
            yield name, layer


def _is_called_attention(layer: nn.Layer) -> bool:
    return "Attention" in type(layer).__name__ and bool(layer.parameters())


def _asks_interface(kind: type) -> bool:
    if kind not in _known:
        _known[kind] = _names_interface(kind)
    return _known[kind]


def _names_interface(kind: type) -> bool:
    """Return whether a method of the class, or a function that one calls, names the interface."""
    for owner in kind.__mro__:
        if owner.__module__.startswith("paddle.nn"):
            break
        for method in vars(owner).values():
            for function in (method, *_called_by(method)):
                if INTERFACE in _names_in(function):
                    return True
    return False


def _called_by(function: object) -> list[object]:
    known = getattr(_unwrapped(function), "__globals__", {})
    return [known[name] for name in _names_in(function) if inspect.isfunction(known.get(name))]


def _names_in(function: object) -> tuple[str, ...]:
    code = getattr(_unwrapped(function), "__code__", None)
    return () if code is None else tuple(code.co_names)


def _unwrapped(function: object) -> object:
    return inspect.unwrap(function) if callable(function) else None


def _layer_report(name: str, layer: Foreign, dtype: str | None) -> LayerReport:
    if not _asks_interface(type(layer)):
        reason = f"{type(layer).__name__} has an attention of its own and asks no {INTERFACE}"
        return LayerReport(name, "built-in", reason)
    from paddleformers.nn.attention.interface import ALL_ATTENTION_FUNCTIONS

    wanted = chosen(layer)
    if wanted != NAME:
        reason = f"its _attn_implementation is {wanted!r}, not {NAME!r}"
        return LayerReport(name, f"built-in ({wanted})", reason)
    if ALL_ATTENTION_FUNCTIONS.get(NAME) is not attention_forward:
        return LayerReport(name, "none", f"{NAME!r} is not registered: call register() first")
    if getattr(layer, "sinks", None) is not None:
        return LayerReport(name, "none", "it has attention sinks, which are not supported")
    weights = layer.parameters()
    if not weights:
        return LayerReport(name, "none", "it has no weights that say where and in what dtype")
    return own_layer(name, weights[0], _head_dim(layer), dtype)


def _head_dim(layer: Foreign) -> int:
    head_dim = getattr(layer, "head_dim", None) or getattr(layer.config, "head_dim", None)
    return int(head_dim or layer.config.hidden_size // layer.config.num_attention_heads)
