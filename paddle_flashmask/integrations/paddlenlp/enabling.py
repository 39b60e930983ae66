"""Switching a model to our attention, and saying which attention each of its layers runs."""

from __future__ import annotations

from collections.abc import Iterator

import paddle

from paddle_flashmask.integrations._report import (
    AttentionReport,
    LayerReport,
    NotOursError,
    own_layer,
)
from paddle_flashmask.integrations.paddlenlp.patches import install, is_installed
from paddle_flashmask.integrations.paddlenlp.seams import (
    SEAMS,
    Backbone,
    backbones,
    find_backbones,
)

__all__ = ["check_still_carried", "disable", "enable", "is_enabled", "report"]

ENABLED = "flash_mask_enabled"  # set on the decoder, not on its config, which is saved
DTYPE = "flash_mask_dtype"  # of calls under auto_cast, beside it
BUILT_IN = "built-in"


def enable(model: paddle.nn.Layer, *, dtype: str | None = None) -> None:
    """Make a model take startend_row_indices as its `attention_mask`, see `model_inputs`.

    Calls without indices, generation among them, keep the model's own attention.

    Args:
        model: a Llama or Mixtral model of PaddleNLP, or a layer around one (LoRA, a score head).
        dtype: of the calls, if auto_cast will make it another than that of the weights.

    Raises:
        TypeError: model is no Layer.
        NotImplementedError: the model has no seam, or is set up for what the operator cannot do.
        NotOursError: a layer would not run our operator, e.g. for its dtype or head_dim.
        ImportError: PaddleNLP is missing.
    """
    found = find_backbones(model)
    for backbone in found:
        _check_config(backbone)
        _check_environment(backbone)
    for backbone in found:
        install(backbone)
        setattr(backbone.layer, ENABLED, True)
        setattr(backbone.layer, DTYPE, dtype)
    try:
        report(model, strict=True)
    except NotOursError:
        disable(model)
        raise


def disable(model: paddle.nn.Layer) -> None:
    """Take a model out of `report` again, if `enable` was called."""
    for backbone in backbones(model):
        setattr(backbone.layer, ENABLED, False)


def is_enabled(backbone: Backbone) -> bool:
    """Return whether `enable` was called for it."""
    return bool(getattr(backbone.layer, ENABLED, False))


def report(model: paddle.nn.Layer, *, strict: bool = False) -> AttentionReport:
    """Return which attention each layer of a model runs, and why not ours.

    Args:
        model: any Layer.
        strict: raise unless our operator serves every layer.

    Raises:
        NotOursError: strict, and a layer is not ours or there is none.
        ImportError: PaddleNLP is missing.
    """
    layers = [_layer(backbone, *layer) for backbone in backbones(model) for layer in _own(backbone)]
    known = {layer.name for layer in layers}
    layers += [layer for layer in _others(model) if layer.name not in known]
    order = {name: place for place, (name, _) in enumerate(model.named_sublayers())}
    return AttentionReport.of(sorted(layers, key=lambda layer: order[layer.name]), strict=strict)


def check_still_carried(model: paddle.nn.Layer) -> None:
    """Check what could make an enabled model lose its indices between two steps.

    Raises:
        NotImplementedError: an environment variable of PaddleNLP drops every mask.
    """
    for backbone in backbones(model):
        _check_environment(backbone)


def _own(backbone: Backbone) -> Iterator[tuple[str, paddle.nn.Layer]]:
    return backbone.attention_layers()


def _layer(backbone: Backbone, name: str, layer: paddle.nn.Layer) -> LayerReport:
    if not is_enabled(backbone):
        return LayerReport(name, BUILT_IN, "flash_mask is off")
    if not is_installed(backbone):
        return LayerReport(name, BUILT_IN, "its attention was replaced after flash_mask was set")
    weight = next(iter(layer.parameters()))
    return own_layer(name, weight, int(layer.head_dim), getattr(backbone.layer, DTYPE))


def _others(model: paddle.nn.Layer) -> Iterator[LayerReport]:
    """Yield what looks like attention, by its name, in models without a seam."""
    known = ", ".join(seam.name for seam in SEAMS)
    for name, layer in model.named_sublayers():
        if type(layer).__name__.endswith("Attention"):
            yield LayerReport(
                name, BUILT_IN, f"{type(layer).__name__} has no seam; there is one for {known}"
            )


def _check_config(backbone: Backbone) -> None:
    config, name = backbone.layer.config, backbone.seam.name
    degrees = ("context_parallel_degree", "sep_parallel_degree", "pipeline_parallel_degree")
    refused = [
        *(degree for degree in degrees if getattr(config, degree, 1) > 1),
        *(flag for flag in ("alibi", "sequence_parallel") if getattr(config, flag, False)),
    ]
    if refused:
        raise NotImplementedError(
            f"flash_mask does not support {', '.join(refused)} (set in the config of {name})"
        )


def _check_environment(backbone: Backbone) -> None:
    drops_masks = getattr(backbone.module, "get_use_casual_mask", lambda: False)
    if drops_masks():
        raise NotImplementedError(
            f"flash_mask does not support USE_CASUAL_MASK=True: with it {backbone.seam.name} "
            "drops every attention mask; unset the environment variable"
        )
