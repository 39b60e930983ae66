"""The attention layer against the dense definition; packed rows against samples alone; errors."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from support.processes import run_python
from support.tolerance import assert_array_close

from paddle_flashmask.indices import to_dense
from paddle_flashmask.nn import CausalSelfAttention
from paddle_flashmask.packing import pack_dpo, pack_sft
from paddle_flashmask.reference import dense_attention

HIDDEN, HEADS, HEADS_K = 32, 4, 2


def layer_of(**options) -> CausalSelfAttention:
    paddle.seed(3)
    return CausalSelfAttention(HIDDEN, HEADS, HEADS_K, **options)


def dense(query, key, value, startend_row_indices):
    if startend_row_indices is None:
        seqlen = query.shape[1]
        mask = paddle.tril(paddle.ones([1, 1, seqlen, seqlen])).astype("bool")
    else:
        numbers = startend_row_indices.numpy()
        mask = paddle.to_tensor(to_dense(numbers, causal=True, seqlen_q=numbers.shape[2]))
    return dense_attention(query, key, value, mask)


def packed_sft() -> dict[str, np.ndarray]:
    samples = [([1] * length, [1] * length) for length in (5, 3, 1, 7)]
    return pack_sft(samples, seq_len=18).build([0])


def tensors(batch):
    return (
        paddle.to_tensor(batch["position_ids"]),
        paddle.to_tensor(batch["attn_mask_startend_row_indices"]),
    )


def run(layer, hidden, *arguments):
    """Output and gradients of the input and of every weight."""
    hidden = paddle.to_tensor(hidden, stop_gradient=False)
    out = layer(hidden, *arguments)
    (out * out).sum().backward()
    found = {"out": out, "hidden": hidden.grad}
    found |= {name: weight.grad for name, weight in layer.named_parameters()}
    arrays = {name: tensor.numpy().copy() for name, tensor in found.items()}
    layer.clear_gradients()
    return arrays


@pytest.mark.parametrize("sizes", [(0, 6), (1, 0), (0, 0)], ids=str)
def test_batches_without_tokens_give_none(sizes):
    out = layer_of()(paddle.zeros([*sizes, HIDDEN]), paddle.zeros(sizes, "int64"))
    assert list(out.shape) == [*sizes, HIDDEN]


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("options", [{}, {"head_dim": 24, "bias": True, "rope_base": 500.0}])
def test_forward_and_backward_equal_the_dense_definition(is_packed, options, rng):
    positions, indices = tensors(packed_sft())
    arguments = (positions, indices if is_packed else None)
    hidden = rng.standard_normal((1, 18, HIDDEN)).astype(np.float32)
    ours = run(layer_of(**options), hidden, *arguments)
    exact = run(layer_of(**options, attend=dense), hidden, *arguments)
    assert set(ours) == set(exact)
    for name, array in exact.items():
        assert np.abs(array).max() > 0 or "bias" in name
        assert_array_close(name, ours[name], array, None, "float32")


def test_packed_samples_equal_the_same_alone(rng):
    layer, lengths = layer_of(), (5, 3, 1, 7)
    hidden = rng.standard_normal((1, 18, HIDDEN)).astype(np.float32)
    packed = pack_sft([([1] * n, [1] * n) for n in lengths], seq_len=18)
    batch = packed.build([0])
    out = layer(paddle.to_tensor(hidden), *tensors(batch)).numpy()
    for place in packed.row_placements(0):
        span = slice(place.offset, place.offset + place.length)
        alone = layer(
            paddle.to_tensor(hidden[:, span]), paddle.arange(place.length).unsqueeze(0), None
        )
        assert_array_close("sample", out[:, span], alone.numpy(), None, "float32")


def test_two_answers_to_a_question_equal_two_rows(rng):
    layer = layer_of()
    packed = pack_dpo([([1, 2], [[5, 6], [7, 8, 9]])], seq_len=7)
    batch = packed.build([0])
    hidden = rng.standard_normal((1, 7, HIDDEN)).astype(np.float32)
    out = layer(paddle.to_tensor(hidden), *tensors(batch)).numpy()
    shared = packed.unpack_answers(hidden)[0]
    for answer, own in zip(packed.unpack_answers(out)[0], shared, strict=True):
        alone = layer(paddle.to_tensor(own[None]), paddle.arange(len(own)).unsqueeze(0), None)
        assert_array_close("answer", answer[None], alone.numpy(), None, "float32")


def test_hidden_tokens_do_not_leak(rng):
    layer, (positions, indices) = layer_of(), tensors(packed_sft())
    end = int(indices[0, 0, 0, 0])  # of the first sample
    hidden = rng.standard_normal((1, 18, HIDDEN)).astype(np.float32)
    before = layer(paddle.to_tensor(hidden), positions, indices).numpy()
    changed = hidden.copy()
    changed[:, :end] = 50.0 * rng.standard_normal((1, end, HIDDEN))
    after = layer(paddle.to_tensor(changed), positions, indices).numpy()
    assert before[:, end:].tobytes() == after[:, end:].tobytes()
    assert np.abs(before[:, :end] - after[:, :end]).max() > 1e-3


def test_positions_are_used(rng):
    layer, (positions, indices) = layer_of(), tensors(packed_sft())
    hidden = paddle.to_tensor(rng.standard_normal((1, 18, HIDDEN)), "float32")
    found = layer(hidden, positions, indices)
    assert (layer(hidden, positions * 3, indices) - found).abs().max() > 1e-4
    assert (layer(hidden, positions.astype("int32"), indices) - found).abs().max() == 0


def test_works_under_recompute(rng):
    hidden = rng.standard_normal((1, 18, HIDDEN)).astype(np.float32)
    layer, arguments = layer_of(), tensors(packed_sft())
    plain = run(layer, hidden, *arguments)

    def recomputed(*inputs):
        return paddle.distributed.fleet.utils.recompute(layer, *inputs)

    tensor = paddle.to_tensor(hidden, stop_gradient=False)
    out = recomputed(tensor, *arguments)
    (out * out).sum().backward()
    assert tensor.grad.numpy().tobytes() == plain["hidden"].tobytes()


EXPORT = """
import sys
import numpy as np
import paddle
import paddle_flashmask
from paddle_flashmask.nn import CausalSelfAttention

folder, step = sys.argv[1:]
path = f"{folder}/layer"
if step == "save":
    paddle.seed(3)
    layer = CausalSelfAttention(32, 4, 2)
    layer.eval()
    spec = [
        paddle.static.InputSpec([-1, -1, 32], "float32", "hidden"),
        paddle.static.InputSpec([-1, -1], "int64", "position_ids"),
        paddle.static.InputSpec([-1, 1, -1, 1], "int32", "indices"),
    ]
    paddle.jit.save(layer, path, input_spec=spec)
else:
    paddle_flashmask.load_ops()
    layer = paddle.jit.load(path)
for batch, length in ((1, 5), (2, 9)):
    hidden = np.random.default_rng(length).standard_normal((batch, length, 32))
    positions = paddle.arange(length).unsqueeze(0).expand([batch, length])
    indices = paddle.full([batch, 1, length, 1], 3, "int32")
    out = layer(paddle.to_tensor(hidden, "float32"), positions, indices)
    np.save(f"{folder}/{step}{length}.npy", out.numpy())
"""


def test_exported_layer_gives_the_same_bits_at_any_length(tmp_path):
    for step in ("save", "load"):
        done = run_python(EXPORT, tmp_path, str(tmp_path), step)
        assert done.returncode == 0, done.stderr[-2000:]
    for length in (5, 9):
        saved, loaded = (np.load(tmp_path / f"{step}{length}.npy") for step in ("save", "load"))
        assert saved.tobytes() == loaded.tobytes()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"hidden_size": 2.0}, TypeError, "hidden_size must be an int; got float 2.0"),
        ({"num_heads": True}, TypeError, "num_heads must be an int; got bool True"),
        ({"num_heads": 0}, ValueError, "num_heads must be at least 1; got 0"),
        ({"num_heads_k": 3}, ValueError, "num_heads_k must divide num_heads=4; got 3"),
        ({"num_heads_k": 0}, ValueError, "num_heads_k must be at least 1; got 0"),
        ({"hidden_size": 30}, ValueError, "num_heads must divide hidden_size=30 unless head_dim"),
        ({"head_dim": 7}, ValueError, "head_dim must be even and at least 2"),
        ({"rope_base": -1.0}, ValueError, "rope_base must be finite and above 0; got -1.0"),
        ({"rope_base": float("inf")}, ValueError, "rope_base must be finite and above 0; got inf"),
        ({"attend": "dense"}, TypeError, "attend must be callable or None; got str"),
    ],
)
def test_wrong_sizes_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        CausalSelfAttention(**{"hidden_size": 32, "num_heads": 4, **arguments})


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"hidden": np.zeros((1, 18, 32), np.float32)}, TypeError, "hidden must be a paddle.Tens"),
        ({"hidden": paddle.zeros([18, 32])}, ValueError, r"hidden must be \[B, S, 32\]"),
        ({"hidden": paddle.zeros([1, 18, 16])}, ValueError, r"hidden must be \[B, S, 32\]"),
        (
            {"position_ids": paddle.zeros([1, 17], "int64")},
            ValueError,
            r"position_ids must be \[B, S\] = \[1, 18\]; got shape \[1, 17\]",
        ),
        ({"position_ids": None}, TypeError, "position_ids must be a paddle.Tensor"),
        (
            {"startend_row_indices": paddle.zeros([1, 1, 18, 1], "int64")},
            TypeError,
            "startend_row_indices must be int32",
        ),
        (
            {"startend_row_indices": paddle.zeros([1, 1, 17, 1], "int32")},
            ValueError,
            "startend_row_indices",
        ),
    ],
)
def test_wrong_inputs_are_named(change, error, words):
    positions, indices = tensors(packed_sft())
    arguments = {
        "hidden": paddle.zeros([1, 18, 32]),
        "position_ids": positions,
        "startend_row_indices": indices,
    }
    with pytest.raises(error, match=words):
        layer_of()(**{**arguments, **change})


def test_bias_is_of_query_key_and_value():
    names = {name for name, _ in layer_of(bias=True).named_parameters() if "bias" in name}
    assert names == {"query.bias", "key.bias", "value.bias"}


def test_sizes_are_printed():
    assert "hidden_size=32, num_heads=4, num_heads_k=2, head_dim=8" in repr(layer_of())
