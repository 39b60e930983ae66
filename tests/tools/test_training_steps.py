"""Sessions of the training benchmark in Paddle: right, wrong on purpose, measured."""

from __future__ import annotations

from dataclasses import asdict

import paddle
import pytest
from train_steps import paddle_session
from train_steps.layouts import LAYOUTS
from train_steps.sizes import StackSizes

SIZES = asdict(StackSizes(hidden=32, blocks=2, heads=2, heads_k=2, head_dim=16, ffn=48, vocab=64))


def check(session, layout):
    return session.handle({"do": "check", "sizes": SIZES, "layout": layout, "seqlen": 512})


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("name", sorted(paddle_session.ATTENTIONS))
def test_loss_and_gradients_are_right(name, layout):
    answer = check(paddle_session.Session(name), layout)
    assert answer["is_right"], answer


def causal(query, key, value, mask):
    """Attention that forgets where documents end."""
    return paddle_session.flashmask_attention(query, key, value, causal=True)


def shifted(query, key, value, mask):
    """Attention whose documents end a row late."""
    return paddle_session.ours(query, key, value, mask + 1)


@pytest.mark.parametrize("wrong", [causal, shifted])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_wrong_mask_is_noticed(layout, wrong):
    session = paddle_session.Session("ours")
    session.attention = paddle_session.Attention(wrong, is_dense=False)
    answer = check(session, layout)
    assert not answer["is_right"]
    assert answer["error"] > answer["allowed"]


def test_adapters_alone_are_trained():
    session = paddle_session.Session("ours")
    model = session._model(StackSizes(**SIZES), LAYOUTS["lora"], session.attention)
    trained = [name for name, one in model.named_parameters() if not one.stop_gradient]
    assert len(trained) == 2 * 2 * 4
    assert all("adapter" in name for name in trained)


def test_a_dense_mask_is_zero_where_a_row_sees_a_column():
    rows = paddle.to_tensor([2, 2, 3], dtype="int32").reshape([1, 1, 3, 1])
    mask = paddle_session.added_mask(rows, paddle.float32, heads=2)
    assert list(mask.shape) == [1, 2, 3, 3]
    hidden = float("-inf")
    assert mask[0, 1].tolist() == [[0, hidden, hidden], [0, 0, hidden], [hidden, hidden, 0]]


@pytest.mark.parametrize("name", sorted(paddle_session.ATTENTIONS))
def test_steps_are_measured(name):
    answer = paddle_session.Session(name).handle(
        {"do": "measure", "sizes": SIZES, "layout": "dpo", "seqlen": 512, "turns": 2}
    )
    assert answer["status"] == "ok"
    assert len(answer["seconds"]) == len(answer["cpu_seconds"]) == 2
    assert answer["loss"] == pytest.approx(0.69, abs=0.2)  # ln 2: the model knows nothing yet
    assert answer["peak_bytes"] > 0
