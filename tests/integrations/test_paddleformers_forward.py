"""The attention function for PaddleFormers, called as its layers call it: without PaddleFormers."""

from __future__ import annotations

import types

import numpy as np
import paddle
import pytest
from support.tolerance import assert_array_close

from paddle_flashmask import indices, recipes
from paddle_flashmask.integrations.paddleformers import attention_forward
from paddle_flashmask.integrations.paddleformers.fields import mask_fields

FIELD = "attn_mask_startend_row_indices"
BATCH, HEADS, HEADS_K, HEAD_DIM = 2, 4, 2, 16
SEQLEN = 13


def layer(*, training=False, **more):
    return types.SimpleNamespace(training=training, **more)


def tensors(rng, seqlen_q=SEQLEN, seqlen_k=SEQLEN):
    shapes = [(HEADS, seqlen_q), (HEADS_K, seqlen_k), (HEADS_K, seqlen_k)]
    return [
        rng.standard_normal((BATCH, heads, length, HEAD_DIM)).astype(np.float32)
        for heads, length in shapes
    ]


def dense(query, key, value, visible, scale=HEAD_DIM**-0.5):
    key, value = (np.repeat(one, HEADS // HEADS_K, axis=1) for one in (key, value))
    visible = np.repeat(visible, HEADS // visible.shape[1], axis=1)
    scores = scale * (query @ key.swapaxes(2, 3))
    weights = np.where(visible, np.exp(scores), 0.0)
    sums = weights.sum(axis=-1, keepdims=True)
    out = weights / np.where(sums > 0, sums, 1.0) @ value
    return out.transpose(0, 2, 1, 3).reshape(BATCH, query.shape[2], -1)


def ours(given, *, on=None, **options):
    options = {
        name: paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in options.items()
    }
    out, weights = attention_forward(
        layer() if on is None else on, *map(paddle.to_tensor, given), **options
    )
    assert weights is None
    return out.numpy()


def assert_close(out, exact):
    assert_array_close("out", out, exact, None, "float32")


@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**63 - 1, 2**64])
def test_a_window_wider_than_int32_hides_nothing(window, rng):
    given, field = tensors(rng), random_field(rng, 1, 1)
    wide = ours(given, on=layer(sliding_window=window), **{FIELD: field})
    assert (wide == ours(given, **{FIELD: field})).all()


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_padding_mask_of_ones_changes_no_window(is_causal, rng):
    given, seen = tensors(rng), np.ones((BATCH, SEQLEN), bool)
    options = {"on": layer(sliding_window=3), "is_causal": is_causal}
    masked = ours(given, attention_mask=seen, **options)
    assert_close(masked, ours(given, **options).astype(np.float64))
    distance = np.arange(SEQLEN)[:, None] - np.arange(SEQLEN)
    visible = (np.abs(distance) < 3) & ((distance >= 0) | (not is_causal))
    assert_close(masked, dense(*given, visible[None, None]))


def random_field(rng, heads, width, dtype=np.int32):
    return rng.integers(0, SEQLEN + 1, (BATCH, heads, SEQLEN, width), dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("heads", [1, HEADS_K, HEADS])
@pytest.mark.parametrize(
    ("width", "is_causal", "causal"),
    [(1, None, True), (1, True, True), (2, None, True), (2, False, False), (4, None, False)],
)
def test_every_form_of_the_field_means_its_dense_mask(rng, dtype, heads, width, is_causal, causal):
    given, field = tensors(rng), random_field(rng, heads, width, dtype)
    visible = indices.to_dense(field.astype(np.int32), causal=causal, seqlen_q=SEQLEN)
    out = ours(given, is_causal=is_causal, **{FIELD: field})
    assert_close(out, dense(*given, visible))


def test_a_field_of_three_axes_is_one_number_per_column(rng):
    given, field = tensors(rng), random_field(rng, 1, 1)
    assert np.array_equal(ours(given, **{FIELD: field[..., 0]}), ours(given, **{FIELD: field}))


def test_int64_beyond_int32_means_never_and_not_something_wrapped(rng):
    given, field = tensors(rng), random_field(rng, 1, 1, np.int64)
    field[:, :, 3] = 2**32  # 0 if only the low half were read
    field[:, :, 4] = -(2**32) - 5
    clipped = ours(given, **{FIELD: field.clip(0, SEQLEN)})
    assert np.array_equal(ours(given, **{FIELD: field}), clipped)


def test_scaling_is_passed_on(rng):
    given, visible = tensors(rng), np.tril(np.ones((1, 1, SEQLEN, SEQLEN), bool))
    assert_close(ours(given, scaling=0.7), dense(*given, visible, scale=0.7))


@pytest.mark.parametrize("rows", [1, 4])
def test_fewer_rows_than_keys_are_the_last_ones(rng, rows):
    given = tensors(rng, seqlen_q=rows)
    visible = np.tril(np.ones((1, 1, SEQLEN, SEQLEN), bool))[:, :, -rows:]
    assert_close(ours(given), dense(*given, visible))


@pytest.mark.parametrize("said", ["argument", "layer"])
def test_attention_both_ways_if_the_model_says_so(rng, said):
    given, visible = tensors(rng), np.ones((1, 1, SEQLEN, SEQLEN), bool)
    options = {"is_causal": False} if said == "argument" else {"on": layer(is_causal=False)}
    assert_close(ours(given, **options), dense(*given, visible))


def additive(visible):
    return np.where(visible, 0.0, -1e6).astype(np.float32)


@pytest.mark.parametrize("kind", [np.asarray, additive])
def test_dense_masks_are_read_exactly(rng, kind):
    given = tensors(rng)
    visible = np.concatenate(
        [
            indices.to_dense(field, causal=True, seqlen_q=SEQLEN)
            for field, _ in (recipes.sft([4, 9]), recipes.dpo([(5, [3, 5])]))
        ]
    )
    out = ours(given, attention_mask=kind(visible))
    assert_close(out, dense(*given, visible))


@pytest.mark.parametrize("is_causal", [True, False, None])
def test_a_dense_mask_of_one_row_holds_for_all(rng, is_causal):
    given, seen = tensors(rng), rng.random((BATCH, 1, 1, SEQLEN)) < 0.6
    visible = np.broadcast_to(seen, (BATCH, 1, SEQLEN, SEQLEN))
    assert_close(ours(given, attention_mask=seen, is_causal=is_causal), dense(*given, visible))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [bool, np.int64, np.float32])
def test_a_padding_mask_alone_hides_keys(rng, causal, dtype):
    given, seen = tensors(rng), rng.random((BATCH, SEQLEN)) < 0.6
    visible = np.broadcast_to(seen[:, None, None], (BATCH, 1, SEQLEN, SEQLEN))
    visible = np.tril(visible) if causal else visible
    out = ours(given, attention_mask=seen.astype(dtype), is_causal=causal)
    assert_close(out, dense(*given, visible))


@pytest.mark.parametrize("how", ["indices", "dense", "none"])
@pytest.mark.parametrize("said", ["argument", "layer"])
def test_a_window_counts_tokens_and_holds_with_every_mask(rng, how, said):
    window, given = 3, tensors(rng)
    field = recipes.sft([9, 4]).startend_row_indices.repeat(BATCH, axis=0)
    visible = indices.to_dense(field, causal=True, seqlen_q=SEQLEN)
    if how == "none":
        visible = np.tril(np.ones_like(visible))
    options = {"indices": {FIELD: field}, "dense": {"attention_mask": visible}, "none": {}}[how]
    row, column = np.ogrid[:SEQLEN, :SEQLEN]
    near = visible & (row - column < window)
    if said == "argument":
        options["sliding_window"] = window
    else:
        options["on"] = layer(sliding_window=window)
    assert_close(ours(given, **options), dense(*given, near))


def test_layer_types_say_which_layers_have_the_window(rng):
    given = tensors(rng)
    config = types.SimpleNamespace(layer_types=["sliding_attention", "full_attention"])
    outs = [
        ours(given, on=layer(config=config, layer_idx=number), sliding_window=2)
        for number in (0, 1)
    ]
    assert np.array_equal(outs[0], ours(given, sliding_window=2))
    assert np.array_equal(outs[1], ours(given))


def test_dropout_is_refused_while_training_and_off_otherwise(rng):
    given = tensors(rng)
    assert np.array_equal(ours(given, dropout=0.1), ours(given))
    with pytest.raises(NotImplementedError, match="dropout while training"):
        ours(given, on=layer(training=True), dropout=0.1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sink": np.zeros(HEADS)}, NotImplementedError, "sink is not supported, only None"),
        ({"cu_seq_lens_q": 1}, TypeError, "got cu_seq_lens_q"),
        ({"sliding_window": 0}, ValueError, "sliding_window must be None or an int of at least 1"),
        ({"sliding_window": 2.0}, ValueError, r"got 2\.0"),
        ({FIELD: np.zeros((2, 1, 13, 3), np.int32)}, ValueError, "last axis 1, 2 or 4"),
        ({FIELD: np.zeros((2, 13), np.int32)}, ValueError, r"got shape \[2, 13\]"),
        ({FIELD: np.zeros((2, 1, 13, 1), np.float32)}, TypeError, "must be int32; got float32"),
        ({FIELD: np.zeros((2, 1, 9, 1), np.int32)}, ValueError, "one column per key, 13"),
        ({FIELD: np.zeros((1, 1, 13, 1), np.int32)}, ValueError, "not broadcast"),
        (
            {FIELD: np.zeros((2, 1, 13, 1), np.int32), "is_causal": False},
            ValueError,
            "is_causal must be True or None with 1 numbers per column",
        ),
        (
            {FIELD: np.zeros((2, 1, 13, 4), np.int32), "is_causal": True},
            ValueError,
            "is_causal must be False or None with 4 numbers per column",
        ),
        (
            {FIELD: np.zeros((2, 1, 13, 2), np.int32), "sliding_window": 3},
            NotImplementedError,
            "a sliding window is supported with one number per column",
        ),
        (
            {FIELD: np.zeros((2, 1, 13, 1), np.int32), "attention_mask": np.ones((2, 13), bool)},
            ValueError,
            "must not both reach attention",
        ),
        ({"attention_mask": np.full((2, 1, 13, 13), 0.5, np.float32)}, ValueError, "no biases"),
        *(
            ({"attention_mask": np.ones((2, 1, rows, 13), bool)}, ValueError, "each of 13 query r")
            for rows in (0, 2, 12, 14, 26)
        ),
        ({"attention_mask": np.full((2, 13), 2)}, ValueError, r"1 \(seen\) or 0 .* got 2"),
        ({"attention_mask": np.ones((2, 1, 13), bool)}, ValueError, r"got shape \[2, 1, 13\]"),
        ({"attention_mask": np.ones((2, 13), np.int8)}, TypeError, "must be bool, integers or fl"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(rng, options, error, message):
    with pytest.raises(error, match=message):
        ours(tensors(rng), **options)


def test_mask_heads_of_a_layer_that_may_be_split_are_refused(rng, monkeypatch):
    given, field = tensors(rng), random_field(rng, HEADS_K, 1)
    monkeypatch.setattr(paddle.distributed, "get_world_size", lambda: 2)
    ours(given, **{FIELD: field[:, :1]})
    with pytest.raises(NotImplementedError, match="without a config, only 1; got 2"):
        ours(given, **{FIELD: field})


def test_a_dense_mask_with_holes_is_refused_with_its_column(rng):
    visible = np.ones((BATCH, 1, SEQLEN, SEQLEN), bool)
    visible[0, 0, [1, 3, 5], 7] = False
    with pytest.raises(ValueError, match="cannot be said in two intervals per key column"):
        ours(tensors(rng), attention_mask=visible)


def test_a_dense_mask_in_a_static_graph_is_refused():
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program()):
            mask = paddle.static.data("mask", [1, 1, 4, 4], "float32")
            with pytest.raises(NotImplementedError, match="not supported in a static graph"):
                mask_fields(None, mask, None, default_causal=True, seqlen_q=4)
    finally:
        paddle.disable_static()


def test_gradients_flow_to_query_key_and_value(rng):
    given = [paddle.to_tensor(one) for one in tensors(rng)]
    for one in given:
        one.stop_gradient = False
    field = paddle.to_tensor(random_field(rng, 1, 1))
    out, _ = attention_forward(layer(training=True), *given, attn_mask_startend_row_indices=field)
    out.sum().backward()
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in given)
