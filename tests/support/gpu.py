"""Calls of the C door on torch's CUDA tensors: the counterpart of support.calls without Paddle.

Where torch or a CUDA device is missing, importing this module skips the test module that does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.cases import AttentionCase, Mask
from support.dense import Results
from support.inputs import Inputs, assert_right, random_inputs

NEEDS = "needs torch and a CUDA device"
torch = pytest.importorskip("torch", reason=NEEDS)
if not torch.cuda.is_available():
    pytest.skip(NEEDS, allow_module_level=True)

import capi  # noqa: E402

KERNELS_VARIABLE = "FLASHMASK_GPU_KERNELS"  # the kernels that all tests use; default: auto
capi.use_kernels(os.environ.get(KERNELS_VARIABLE, "auto"))

DTYPES = ("float16", "bfloat16")
MAX_HEAD_DIM = 256
# Bytes of shared memory of a block on smaller devices: sm_80, then sm_86 and sm_89.
SMALLER_DEVICES = (163 * 1024, 99 * 1024)
MARGIN = 256  # elements, so that what lies behind stays aligned to 256 bytes
POISONED_BYTE = 0xFF  # NaN in every float dtype


def require_kernels(name: str, which: str) -> None:
    """Skip the test if the library or the device has no kernels of this name for a pass."""
    other = {"forward": ", backward", "backward": ", forward"}[which]
    lines = [line for line in capi.info().splitlines() if line.startswith(f"{name} ")]
    if not any(not line.endswith(other) for line in lines):
        pytest.skip(f"the library has no {name} {which}")
    if name.startswith("sm90") and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip(f"{name} needs a Hopper device")


@contextlib.contextmanager
def only_kernels(name: str) -> Iterator[None]:
    """Use GPU kernels of this name only, or, with "auto", the best."""
    before = os.environ.get(KERNELS_VARIABLE, "auto")
    capi.use_kernels(name)
    try:
        yield
    finally:
        capi.use_kernels(before)


@contextlib.contextmanager
def tiles_of_device(size: int | None) -> Iterator[None]:
    """Use the tiles of a device with so much shared memory a block; None: of this one."""
    capi.limit_shared_memory(size)
    try:
        yield
    finally:
        capi.limit_shared_memory(None)


@contextlib.contextmanager
def long_backwards() -> Iterator[None]:
    """Divide the work of a backward as if its rows were more than the L2 holds."""
    capi.limit_section_bytes(0)
    capi.want_backward_items(0)
    try:
        yield
    finally:
        capi.limit_section_bytes(None)
        capi.want_backward_items(None)


class Guarded:
    """A tensor of NaN bytes between two margins that must stay as they are."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        size = int(np.prod(shape))
        self._all = torch.empty(size + 2 * MARGIN, dtype=dtype, device="cuda")
        self._all.view(torch.uint8).fill_(POISONED_BYTE)
        self.tensor = self._all[MARGIN : MARGIN + size].view(shape)

    def assert_margins_untouched(self) -> None:
        for margin in (self._all[:MARGIN], self._all[-MARGIN:]):
            assert bool((margin.view(torch.uint8) == POISONED_BYTE).all()), "written beyond the end"


def dtype_of(number: int) -> str:
    """Return one of the dtypes in turn."""
    return DTYPES[number % len(DTYPES)]


def tensor(array: np.ndarray, dtype: str = "float32") -> torch.Tensor:
    made = torch.from_numpy(np.array(array, np.float32, order="C"))
    return made.to("cuda", getattr(torch, dtype))


def indices_tensor(mask: Mask) -> torch.Tensor | None:
    if mask.indices is None:
        return None
    return torch.from_numpy(np.ascontiguousarray(mask.indices)).cuda()


def to_numpy(made: torch.Tensor) -> np.ndarray:
    return made.float().cpu().numpy()


def on_gpu(case: AttentionCase, number: int = 0) -> AttentionCase:
    """Return a case in a dtype that the GPU kernels have."""
    if case.dtype in DTYPES:
        return case
    return dataclasses.replace(case, dtype=dtype_of(number))


def run(
    inputs: Inputs,
    mask: Mask,
    *,
    dtype: str = "bfloat16",
    softmax_scale: float | None = None,
    grads: str = "both",
    fresh: bool = False,
    deterministic: bool = False,
    forward_kernels: str | None = None,
) -> Results:
    """Return what the C door gives, with results and workspaces poisoned and fenced before.

    With `fresh` workspaces are what the allocator gives, and nothing is fenced, for tools that
    watch memory; results are poisoned, since initcheck does not see what the copy engine writes.
    `deterministic` is for the backward. `forward_kernels` are the only ones for the forward; None:
    those chosen before.
    """
    query, key, value, grad_out = (tensor(array, dtype) for array in inputs[:4])
    grad_lse = tensor(inputs.grad_lse)
    indices = indices_tensor(mask)
    window = mask.window_pair or capi.NO_WINDOW
    common = (indices, mask.causal)
    fenced: list[Guarded] = []

    def poisoned(shape: Any, dtype: torch.dtype) -> torch.Tensor:
        if fresh and dtype == torch.uint8:
            return torch.empty(tuple(shape), dtype=dtype, device="cuda")
        if fresh:
            return torch.full(tuple(shape), torch.nan, dtype=dtype, device="cuda")
        fenced.append(Guarded(tuple(shape), dtype))
        return fenced[-1].tensor

    def workspace(name: str) -> torch.Tensor:
        size = capi.workspace_bytes(name, query, key, *common, deterministic=deterministic)
        return poisoned((size,), torch.uint8)

    out = poisoned(query.shape, query.dtype)
    lse = poisoned(grad_lse.shape, torch.float32)
    forced = contextlib.nullcontext() if forward_kernels is None else only_kernels(forward_kernels)
    with forced:
        capi.forward(
            query,
            key,
            value,
            *common,
            softmax_scale,
            deterministic,
            window=window,
            out=out,
            softmax_lse=lse,
            workspace=workspace("forward"),
        )
    gradients = tuple(poisoned(x.shape, x.dtype) for x in (query, key, value))
    capi.backward(
        None if grads == "lse" else grad_out,
        query,
        key,
        value,
        out,
        lse,
        *common,
        softmax_scale,
        deterministic,
        grad_softmax_lse=None if grads == "out" else grad_lse,
        window=window,
        grads=gradients,
        workspace=workspace("backward"),
    )
    for each in fenced:
        each.assert_margins_untouched()
    return Results(*(to_numpy(x) for x in (out, lse, *gradients)))


def check_case(
    case: AttentionCase,
    rng: np.random.Generator,
    *,
    grads: str = "both",
    deterministic: bool = False,
) -> None:
    inputs, mask = random_inputs(case, rng), case.make_mask(rng)
    ours = run(
        inputs,
        mask,
        dtype=case.dtype,
        softmax_scale=case.softmax_scale,
        grads=grads,
        deterministic=deterministic,
    )
    assert_right(ours, inputs, mask, case.dtype, softmax_scale=case.softmax_scale, grads=grads)


def assert_same_bits_but_query_gradient(ours: Results, others: Results) -> None:
    """Check equality of what has a fixed order of sums in short calls."""
    for name in ("out", "softmax_lse", "grad_key", "grad_value"):
        mine, other = getattr(ours, name), getattr(others, name)
        assert mine.tobytes() == other.tobytes(), f"{name} differs"
