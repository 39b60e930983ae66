"""The kernels on torch CUDA tensors, through the C door (custom_ops/capi) and without Paddle.

Build the library with tools/build_capi.sh. FLASHMASK_CAPI names it, or it is
build/libflashmask_c.so.
"""

from __future__ import annotations

import ctypes
import math
import os
from functools import cache
from pathlib import Path

import torch

NO_WINDOW = (-1, -1)
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
DEFAULT_LIBRARY = Path(__file__).resolve().parent.parent / "build" / "libflashmask_c.so"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "seqlen_q", "seqlen_k", "num_heads")),
        *((name, ctypes.c_int64) for name in ("num_heads_k", "num_heads_mask", "head_dim")),
        ("dtype", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("softmax_scale", ctypes.c_float),
        ("causal", ctypes.c_int32),
        ("index_width", ctypes.c_int32),
        ("deterministic", ctypes.c_int32),
        ("startend_row_indices", ctypes.c_void_p),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        *((name, _Tensor) for name in ("query", "key", "value", "out")),
        ("softmax_lse", ctypes.c_void_p),
        ("grad_out", _Tensor),
        ("grad_softmax_lse", ctypes.c_void_p),
        *((name, _Tensor) for name in ("grad_query", "grad_key", "grad_value")),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("num_threads", ctypes.c_int32),
    )


@cache
def library() -> ctypes.CDLL:
    """Return the loaded library."""
    path = os.environ.get("FLASHMASK_CAPI", str(DEFAULT_LIBRARY))
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {path}; build it with tools/build_capi.sh")
    loaded = ctypes.CDLL(path)
    for name in ("forward", "backward", "forward_workspace", "backward_workspace"):
        getattr(loaded, f"flashmask_{name}").restype = ctypes.c_char_p
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
        out: where to write out; None: new memory. Any strides, last axis contiguous.
        softmax_lse: likewise, contiguous.
        workspace: `workspace_bytes` of uint8 to work in, 256-byte aligned; None: new memory.
    """
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if softmax_lse is None:
        shape = (q.shape[0], q.shape[2], q.shape[1])
        softmax_lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    call = _call(
        q, k, v, out, softmax_lse, startend_row_indices, causal, softmax_scale, deterministic
    )
    call.window_left, call.window_right = window
    _run("forward", call, q.device, workspace)
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

    They are written to `grads` (any strides, last axis contiguous), or to new memory; `workspace`
    as in the forward.
    """
    if grads is None:
        grads = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    call = _call(
        q, k, v, out, softmax_lse, startend_row_indices, causal, softmax_scale, deterministic
    )
    if grad_out is not None:
        call.grad_out = _tensor("grad_out", grad_out)
    if grad_softmax_lse is not None:
        grad_softmax_lse = grad_softmax_lse.contiguous()
        call.grad_softmax_lse = grad_softmax_lse.data_ptr()
    call.grad_query, call.grad_key, call.grad_value = (
        _tensor(name, x) for name, x in zip(("dq", "dk", "dv"), grads, strict=True)
    )
    call.window_left, call.window_right = window
    _run("backward", call, q.device, workspace)
    return grads


def workspace_bytes(
    name: str,
    q: torch.Tensor,
    k: torch.Tensor,
    startend_row_indices: torch.Tensor | None,
    causal: bool,
    deterministic: bool = False,
) -> int:
    """Return how much memory a call of `name`, forward or backward, works in."""
    lse = torch.empty(0, dtype=torch.float32, device=q.device)
    call = _call(q, k, k, q, lse, startend_row_indices, causal, None, deterministic)
    return _workspace_bytes(name, call)


def _tensor(name: str, tensor: torch.Tensor) -> _Tensor:
    if tensor.dim() != 4 or (tensor.stride(3) != 1 and tensor.shape[3] > 1 and tensor.numel() > 0):
        raise ValueError(
            f"{name} must have 4 axes, the last contiguous; got shape {list(tensor.shape)}, "
            f"strides {list(tensor.stride())}"
        )
    return _Tensor(tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2))


def _call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    indices: torch.Tensor | None,
    causal: bool,
    softmax_scale: float | None,
    deterministic: bool,
) -> _Call:
    tensors = [("q", q), ("k", k), ("v", v), ("out", out), ("softmax_lse", lse)]
    tensors += [] if indices is None else [("startend_row_indices", indices)]
    for name, tensor in tensors:
        if tensor.device != q.device:
            raise ValueError(f"{name} must be on {q.device} as q is; got {tensor.device}")
    if k.dtype != q.dtype or v.dtype != q.dtype or q.dtype not in DTYPES:
        raise TypeError(
            f"q, k and v must have one dtype of {list(DTYPES)}; got {q.dtype}, {k.dtype}, {v.dtype}"
        )
    call = _Call()
    call.batch, call.seqlen_q, call.num_heads, call.head_dim = q.shape
    call.seqlen_k, call.num_heads_k = k.shape[1], k.shape[2]
    call.num_heads_mask = 1
    call.dtype = DTYPES[q.dtype]
    call.device = q.device.index if q.is_cuda else -1
    call.softmax_scale = 1.0 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale
    call.causal = int(causal)
    call.deterministic = int(deterministic)
    call.window_left = call.window_right = -1
    if indices is not None:
        if indices.dtype != torch.int32 or indices.dim() != 4 or not indices.is_contiguous():
            raise ValueError("startend_row_indices must be contiguous int32 [B, heads, Sk, width]")
        if indices.shape[0] != q.shape[0] or indices.shape[2] != k.shape[1]:
            raise ValueError(
                f"startend_row_indices must be [{q.shape[0]}, heads, {k.shape[1]}, width]; "
                f"got {list(indices.shape)}"
            )
        call.num_heads_mask, call.index_width = indices.shape[1], indices.shape[3]
        call.startend_row_indices = indices.data_ptr()
    call.query, call.key, call.value, call.out = (_tensor(n, x) for n, x in tensors[:4])
    call.softmax_lse = lse.data_ptr()
    call.num_threads = torch.get_num_threads()
    return call


def _workspace_bytes(name: str, call: _Call) -> int:
    size = ctypes.c_int64()
    ask = getattr(library(), f"flashmask_{name}_workspace")
    _check(ask(ctypes.byref(call), ctypes.byref(size)))
    return size.value


def _run(name: str, call: _Call, device: torch.device, workspace: torch.Tensor | None) -> None:
    size = _workspace_bytes(name, call)
    if workspace is None:
        # Freed memory is reused in stream order, so the workspace may go when this returns.
        workspace = torch.empty(max(1, size), dtype=torch.uint8, device=device)
    elif workspace.numel() * workspace.element_size() < size:
        raise ValueError(f"workspace must have {size} bytes; got {list(workspace.shape)}")
    call.workspace = workspace.data_ptr()
    if device.type == "cuda":
        call.stream = torch.cuda.current_stream(device).cuda_stream
    _check(getattr(library(), f"flashmask_{name}")(ctypes.byref(call)))


def _check(message: bytes | None) -> None:
    if message is not None:
        raise RuntimeError(f"flashmask: {message.decode()}")
