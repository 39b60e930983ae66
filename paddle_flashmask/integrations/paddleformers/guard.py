"""Two checks around a model whose configuration names ours.

Every call of the model: two masks become one, and a mask that was passed must have reached the
layers. Start of a trainer: every setting that would lose the mask is an error there and then.
"""

from __future__ import annotations

import inspect

import numpy as np
import paddle
from paddle import nn

from paddle_flashmask.integrations._report import NotOursError
from paddle_flashmask.integrations.paddleformers import calls, kept_choice, parallel
from paddle_flashmask.integrations.paddleformers.foreign import FIELD, Foreign
from paddle_flashmask.integrations.paddleformers.layers import (
    NAME,
    chooses_ours,
    chosen,
    interface_layers,
    report,
)

__all__ = ["call_checked", "check_trainer", "generate_checked", "joined_masks"]

OLD_FIELD = "attn_mask_start_row_indices"  # that some models take too
MASK = "attention_mask"
POSITIONS = "position_ids"
WEIGHTS = "output_attentions"


def call_checked(model: Foreign, *inputs: Foreign, **options: Foreign) -> Foreign:
    """Call a model; stands in for `PretrainedModel.__call__` once ours is registered.

    Raises:
        ValueError: two masks came that cannot be made one, or a packed row came without any.
        NotImplementedError: attention weights are asked for, or a parallel setting that is not
            supported.
        RuntimeError: a mask was passed and a layer did not get it, or no layer asked for ours.
        TypeError: a mask is a numpy array.
    """
    if calls.running() or not chooses_ours(model):
        return nn.Layer.__call__(model, *inputs, **options)
    parallel.refuse_split_sequences(model.config)
    kept_choice.keep(model)
    names = _argument_names(model)
    given = dict(zip(names, inputs, strict=False)) | options
    if given.get(WEIGHTS) or getattr(model.config, WEIGHTS, False):
        raise NotImplementedError(
            f"{WEIGHTS} is not supported with {NAME}, only False: they are never formed"
        )
    if given.get(FIELD) is not None and given.get(OLD_FIELD) is not None:
        raise ValueError(f"{FIELD} and {OLD_FIELD} must not both be given, as one would be dropped")
    name = OLD_FIELD if given.get(FIELD) is None else FIELD
    field, mask = given.get(name), given.get(MASK)
    if mask is not None:
        _check_zeros_and_ones(mask)
    if field is not None and mask is not None:
        field = joined_masks(field, mask)
        inputs, options = (), given | {name: field, MASK: None}
    elif field is None and (mask is None or mask.ndim == 2):
        _refuse_packed_rows(given.get(POSITIONS), mask)
    if field is not None:
        _refuse_branches_behind_window(model, given.get(POSITIONS), field)
    with calls.watch() as seen:
        out = nn.Layer.__call__(model, *inputs, **options)
    _check_reached(model, seen, field, mask)
    return out


def generate_checked(model: Foreign, *inputs: Foreign, **options: Foreign) -> Foreign:
    """Generate; stands in for `PretrainedModel.generate` once ours is registered.

    Raises:
        NotImplementedError: indices came, which some models drop (Phi-3) and none carries on.
    """
    given = [name for name in (FIELD, OLD_FIELD) if options.get(name) is not None]
    if given and chooses_ours(model):
        raise NotImplementedError(
            f"{given[0]} is not supported by generate with {NAME}: the indices do not grow with "
            f"the answer; pass {MASK}, one sample per row"
        )
    from paddleformers.generation.utils import GenerationMixin

    return GenerationMixin.generate(model, *inputs, **options)


def joined_masks(field: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
    """Return indices that hide what they hid, and the keys that a padding mask hides.

    Args:
        field: [B, Hm, S, C] or [B, Hm, S], int32 or int64.
        mask: [B, S], bool or numbers, 0 at keys that nobody sees.

    Raises:
        ValueError: the mask has another shape, which PaddleFormers would drop without a word.
    """
    if mask.ndim != 2 or list(mask.shape) != [field.shape[0], field.shape[2]]:
        raise ValueError(
            f"{MASK} beside {FIELD} must be [batch, seqlen], a padding mask; got shapes "
            f"{list(mask.shape)} and {list(field.shape)}"
        )
    full = field if field.ndim == 4 else field.unsqueeze(-1)
    is_hidden = mask.astype("bool").logical_not()[:, None, :, None]
    # The first interval of a hidden column is made all rows.
    all_rows = [0, full.shape[2], 0, 0] if full.shape[-1] > 1 else [0]
    hidden = paddle.to_tensor(all_rows[: full.shape[-1]], dtype=full.dtype, place=full.place)
    return paddle.where(is_hidden, hidden.reshape([1, 1, 1, -1]), full)


def check_trainer(model: nn.Layer, arguments: Foreign, *, must_use: bool, strict: bool) -> str:
    """Check a model that a trainer starts with, and return its report as text.

    Args:
        model: what is trained.
        arguments: of the training.
        must_use: whether ours was asked for, so that a model without it is an error.
        strict: whether every attention layer must be ours.

    Raises:
        NotOursError: no layer runs ours although it was asked for; or a layer that chose ours is
            refused by the operator; or strict, and a layer runs another.
        NotImplementedError: a parallel setting would lose the mask.
    """
    if not chooses_ours(model):
        if must_use:
            names = sorted({str(chosen(layer)) for _, layer in interface_layers(model)})
            raise NotOursError(
                f"{NAME} was registered by custom_register_path but no layer uses it: the model's "
                f"_attn_implementation is {', '.join(names) or 'not read by its attention'}; set "
                f"_attn_implementation: {NAME}, or remove custom_register_path"
            )
        return ""
    parallel.refuse_split_sequences(arguments)
    parallel.refuse_split_sequences(model.config)
    dtype = None
    if getattr(arguments, "bf16", False):
        dtype = "bfloat16"
    elif getattr(arguments, "fp16", False):
        dtype = "float16"
    found = report(model, strict=strict, dtype=dtype)
    refused = [layer for layer in found.layers if layer.backend == "none"]
    if refused or not any(layer.is_ours for layer in found.layers):
        found.require_ours()
    if FIELD not in _argument_names(_inner(model)):
        raise NotOursError(
            f"{type(_inner(model)).__name__}.forward has no argument {FIELD}: no packed batch can "
            f"reach {NAME} in this model"
        )
    return str(found)


def _argument_names(model: Foreign) -> list[str]:
    return list(inspect.signature(model.forward).parameters)


def _inner(model: Foreign) -> Foreign:
    """Return the model that an adapter such as LoRA wraps."""
    inner = getattr(model, "model", None)
    is_adapter = isinstance(inner, nn.Layer) and hasattr(model, "lora_config")
    return inner if is_adapter else model


def _check_reached(
    model: nn.Layer,
    seen: calls.Calls,
    field: paddle.Tensor | None,
    mask: paddle.Tensor | None,
) -> None:
    if not seen.masked and not seen.unmasked:
        raise RuntimeError(
            f"{type(model).__name__} is configured for {NAME} and none of its layers called it"
        )
    if field is not None:
        passed, seqlen = FIELD, field.shape[2]
    elif mask is not None and seen.unmasked and not _is_plain_causal(mask):
        passed, seqlen = MASK, mask.shape[-1]
    else:
        return
    lost = [
        name for name, layer in interface_layers(model) if seen.unmasked.get(id(layer)) == seqlen
    ]
    if lost:
        raise RuntimeError(
            f"{passed} was passed to {type(model).__name__} and did not reach "
            f"{', '.join(lost)}: those layers saw plain causal attention"
        )


def _is_plain_causal(mask: paddle.Tensor) -> bool:
    """Return whether a mask hides nothing but what causal attention does, and so may be left out.

    PaddleFormers leaves out dense masks of ones too, with which rows see what lies behind them.
    """
    is_of_keys = mask.ndim == 2 or mask.shape[-2] == 1
    return is_of_keys and bool(mask.astype("bool").all())


def _refuse_branches_behind_window(
    model: nn.Layer, positions: paddle.Tensor | None, field: paddle.Tensor
) -> None:
    """Raise if a second answer to one prompt stands farther behind it than a window reaches.

    Windows count columns, and the first answer lies between: the prompt would be out of sight.
    """
    configs = [layer.config for _, layer in interface_layers(model) if chosen(layer) == NAME]
    windows = [
        config.sliding_window
        for config in configs
        if getattr(config, "sliding_window", None)
        and "sliding_attention" in (getattr(config, "layer_types", None) or ())
    ]
    if not windows or positions is None or positions.ndim != 2 or positions.shape[1] < 2:
        return
    places = paddle.arange(positions.shape[1], dtype="int64").expand(positions.shape)
    starts = paddle.cummax(paddle.where(positions == 0, places, paddle.zeros_like(places)), -1)[0]
    ends = (field if field.ndim == 3 else field[..., 0]).astype("int64").max(axis=1)
    is_branch = (positions[:, 1:] <= positions[:, :-1]).logical_and(positions[:, 1:] > 0)
    longest = paddle.where(
        is_branch, (ends - starts)[:, 1:], paddle.zeros_like(places[:, 1:])
    ).max()
    if int(longest) > min(windows):
        raise NotImplementedError(
            f"several answers to one prompt in a row are not supported with a sliding window "
            f"unless they fit into it, {min(windows)} tokens (it counts columns, answers between "
            f"included); got {int(longest)}"
        )


def _check_zeros_and_ones(mask: paddle.Tensor) -> None:
    """Raise if a mask numbers samples (1, 2, 3), or is one to be added to scores.

    The models take any number but 0 for seen, in dense masks too.

    Raises:
        TypeError: it is a numpy array.
        ValueError: it holds another number than 0 and 1.
    """
    if isinstance(mask, np.ndarray):
        raise TypeError(f"{MASK} must be a paddle.Tensor; got a numpy array: use paddle.to_tensor")
    if mask.dtype == paddle.bool or not paddle.in_dynamic_mode():
        return  # in a static graph numbers are not known yet
    is_wrong = (mask != 0).logical_and(mask != 1)
    if bool(is_wrong.any()):
        raise ValueError(
            f"{MASK} must be bool or hold 1 (seen) or 0; got {mask[is_wrong][0].item()}: samples "
            f"that share a row are parted by {FIELD}, and masks to be added to scores are not taken"
        )


def _refuse_packed_rows(positions: paddle.Tensor | None, mask: paddle.Tensor | None) -> None:
    """Raise if positions restart and count on: samples in one row, with nothing that parts them.

    The zeros of padding restart and do not count on; where a padding mask says what is padding,
    all other restarts count.
    """
    if positions is None or positions.ndim != 2:
        return
    is_start = positions[:, 1:] <= positions[:, :-1]
    if mask is not None:
        seen = mask[:, -positions.shape[1] :].astype("bool")
        is_start = is_start.logical_and(seen[:, :-1]).logical_and(seen[:, 1:])
    else:
        counts_on = positions[:, 2:] - positions[:, 1:-1] == 1
        is_start = is_start[:, :-1].logical_and(counts_on)
    if bool(is_start.any()):
        raise ValueError(
            f"{POSITIONS} restart within a row, so it holds several samples, and neither {FIELD} "
            f"nor a dense mask came to part them; pass {FIELD}, or positions that run on"
        )
