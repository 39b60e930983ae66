"""The check's maths in PyTorch gives what numpy's gives."""

import importlib.util

import numpy as np
import pytest
from harness import exact, masks
from harness.check import Reference, choose
from support.fake_provider import cell

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs PyTorch", allow_module_level=True)

from harness import exact_torch

MASKS = ["causal", "random_eviction", "qk_sparse", "sft:lengths=[30,20]"]
DTYPES = ["float64", *exact.ROUNDINGS]


def roundings(name):
    if name == "float64":
        return exact.round_float64, exact_torch.round_float64
    return exact.ROUNDINGS[name], exact_torch.ROUNDINGS[name]


def assert_same(mine, theirs):
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_rows_and_keys_are_those_of_numpy(mask, dtype, rng, monkeypatch):
    length = 300
    monkeypatch.setattr(exact_torch, "BLOCK_CELLS", 7 * length)
    of_numpy, of_torch = roundings(dtype)
    inputs = rng.standard_normal((4, length, 16)).astype(np.float32)
    made, places = masks.build(mask, length), np.array([0, 1, 29, 128, 299])
    theirs, mine = exact.make_head(*inputs), exact_torch.make_head(*inputs)
    statistics, known = (
        exact.row_statistics(theirs, made),
        exact_torch.row_statistics(mine, made),
    )
    assert_same([one.cpu().numpy() for one in known], statistics)
    assert_same(
        exact_torch.of_rows(mine, made, places, of_torch),
        exact.of_rows(theirs, made, places, of_numpy),
    )
    assert_same(
        exact_torch.of_columns(mine, made, places, known, of_torch),
        exact.of_columns(theirs, made, places, statistics, of_numpy),
    )


@pytest.mark.parametrize("dtype", sorted(exact.ROUNDINGS))
def test_numbers_are_rounded_as_numpy_rounds_them(dtype, rng):
    halves = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11])
    beside = [halves + 2.0**-30, halves - 2.0**-30, halves * 2.0**-16, halves * 2.0**-20]
    numbers = np.concatenate([rng.standard_normal(1000), halves, *beside, [0.0, -np.inf, 65519.9]])
    numbers = np.concatenate([numbers, -numbers])
    of_numpy, of_torch = roundings(dtype)
    import torch

    assert np.array_equal(of_torch(torch.from_numpy(numbers)).numpy(), of_numpy(numbers))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_verdicts_of_a_gpu_are_those_of_the_cpu(dtype, rng):
    shapes = [
        cell(mask="random_eviction", dtype=dtype, device=device, head_dim=16)
        for device in ("cpu", "gpu")
    ]
    shape = shapes[0]
    mask = masks.build(shape.mask, shape.seqlen)
    sample = choose(shape, mask)
    draw = rng.standard_normal
    size = (len(sample.heads), 2, shape.seqlen, shape.head_dim)
    arrays = {name: draw(size).astype(np.float32) for name in ("query", "grad_out")}
    arrays |= {name: draw(size).astype(np.float32)[:, :1] for name in ("key", "value")}
    rows, columns = len(sample.rows), len(sample.columns)
    found = {name: draw((*size[:2], rows, 16)) for name in ("out", "grad_query")}
    found |= {name: draw((size[0], 1, columns, 16)) for name in ("grad_key", "grad_value")}
    theirs, mine = (Reference(one, mask, sample, arrays) for one in shapes)
    for direction in shape.directions:
        expected, verdict = theirs.judge(found, direction), mine.judge(found, direction)
        assert verdict.array == expected.array
        assert verdict[1:] == pytest.approx(expected[1:], rel=1e-9)
