"""The real Paddle operator on CUDA tensors against the C door, bit by bit.

Kept to what paddlepaddle-gpu 2.6.2 can do on a GPU newer than itself: tensors come from numpy or by
DLPack, gradients of all outputs are given.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from support import cases, gpu
from support.cases import AttentionCase, Mask
from support.gpu import capi, torch
from support.inputs import assert_right, random_inputs

if importlib.util.find_spec("paddle") is None:
    pytest.skip("needs paddlepaddle-gpu", allow_module_level=True)

import paddle

if not paddle.is_compiled_with_cuda():
    pytest.skip("needs paddlepaddle-gpu", allow_module_level=True)

from paddle_flashmask import _ops, flashmask_attention

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _division_of_work() -> None:
    """Share key blocks as usual: nobody tells Paddle's library to do otherwise."""


GPU = paddle.CUDAPlace(0)
REFUSED = (NotImplementedError, ValueError, OSError)  # 2.6.2 knows OSError alone


def from_torch(tensor: torch.Tensor, *, grad: bool = False) -> paddle.Tensor:
    """A Paddle tensor of the same numbers, through numpy: Paddle takes uint16 for bfloat16."""
    if tensor.dtype is torch.bfloat16:
        array = tensor.view(torch.int16).cpu().numpy().view(np.uint16)
    else:
        array = tensor.cpu().numpy()
    return paddle.to_tensor(array, place=GPU, stop_gradient=not grad)


def to_torch(tensor: paddle.Tensor) -> torch.Tensor:
    array = tensor.numpy()
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(array).cuda()


class Pair:
    """One call, as torch tensors."""

    def __init__(self, case: AttentionCase, mask: Mask, rng: np.random.Generator) -> None:
        self.inputs = random_inputs(case, rng)
        self.mask, self.dtype = mask, case.dtype
        self.tensors = [gpu.tensor(array, case.dtype) for array in self.inputs[:4]]
        self.grad_lse = gpu.tensor(self.inputs.grad_lse)

    def paddle(self) -> list[torch.Tensor]:
        query, key, value = (from_torch(x, grad=True) for x in self.tensors[:3])
        out, lse = flashmask_attention(
            query,
            key,
            value,
            self.mask.indices,
            self.mask.causal,
            window_size=self.mask.window,
            return_softmax_lse=True,
        )
        given = [from_torch(self.tensors[3]), from_torch(self.grad_lse)]
        gradients = paddle.grad([out, lse], [query, key, value], given)
        return [to_torch(x) for x in (out, lse, *gradients)]

    def c_door(self) -> list[torch.Tensor]:
        common = (gpu.indices_tensor(self.mask), self.mask.causal)
        window = self.mask.window_pair or capi.NO_WINDOW
        query, key, value, grad_out = self.tensors
        out, lse = capi.forward(query, key, value, *common, window=window)
        gradients = capi.backward(
            grad_out,
            query,
            key,
            value,
            out,
            lse,
            *common,
            grad_softmax_lse=self.grad_lse,
            window=window,
        )
        return [out, lse, *gradients]


@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("head_dim", [40, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("name", cases.FAMILIES)
def test_operator_gives_the_bits_of_the_c_door(name, head_dim, dtype, rng):
    case = AttentionCase(
        name, batch=2, seqlen_q=300, num_heads=4, num_heads_k=2, head_dim=head_dim, dtype=dtype
    )
    pair = Pair(case, case.make_mask(rng), rng)
    ours, right = pair.paddle(), pair.c_door()
    for place, (mine, other) in enumerate(zip(ours, right, strict=True)):
        if place != 2:  # the query gradient sums in no fixed order
            assert torch.equal(mine, other), place
    results = gpu.Results(*map(gpu.to_numpy, ours))
    assert_right(results, pair.inputs, pair.mask, dtype)


def test_tensors_pass_from_torch_by_dlpack(rng):
    case = AttentionCase(seqlen_q=130, head_dim=64, dtype="float16")
    pair = Pair(case, case.make_mask(rng), rng)
    query, key, value = (
        paddle.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)) for x in pair.tensors[:3]
    )
    out = flashmask_attention(query, key, value, pair.mask.indices, pair.mask.causal)
    back = torch.utils.dlpack.from_dlpack(paddle.utils.dlpack.to_dlpack(out))
    paddle.device.cuda.synchronize()
    assert torch.equal(back, pair.c_door()[0])


def test_operator_runs_on_the_stream_of_a_stream_guard(rng):
    case = AttentionCase(seqlen_q=1000, head_dim=128, dtype="bfloat16")
    pair = Pair(case, case.make_mask(rng), rng)
    right = pair.c_door()
    with paddle.device.cuda.stream_guard(paddle.device.cuda.Stream()):
        ours = pair.paddle()
    for mine, other in zip(ours[:2], right[:2], strict=True):
        assert torch.equal(mine, other)


# Paddle 2.6.2 takes an output without elements for one that was forgotten.
EMPTY_SIZES = [(2, 5, 0)] + [(0, 5, 7)] * (not paddle.__version__.startswith("2."))


@pytest.mark.parametrize("sizes", EMPTY_SIZES, ids=str)
def test_empty_tensors_give_empty_rows(sizes):
    batch, rows, columns = sizes
    query = paddle.empty([batch, rows, 2, 64], dtype="float16")
    key = paddle.empty([batch, columns, 2, 64], dtype="float16")
    out, lse = flashmask_attention(query, key, key, return_softmax_lse=True)
    assert out.shape == [batch, rows, 2, 64]
    assert not np.asarray(out.numpy()).any()
    assert np.isneginf(np.asarray(lse.numpy())).all()


def ones(head_dim: int = 64, dtype: str = "float16", place: object = GPU) -> paddle.Tensor:
    return paddle.to_tensor(np.ones((1, 5, 2, head_dim), dtype), place=place, stop_gradient=False)


@pytest.mark.parametrize("head_dim", [264, 512])
def test_wide_heads_are_refused(head_dim):
    with pytest.raises(ValueError, match="head_dim must be a multiple of 8 from 8 to 256"):
        flashmask_attention(*[ones(head_dim)] * 3)
    options = {"softmax_scale": 1.0, "causal": True, "window_left": -1, "window_right": -1}
    with pytest.raises(REFUSED, match=rf"head_dim {head_dim}; there is: cpu.*\nsm80"):
        _ops.run(*[ones(head_dim)] * 3, None, **options)
    assert (flashmask_attention(*[ones()] * 3).numpy() == 1).all()


def test_float32_is_refused_with_what_there_is():
    with pytest.raises(REFUSED, match=r"dtype float32 and head_dim 64; there is: cpu.*\nsm80"):
        flashmask_attention(*[ones(dtype="float32")] * 3)


def test_mixed_places_are_refused_and_named():
    with pytest.raises(ValueError, match=r"got query on Place\(gpu:0\), key on Place\(cpu\)"):
        flashmask_attention(ones(), ones(place=paddle.CPUPlace()), ones())


def test_raw_operator_refuses_mixed_places():
    tensors = (ones(), ones(), ones(place=paddle.CPUPlace()))
    options = {"softmax_scale": 1.0, "causal": True, "window_left": -1, "window_right": -1}
    with pytest.raises(REFUSED, match=r"query on Place\(gpu:0\).* value on Place\(cpu\)"):
        _ops.run(*tensors, None, **options)


def assert_gradients_repeat(rng: np.random.Generator) -> None:
    case = AttentionCase("causal_1", seqlen_q=3000, num_heads=8, head_dim=64, dtype="bfloat16")
    pair = Pair(case, case.make_mask(rng), rng)
    query, key, value, grad_out = pair.tensors
    common = (gpu.indices_tensor(pair.mask), pair.mask.causal)
    out, lse = capi.forward(query, key, value, *common)
    right = capi.backward(
        grad_out,
        query,
        key,
        value,
        out,
        lse,
        *common,
        deterministic=True,
        grad_softmax_lse=pair.grad_lse,
    )
    for _ in range(5):
        for mine, other in zip(pair.paddle()[2:], right, strict=True):
            assert torch.equal(mine, other)


def test_deterministic_switch_gives_gradients_that_repeat(rng):
    _ops.set_deterministic(True)
    try:
        assert_gradients_repeat(rng)
    finally:
        _ops.set_deterministic(False)


def test_paddles_deterministic_flag_gives_gradients_that_repeat(rng):
    paddle.set_flags({"FLAGS_cudnn_deterministic": True})
    try:
        assert_gradients_repeat(rng)
    finally:
        paddle.set_flags({"FLAGS_cudnn_deterministic": False})


def test_deterministic_variable_is_read(tmp_path):
    code = "from paddle_flashmask import load_ops; load_ops()"
    environment = {**os.environ, "FLASHMASK_DETERMINISTIC": "yes"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "FLASHMASK_DETERMINISTIC must be 0, 1 or unset; got 'yes'" in done.stderr
