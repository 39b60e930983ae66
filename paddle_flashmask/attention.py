"""The public operator: argument rules in plain words, defaults, and one call of the library."""

from __future__ import annotations

import math
import numbers
from typing import TypeGuard

import numpy as np
import paddle

from paddle_flashmask import _ops, indices

NO_WINDOW = -1
MAX_HEAD_DIM = 256
HEAD_DIM_MULTIPLE = 8
LONGEST_SHOWN = 60  # characters of a wrong argument in a message
FLOAT32_MAX = float(np.finfo(np.float32).max)
DTYPES = ("float32", "float16", "bfloat16")
AXES = "[batch, seqlen, heads, head_dim]"
# Names under which Paddle's amp lists know this kind of operator.
AMP_NAMES = frozenset({"flashmask_attention", "flash_attn", _ops.OP_NAME})


@paddle.jit.not_to_static
def flashmask_attention(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    startend_row_indices: paddle.Tensor | np.ndarray | None = None,
    causal: bool = False,
    *,
    dropout: float = 0.0,
    window_size: int | tuple[int, int] | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    fixed_seed_offset: paddle.Tensor | None = None,
    rng_name: str = "",
    training: bool = True,
    name: str | None = None,
    softmax_scale: float | None = None,
    block_mask: paddle.Tensor | None = None,
) -> paddle.Tensor | list[paddle.Tensor]:
    """Return attention under a mask written as masked row intervals per key column.

    out[i] = sum over the keys j that row i sees of softmax(softmax_scale * q_i . k_j) * v_j. With
    causal, row i sees key j only if j <= i + Sk - Sq (bottom-right aligned). A row that sees
    nothing gives out 0, lse -inf and zero gradients. Query head h uses key head h // (Hq / Hk) and
    mask head h // (Hq / Hm). Semantics of `paddle.nn.functional.flashmask_attention` (Paddle 3.3)
    where its versions agree; see README.md for where they do not.

    Args:
        query: [B, Sq, Hq, D], float32, float16 or bfloat16; D a multiple of 8 up to 256.
        key: [B, Sk, Hk, D], dtype of query; Hq a multiple of Hk.
        value: [B, Sk, Hk, D], dtype of query.
        startend_row_indices: [B, 1|Hk|Hq, Sk, C], int32; half-open intervals of masked rows,
            signed, as if clipped to [0, Sq]. With causal C = 1 (lower start) or 2 (lower start,
            lower end); without C = 2 (lower start, upper end) or 4 (lower start, lower end, upper
            start, upper end). None masks nothing but what causal and window_size do.
        causal: whether rows above the diagonal are masked too; may be passed by position, so
            that `flashmask_attention(q, k, v, *mask)` takes a recipe's result.
        dropout: probability; only 0 is supported while training.
        window_size: w or (left, right), not negative, in keys besides the diagonal one: row i sees
            keys i + Sk - Sq - left to i + Sk - Sq + right (with causal to the diagonal). Not
            together with startend_row_indices.
        return_softmax_lse: whether to return the logarithm of the softmax denominators too.
        return_seed_offset: only False is supported (there is no dropout).
        fixed_seed_offset: only None is supported.
        rng_name: only "" is supported.
        training: False turns dropout off.
        name: only None is supported.
        softmax_scale: finite factor of the scores; None: 1 / sqrt(D).
        block_mask: only None is supported.

    Returns:
        out: [B, Sq, Hq, D], dtype of query (under auto_cast the amp dtype). With
        return_softmax_lse a list [out, softmax_lse], softmax_lse [B, Hq, Sq] float32, natural log.

    Raises:
        TypeError: an argument is of the wrong kind or dtype.
        ValueError: a shape or value breaks a rule above.
        NotImplementedError: a value upstream knows but this operator does not support.

    Example:
        >>> import paddle
        >>> q = k = v = paddle.ones([1, 3, 1, 8])
        >>> documents = paddle.to_tensor([[[[2], [2], [3]]]], dtype="int32")
        >>> list(flashmask_attention(q, k, v, documents, causal=True).shape)
        [1, 3, 1, 8]
    """
    _check_supported(
        dropout=dropout,
        training=training,
        return_seed_offset=return_seed_offset,
        fixed_seed_offset=fixed_seed_offset,
        rng_name=rng_name,
        name=name,
        block_mask=block_mask,
    )
    _check_flag("causal", causal)
    _check_flag("return_softmax_lse", return_softmax_lse)
    for tensor_name, tensor in (("query", query), ("key", key), ("value", value)):
        _check_tensor(tensor_name, tensor)
    query, key, value = _auto_cast(query, key, value)
    _check_dtypes(query, key, value)
    _check_shapes(query, key, value)
    startend_row_indices = _checked_indices(startend_row_indices, query, key, causal=causal)
    _check_places(query=query, key=key, value=value, startend_row_indices=startend_row_indices)
    window_left, window_right = _window(window_size, startend_row_indices)
    if not paddle.is_grad_enabled():
        # A custom operator records its inputs even under no_grad, unless they want no gradient.
        query, key, value = query.detach(), key.detach(), value.detach()
    out, softmax_lse = _ops.run(
        query,
        key,
        value,
        startend_row_indices,
        softmax_scale=_scale(softmax_scale, query.shape[3]),
        causal=bool(causal),
        window_left=window_left,
        window_right=window_right,
    )
    return [out, softmax_lse] if return_softmax_lse else out


def _check_supported(
    *,
    dropout: object,
    training: object,
    return_seed_offset: object,
    fixed_seed_offset: object,
    rng_name: object,
    name: object,
    block_mask: object,
) -> None:
    _check_flag("training", training)
    _check_flag("return_seed_offset", return_seed_offset)
    dropout = _number("dropout", dropout)
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout must be in [0, 1]; got {dropout}")
    if dropout > 0.0 and training:
        raise NotImplementedError(
            f"dropout while training is not supported, only dropout=0.0 (or training=False); "
            f"got {dropout}"
        )
    if return_seed_offset:
        raise NotImplementedError(
            "return_seed_offset is not supported, only False: there is no dropout, so no seed"
        )
    if not isinstance(rng_name, str):
        raise TypeError(f"rng_name must be a str; got {type(rng_name).__name__} {rng_name!r}")
    for argument, given, supported in (
        ("fixed_seed_offset", fixed_seed_offset, None),
        ("rng_name", rng_name, ""),
        ("name", name, None),
        ("block_mask", block_mask, None),
    ):
        if given is not supported and not (isinstance(given, str) and given == supported):
            raise NotImplementedError(
                f"{argument} is not supported, only {supported!r}; got {_describe(given)}"
            )


def _describe(value: object) -> str:
    if isinstance(value, paddle.Tensor) or _is_tensor(value):
        return f"a Tensor of shape {list(value.shape)}"
    text = repr(value)
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return f"{type(value).__name__} {shown}"


def _check_flag(argument: str, value: object) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{argument} must be a bool; got {_describe(value)}")


def _number(argument: str, value: object) -> float:
    """Return a float that float32, in which operators take attributes, can hold."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{argument} must be a float; got {_describe(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{argument} must be finite in float32; got a larger integer") from None
    if not abs(number) <= FLOAT32_MAX:
        raise ValueError(f"{argument} must be finite in float32; got {number}")
    return number


def _is_tensor(value: object) -> TypeGuard[paddle.Tensor]:
    # A static graph has values of its own, with the same attributes. A program built by hand
    # ends the process if an operator gets any other; to_static takes eager tensors in. Sparse and
    # distributed tensors are Tensors too, but not what an operator can read.
    if isinstance(value, paddle.Tensor):
        takes_tensors = paddle.in_dynamic_mode() or paddle.base.dygraph.base.in_to_static_mode()
        return takes_tensors and bool(value.is_dense())
    is_value = isinstance(value, paddle.base.libpaddle.pir.Value)
    return is_value and not paddle.in_dynamic_mode()


def _check_tensor(argument: str, value: object) -> None:
    if not _is_tensor(value):
        came = _odd_tensor(value) or f"{type(value).__module__}.{type(value).__name__}"
        raise TypeError(f"{argument} must be a dense paddle.Tensor {AXES}; got {came}")


def _odd_tensor(value: object) -> str | None:
    """Return what kind of tensor it is that no operator can read here; None if it is none."""
    if isinstance(value, paddle.Tensor):
        return "a sparse one" if not value.is_dense() else "an eager one in a static graph"
    if isinstance(value, paddle.base.libpaddle.pir.Value):
        return "a value of a static graph outside of it"
    if isinstance(value, paddle.static.Variable):
        return "a paddle.static.Variable, of programs as FLAGS_enable_pir_api=0 makes them"
    return None


def _dtype_name(tensor: paddle.Tensor) -> str:
    return str(tensor.dtype).rsplit(".", maxsplit=1)[-1]


def _auto_cast(*tensors: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
    """Cast floating tensors as auto_cast does for Paddle's own flash operator (white list)."""
    dtype = _autocast_dtype()
    if dtype is None:
        return tensors
    if AMP_NAMES & _amp_black_list():
        dtype = "float32"
    return tuple(
        tensor.astype(dtype) if _dtype_name(tensor) in DTYPES else tensor  # type: ignore[arg-type]
        for tensor in tensors
    )


def _autocast_dtype() -> str | None:
    """Return the dtype of the surrounding auto_cast, None outside of one."""
    if hasattr(paddle, "is_autocast_enabled"):
        return paddle.get_autocast_dtype() if paddle.is_autocast_enabled() else None
    tracer = paddle.base.framework._dygraph_tracer()  # Paddle 2.6
    return None if tracer._amp_level == paddle.base.core.AmpLevel.O0 else tracer._amp_dtype


def _amp_black_list() -> frozenset[str]:
    if paddle.in_dynamic_mode():
        return frozenset(paddle.base.framework._dygraph_tracer()._get_amp_op_list()[1])
    return frozenset(paddle.base.core._get_amp_op_list()[1])  # type: ignore[attr-defined]


def _check_dtypes(query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor) -> None:
    names = [_dtype_name(tensor) for tensor in (query, key, value)]
    if len(set(names)) > 1:
        raise TypeError(
            f"query, key and value must have one dtype; got {names[0]}, {names[1]} and {names[2]}"
        )
    if names[0] not in DTYPES:
        raise TypeError(f"query must be one of {', '.join(DTYPES)}; got {names[0]}")


def _check_shapes(query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor) -> None:
    for argument, tensor in (("query", query), ("key", key), ("value", value)):
        if len(tensor.shape) != len(query.shape) or len(tensor.shape) != 4:
            raise ValueError(f"{argument} must have 4 axes {AXES}; got shape {list(tensor.shape)}")
    shapes = f"got query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if not _agree(query.shape[0], key.shape[0], value.shape[0]):
        raise ValueError(f"query, key and value must have one batch size; {shapes}")
    if not _agree(key.shape[1], value.shape[1]):
        raise ValueError(f"key and value must have one length; {shapes}")
    if not _agree(key.shape[2], value.shape[2]):
        raise ValueError(f"key and value must have as many heads; {shapes}")
    _check_heads(query.shape[2], key.shape[2], shapes)
    if not _agree(query.shape[3], key.shape[3]):
        raise ValueError(f"query and key must have one head_dim; {shapes}")
    if not _agree(key.shape[3], value.shape[3]):
        raise NotImplementedError(
            f"a value head_dim other than that of query and key is not supported; {shapes}"
        )
    _check_head_dim(query.shape[3], shapes)


def _agree(*sizes: int) -> bool:
    """Whether sizes are equal, as far as they are known (-1 in a static graph is not)."""
    return len({size for size in sizes if size != -1}) <= 1


def _check_heads(num_heads: int, num_heads_k: int, shapes: str) -> None:
    if -1 in (num_heads, num_heads_k):
        raise ValueError(f"the numbers of heads must be known in a static graph; {shapes}")
    if num_heads_k == 0 or num_heads == 0 or num_heads % num_heads_k != 0:
        raise ValueError(
            f"the heads of query must be a multiple of those of key, both at least 1; {shapes}"
        )


def _check_head_dim(head_dim: int, shapes: str) -> None:
    if head_dim == -1:
        raise ValueError(f"head_dim must be known in a static graph; {shapes}")
    if not 0 < head_dim <= MAX_HEAD_DIM or head_dim % HEAD_DIM_MULTIPLE != 0:
        raise ValueError(
            f"head_dim must be a multiple of {HEAD_DIM_MULTIPLE} from {HEAD_DIM_MULTIPLE} to "
            f"{MAX_HEAD_DIM}; {shapes}"
        )


def _checked_indices(
    startend_row_indices: object, query: paddle.Tensor, key: paddle.Tensor, *, causal: bool
) -> paddle.Tensor | None:
    if startend_row_indices is None:
        return None
    if isinstance(startend_row_indices, indices.ColumnMask):
        raise TypeError(
            "startend_row_indices must be a Tensor or a numpy array; got a ColumnMask: "
            "write flashmask_attention(query, key, value, *mask)"
        )
    if isinstance(startend_row_indices, np.ndarray):
        dtype = str(startend_row_indices.dtype)
    elif _is_tensor(startend_row_indices):
        dtype = _dtype_name(startend_row_indices)
    else:
        raise TypeError(
            f"startend_row_indices must be a dense paddle.Tensor or a numpy array; "
            f"got {_odd_tensor(startend_row_indices) or _describe(startend_row_indices)}"
        )
    indices.check_form(
        tuple(startend_row_indices.shape),
        dtype,
        causal=causal,
        batch=query.shape[0],
        num_heads=query.shape[2],
        num_heads_k=key.shape[2],
        seqlen_k=key.shape[1],
    )
    if isinstance(startend_row_indices, np.ndarray):
        place = query.place if paddle.in_dynamic_mode() else None
        return paddle.to_tensor(startend_row_indices, place=place)
    return startend_row_indices


def _check_places(*, query: paddle.Tensor, **others: paddle.Tensor | None) -> None:
    if not paddle.in_dynamic_mode():
        return  # values of a static graph have no place yet
    place = query.place
    tensors = {name: tensor for name, tensor in others.items() if tensor is not None}
    if all(tensor.place._equals(place) for tensor in tensors.values()):
        return
    places = ", ".join(f"{name} on {tensor.place}" for name, tensor in tensors.items())
    raise ValueError(f"all tensors must be on one device; got query on {place}, {places}")


def _window(window_size: object, startend_row_indices: paddle.Tensor | None) -> tuple[int, int]:
    if window_size is None:
        return NO_WINDOW, NO_WINDOW
    widths = window_size if isinstance(window_size, (tuple, list)) else (window_size, window_size)
    if len(widths) != 2 or not all(
        isinstance(width, (int, np.integer)) and not isinstance(width, bool) for width in widths
    ):
        raise TypeError(
            f"window_size must be an int or a pair (left, right) of ints; "
            f"got {_describe(window_size)}"
        )
    if min(widths) < 0:
        raise ValueError(
            f"window_size must not be negative (None, not -1, means no window); got {window_size!r}"
        )
    if startend_row_indices is not None:
        raise ValueError(
            "window_size must be None when startend_row_indices is given: write the window into "
            f"the indices; got window_size={window_size!r}"
        )
    left, right = (min(int(width), indices.INT32_MAX) for width in widths)
    return left, right


def _scale(softmax_scale: object, head_dim: int) -> float:
    if softmax_scale is None:
        return 1.0 / math.sqrt(head_dim)
    return _number("softmax_scale", softmax_scale)
