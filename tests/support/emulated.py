"""Calls of the C door on numpy arrays, with the GPU kernels emulated (tests/emulator)."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Iterator

import capi_layout
import numpy as np
from capi_layout import BFLOAT16, FLOAT16, NO_TENSOR, NO_WINDOW
from support.cases import Mask
from support.dense import Results
from support.inputs import Inputs

DEVICE = 0  # the emulated GPU
ALIGNMENT = 256  # bytes, of a workspace
POISONED_BYTE = 0xFF  # NaN in every float dtype
CODES = {"float16": FLOAT16, "bfloat16": BFLOAT16}


class Door:
    """A library of tests/emulator/build.py."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        for name in ("forward", "backward", "forward_workspace", "backward_workspace"):
            getattr(self._library, f"flashmask_{name}").restype = ctypes.c_char_p
        self._library.flashmask_set_gpu_kernels.restype = ctypes.c_char_p
        self._library.flashmask_describe_kernels.restype = ctypes.c_char_p

    def draw_from(self, seed: int) -> None:
        """Draw what happens when anew from this seed."""
        self._library.emulator_draw_from(ctypes.c_uint32(seed))

    def draw(self) -> int:
        """Draw a number as the emulator does; which one tells all that was drawn before."""
        return self._library.emulator_draw()

    def info(self) -> str:
        """Return one line per registered kernel."""
        return self._library.flashmask_describe_kernels().decode()

    @contextlib.contextmanager
    def only_kernels(self, name: str) -> Iterator[None]:
        """Use the GPU kernels of this name only."""
        check(self._library.flashmask_set_gpu_kernels(name.encode()))
        try:
            yield
        finally:
            check(self._library.flashmask_set_gpu_kernels(b"auto"))

    def limit_section_bytes(self, size: int | None) -> None:
        """Work on heads together as if so many bytes of the L2 were theirs; None: as usual."""
        most = 2**63 - 1 if size is None else size
        self._library.flashmask_limit_section_bytes(ctypes.c_int64(most))

    def want_backward_items(self, items: int) -> None:
        """Share key blocks among items of a backward up to so many; 0: never, -1: as usual."""
        self._library.flashmask_want_backward_items(ctypes.c_int32(items))

    def run(
        self,
        inputs: Inputs,
        mask: Mask,
        *,
        dtype: str,
        softmax_scale: float | None = None,
        grads: str = "both",
        deterministic: bool = False,
        forward: Results | None = None,
    ) -> Results:
        """Return what both passes give, results and workspaces poisoned before.

        The backward takes out and lse of `forward`, if that is given, and nothing else runs.
        """
        query, key, value, grad_out = (to_bits(array, dtype) for array in inputs[:4])
        batch, seqlen_q, num_heads, head_dim = query.shape
        indices = None if mask.indices is None else np.ascontiguousarray(mask.indices, np.int32)
        sizes = capi_layout.SIZES.pack(
            batch,
            seqlen_q,
            key.shape[1],
            num_heads,
            key.shape[2],
            1 if indices is None else indices.shape[1],
            head_dim,
            CODES[dtype],
            DEVICE,
            1.0 / math.sqrt(head_dim) if softmax_scale is None else softmax_scale,
            mask.causal,
            0 if indices is None else indices.shape[3],
            deterministic,
        )
        out, lse = poisoned(query.shape, np.uint16), poisoned(inputs.grad_lse.shape, np.float32)
        if forward is not None:
            out, lse = to_bits(forward.out, dtype), np.array(forward.softmax_lse, np.float32)
        gradients = [poisoned(array.shape, np.uint16) for array in (query, key, value)]
        grad_lse = np.array(inputs.grad_lse, np.float32, order="C")
        common = (
            0 if indices is None else indices.ctypes.data,
            *(mask.window_pair or NO_WINDOW),
            *(number for array in (query, key, value, out) for number in view(array)),
            lse.ctypes.data,
        )
        if forward is None:
            self.call("forward", sizes, (*common, *capi_layout.NO_BACKWARD))
        backward = (
            *(NO_TENSOR if grads == "lse" else view(grad_out)),
            0 if grads == "out" else grad_lse.ctypes.data,
            *(number for array in gradients for number in view(array)),
        )
        self.call("backward", sizes, (*common, *backward))
        found = [from_bits(array, dtype) for array in (out, *gradients)]
        return Results(found[0], lse, *found[1:])

    def workspace_bytes(self, name: str, sizes: bytes, tensors: tuple[int, ...]) -> int:
        """Return how much memory a pass wants: SIZES and TENSORS of capi_layout."""
        packed = sizes + capi_layout.TENSORS.pack(*tensors) + capi_layout.PLACE.pack(0, 0, 0, 1)
        size = ctypes.c_int64()
        ask = getattr(self._library, f"flashmask_{name}_workspace")
        check(ask(packed, ctypes.byref(size)))
        return size.value

    def call(self, name: str, sizes: bytes, tensors: tuple[int, ...]) -> None:
        """Ask for the workspace of a pass, and run it: SIZES and TENSORS of capi_layout."""
        packed = sizes + capi_layout.TENSORS.pack(*tensors)
        size = self.workspace_bytes(name, sizes, tensors)
        memory = poisoned((size + ALIGNMENT,), np.uint8)
        start = memory.ctypes.data + -memory.ctypes.data % ALIGNMENT
        run = getattr(self._library, f"flashmask_{name}")
        check(run(packed + capi_layout.PLACE.pack(0, start, size, 1)))


def check(message: bytes | None) -> None:
    if message is not None:
        raise RuntimeError(message.decode())


def poisoned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Return an array of NaN bytes that starts at a multiple of 16 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 16, POISONED_BYTE, np.uint8)
    start = -memory.ctypes.data % 16
    return memory[start : start + size].view(dtype).reshape(shape)


def view(array: np.ndarray) -> tuple[int, int, int, int]:
    """Return address and strides in elements, as a flashmask_tensor has them."""
    batch, row, head, _ = (stride // array.itemsize for stride in array.strides)
    return (array.ctypes.data, batch, row, head)


def to_bits(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return values that the dtype has as its bits, uint16."""
    if dtype == "float16":
        bits = np.asarray(array, np.float16).view(np.uint16)
    else:
        bits = (np.asarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    result = poisoned(array.shape, np.uint16)
    result[...] = bits
    return result


def from_bits(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Return the values, float32."""
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)
