"""What a model hands to attention, brought to what the operator takes: indices, causal, a window.

PaddleFormers 1.2 hands over `attn_mask_startend_row_indices`, [B, Hm, S, C] or, for C = 1,
[B, Hm, S], read with causal if C is 1, without if C is 4, and for C = 2 as `is_causal` says
(default: with); or `attention_mask`, dense; or neither, for plain causal attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import paddle

from paddle_flashmask import indices
from paddle_flashmask.integrations.paddleformers.foreign import FIELD

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MaskFields", "column_mask_of_dense", "mask_fields", "narrowed_by_window"]

FIELD_RANK = 4
CAUSAL_OF_WIDTH = {1: True, 2: None, 4: False}  # None: as is_causal says
# Additive masks hide with a large negative number: -1e6 here, the dtype's least, or -inf.
HIDDEN_BELOW = -1e4


class MaskFields(NamedTuple):
    """The mask of one call.

    Attributes:
        startend_row_indices: [B, Hm, Sk, C], int32, or None.
        causal: the flag they are read with.
    """

    startend_row_indices: paddle.Tensor | None
    causal: bool


def mask_fields(
    startend_row_indices: paddle.Tensor | None,
    attention_mask: paddle.Tensor | None,
    is_causal: bool | None,
    *,
    default_causal: bool,
    seqlen_q: int,
) -> MaskFields:
    """Return the mask of a call.

    Args:
        startend_row_indices: [B, Hm, Sk, C] or [B, Hm, Sk], int32 or int64, or None.
        attention_mask: [B, 1|H, 1|Sq, Sk], bool or 0 and a large negative number, or [B, Sk] with
            0 at keys that nobody sees; or None.
        is_causal: what the model says; None if it says nothing.
        default_causal: what holds then, and with no mask at all.
        seqlen_q: number of query rows, Sq.

    Raises:
        TypeError: a mask is not of the kinds above.
        ValueError: both masks came, a shape breaks a rule, `is_causal` contradicts the width, or no
            indices say the dense mask.
    """
    causal = default_causal if is_causal is None else bool(is_causal)
    if startend_row_indices is not None and attention_mask is not None:
        raise ValueError(
            f"attention_mask and {FIELD} must not both reach attention, as one would be dropped; "
            f"got shapes {list(attention_mask.shape)} and {list(startend_row_indices.shape)}"
        )
    if attention_mask is not None:
        return column_mask_of_dense(attention_mask, causal=causal, seqlen_q=seqlen_q)
    if startend_row_indices is None:
        return MaskFields(None, causal)
    field = _with_four_axes(startend_row_indices)
    return MaskFields(_as_int32(field, seqlen_q), _causal_of(field, is_causal))


def _with_four_axes(field: paddle.Tensor) -> paddle.Tensor:
    if field.ndim == FIELD_RANK - 1:
        return field.unsqueeze(-1)
    if field.ndim != FIELD_RANK:
        raise ValueError(
            f"{FIELD} must be [batch, mask heads, seqlen] or [batch, mask heads, seqlen, 1|2|4]; "
            f"got shape {list(field.shape)}"
        )
    return field


def _causal_of(field: paddle.Tensor, is_causal: bool | None) -> bool:
    width = field.shape[-1]
    if width not in CAUSAL_OF_WIDTH:
        raise ValueError(f"{FIELD} must have last axis 1, 2 or 4; got shape {list(field.shape)}")
    causal = CAUSAL_OF_WIDTH[width]
    if causal is None:
        return True if is_causal is None else bool(is_causal)
    if is_causal is not None and bool(is_causal) != causal:
        raise ValueError(
            f"is_causal must be {causal} or None with {width} numbers per column of {FIELD}; "
            f"got {is_causal}"
        )
    return causal


def _as_int32(field: paddle.Tensor, seqlen_q: int) -> paddle.Tensor:
    """Cast int64 without changing what is meant: numbers count as if clipped to [0, Sq]."""
    if field.dtype == paddle.int64:
        return field.clip(0, seqlen_q).astype("int32")
    return field  # the operator refuses anything else, naming it


def column_mask_of_dense(mask: paddle.Tensor, *, causal: bool, seqlen_q: int) -> MaskFields:
    """Return the indices that say exactly what a dense mask says. O(Sq * Sk), on the host.

    Args:
        mask: [B, 1|H, Sq, Sk], complete (the triangle included), or with one row that holds for
            all; or [B, Sk], keys alone.
        causal: whether the triangle is to be added to a mask of keys.
        seqlen_q: number of query rows, Sq.

    Raises:
        TypeError: a mask of another kind.
        ValueError: its rank or number of rows is another, it holds biases, or no two intervals per
            column say it.
        NotImplementedError: in a static graph, where its values are not known.
    """
    if not paddle.in_dynamic_mode():
        raise NotImplementedError(
            f"attention_mask is not supported in a static graph, only {FIELD}; "
            f"got shape {list(mask.shape)}"
        )
    if mask.ndim == 2:
        return _of_keys(mask, causal=causal, seqlen_q=seqlen_q)
    if mask.ndim != FIELD_RANK:
        raise ValueError(
            "attention_mask must be [batch, seqlen_k] or [batch, 1|heads, 1|seqlen_q, seqlen_k]; "
            f"got shape {list(mask.shape)}"
        )
    if mask.shape[2] not in (1, seqlen_q):
        raise ValueError(
            f"attention_mask must have a row for each of {seqlen_q} query rows, or one for all; "
            f"got shape {list(mask.shape)}"
        )
    visible = _visible(mask)
    visible = np.broadcast_to(visible, (*visible.shape[:2], seqlen_q, visible.shape[3]))
    try:
        found = indices.from_dense(visible, collapse=True)
    except ValueError as error:
        raise ValueError(
            f"attention_mask cannot be said in two intervals per key column: {error}"
        ) from error
    given = paddle.to_tensor(found.startend_row_indices, place=mask.place)
    return MaskFields(given, found.causal)


def _of_keys(mask: paddle.Tensor, *, causal: bool, seqlen_q: int) -> MaskFields:
    """Return indices that hide whole columns; a column that is seen starts to be hidden at Sq."""
    is_seen = paddle.to_tensor(_visible(mask), place=mask.place)
    starts = is_seen.astype("int32") * seqlen_q
    if causal:
        return MaskFields(starts[:, None, :, None], causal)
    columns = paddle.stack([starts, paddle.zeros_like(starts)], axis=-1)
    return MaskFields(columns[:, None], causal)


def _visible(mask: paddle.Tensor) -> NDArray[np.bool_]:
    if mask.dtype in (paddle.float32, paddle.float16, paddle.bfloat16, paddle.float64):
        numbers = mask.astype("float32").numpy()
        if mask.ndim == 2:
            seen, hidden, rule = numbers == 1, numbers == 0, "1 (seen) or 0"
        else:
            seen, hidden = numbers == 0, numbers <= HIDDEN_BELOW
            rule = f"0 (seen) or at most {HIDDEN_BELOW:.0f}"
    elif mask.dtype in (paddle.bool, paddle.int32, paddle.int64):
        numbers = mask.numpy()
        seen, hidden, rule = numbers == 1, numbers == 0, "1 (seen) or 0"
    else:
        raise TypeError(f"attention_mask must be bool, integers or floats; got {mask.dtype}")
    wrong = numbers[~(seen | hidden)]
    if wrong.size:
        raise ValueError(f"attention_mask must hold {rule} and no biases; got {wrong[0]}")
    return np.asarray(seen, np.bool_)


def narrowed_by_window(
    fields: MaskFields, window: int, *, seqlen_q: int, seqlen_k: int, on_host: bool = False
) -> MaskFields:
    """Return the mask with all keys hidden that lie `window` tokens or more from a row.

    Behind it, and, where attention is not causal, ahead of it, as without a mask. A mask that is
    narrowed already stays as it is.

    Args:
        fields: indices of any form on the host, elsewhere causal with one number per column.
        window: tokens that a row sees, itself included.
        seqlen_q: number of query rows, Sq.
        seqlen_k: number of keys, Sk.
        on_host: whether the values are at hand.

    Raises:
        NotImplementedError: the mask has another form.
    """
    given = fields.startend_row_indices
    assert given is not None
    is_simple = fields.causal and given.shape[-1] == 1
    if not is_simple and not on_host:
        raise NotImplementedError(
            f"a sliding window is supported with one number per column of {FIELD} and causal "
            f"attention only; got shape {list(given.shape)}, causal={fields.causal}"
        )
    window = min(window, seqlen_q + seqlen_k)  # all keys; a larger sum would leave int32
    columns = paddle.arange(seqlen_k, dtype="int32") + (window - (seqlen_k - seqlen_q))
    ends = columns.clip(0, seqlen_q).reshape([1, 1, seqlen_k, 1])
    if is_simple:
        return MaskFields(paddle.minimum(given, ends), fields.causal)
    ahead = (columns - (2 * window - 1)).clip(0, 0 if fields.causal else seqlen_q)
    rows = np.concatenate([ends.numpy(), ahead.reshape(ends.shape).numpy()], axis=-1)
    both = indices.intersect(
        indices.ColumnMask(given.numpy(), fields.causal),
        indices.ColumnMask(rows, False),
        seqlen_q=seqlen_q,
    )
    narrowed = paddle.to_tensor(both.startend_row_indices, place=given.place)
    return MaskFields(narrowed, both.causal)
