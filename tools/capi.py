"""The kernels on torch CUDA tensors, through the C door (custom_ops/capi) and without Paddle.

Build the library with tools/build_capi.sh. FLASHMASK_CAPI names it, or it is
build/libflashmask_c.so.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
from functools import cache
from pathlib import Path

import torch
from capi_layout import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    NO_BACKWARD,
    NO_TENSOR,
    NO_WINDOW,
    PLACE,
    SIZES,
    TENSORS,
)

DTYPES = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
DEFAULT_LIBRARY = Path(__file__).resolve().parent.parent / "build" / "libflashmask_c.so"

WIDTH_LIMIT = 2**63

View = tuple[int, int, int, int]


@cache
def library() -> ctypes.CDLL:
    """Return the loaded library."""
    path = os.environ.get("FLASHMASK_CAPI", str(DEFAULT_LIBRARY))
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {path}; build it with tools/build_capi.sh")
    loaded = ctypes.CDLL(path)
    for name in ("forward", "backward", "forward_workspace", "backward_workspace"):
        function = getattr(loaded, f"flashmask_{name}")
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_char_p]
    for name in ("forward_workspace", "backward_workspace"):
        getattr(loaded, f"flashmask_{name}").argtypes.append(ctypes.POINTER(ctypes.c_int64))
    loaded.flashmask_describe_kernels.restype = ctypes.c_char_p
    return loaded


def info() -> str:
    """Return one line per registered kernel."""
    return library().flashmask_describe_kernels().decode()


def use_kernels(name: str) -> None:
    """Use the GPU kernels of this name only ("sm80", "sm90a"), or, with "auto", the best."""
    choose = library().flashmask_set_gpu_kernels
    choose.restype = ctypes.c_char_p
    _check(choose(name.encode()))
    _workspace_bytes.cache_clear()  # kernels work in different amounts of memory


def limit_shared_memory(size: int | None) -> None:
    """Choose tiles as if a block had `size` bytes of shared memory at most; None: as here."""
    library().flashmask_limit_shared_memory(ctypes.c_int32(2**31 - 1 if size is None else size))


def limit_section_bytes(size: int | None) -> None:
    """Work on heads together as if `size` bytes of the L2 were theirs at most; None: as usual."""
    library().flashmask_limit_section_bytes(ctypes.c_int64(2**63 - 1 if size is None else size))


def want_backward_items(items: int | None) -> None:
    """Share key blocks among items of a backward until there are so many; None: as usual."""
    library().flashmask_want_backward_items(ctypes.c_int32(-1 if items is None else items))
    _workspace_bytes.cache_clear()


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    startend_row_indices: torch.Tensor | None,
    causal: bool,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    *,
    window: tuple[int, int] = NO_WINDOW,
    out: torch.Tensor | None = None,
    softmax_lse: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out [B, Sq, Hq, D] and softmax_lse [B, Hq, Sq] (float32, natural log).

    Args:
        q: [B, Sq, Hq, D], CUDA or CPU, last axis contiguous.
        k: [B, Sk, Hk, D], dtype of q.
        v: [B, Sk, Hk, D], dtype of q.
        startend_row_indices: [B, 1|Hk|Hq, Sk, 1|2|4], int32, contiguous, or None.
        causal: whether rows above the bottom-right diagonal are masked too.
        softmax_scale: factor of the scores; None: 1 / sqrt(D).
        deterministic: the forward always is.
        window: keys that a row sees to the left and right of the diagonal one; -1 for all.
        out: where to write out; None: new memory. Any strides, last axis contiguous, no element
            where another is.
        softmax_lse: likewise, contiguous.
        workspace: `workspace_bytes` of uint8 to work in, contiguous and 256-byte aligned; None: new
            memory.
    """
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    else:
        _require_apart("out", out)
    if softmax_lse is None:
        shape = (q.shape[0], q.shape[2], q.shape[1])
        softmax_lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    sizes = _sizes(q, k, startend_row_indices, causal, softmax_scale, deterministic)
    tensors = _tensors(q, k, v, out, softmax_lse, startend_row_indices, window)
    _run("forward", sizes, TENSORS.pack(*tensors, *NO_BACKWARD), q, workspace)
    return out, softmax_lse


def backward(
    grad_out: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    startend_row_indices: torch.Tensor | None,
    causal: bool,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    grad_softmax_lse: torch.Tensor | None = None,
    *,
    window: tuple[int, int] = NO_WINDOW,
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    workspace: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of q, k and v for those of out and softmax_lse, where given.

    They are written to `grads` (each as `out` of the forward), or to new memory; `workspace` as in
    the forward.
    """
    if grads is None:
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    else:
        dq, dk, dv = grads
        for name, grad, of in (("dq", dq, q), ("dk", dk, k), ("dv", dv, v)):
            _require_alike(name, grad, of)
            _require_apart(name, grad)
    if grad_out is not None:
        _require_alike("grad_out", grad_out, q)
    lse_pointer = 0
    if grad_softmax_lse is not None:
        _require_lse("grad_softmax_lse", grad_softmax_lse, q)
        grad_softmax_lse = grad_softmax_lse.contiguous()  # bound until the call is made
        lse_pointer = grad_softmax_lse.data_ptr()
    sizes = _sizes(q, k, startend_row_indices, causal, softmax_scale, deterministic)
    packed = TENSORS.pack(
        *_tensors(q, k, v, out, softmax_lse, startend_row_indices, window),
        *(NO_TENSOR if grad_out is None else _view("grad_out", grad_out)),
        lse_pointer,
        *_view("dq", dq),
        *_view("dk", dk),
        *_view("dv", dv),
    )
    _run("backward", sizes, packed, q, workspace)
    return dq, dk, dv


def workspace_bytes(
    name: str,
    q: torch.Tensor,
    k: torch.Tensor,
    startend_row_indices: torch.Tensor | None,
    causal: bool,
    *,
    deterministic: bool = False,
) -> int:
    """Return how much memory a call of `name`, forward or backward, works in."""
    return _workspace_bytes(name, _sizes(q, k, startend_row_indices, causal, None, deterministic))


def _require_alike(name: str, tensor: torch.Tensor, of: torch.Tensor) -> None:
    """Raise if a tensor differs in shape, dtype or device from another."""
    wanted = (of.shape, of.dtype, of.get_device())
    if (tensor.shape, tensor.dtype, tensor.get_device()) != wanted:
        raise ValueError(
            f"{name} must be {list(of.shape)}, {of.dtype} on {of.device}; "
            f"got {list(tensor.shape)}, {tensor.dtype} on {tensor.device}"
        )


def _require_apart(name: str, tensor: torch.Tensor) -> None:
    """Raise if elements may share memory, as those of an expanded tensor do."""
    if tensor.is_contiguous():
        return
    reach = 1  # elements from the first to the last, over axes of smaller strides
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < reach:
            raise ValueError(
                f"{name} must have each element in memory of its own; got shape "
                f"{list(tensor.shape)}, strides {list(tensor.stride())}"
            )
        reach += (size - 1) * stride


def _require_lse(name: str, lse: torch.Tensor, q: torch.Tensor) -> None:
    """Raise if what has a number for each row and head of q is not that."""
    batch, seqlen_q, num_heads, _ = q.shape
    wanted = ((batch, num_heads, seqlen_q), torch.float32, q.get_device())
    if (lse.shape, lse.dtype, lse.get_device()) != wanted:
        raise ValueError(
            f"{name} must be {list(wanted[0])}, float32 on {q.device}; "
            f"got {list(lse.shape)}, {lse.dtype} on {lse.device}"
        )


def _require_window(window: tuple[int, int]) -> None:
    """Raise if widths of a window are none, or not what 64 bits hold."""
    if len(window) != 2 or not all(-1 <= width < WIDTH_LIMIT for width in window):
        raise ValueError(f"window must be two widths in [-1, 2^63), -1 for all; got {window}")


def _view(name: str, tensor: torch.Tensor) -> View:
    strides = tensor.stride()
    if len(strides) != 4 or (strides[3] != 1 and tensor.shape[3] > 1 and tensor.numel() > 0):
        raise ValueError(
            f"{name} must have 4 axes, the last contiguous; got shape {list(tensor.shape)}, "
            f"strides {list(strides)}"
        )
    return (tensor.data_ptr(), strides[0], strides[1], strides[2])


def _sizes(
    q: torch.Tensor,
    k: torch.Tensor,
    indices: torch.Tensor | None,
    causal: bool,
    softmax_scale: float | None,
    deterministic: bool,
    *,
    device: int | None = None,
) -> bytes:
    if q.dtype not in DTYPES:
        raise TypeError(f"q, k and v must have one dtype of {list(DTYPES)}; got {q.dtype}")
    batch, seqlen_q, num_heads, head_dim = q.shape
    _, seqlen_k, num_heads_k, _ = k.shape
    num_heads_mask, width = 1, 0
    if indices is not None:
        if indices.dtype != torch.int32 or indices.dim() != 4 or not indices.is_contiguous():
            raise ValueError("startend_row_indices must be contiguous int32 [B, heads, Sk, width]")
        rows, num_heads_mask, columns, width = indices.shape
        if (rows, columns) != (batch, seqlen_k):
            raise ValueError(
                f"startend_row_indices must be [{batch}, heads, {seqlen_k}, width]; "
                f"got {list(indices.shape)}"
            )
    try:
        return SIZES.pack(
            batch,
            seqlen_q,
            seqlen_k,
            num_heads,
            num_heads_k,
            num_heads_mask,
            head_dim,
            DTYPES[q.dtype],
            q.get_device() if device is None else device,  # -1: the CPU
            1.0 / math.sqrt(head_dim) if softmax_scale is None else softmax_scale,
            causal,
            width,
            deterministic,
        )
    except (struct.error, OverflowError) as error:
        raise ValueError(
            "softmax_scale must be a float32, causal and deterministic true or false, the width of "
            f"startend_row_indices 1, 2 or 4; got {softmax_scale=}, {causal=}, {deterministic=}, "
            f"{width=}"
        ) from error


def _tensors(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    indices: torch.Tensor | None,
    window: tuple[int, int],
) -> tuple[int, ...]:
    """Return what TENSORS begins with, up to softmax_lse."""
    device = q.get_device()
    batch, _, _, head_dim = q.shape
    if k.shape != v.shape or (k.shape[0], k.shape[3]) != (batch, head_dim):
        raise ValueError(
            f"k and v must both be [{batch}, Sk, Hk, {head_dim}]; "
            f"got {list(k.shape)} and {list(v.shape)}"
        )
    for name, tensor in (("k", k), ("v", v)):
        if tensor.get_device() != device:
            raise ValueError(f"{name} must be on {q.device} as q is; got {tensor.device}")
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise TypeError(f"q, k and v must have one dtype; got {q.dtype}, {k.dtype}, {v.dtype}")
    _require_alike("out", out, q)
    _require_lse("softmax_lse", lse, q)
    if not lse.is_contiguous():
        raise ValueError(f"softmax_lse must be contiguous; got strides {list(lse.stride())}")
    if window is not NO_WINDOW:
        _require_window(window)
    pointer = 0
    if indices is not None:
        if indices.get_device() != device:
            raise ValueError(
                f"startend_row_indices must be on {q.device} as q is; got {indices.device}"
            )
        pointer = indices.data_ptr()
    return (
        pointer,
        *window,
        *_view("q", q),
        *_view("k", k),
        *_view("v", v),
        *_view("out", out),
        lse.data_ptr(),
    )


@cache
def _workspace_bytes(name: str, sizes: bytes) -> int:
    width = SIZES.unpack(sizes)[-2]
    # It depends on no tensor; what stands for the indices is never read.
    tensors = TENSORS.pack(int(width > 0), *NO_WINDOW, *NO_TENSOR * 4, 0, *NO_BACKWARD)
    size = ctypes.c_int64()
    ask = getattr(library(), f"flashmask_{name}_workspace")
    _check(ask(sizes + tensors + PLACE.pack(0, 0, 0, 1), ctypes.byref(size)))
    return size.value


def _run(
    name: str, sizes: bytes, tensors: bytes, q: torch.Tensor, workspace: torch.Tensor | None
) -> None:
    size = _workspace_bytes(name, sizes)
    if workspace is None:
        # Freed memory is reused in stream order, so the workspace may go when this returns.
        workspace = torch.empty(max(1, size), dtype=torch.uint8, device=q.device)
    elif workspace.numel() * workspace.element_size() < size or not workspace.is_contiguous():
        raise ValueError(
            f"workspace must have {size} bytes and be contiguous; got {list(workspace.shape)}, "
            f"{workspace.dtype}, strides {list(workspace.stride())}"
        )
    elif workspace.get_device() != q.get_device():
        raise ValueError(f"workspace must be on {q.device} as q is; got {workspace.device}")
    stream, threads = 0, 1
    if q.is_cuda:
        # The public way makes an object of Python first, a microsecond.
        stream = torch._C._cuda_getCurrentRawStream(q.get_device())
    else:
        threads = torch.get_num_threads()
    call = sizes + tensors + PLACE.pack(stream, workspace.data_ptr(), workspace.nbytes, threads)
    _check(getattr(library(), f"flashmask_{name}")(call))


def _check(message: bytes | None) -> None:
    if message is not None:
        raise RuntimeError(f"flashmask: {message.decode()}")
