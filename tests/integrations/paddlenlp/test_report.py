"""The report: which attention each layer runs; switching on and off."""

from __future__ import annotations

import json

import paddle
import pytest
from paddlenlp.transformers.llama import modeling
from support.nlp_models import MODELS, make

from paddle_flashmask.integrations import paddlenlp as integration


@pytest.mark.parametrize("name", MODELS)
def test_report_names_the_backend_of_each_layer(name):
    model = make(name)
    off = integration.report(model)
    assert not off.is_ours
    assert str(off) == "\n".join(
        f"{name}.layers.{number}.self_attn: built-in (flash_mask is off)" for number in (0, 1)
    )
    integration.enable(model)
    on = integration.report(model, strict=True)
    assert on.is_ours
    assert str(on) == "\n".join(f"{name}.layers.{number}.self_attn: ours, CPU" for number in (0, 1))


def test_strict_names_layers_that_are_not_ours():
    with pytest.raises(integration.NotOursError, match="2 of 2 layers do not run"):
        integration.report(make(), strict=True)


def test_a_model_without_a_seam_is_reported():
    class OtherAttention(paddle.nn.Layer):
        pass

    model = paddle.nn.Sequential(OtherAttention(), paddle.nn.Linear(2, 2))
    report = integration.report(model)
    assert str(report).startswith("0: built-in (OtherAttention has no seam; there is one for Llama")
    with pytest.raises(integration.NotOursError, match="no layer with attention"):
        integration.report(paddle.nn.Linear(2, 2), strict=True)


def test_switching_on_twice_is_once_and_off_is_off():
    model = make()
    integration.enable(model)
    integration.enable(model)
    assert integration.report(model).is_ours
    assert not hasattr(modeling.scaled_dot_product_attention.__wrapped__, "__wrapped__")
    integration.disable(model)
    assert not integration.report(model).is_ours


def test_nothing_of_ours_is_saved_in_the_config(tmp_path):
    model = make()
    before = model.config.to_dict()
    integration.enable(model)
    model.config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert not [name for name in saved if "flash_mask" in name]
    assert set(model.config.to_dict()) == set(before)


def test_a_reward_model_shares_the_decoder():
    model = make()
    reward = integration.RewardModel(model)
    assert reward.backbone is model.llama
    integration.enable(reward)
    assert str(integration.report(reward)).startswith("backbone.layers.0.self_attn: ours, CPU")
