"""Where PaddleNLP's models can be given our attention: a table, and how a model is found in it.

PaddleNLP 2.8 has no argument for indices anywhere. But each model hands its `attention_mask`
untouched from `forward` to one module-level function that attends, once three functions let an
int32 mask of four axes through (`patches`). So the indices travel as the attention mask: bound to
the call, not to a global, they are right under recomputation, with gradient accumulation, and with
a second model in the same step.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import paddle

from paddle_flashmask.integrations.paddlenlp.framework import (
    TESTED_VERSION,
    import_module,
    version,
)

__all__ = ["SEAMS", "Backbone", "Seam", "backbones", "find_backbones"]

LEADING = (
    "query_states",
    "config",
    "key_states",
    "value_states",
    "attention_mask",
    "output_attentions",
)


@dataclass(frozen=True)
class Seam:
    """A model that takes our attention. A further one is a row in `SEAMS`.

    Attributes:
        name: what messages call it.
        module: where its classes and the function lie.
        backbone: class of the decoder, which prepares masks.
        attention: class of an attention layer.
        parameters: of its scaled_dot_product_attention, behind `LEADING`.
    """

    name: str
    module: str
    backbone: str
    attention: str
    parameters: tuple[str, ...]

    def check(self, module: ModuleType) -> None:
        """Check that the module's attention is called as we know it.

        Raises:
            NotImplementedError: it has other parameters.
        """
        attend = inspect.unwrap(module.scaled_dot_product_attention)
        found = tuple(inspect.signature(attend).parameters)
        wanted = LEADING + self.parameters
        if found != wanted:
            hint = ""
            if "attn_mask_startend_row_indices" in found:
                hint = "; this version knows FlashMask itself: call redirect_functional()"
            raise NotImplementedError(
                f"scaled_dot_product_attention of {self.module} must take "
                f"({', '.join(wanted)}) as in PaddleNLP {TESTED_VERSION}; got "
                f"({', '.join(found)}) in {version()}{hint}"
            )


SEAMS = (
    Seam(
        "Llama",
        "paddlenlp.transformers.llama.modeling",
        "LlamaModel",
        "LlamaAttention",
        ("alibi", "sequence_parallel", "reshard_layer", "npu_is_casual"),
    ),
    Seam(
        "Mixtral",
        "paddlenlp.transformers.mixtral.modeling",
        "MixtralModel",
        "MixtralAttention",
        ("training", "sequence_parallel"),
    ),
)


@dataclass(frozen=True)
class Backbone:
    """A decoder inside a model.

    Attributes:
        name: its path in the model, "" for the model itself.
        layer: the decoder.
        seam: its row in the table.
        module: the seam's module.
    """

    name: str
    layer: paddle.nn.Layer
    seam: Seam
    module: ModuleType

    def attention_layers(self) -> Iterator[tuple[str, paddle.nn.Layer]]:
        """Yield path in the model and layer of each attention."""
        kind = getattr(self.module, self.seam.attention)
        for name, layer in self.layer.named_sublayers(include_self=True):
            if isinstance(layer, kind):
                yield ".".join(part for part in (self.name, name) if part), layer


def backbones(model: paddle.nn.Layer) -> Iterator[Backbone]:
    """Yield the decoders in a model that have a seam; adapters and score heads may be around."""
    for seam in SEAMS:
        # isinstance needs the module, but a model of another kind must not make us import it.
        names = {kind.__name__ for layer in _layers(model) for kind in type(layer).__mro__}
        if seam.backbone not in names:
            continue
        module = import_module(seam.module)
        kind = getattr(module, seam.backbone)
        for name, layer in model.named_sublayers(include_self=True):
            if isinstance(layer, kind):
                yield Backbone(name, layer, seam, module)


def find_backbones(model: paddle.nn.Layer) -> tuple[Backbone, ...]:
    """Return the decoders in a model that have a seam, at least one.

    Raises:
        TypeError: model is no Layer.
        NotImplementedError: it has none, or a pipeline, or PaddleNLP is one of another form.
    """
    if not isinstance(model, paddle.nn.Layer):
        raise TypeError(f"model must be a paddle.nn.Layer; got {type(model).__name__}")
    found = tuple(backbones(model))
    for layer in _layers(model):
        if type(layer).__name__.startswith("PrefixModel"):
            raise NotImplementedError(
                f"flash_mask does not support {type(layer).__name__}: its prefix is no part of the "
                "batch's indices"
            )
    if not found:
        known = ", ".join(seam.name for seam in SEAMS)
        raise NotImplementedError(
            f"flash_mask has no seam for {type(model).__name__}; it has for {known} "
            f"(PaddleNLP {TESTED_VERSION}, not their Pipe and Auto forms)"
        )
    for backbone in found:
        backbone.seam.check(backbone.module)
    return found


def _layers(model: paddle.nn.Layer) -> Iterator[paddle.nn.Layer]:
    return iter(model.sublayers(include_self=True))
