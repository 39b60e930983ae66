"""Stacks of the training benchmark in PyTorch: loss and gradients against float64."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import support.gpu  # noqa: F401  (skips without torch or a GPU)
from train_steps.layouts import LAYOUTS
from train_steps.sizes import StackSizes

pytestmark = pytest.mark.gpu

SIZES = asdict(
    StackSizes(hidden=256, blocks=2, heads=4, heads_k=2, head_dim=64, ffn=512, vocab=512)
)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("name", ["ours", "torch_sdpa"])
def test_loss_and_gradients_are_right(name, layout):
    from train_steps import torch_session

    request = {"do": "check", "sizes": SIZES, "layout": layout, "seqlen": 1024}
    answer = torch_session.Session(name).handle(request)
    assert answer["is_right"], answer


def test_a_forgotten_mask_is_noticed(monkeypatch):
    from train_steps import torch_attention, torch_session

    session = torch_session.Session("ours")
    begin = torch_attention.Ours.begin

    def blind(self, rows, dtype):
        return begin(self, rows * 0 + rows.shape[2], dtype)

    monkeypatch.setattr(torch_attention.Ours, "begin", blind)
    request = {"do": "check", "sizes": SIZES, "layout": "dpo", "seqlen": 1024}
    assert not session.handle(request)["is_right"]
