"""Layers that would leave ours for good after one call without a mask.

Gemma-3's layer (1.2.0, `gemma3_text/modeling.py`) writes "sdpa" over the name of its attention when
neither indices nor a mask come, and asks for that from then on, with indices too. The name is made
a property of the class that does not take this.
"""

from __future__ import annotations

from weakref import WeakSet

from paddle import nn

from paddle_flashmask.integrations.paddleformers.layers import NAME, interface_layers

__all__ = ["give_back", "keep"]

ATTRIBUTE = "attn_implementation"
LEFT_FOR = "sdpa"

_kept_models: WeakSet[nn.Layer] = WeakSet()
_kept_classes: list[type[nn.Layer]] = []


def keep(model: nn.Layer) -> None:
    """Make the layers of a model that ask for ours go on asking; once for each model."""
    if model in _kept_models:
        return
    _kept_models.add(model)
    for _, layer in interface_layers(model):
        kind = type(layer)
        if vars(layer).get(ATTRIBUTE) == NAME and kind not in _kept_classes:
            setattr(kind, ATTRIBUTE, property(_get, _set))
            _kept_classes.append(kind)


def give_back() -> None:
    """Take the properties back."""
    while _kept_classes:
        delattr(_kept_classes.pop(), ATTRIBUTE)
    _kept_models.clear()


def _get(layer: nn.Layer) -> object:
    return vars(layer)[ATTRIBUTE]


def _set(layer: nn.Layer, name: object) -> None:
    if not (name == LEFT_FOR and vars(layer).get(ATTRIBUTE) == NAME):
        vars(layer)[ATTRIBUTE] = name
