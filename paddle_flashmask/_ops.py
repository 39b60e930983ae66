"""The operator library: found beside this file, registered with Paddle once, called by name.

The only module that touches the library. Environment, read when the library is loaded:
    FLASHMASK_CPU_ISA: instruction set of the CPU kernel: auto (default), portable, avx2,
        avx512, avx512_bf16.
    FLASHMASK_GPU_KERNELS: the only GPU kernels that may be used, by name (see `kernels()`); auto
        (default): the newest that the device runs.
    FLASHMASK_DETERMINISTIC: 1: gradients have the same bits in every run; 0 (default): on a GPU
        they need not, which is faster. Paddle's own FLAGS_cudnn_deterministic asks for the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paddle
from paddle.base.framework import OpProtoHolder

with warnings.catch_warnings():
    # It looks for a compiler cache, which matters to those who build only.
    warnings.filterwarnings("ignore", message="No ccache found")
    from paddle.utils.cpp_extension.extension_utils import load_op_meta_info_and_register_op

OP_NAME = "paddle_flashmask_attention"
FOLDER = Path(__file__).resolve().parent
CHOICES = {
    "FLASHMASK_CPU_ISA": "flashmask_set_cpu_isa",
    "FLASHMASK_GPU_KERNELS": "flashmask_set_gpu_kernels",
}
BUILD_HINT = "build it with: pip install --no-build-isolation . (see README.md, Install)"

_library: ctypes.CDLL | None = None
_gpu_kernels = "auto"  # the name that the library was told last


@dataclass(frozen=True)
class TileCounters:
    """Tiles of 64 rows by 64 columns met by the CPU kernel since the last reset, over all heads."""

    forward_skipped: int
    forward_partial: int
    forward_full: int
    backward_skipped: int
    backward_partial: int
    backward_full: int


def load_ops() -> None:
    """Register the operators with Paddle, once per process; later calls do nothing.

    `flashmask_attention` calls this itself. Call it yourself before `paddle.jit.load` of a model
    that contains the operator: Paddle cannot find it otherwise.

    Raises:
        ImportError: there is no library, more than one, one built for another Paddle, or the
            operator was registered by another copy of this package.
    """
    library()


def library() -> ctypes.CDLL:
    """Return the loaded library, registering its operators at first use."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def run(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    startend_row_indices: paddle.Tensor | None,
    *,
    softmax_scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Call the operator; arguments were checked by `flashmask_attention`.

    Args:
        query: [B, Sq, Hq, D], float32, float16 or bfloat16.
        key: [B, Sk, Hk, D], dtype of query.
        value: [B, Sk, Hk, D], dtype of query.
        startend_row_indices: [B, 1|Hk|Hq, Sk, 1|2|4], int32, or None.
        softmax_scale: factor of the scores.
        causal: whether rows above the diagonal are masked as well.
        window_left: keys a row sees to the left of the diagonal; -1 for all.
        window_right: likewise to the right.

    Returns:
        out [B, Sq, Hq, D] in the dtype of query, softmax_lse [B, Hq, Sq] float32 (natural log).
    """
    library()
    # The generic entry point takes the attributes in the order they were registered.
    call = getattr(paddle._C_ops, "_run_custom_op", None) or paddle.base.core.eager._run_custom_op
    out, softmax_lse = call(
        OP_NAME,
        query,
        key,
        value,
        startend_row_indices,
        float(softmax_scale),
        bool(causal),
        int(window_left),
        int(window_right),
        startend_row_indices is not None,
    )
    return out, softmax_lse


def tile_counters() -> TileCounters:
    """Return how many tiles the CPU kernel skipped, masked and ran whole since the last reset."""
    counts = (ctypes.c_int64 * 6)()
    library().flashmask_tile_counts(counts)
    return TileCounters(*counts)


def reset_tile_counters() -> None:
    """Set all tile counters to 0."""
    library().flashmask_reset_tile_counts()


def set_tile_skipping(on: bool) -> None:
    """Switch the skipping of dead tiles; for finite inputs results are the same to the bit."""
    library().flashmask_set_tile_skipping(int(on))


def set_deterministic(on: bool) -> None:
    """Ask for gradients of the same bits in every run, also on a GPU, where that takes longer.

    FLAGS_cudnn_deterministic of Paddle asks as well, whatever is set here.
    """
    library().flashmask_set_deterministic(int(on))


def set_cpu_isa(name: str) -> None:
    """Choose the instruction set of the CPU kernel: auto, portable, avx2, avx512 or avx512_bf16.

    Raises:
        ValueError: no such name, or this machine cannot run it.
    """
    _choose(library().flashmask_set_cpu_isa, name)


def set_gpu_kernels(name: str) -> None:
    """Use the GPU kernels of this name only ("sm80", "sm90a"), or, with "auto", the newest.

    Raises:
        ValueError: the library has no GPU kernels of that name.
    """
    global _gpu_kernels
    _choose(library().flashmask_set_gpu_kernels, name)
    _gpu_kernels = name


def gpu_kernels() -> str:
    """Return the name of the only GPU kernels that may be used, or "auto"."""
    library()
    return _gpu_kernels


def cpu_isa() -> str:
    """Return the instruction set that the CPU kernel uses."""
    name: bytes = library().flashmask_cpu_isa()
    return name.decode()


def kernels() -> str:
    """Return one line per registered kernel: its name, dtypes and head dims."""
    text: bytes = library().flashmask_describe_kernels()
    return text.decode()


def _load() -> ctypes.CDLL:
    global _gpu_kernels
    path = _library_path()
    _check_build(path)
    if OP_NAME not in OpProtoHolder.instance().op_proto_map:
        try:
            load_op_meta_info_and_register_op(str(path))
        except RuntimeError as error:
            raise ImportError(f"Paddle cannot load {path}: {error}; {BUILD_HINT}") from error
    elif not _is_loaded(path):
        # Loading a second library of that operator would abort the process.
        raise ImportError(
            f"the operator {OP_NAME} is registered already by another copy of paddle_flashmask; "
            f"keep one of them (this one is {FOLDER})"
        )
    loaded = ctypes.CDLL(str(path))
    for name in (*CHOICES.values(), "flashmask_cpu_isa", "flashmask_describe_kernels"):
        getattr(loaded, name).restype = ctypes.c_char_p
    for variable, setter in CHOICES.items():
        wanted = os.environ.get(variable, "").strip()
        if wanted:
            try:
                _choose(getattr(loaded, setter), wanted)
            except ValueError as error:
                raise ImportError(f"{variable} is wrong: {error}") from error
            if variable == "FLASHMASK_GPU_KERNELS":
                _gpu_kernels = wanted
    deterministic = os.environ.get("FLASHMASK_DETERMINISTIC", "").strip()
    if deterministic not in ("", "0", "1"):
        raise ImportError(f"FLASHMASK_DETERMINISTIC must be 0, 1 or unset; got {deterministic!r}")
    loaded.flashmask_set_deterministic(int(deterministic or 0))
    return loaded


def _library_path() -> Path:
    # An in-place build is called _custom_ops_pd_.so, one in a wheel _custom_ops.so.
    found = sorted(FOLDER.glob("_custom_ops*.so"))
    if not found and (FOLDER.parent / "setup_ops.py").exists():
        raise ImportError(
            f"{FOLDER} is the source tree, where nothing was built, and hides an installed copy: "
            "run from another folder, or build in place: pip install --no-build-isolation -e ."
        )
    if not found:
        raise ImportError(f"paddle_flashmask has no operator library in {FOLDER}; {BUILD_HINT}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ImportError(
            f"paddle_flashmask has more than one operator library in {FOLDER}: {names}; "
            "delete them and build again"
        )
    return found[0]


def _check_build(path: Path) -> None:
    """Compare Paddle's version with the recorded one: Paddle promises no binary compatibility."""
    record = path.with_name("_build_info.json")
    try:
        built_for = str(json.loads(record.read_text(encoding="utf-8"))["paddle"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImportError(
            f"{record} does not say what was built ({error}); {BUILD_HINT}"
        ) from error
    found = paddle.version.full_version
    if built_for != found:
        raise ImportError(
            f"paddle_flashmask was built for Paddle {built_for}, found Paddle {found}; "
            "rebuild: pip install --no-build-isolation --force-reinstall ."
        )


def _is_loaded(path: Path) -> bool:
    try:
        ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def _choose(setter: Callable[[bytes], bytes | None], name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str; got {type(name).__name__} {name!r}")
    message = setter(name.encode())
    if message is not None:
        raise ValueError(message.decode())
