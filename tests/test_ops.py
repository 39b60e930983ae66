"""What the operator returns inside Paddle, and who gets a gradient."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle.distributed.fleet.utils import recompute
from support import cases
from support.sources import HEAD_DIM, make_rows, make_sources, same_bits

from paddle_flashmask import flashmask_attention, indices

# Paddle's own backward of a graph asks for it.
pytestmark = pytest.mark.filterwarnings("ignore:Tensor do not have 'place' interface:UserWarning")


# What a call returns.


def test_returns_a_bare_tensor_by_default():
    query, key, value = make_sources()
    out = flashmask_attention(query, key, value, causal=True)
    assert isinstance(out, paddle.Tensor)
    assert out.shape == query.shape


def test_returns_a_list_of_out_and_lse_when_asked():
    query, key, value = make_sources()
    results = flashmask_attention(query, key, value, causal=True, return_softmax_lse=True)
    assert isinstance(results, list)
    assert [result.shape for result in results] == [[2, 70, 4, HEAD_DIM], [2, 4, 70]]


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_lse_is_float32_for_every_dtype(dtype):
    _, lse = flashmask_attention(*make_sources(dtype=dtype), return_softmax_lse=True)
    assert lse.dtype == paddle.float32


def test_asking_for_lse_does_not_change_out():
    sources = make_sources()
    out, _ = flashmask_attention(*sources, causal=True, return_softmax_lse=True)
    assert same_bits([out], [flashmask_attention(*sources, causal=True)])


def test_takes_a_mask_unpacked_as_two_arguments():
    sources, rows = make_sources(), make_rows()
    mask = indices.ColumnMask(rows.numpy(), causal=True)
    by_name = flashmask_attention(*sources, startend_row_indices=rows, causal=True)
    assert same_bits([flashmask_attention(*sources, *mask)], [by_name])


def test_takes_a_mask_that_was_narrowed_or_lowered():
    sources, rows = make_sources(), make_rows().numpy()
    plain = flashmask_attention(*sources, rows, causal=True)
    lowered = indices.lower_causal(rows, seqlen_q=70)
    narrowed = indices.narrow(*lowered[:1], causal=lowered.causal, seqlen_q=70)
    assert same_bits([flashmask_attention(*sources, *lowered)], [plain])
    assert same_bits([flashmask_attention(*sources, *narrowed)], [plain])


def test_takes_numpy_booleans_and_numbers():
    sources = make_sources()
    plain = flashmask_attention(*sources, causal=True, window_size=3, softmax_scale=0.5)
    numpy = flashmask_attention(
        *sources, causal=np.bool_(True), window_size=np.int64(3), softmax_scale=np.float32(0.5)
    )
    assert same_bits([numpy], [plain])


@pytest.mark.parametrize("dropout", [0.0, 0, 0.5, 1.0])
def test_dropout_does_nothing_outside_training(dropout):
    sources = make_sources()
    plain = flashmask_attention(*sources, causal=True)
    assert same_bits(
        [flashmask_attention(*sources, causal=True, dropout=dropout, training=False)], [plain]
    )


def test_inputs_are_left_unchanged():
    sources, rows = make_sources(grad=True), make_rows()
    before = [source.numpy().copy() for source in (*sources, rows)]
    flashmask_attention(*sources, rows, causal=True).sum().backward()
    for source, old in zip((*sources, rows), before, strict=True):
        np.testing.assert_array_equal(source.numpy(), old)


# Gradients: who gets one, and what is kept for it.


@pytest.mark.parametrize("wanted", range(1, 8))
def test_only_inputs_that_want_a_gradient_get_one(wanted):
    everyone = make_sources(grad=True)
    flashmask_attention(*everyone, make_rows(), causal=True).square().sum().backward()
    some = [source.detach() for source in everyone]
    for i, source in enumerate(some):
        source.stop_gradient = not wanted >> i & 1
    flashmask_attention(*some, make_rows(), causal=True).square().sum().backward()
    for i, (source, full) in enumerate(zip(some, everyone, strict=True)):
        if wanted >> i & 1:
            assert same_bits([source.grad], [full.grad])
        else:
            assert source.grad is None


def test_output_wants_no_gradient_when_no_input_does():
    assert flashmask_attention(*make_sources(), causal=True).stop_gradient


def test_output_wants_no_gradient_under_no_grad():
    sources = make_sources(grad=True)
    with paddle.no_grad():
        out, lse = flashmask_attention(*sources, causal=True, return_softmax_lse=True)
    assert out.stop_gradient
    assert lse.stop_gradient


def allocated_bytes() -> int:
    return paddle.base.core.host_memory_stat_current_value("Allocated", 0)


def kept_bytes(grad_enabled: bool) -> int:
    """Bytes that stay allocated for the inputs after they are gone but the output is not."""
    sources = make_sources(512, grad=True)
    size = sum(source.size * 4 for source in sources)
    with paddle.set_grad_enabled(grad_enabled):
        out = flashmask_attention(*sources, causal=True)
    before = allocated_bytes()
    del sources
    freed = before - allocated_bytes()
    del out
    return size - freed


def test_nothing_is_kept_under_no_grad():
    assert kept_bytes(grad_enabled=False) <= 0


def test_inputs_are_kept_for_the_backward():
    assert kept_bytes(grad_enabled=True) > 0


def test_gradient_of_the_gradient_fails_in_words():
    sources = make_sources(grad=True)
    out = flashmask_attention(*sources, causal=True)
    gradient = paddle.grad([out.square().sum()], sources[:1], create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="a gradient of its gradient is not supported"):
        gradient.square().sum().backward()


def test_backward_twice_needs_the_graph_kept():
    sources = make_sources(grad=True)
    out = flashmask_attention(*sources, causal=True)
    first = paddle.grad([out.sum()], sources, retain_graph=True)
    assert same_bits(first, paddle.grad([out.sum()], sources))


def test_gradients_add_up_over_two_calls():
    sources = make_sources(grad=True)
    for _ in range(2):
        flashmask_attention(*sources, causal=True).sum().backward()
    twice = [source.grad.numpy() for source in sources]
    once = paddle.grad([flashmask_attention(*sources, causal=True).sum()], sources)
    for mine, gradient in zip(twice, once, strict=True):
        np.testing.assert_array_equal(mine, 2 * gradient.numpy())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recompute_gives_the_same_gradients(use_reentrant):
    sources, rows = make_sources(grad=True), make_rows()

    def block(query, key, value):
        return flashmask_attention(query * 2, key, value, rows, causal=True).square()

    plain = paddle.grad([block(*sources).sum()], sources)
    recompute(block, *sources, use_reentrant=use_reentrant).sum().backward()
    assert same_bits([source.grad for source in sources], plain)
