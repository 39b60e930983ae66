"""What runs in a process of its own: import numpy and Paddle, load the library, compute.

`python -m paddle_flashmask.doctor.probes NAME` prints a line of JSON; a failure is left to Python,
whose last words `children` reads.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import paddle
    from numpy.typing import NDArray

MARK = "paddle_flashmask.doctor: "  # of the line of results
# Padding, samples that end inside tiles, two query heads per key head.
LENGTHS, SEQ_LEN, NUM_HEADS, NUM_HEADS_K, HEAD_DIM = (40, 70, 20), 140, 2, 1, 32
EIGHTHS = 8  # inputs are small multiples of 1/8, exact in every dtype
# Largest error allowed, of the largest value; about four roundings of the dtype.
ALLOWED = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}
DTYPES = {"cpu": ("float32", "bfloat16", "float16"), "gpu": ("bfloat16", "float16")}
NAMES = ("out", "the gradient of query", "the gradient of key", "the gradient of value")


def probe_numpy() -> dict[str, Any]:
    """Return numpy's version."""
    import numpy as np

    return {"version": np.__version__}


def probe_paddle() -> dict[str, Any]:
    """Return version, folder and CUDA of Paddle."""
    import paddle

    return {
        "version": paddle.version.full_version,
        "folder": str(Path(paddle.__file__).parent),
        "with_cuda": bool(paddle.device.is_compiled_with_cuda()),
        "cuda": str(paddle.version.cuda()),
    }


def probe_gpu() -> dict[str, Any]:
    """Return how many GPUs Paddle sees."""
    import paddle

    return {"count": int(paddle.device.cuda.device_count())}


def probe_library() -> dict[str, Any]:
    """Return what the loaded library says of itself, and the files that are loaded."""
    from paddle_flashmask import _ops

    _ops.library()
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8").splitlines() if maps.exists() else []
    paths = [line.split(maxsplit=5)[-1] for line in lines if "_custom_ops" in line]
    return {
        "files": list(dict.fromkeys(paths)),
        "kernels": _ops.kernels().splitlines(),
        "cpu_isa": _ops.cpu_isa(),
    }


def probe_cpu() -> dict[str, Any]:
    """Return the errors of the operator on the CPU, see `compare`."""
    return compare("cpu")


def probe_gpu_test() -> dict[str, Any]:
    """Return the errors of the operator on the first GPU, see `compare`."""
    return compare("gpu")


def compare(device: str) -> dict[str, Any]:
    """Return per dtype the largest error of out and gradients against dense attention in float64.

    Args:
        device: "cpu" or "gpu".

    Returns:
        For each dtype [error, name]: the error in units of the largest value, and what has it.
    """
    import numpy as np
    import paddle

    from paddle_flashmask import indices, recipes
    from paddle_flashmask.attention import flashmask_attention

    mask = recipes.sft(LENGTHS, SEQ_LEN)
    rng = np.random.default_rng(0)
    shapes = [(1, SEQ_LEN, heads, HEAD_DIM) for heads in (NUM_HEADS, NUM_HEADS_K, NUM_HEADS_K)]
    query, key, value, grad = (
        rng.integers(-EIGHTHS, EIGHTHS + 1, shape).astype(np.float64) / EIGHTHS
        for shape in (*shapes, shapes[0])
    )
    visible = indices.to_dense(mask.startend_row_indices, causal=True, seqlen_q=SEQ_LEN)[0, 0]
    right = dense(query, key, value, grad, visible)
    place = paddle.CPUPlace() if device == "cpu" else paddle.CUDAPlace(0)
    errors: dict[str, Any] = {}
    for dtype in DTYPES[device]:
        q, k, v, grad_out = (to_tensor(one, dtype, place) for one in (query, key, value, grad))
        rows = paddle.to_tensor(mask.startend_row_indices, place=place)
        for tensor in (q, k, v):
            tensor.stop_gradient = False
        out = flashmask_attention(q, k, v, rows, causal=True)
        found = [out, *paddle.grad([out], [q, k, v], [grad_out])]
        errors[dtype] = worst(
            [float(np.abs(to_numpy(ours) - exact).max() / np.abs(exact).max()), name]
            for ours, exact, name in zip(found, right, NAMES, strict=True)
        )
    return errors


def worst(errors: Iterable[list[Any]]) -> list[Any]:
    """Return the largest of errors and their names; NaN is larger than any number."""
    return max(errors, key=lambda found: (math.isnan(found[0]), found[0]))


def dense(
    query: NDArray[np.float64],
    key: NDArray[np.float64],
    value: NDArray[np.float64],
    grad: NDArray[np.float64],
    visible: NDArray[np.bool_],
) -> list[NDArray[np.float64]]:
    """Return out and the gradients of query, key and value by dense attention in float64.

    Args:
        query: [1, S, Hq, D].
        key: [1, S, 1, D].
        value: [1, S, 1, D].
        grad: [1, S, Hq, D], gradient of out.
        visible: [S, S], bool; rows that see nothing give 0.
    """
    import numpy as np

    scale = query.shape[-1] ** -0.5
    scores = np.einsum("bihd,bjgd->bhij", query, key) * scale
    weights = np.exp(scores) * visible
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    out = np.einsum("bhij,bjgd->bihd", weights, value)
    grad_weights = np.einsum("bihd,bjgd->bhij", grad, value)
    inner = (grad_weights * weights).sum(axis=-1, keepdims=True)
    grad_scores = weights * (grad_weights - inner) * scale
    return [
        out,
        np.einsum("bhij,bjgd->bihd", grad_scores, key),
        np.einsum("bhij,bihd->bjd", grad_scores, query)[:, :, None],
        np.einsum("bhij,bihd->bjd", weights, grad)[:, :, None],
    ]


def to_tensor(
    array: NDArray[np.float64], dtype: str, place: paddle.base.core.Place
) -> paddle.Tensor:
    """Return an array as a tensor without Paddle's casts, which an old build cannot run."""
    import numpy as np
    import paddle

    if dtype == "bfloat16":  # its bits are the upper half of float32, and Paddle takes them so
        bits = array.astype(np.float32).view(np.uint32) >> 16
        return paddle.to_tensor(bits.astype(np.uint16), place=place)
    return paddle.to_tensor(array.astype(dtype), place=place)


def to_numpy(tensor: paddle.Tensor) -> NDArray[np.float64]:
    """Return a tensor as float64."""
    import numpy as np

    array: NDArray[Any] = tensor.numpy()
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


PROBES = {
    "numpy": probe_numpy,
    "paddle": probe_paddle,
    "gpu": probe_gpu,
    "library": probe_library,
    "cpu": probe_cpu,
    "gpu_test": probe_gpu_test,
}

if __name__ == "__main__":
    print(MARK + json.dumps(PROBES[sys.argv[1]]()), flush=True)
