"""Which kernel would serve: read from the library's own words."""

from __future__ import annotations

import paddle
import pytest

from paddle_flashmask import _ops, backends
from paddle_flashmask._gpu_code import runs_on

WORDS = """\
cpu: float32 float16 bfloat16, head_dim a multiple of 8 up to 256
sm80 (compute capability 8.0 or newer): float16 bfloat16, head_dim a multiple of 8 up to 64
sm80 (compute capability 8.0 or newer): float16 bfloat16, head_dim a multiple of 8 up to 128, \
keys split for few rows
sm90a (compute capability 9.0): bfloat16, head_dim a multiple of 8 up to 64
sm90a (compute capability 9.0): bfloat16, head_dim a multiple of 8 up to 128, forward
sm120 (compute capability 12.0 or newer): bfloat16, head_dim a multiple of 8 up to 256, forward"""


def test_the_library_here_serves_the_cpu():
    assert backends.backend_of(paddle.zeros([1]), 64) == "CPU"
    assert {kernel.name for kernel in backends.registered_kernels()} >= {"cpu"}


@pytest.mark.parametrize("head_dim", [0, 12, 264])
def test_what_no_kernel_serves_is_named(head_dim):
    message = f"no kernel for the CPU, dtype float32 and head_dim {head_dim}; there is: cpu: "
    with pytest.raises(NotImplementedError, match=message):
        backends.backend_of(paddle.zeros([1]), head_dim)


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim", "backend"),
    [
        ((8, 0), "float16", 64, "CUDA sm80"),
        ((9, 0), "float16", 128, "CUDA sm80"),
        ((9, 0), "bfloat16", 64, "CUDA sm90a"),
        ((9, 0), "bfloat16", 128, "CUDA sm90a, backward sm80"),
        ((10, 0), "bfloat16", 128, "CUDA sm80"),
        ((12, 0), "bfloat16", 256, None),
        ((0, 0), "float32", 256, "CPU"),
        ((9, 0), "float32", 64, None),
        ((9, 0), "bfloat16", 136, None),
        ((7, 5), "float16", 64, None),
    ],
)
def test_the_newest_architecture_that_serves_is_named(
    monkeypatch, capability, dtype, head_dim, backend
):
    monkeypatch.setattr(_ops, "kernels", lambda: WORDS)
    monkeypatch.setattr(backends, "_capability", lambda place: capability)
    if backend is not None:
        assert backends.backend_of(paddle.zeros([1]), head_dim, dtype) == backend
        return
    with pytest.raises(NotImplementedError, match=f"dtype {dtype} and head_dim {head_dim}"):
        backends.backend_of(paddle.zeros([1]), head_dim, dtype)


def test_other_words_of_the_library_are_not_read_as_something_else(monkeypatch):
    monkeypatch.setattr(_ops, "kernels", lambda: "cpu: float32, any head_dim")
    with pytest.raises(AssertionError, match="in other words: cpu: float32, any head_dim"):
        backends.registered_kernels()


@pytest.mark.parametrize(
    ("capability", "only", "backend"),
    [
        ((9, 0), "sm80", "CUDA sm80"),
        ((9, 0), "sm90a", "CUDA sm90a"),
        ((8, 0), "sm90a", None),
        ((0, 0), "sm90a", "CPU"),
    ],
)
def test_a_restriction_of_the_gpu_kernels_is_heeded(monkeypatch, capability, only, backend):
    monkeypatch.setattr(_ops, "kernels", lambda: WORDS)
    monkeypatch.setattr(_ops, "gpu_kernels", lambda: only)
    monkeypatch.setattr(backends, "_capability", lambda place: capability)
    weight = paddle.zeros([1])
    if backend is None:
        with pytest.raises(NotImplementedError, match="only sm90a is allowed"):
            backends.backend_of(weight, 64, "bfloat16")
    else:
        assert backends.backend_of(weight, 64, "bfloat16") == backend


@pytest.mark.parametrize(
    ("capability", "backend"), [((8, 6), "CUDA sm80"), ((9, 0), None), ((12, 0), "CUDA sm80")]
)
def test_a_gpu_that_nothing_was_compiled_for_is_not_served(monkeypatch, capability, backend):
    words = WORDS.splitlines()[2].replace(" or newer", " or newer, compiled for sm_80+compute_100")
    monkeypatch.setattr(_ops, "kernels", lambda: words)
    monkeypatch.setattr(backends, "_capability", lambda place: capability)
    weight = paddle.zeros([1])
    if backend is None:
        with pytest.raises(NotImplementedError, match=r"9\.0, .*compiled for sm_80\+compute_100"):
            backends.backend_of(weight, 64, "bfloat16")
    else:
        assert backends.backend_of(weight, 64, "bfloat16") == backend


@pytest.mark.parametrize(
    ("code", "runs"),
    [
        ("sm_80", {80, 86, 89}),
        ("sm_86", {86, 89}),
        ("sm_90a", {90}),
        ("sm_100", {100, 103}),
        ("sm_103", {103}),
        ("compute_90", {90, 100, 103, 120}),
        ("compute_100", {100, 103, 120}),
        ("nonsense", set()),
    ],
)
def test_code_runs_where_nvidia_says(code, runs):
    known = (75, 80, 86, 89, 90, 100, 103, 120)
    assert {capability for capability in known if runs_on(code, capability)} == runs
