"""A batch of packed rows to what a model of PaddleNLP is called with, by the flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle

from paddle_flashmask.indices import INT32_MAX, to_dense
from paddle_flashmask.integrations.paddlenlp.patches import NON_CAUSAL_WIDTH, is_indices

__all__ = ["INDEX_FIELD", "model_inputs", "narrowed"]

INDEX_FIELD = "attn_mask_startend_row_indices"
RANKS = (2, 3, 4)  # [B, S], PaddleNLP 3's [B, 1, S], ours [B, Hm, S, C]
INT_DTYPES = (paddle.int32, paddle.int64)


def model_inputs(batch: Mapping[str, Any], *, flash_mask: bool) -> dict[str, Any]:
    """Return a batch with its indices as the model's `attention_mask`.

    Args:
        batch: tensors by name. `attn_mask_startend_row_indices` is int32 or int64, [B, S],
            [B, 1, S] or [B, Hm, S, C]: one or two numbers per column are read with causal=True,
            four with causal=False.
        flash_mask: True: the indices themselves, int32 [B, Hm, S, C], for a model that `enable`
            has seen. False: the dense mask that they mean, bool [B, 1, S, S], for any model; a
            batch without indices then stays as it is.

    Returns:
        A new dict; other fields are the same tensors.

    Raises:
        TypeError: the indices are no tensor of ints.
        ValueError: flash_mask, and the batch has no indices or no position_ids; both indices and
            an attention_mask; indices of another shape; flash_mask=False and several mask heads,
            or indices in place of the attention_mask.
    """
    inputs = dict(batch)
    if is_indices(inputs.get("attention_mask")) and INDEX_FIELD not in inputs:
        if not flash_mask:
            raise ValueError(
                "attention_mask must not be int32 of four axes with flash_mask=False: that form "
                f"means indices; give them as {INDEX_FIELD}"
            )
        _check_positions(inputs)
        return inputs  # was here already
    if inputs.get(INDEX_FIELD) is None:
        if flash_mask:
            raise ValueError(
                f"flash_mask=True needs {INDEX_FIELD} in the batch; got {_listed(inputs)}. Pack "
                "with paddle_flashmask.packing, and set remove_unused_columns=False if the data "
                "set has the field"
            )
        inputs.pop(INDEX_FIELD, None)
        return inputs
    if inputs.get("attention_mask") is not None:
        raise ValueError(
            f"a batch must have {INDEX_FIELD} or attention_mask, not both: write what the second "
            "one hides into the indices (padding column j holds j)"
        )
    if flash_mask:
        _check_positions(inputs)
    indices = narrowed(INDEX_FIELD, inputs.pop(INDEX_FIELD))
    indices = _in_form(indices, inputs)
    inputs["attention_mask"] = indices if flash_mask else _dense(indices)
    return inputs


def _check_positions(inputs: Mapping[str, Any]) -> None:
    if inputs.get("position_ids") is None:
        raise ValueError(
            "flash_mask=True needs position_ids in the batch, from 0 in each packed sample; "
            f"got {_listed(inputs)}"
        )


def narrowed(name: str, indices: object) -> paddle.Tensor:
    """Return indices as int32; larger int64 numbers, which mean "never", become the largest int32.

    Raises:
        TypeError: they are no tensor of ints.
    """
    if not isinstance(indices, paddle.Tensor):
        raise TypeError(f"{name} must be a paddle.Tensor; got {type(indices).__name__}")
    if indices.dtype not in INT_DTYPES:
        raise TypeError(f"{name} must be int32 or int64; got {indices.dtype}")
    if indices.dtype == paddle.int32:
        return indices
    return indices.clip(-INT32_MAX, INT32_MAX).astype("int32")


def _in_form(indices: paddle.Tensor, inputs: Mapping[str, Any]) -> paddle.Tensor:
    shape = list(indices.shape)
    if len(shape) not in RANKS:
        raise ValueError(f"{INDEX_FIELD} must be [B, S], [B, 1, S] or [B, Hm, S, C]; got {shape}")
    if len(shape) == 2:
        indices = indices.unsqueeze(1)
    if len(indices.shape) == 3:
        indices = indices.unsqueeze(-1)
    tokens = inputs.get("input_ids")
    if tokens is not None and [indices.shape[0], indices.shape[2]] != list(tokens.shape):
        raise ValueError(
            f"{INDEX_FIELD} must have the batch and length of input_ids {list(tokens.shape)}; "
            f"got shape {shape}"
        )
    return indices


def _dense(indices: paddle.Tensor) -> paddle.Tensor:
    if indices.shape[1] != 1:
        raise ValueError(
            f"{INDEX_FIELD} must have one mask head with flash_mask=False, since PaddleNLP's dense "
            f"mask has one; got {indices.shape[1]}"
        )
    causal = indices.shape[-1] != NON_CAUSAL_WIDTH
    numbers = np.asarray(indices.numpy())
    mask = to_dense(numbers, causal=causal, seqlen_q=indices.shape[2])
    return paddle.to_tensor(mask, place=indices.place)


def _listed(inputs: Mapping[str, Any]) -> str:
    return ", ".join(sorted(inputs)) or "nothing"
