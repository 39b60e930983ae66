"""The indices reach every attention of their own forward, and nothing else changes."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from support.nlp_models import MODELS, SEQ_LEN, call, groups, make, packed_sft, tensors
from support.tolerance import assert_array_close

from paddle_flashmask import flashmask_attention
from paddle_flashmask.integrations import paddlenlp as integration
from paddle_flashmask.integrations.paddlenlp import patches
from paddle_flashmask.integrations.paddlenlp.inputs import INDEX_FIELD
from paddle_flashmask.integrations.paddlenlp.patches import CALLS
from paddle_flashmask.packing import pack_dpo

GRANULARITIES = ("full", "full_attn", "core_attn")


def enabled(name: str = "llama", **options) -> paddle.nn.Layer:
    model = make(name, **options)
    integration.enable(model)
    return model


def switch_on_recompute(model) -> None:
    for layer in model.sublayers(include_self=True):
        if hasattr(layer, "enable_recompute"):
            layer.enable_recompute = True
    model.train()


def real_rows(logits, batch):
    """Logits of real tokens; padding rows differ by right, since a dense mask cannot give 0."""
    columns = np.arange(SEQ_LEN)
    is_real = batch[INDEX_FIELD][:, 0, :, 0] > columns
    return logits.numpy()[is_real][None, None]


def gradients(model) -> dict[str, np.ndarray]:
    found = {name: weight.grad.numpy().copy() for name, weight in model.named_parameters()}
    model.clear_gradients()
    return found


def assert_same_gradients(ours, dense):
    for name, array in dense.items():
        assert_array_close(name, ours[name], array, None, "float32")


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_the_dense_mask(name):
    batch = packed_sft(9, 5, 7).build([0])
    ours = call(enabled(name), batch, flash_mask=True)
    dense = call(make(name), batch, flash_mask=False)
    assert_array_close("logits", real_rows(ours, batch), real_rows(dense, batch), None, "float32")


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_attends_with_ours_once(name):
    model = enabled(name, num_hidden_layers=3)
    before = CALLS.count
    call(model, packed_sft(9, 5).build([0]), flash_mask=True)
    assert CALLS.count - before == 3


@pytest.mark.parametrize("name", MODELS)
def test_hidden_tokens_do_not_leak(name):
    model, batch = enabled(name), packed_sft(9, 5, 7).build([0])
    end = int(batch[INDEX_FIELD][0, 0, 0, 0])
    changed = {**batch, "input_ids": batch["input_ids"].copy()}
    changed["input_ids"][0, :end] = 1 + changed["input_ids"][0, :end] % 30
    before, after = (call(model, one, flash_mask=True).numpy() for one in (batch, changed))
    assert before[0, end:].tobytes() == after[0, end:].tobytes()
    assert np.abs(before[0, :end] - after[0, :end]).max() > 1e-2


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_recompute_uses_the_indices_of_its_own_forward(name, granularity):
    """Two forwards with other masks before one backward: what a global mask gets wrong."""
    batches = [packed_sft(*lengths).build([0]) for lengths in ((9, 5, 7), (3, 16, 4))]
    found = []
    for flag in (True, False):
        model = make(name, recompute_granularity=granularity)
        if flag:
            integration.enable(model)
            switch_on_recompute(model)
        outputs = [call(model, batch, flash_mask=flag) for batch in batches]
        weights = [batch["loss_weights"] for batch in batches]
        sum(
            (output.square().mean(-1) * paddle.to_tensor(weight)).sum()
            for output, weight in zip(outputs, weights, strict=True)
        ).backward()
        found.append(gradients(model))
    assert_same_gradients(*found)


def test_two_answers_in_a_row_equal_two_rows():
    model = enabled()
    packed = pack_dpo(groups()[:1], seq_len=SEQ_LEN)
    batch = packed.build([0])
    answers = packed.unpack_answers(call(model, batch, flash_mask=True).numpy())[0]
    tokens = packed.unpack_answers(batch["input_ids"])[0]
    for logits, ids in zip(answers, tokens, strict=True):
        alone = make()(paddle.to_tensor(ids[None]), return_dict=True).logits
        assert_array_close("answer", logits[None, None], alone.numpy()[None], None, "float32")


@pytest.mark.parametrize("form", ["[B, S]", "[B, 1, S]", "int64", "int64 and huge"])
def test_other_forms_of_the_field_mean_the_same(form):
    model, batch = enabled(), packed_sft(9, 5, 7).build([0])
    expected = call(model, batch, flash_mask=True)
    field = batch[INDEX_FIELD]
    given = {
        "[B, S]": field[:, 0, :, 0],
        "[B, 1, S]": field[..., 0],
        "int64": field.astype(np.int64),
        "int64 and huge": np.where(field == 21, 2**40, field.astype(np.int64)),
    }[form]
    found = call(model, {**batch, INDEX_FIELD: given}, flash_mask=True)
    rows = slice(0, 21)  # beyond, the huge number no longer ends the last sample
    assert found.numpy()[:, rows].tobytes() == expected.numpy()[:, rows].tobytes()


@pytest.mark.parametrize("name", MODELS)
def test_a_row_of_padding_alone_sees_nothing(name):
    """Zeros have a triangle in them, if one looks at them as a mask."""
    model, batch = enabled(name), packed_sft(9).build([0])
    columns = np.arange(SEQ_LEN, dtype=np.int32).reshape(1, 1, SEQ_LEN, 1)
    both = [{**batch, INDEX_FIELD: numbers} for numbers in (columns, np.zeros_like(columns))]
    own, zeros = (call(model, one, flash_mask=True).numpy() for one in both)
    assert own.tobytes() == zeros.tobytes()


def test_four_numbers_per_column_are_not_causal():
    """A document that sees both ways, as in a prefix language model."""
    batch = packed_sft(SEQ_LEN).build([0])
    numbers = np.zeros((1, 1, SEQ_LEN, 4), np.int32)
    numbers[..., :2] = SEQ_LEN
    batch[INDEX_FIELD] = numbers
    ours = call(enabled(), batch, flash_mask=True).numpy()
    dense = call(make(), batch, flash_mask=False).numpy()
    assert_array_close("logits", ours[None], dense[None], None, "float32")
    causal = call(make(), packed_sft(SEQ_LEN).build([0]), flash_mask=False).numpy()
    assert np.abs(dense - causal).max() > 1e-2


@pytest.mark.parametrize("name", MODELS)
def test_other_masks_go_to_the_models_own_attention(name):
    """A switched model still takes what a plain one takes."""
    tokens = paddle.to_tensor([[1, 2, 3, 4]])
    masks = [None, paddle.to_tensor([[1, 1, 1, 0]]), paddle.ones([1, 4, 4], "int64").tril()]
    plain, switched = make(name, use_cache=False), enabled(name)
    for mask in masks:
        before = CALLS.count
        ours, own = (
            model(tokens, attention_mask=mask, return_dict=True).logits.numpy()
            for model in (switched, plain)
        )
        assert CALLS.count == before
        assert_array_close("logits", ours[None, :, :3], own[None, :, :3], None, "float32")


@pytest.mark.parametrize("name", MODELS)
def test_generation_is_the_models_own(name):
    tokens, mask = paddle.to_tensor([[1, 2, 3, 4], [4, 5, 6, 7]]), paddle.ones([2, 4], "int64")
    texts = []
    for model in (make(name), enabled(name)):
        call(model, packed_sft(9, 5).build([0]), flash_mask=bool(texts))
        found, _ = model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=8,
            decode_strategy="greedy_search",
            eos_token_id=0,
            pad_token_id=0,
        )
        texts.append(found.tolist())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("given", [True, False])
def test_key_heads_are_not_repeated_whatever_the_config_says(given, monkeypatch):
    """The config's constructor drops the flag: use_flash_attention=True comes out False."""
    model = make(use_flash_attention=given)
    assert not model.config.use_flash_attention
    if given:
        model.config.use_flash_attention = True  # as its users set it
    integration.enable(model)
    heads = []

    def seen(query, key, *arguments, **options):
        heads.append((query.shape[2], key.shape[2]))
        return flashmask_attention(query, key, *arguments, **options)

    monkeypatch.setattr(patches, "flashmask_attention", seen)
    call(model, packed_sft(9, 5).build([0]), flash_mask=True)
    assert heads == [(4, 2), (4, 2)]
    assert model.config.use_flash_attention is given


def test_lora_trains_the_same_adapters():
    from paddlenlp.peft import LoRAConfig, LoRAModel

    batch, found = packed_sft(9, 5, 7).build([0]), []
    for flag in (True, False):
        paddle.seed(1)
        config = LoRAConfig(target_modules=[".*q_proj.*", ".*v_proj.*"], r=4, lora_alpha=8)
        model = LoRAModel(make(), config)
        model.mark_only_lora_as_trainable()
        if flag:
            integration.enable(model)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.set_value(paddle.ones_like(weight) * 0.1)
        labels = tensors(batch)["labels"]
        logits = call(model, batch, flash_mask=flag)
        loss = paddle.nn.functional.cross_entropy(logits, labels, ignore_index=-100)
        loss.backward()
        found.append(
            {
                name: weight.grad.numpy().copy()
                for name, weight in model.named_parameters()
                if "lora_" in name
            }
        )
    assert found[0]
    assert_same_gradients(*found)
