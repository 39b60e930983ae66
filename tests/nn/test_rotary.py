"""Rotation against complex numbers; what it refuses."""

from __future__ import annotations

import contextlib

import numpy as np
import paddle
import pytest
from support.tolerance import FLOAT32_RELATIVE

from paddle_flashmask.nn import rotate, rotation


def turned(heads: np.ndarray, position_ids: np.ndarray, base: float) -> np.ndarray:
    """Pairs as complex numbers times a unit of their angle, in float64."""
    half = heads.shape[-1] // 2
    pairs = heads[..., :half] + 1j * heads[..., half:]
    angles = position_ids[..., None, None] * base ** (-np.arange(half) / half)
    pairs = pairs * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


@pytest.mark.parametrize(("head_dim", "base"), [(2, 10000.0), (6, 10000.0), (64, 500000.0)])
def test_rotation_multiplies_pairs_by_units(head_dim, base, rng):
    heads = rng.standard_normal((2, 5, 3, head_dim)).astype(np.float32)
    position_ids = np.array([[0, 1, 2, 0, 1], [7, 100, 4095, 0, 3]])
    angles = rotation(paddle.to_tensor(position_ids), head_dim, rope_base=base)
    found = rotate(paddle.to_tensor(heads), *angles).numpy()
    exact = turned(heads.astype(np.float64), position_ids, base)
    # The angle itself is float32, so its error grows with the position.
    assert np.abs(found - exact).max() <= 4096 * FLOAT32_RELATIVE / 10


def test_scores_depend_on_differences_of_positions_only(rng):
    query, key = (paddle.to_tensor(rng.standard_normal((1, 1, 1, 16)), "float32") for _ in "qk")

    def score(query_at: int, key_at: int) -> float:
        turned = [
            rotate(heads, *rotation(paddle.to_tensor([[at]]), 16))
            for heads, at in ((query, query_at), (key, key_at))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(9, 5) == pytest.approx(score(4, 0), rel=1e-5)
    assert score(9, 5) != pytest.approx(score(5, 9), rel=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_heads_are_turned_in_float32(dtype, rng):
    heads = paddle.to_tensor(rng.standard_normal((1, 1, 1, 8)), "float32").astype(dtype)
    angles = rotation(paddle.to_tensor([[1001]]), 8)  # no bfloat16 number
    found = rotate(heads, *angles)
    assert str(found.dtype).endswith(dtype)
    wide = rotate(heads.astype("float32"), *angles)
    assert (found.astype("float32") - wide.astype(dtype).astype("float32")).abs().max() == 0


def test_angles_and_products_are_kept_from_auto_cast(monkeypatch):
    """On the CPU Paddle casts no such operator, so what is seen is that auto_cast is off."""
    seen = []

    @contextlib.contextmanager
    def recorded(enable=True):
        seen.append(enable)
        yield

    monkeypatch.setattr(paddle.amp, "auto_cast", recorded)
    rotate(paddle.ones([1, 1, 1, 8]), *rotation(paddle.to_tensor([[1]]), 8))
    assert seen == [False, False]


@pytest.mark.parametrize(
    ("position_ids", "error", "words"),
    [
        (np.zeros((1, 3), np.int64), TypeError, "must be a paddle.Tensor; got ndarray"),
        ([[0, 1]], TypeError, "must be a paddle.Tensor; got list"),
        (None, TypeError, "must be a paddle.Tensor; got NoneType"),
        (paddle.zeros([1, 3]), TypeError, "must be int64 or int32; got paddle.float32"),
        (paddle.zeros([3], "int64"), ValueError, r"must be \[B, S\]; got shape \[3\]"),
        (paddle.zeros([3, 1, 8], "int64"), ValueError, r"must be \[B, S\]; got shape \[3, 1, 8\]"),
    ],
)
def test_wrong_positions_are_named(position_ids, error, words):
    with pytest.raises(error, match=f"position_ids {words}"):
        rotation(position_ids, 8)


@pytest.mark.parametrize(
    ("head_dim", "base", "words"),
    [(3, 1e4, "head_dim must be even"), (0, 1e4, "head_dim must be"), (8, 0.0, "rope_base must")],
)
def test_wrong_sizes_are_named(head_dim, base, words):
    with pytest.raises(ValueError, match=words):
        rotation(paddle.zeros([1, 3], "int64"), head_dim, rope_base=base)
