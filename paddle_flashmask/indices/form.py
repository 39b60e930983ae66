"""The form of a mask: its shape, dtype and flag, and the rules they keep."""

from __future__ import annotations

from reprlib import repr as short
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

CAUSAL_WIDTHS = (1, 2)
NON_CAUSAL_WIDTHS = (2, 4)
INT32_MAX = 2**31 - 1


class ColumnMask(NamedTuple):
    """A mask as `flashmask_attention` takes it: `flashmask_attention(q, k, v, *mask)`.

    Attributes:
        startend_row_indices: [B, Hm, Sk, C], int32, masked row bounds of each key column.
        causal: whether the rows above the (bottom-right aligned) diagonal are masked as well.
    """

    startend_row_indices: Int32Array
    causal: bool


def check_form(
    shape: tuple[int, ...],
    dtype: str,
    *,
    causal: bool,
    batch: int | None = None,
    num_heads: int | None = None,
    num_heads_k: int | None = None,
    seqlen_k: int | None = None,
) -> None:
    """Check shape and dtype of `startend_row_indices`; sizes left None or unknown (-1) are free.

    Args:
        shape: its shape; -1 stands for an axis not known yet (static graphs).
        dtype: its dtype by name, without a module: "int32".
        causal: the flag the indices are to be read with.
        batch: batch size of query and key.
        num_heads: number of query heads, Hq.
        num_heads_k: number of key heads, Hk.
        seqlen_k: number of keys, Sk.

    Raises:
        TypeError: the dtype is not int32, or causal is not a bool.
        ValueError: rank, batch, heads, length or width break a rule.
    """
    name = "startend_row_indices"
    if not isinstance(causal, (bool, np.bool_)):
        raise TypeError(f"causal must be a bool; got {type(causal).__name__} {short(causal)}")
    if dtype != "int32":
        raise TypeError(f"{name} must be int32; got {dtype}. Cast it, e.g. {name}.astype('int32')")
    if len(shape) != 4:
        raise ValueError(
            f"{name} must have 4 axes [batch, mask heads, seqlen_k, 1|2|4]; got shape {list(shape)}"
        )
    widths = CAUSAL_WIDTHS if causal else NON_CAUSAL_WIDTHS
    if shape[3] != -1 and shape[3] not in widths:
        is_of_other = shape[3] in (*CAUSAL_WIDTHS, *NON_CAUSAL_WIDTHS)
        hint = f"; is causal={not causal} meant?" if is_of_other else ""
        raise ValueError(
            f"{name} must have last axis {widths[0]} or {widths[1]} with causal={bool(causal)}; "
            f"got {shape[3]} in shape {list(shape)}{hint}"
        )
    if not _same(shape[0], batch):
        raise ValueError(
            f"{name} must have the batch of query and key, {batch}; "
            f"got {shape[0]} in shape {list(shape)} (the batch is not broadcast)"
        )
    if num_heads is not None and num_heads_k is not None:
        allowed = {1, num_heads, num_heads_k, -1}
        if shape[1] not in allowed and -1 not in (num_heads, num_heads_k):
            told = {1: "1", num_heads_k: f"{num_heads_k} (key heads)"}
            told[num_heads] = f"{num_heads} (query heads)"
            *others, last = told.values()
            choices = f"{', '.join(others)} or {last}" if others else last
            raise ValueError(
                f"{name} must have {choices} mask heads; got {shape[1]} in shape {list(shape)}"
            )
    elif shape[1] == 0:
        raise ValueError(f"{name} must have at least 1 mask head; got shape {list(shape)}")
    if not _same(shape[2], seqlen_k):
        raise ValueError(
            f"{name} must have one column per key, {seqlen_k} (key is [batch, seqlen, heads, "
            f"head_dim]); got {shape[2]} in shape {list(shape)}"
        )


def check(
    startend_row_indices: Int32Array,
    *,
    causal: bool,
    batch: int | None = None,
    num_heads: int | None = None,
    num_heads_k: int | None = None,
    seqlen_k: int | None = None,
) -> None:
    """Check that an array has the form of `startend_row_indices`; see `check_form`.

    Raises:
        TypeError: it is not a numpy array, or not int32.
        ValueError: rank, batch, heads, length or width break a rule.
    """
    if not isinstance(startend_row_indices, np.ndarray):
        kind = type(startend_row_indices).__name__
        raise TypeError(f"startend_row_indices must be a numpy array; got {kind}")
    check_form(
        startend_row_indices.shape,
        str(startend_row_indices.dtype),
        causal=causal,
        batch=batch,
        num_heads=num_heads,
        num_heads_k=num_heads_k,
        seqlen_k=seqlen_k,
    )


def is_int(value: object) -> TypeGuard[int | np.integer]:
    """Tell whether a value is a Python or numpy integer; bools are not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_seqlen_q(seqlen_q: int) -> int:
    """Return a number of query rows as a Python int, which does not overflow.

    Args:
        seqlen_q: number of query rows, Sq.

    Raises:
        TypeError: it is not an int.
        ValueError: it is negative or does not fit int32.
    """
    if not is_int(seqlen_q):
        raise TypeError(f"seqlen_q must be an int; got {type(seqlen_q).__name__} {short(seqlen_q)}")
    if not 0 <= seqlen_q <= INT32_MAX:
        raise ValueError(f"seqlen_q must be in [0, {INT32_MAX}]; got {seqlen_q}")
    return int(seqlen_q)


def _same(size: int, wanted: int | None) -> bool:
    return wanted is None or -1 in (size, wanted) or size == wanted
