"""What the flag cannot serve is an error that names it, never another attention."""

from __future__ import annotations

import types

import numpy as np
import paddle
import pytest
from paddlenlp.trainer import Trainer
from paddlenlp.transformers import GPTConfig, GPTForCausalLM
from paddlenlp.transformers.llama import modeling
from support.nlp_models import (
    MODELS,
    arguments,
    call,
    losses_of,
    make,
    packed_of,
    packed_sft,
    tensors,
    trainer_of,
)

from paddle_flashmask.integrations import paddlenlp as integration
from paddle_flashmask.integrations.paddlenlp import trainer
from paddle_flashmask.integrations.paddlenlp.inputs import INDEX_FIELD


def gpt():
    return GPTForCausalLM(
        GPTConfig(
            vocab_size=37,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=32,
        )
    )


def test_a_model_without_a_seam_is_named(tmp_path):
    with pytest.raises(NotImplementedError, match="no seam for GPTForCausalLM; it has for Llama"):
        trainer_of("sft", gpt(), arguments(tmp_path), packed_of("sft"), flash_mask=True)


def test_a_prefix_model_is_refused():
    from paddlenlp.peft import PrefixConfig, PrefixModelForCausalLM
    from paddlenlp.peft.prefix import llama_postprocess_past_key_value

    config = PrefixConfig(
        num_prefix_tokens=2,
        num_attention_heads=4,
        num_hidden_layers=2,
        hidden_size=32,
        multi_query_group_num=2,
    )
    model = PrefixModelForCausalLM(
        make(), config, postprocess_past_key_value=llama_postprocess_past_key_value
    )
    with pytest.raises(NotImplementedError, match="does not support PrefixModelForCausalLM"):
        integration.enable(model)


@pytest.mark.parametrize("value", [paddle.ones([1]), None, "llama"])
def test_what_is_no_layer_is_refused(value):
    with pytest.raises(TypeError, match=r"model must be a paddle\.nn\.Layer; got"):
        integration.enable(value)


@pytest.mark.parametrize(
    "setting",
    [
        {"alibi": True},
        {"sequence_parallel": True},
        {"sep_parallel_degree": 2},
        {"context_parallel_degree": 2},
    ],
)
def test_a_config_that_rules_it_out_is_named(setting):
    model = make()
    for name, value in setting.items():
        setattr(model.config, name, value)
    with pytest.raises(NotImplementedError, match=f"does not support {next(iter(setting))}"):
        integration.enable(model)


@pytest.mark.parametrize(
    "setting",
    ["pipeline_parallel_degree", "sep_parallel_degree", "sequence_parallel", "to_static"],
)
def test_a_trainer_of_another_kind_is_refused(setting, tmp_path):
    args = arguments(tmp_path)
    setattr(args, setting, 2 if setting.endswith("degree") else True)
    with pytest.raises(NotImplementedError, match=f"flash_mask does not support {setting}"):
        trainer_of("sft", make(), args, packed_of("sft"), flash_mask=True)


@pytest.mark.parametrize("name", MODELS)
def test_a_head_dim_without_a_kernel_is_named_with_its_layer(name):
    model = make(name, hidden_size=24)  # heads of 6
    with pytest.raises(integration.NotOursError, match=r"layers\.0\.self_attn: none \(no kernel"):
        integration.enable(model)
    assert "flash_mask is off" in str(integration.report(model))


def test_a_dtype_without_a_kernel_is_named():
    with pytest.raises(integration.NotOursError, match="dtype float64 and head_dim 8"):
        integration.enable(make(), dtype="float64")


@pytest.mark.parametrize(
    ("flag", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16"), (None, None)]
)
def test_mixed_precision_is_judged_by_its_own_dtype(flag, dtype, tmp_path, monkeypatch):
    """A GPU has no kernel for the float32 of the weights, but it has one for the calls."""
    asked = []
    monkeypatch.setattr(trainer, "enable", lambda model, dtype: asked.append(dtype))
    args = arguments(tmp_path)
    if flag is not None:
        object.__setattr__(args, flag, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "__init__", lambda self, model, args, **_: _kept(self, model, args))
        trainer_of("sft", make(), args, packed_of("sft"), flash_mask=True)
    assert asked == [dtype]


def _kept(own, model, args):
    own.model, own.args = model, args


def test_a_batch_without_indices_is_refused(tmp_path):
    packed = packed_of("sft")

    class WithoutIndices:
        seq_len = packed.seq_len

        def __len__(self):
            return len(packed)

        def build(self, rows):
            batch = packed.build(rows)
            del batch[INDEX_FIELD]
            return batch

    made = trainer_of("sft", make(), arguments(tmp_path), WithoutIndices(), flash_mask=True)
    with pytest.raises(ValueError, match=f"flash_mask=True needs {INDEX_FIELD} in the batch; got"):
        made.train()
    with pytest.raises(ValueError, match=f"flash_mask=True needs {INDEX_FIELD} in the batch; got"):
        made.evaluate()


def test_a_forward_that_does_not_reach_ours_is_an_error(tmp_path, monkeypatch):
    """Another patch of the same function, after the flag was set."""
    made = trainer_of("sft", make(), arguments(tmp_path), packed_of("sft"), flash_mask=True)

    def another(query_states, config, key_states, value_states, *_, **__):
        return value_states.reshape([0, 0, -1]).tile([1, 1, 2])

    monkeypatch.setattr(modeling, "scaled_dot_product_attention", another)
    with pytest.raises(integration.NotOursError, match="ran 0 times in a forward of 2 attention"):
        made.train()
    assert "was replaced after flash_mask was set" in str(integration.report(made.model))


def test_dropping_every_mask_by_environment_is_refused(tmp_path, monkeypatch):
    """Later versions have this switch; it would leave plain causal attention."""
    made = trainer_of("sft", make(), arguments(tmp_path), packed_of("sft"), flash_mask=True)
    monkeypatch.setattr(modeling, "get_use_casual_mask", lambda: True, raising=False)
    with pytest.raises(NotImplementedError, match="does not support USE_CASUAL_MASK=True"):
        made.train()


def test_dropout_is_refused_while_training_and_off_in_evaluation():
    model = make("mixtral", attention_dropout=0.1)
    integration.enable(model)
    batch = packed_sft(9, 5).build([0])
    without = make("mixtral")
    integration.enable(without)
    ours, exact = (call(one, batch, flash_mask=True).numpy() for one in (model, without))
    assert ours.tobytes() == exact.tobytes()
    model.train()
    with pytest.raises(NotImplementedError, match="dropout while training is not supported"):
        call(model, batch, flash_mask=True)


def test_attention_weights_cannot_be_returned():
    model = make()
    integration.enable(model)
    inputs = integration.model_inputs(tensors(packed_sft(9).build([0])), flash_mask=True)
    with pytest.raises(NotImplementedError, match="does not support output_attentions=True"):
        model(inputs["input_ids"], attention_mask=inputs["attention_mask"], output_attentions=True)


def test_a_cache_of_earlier_keys_does_not_fit_the_indices():
    model = make()
    integration.enable(model)
    _, cache = model(paddle.ones([1, 3], "int64"), use_cache=True)[:2]
    indices = paddle.full([1, 1, 2, 1], 2, "int32")
    with pytest.raises(ValueError, match="startend_row_indices"):
        model(paddle.ones([1, 2], "int64"), attention_mask=indices, past_key_values=cache)


def test_another_version_of_the_attention_is_refused(monkeypatch):
    def later(
        query_states,
        config,
        key_states,
        value_states,
        attention_mask,
        output_attentions,
        alibi=None,
        attn_mask_startend_row_indices=None,
        sequence_parallel=False,
    ):
        raise AssertionError

    monkeypatch.setattr(modeling, "scaled_dot_product_attention", later)
    with pytest.raises(NotImplementedError, match=r"knows FlashMask itself: call redirect_funct"):
        integration.enable(make())


def test_flag_is_asked_for(tmp_path):
    with pytest.raises(TypeError, match="flash_mask_args must be a FlashMaskArguments, unless"):
        integration.SftTrainer(model=make(), args=arguments(tmp_path))
    bad = types.SimpleNamespace(flash_mask="yes")
    with pytest.raises(TypeError, match="flash_mask must be a bool; got str 'yes'"):
        integration.SftTrainer(model=make(), args=arguments(tmp_path), flash_mask_args=bad)


def test_the_plain_trainer_does_not_drop_the_indices(tmp_path):
    """Who forgets the mixin is told by the model, not trained without a mask."""
    rows = integration.RowDataset(packed_of("sft"))
    made = Trainer(
        model=make(),
        args=arguments(tmp_path),
        train_dataset=rows,
        data_collator=integration.collate_rows,
    )
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        made.train()


@pytest.mark.parametrize(
    ("options", "stored", "words"),
    [
        ({}, False, "DPO needs a reference"),
        ({"reference_free": True}, True, "must not have reference_log_probs with reference_free"),
        ({"reference_model": make}, True, "must not have reference_log_probs if a reference_model"),
    ],
)
def test_dpo_needs_exactly_one_reference(options, stored, words, tmp_path):
    packed = packed_of("dpo")
    if stored:
        packed = packed.with_reference(lambda batch: np.zeros(len(batch["answer_rows"])))
    options = {name: value() if callable(value) else value for name, value in options.items()}
    made = trainer_of("dpo", make(), arguments(tmp_path), packed, flash_mask=True, **options)
    with pytest.raises(ValueError, match=words):
        losses_of(made)


def test_dpo_refuses_two_references_at_once(tmp_path):
    with pytest.raises(ValueError, match="reference_model must be None with reference_free=True"):
        trainer_of(
            "dpo",
            make(),
            arguments(tmp_path),
            packed_of("dpo"),
            flash_mask=True,
            reference_free=True,
            reference_model=make(),
        )


def test_a_reference_without_a_seam_is_named(tmp_path):
    """It is given the same batches."""
    with pytest.raises(NotImplementedError, match="no seam for GPTForCausalLM"):
        trainer_of(
            "dpo",
            make(),
            arguments(tmp_path),
            packed_of("dpo"),
            flash_mask=True,
            reference_model=gpt(),
        )


def test_a_reward_model_has_no_router_loss():
    with pytest.raises(NotImplementedError, match=r"does not support config\.output_router_logits"):
        integration.RewardModel(make("mixtral", output_router_logits=True))
