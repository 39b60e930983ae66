"""A mask never gets lost without a word: flags that reach no layer, settings, two masks."""

from __future__ import annotations

import types

import numpy as np
import paddle
import pytest
from support.formers import (
    MODELS,
    SEQ_LEN,
    collate,
    logits_of,
    make_model,
    make_trainer,
    packed_rows,
    tensors,
)
from support.tolerance import BFLOAT16_LOGITS, assert_logits_close

from paddle_flashmask.integrations import paddleformers
from paddle_flashmask.integrations.paddleformers import guard, registration

FIELD = "attn_mask_startend_row_indices"
NAME = paddleformers.NAME


@pytest.fixture
def batch(rng):
    inputs = tensors(collate(packed_rows(rng, 2)))
    del inputs["labels"]
    return inputs


def test_report_names_every_layer_and_its_backend():
    report = paddleformers.report(make_model(NAME), strict=True)
    assert [layer.name for layer in report.layers] == [
        "model.layers.0.self_attn",
        "model.layers.1.self_attn",
    ]
    assert {layer.backend for layer in report.layers} == {"ours, CPU"}


def test_strict_report_of_another_attention_raises_with_the_reason():
    with pytest.raises(paddleformers.NotOursError, match="'eager', not 'paddle_flashmask'"):
        paddleformers.report(make_model("eager"), strict=True)


@pytest.mark.parametrize("name", ["Ernie4_5", "Gemma3"])
def test_a_name_changed_after_the_model_was_made_reaches_no_layer(name, batch, tmp_path):
    """These layers keep the name that the configuration held when they were made."""
    model = make_model("eager", name)
    model.config._attn_implementation = NAME
    assert not any(layer.is_ours for layer in paddleformers.report(model).layers)
    with pytest.raises(RuntimeError, match="none of its layers called it"):
        model(**batch)
    with pytest.raises(paddleformers.NotOursError, match="2 of 2 layers do not run"):
        make_trainer(model, [], tmp_path)


def test_layer_without_a_kernel_is_named_when_the_trainer_starts(tmp_path):
    model = make_model(NAME, hidden_size=48, num_attention_heads=4)  # head_dim 12
    with pytest.raises(paddleformers.NotOursError, match=r"no kernel for the CPU.* head_dim 12"):
        make_trainer(model, [], tmp_path)


def test_one_layer_without_a_kernel_is_enough(tmp_path):
    model = make_model(NAME)
    model.model.layers[1].self_attn.head_dim = 12
    with pytest.raises(paddleformers.NotOursError, match=r"1 of 2 layers .*\n.*layers\.1.*: none"):
        make_trainer(model, [], tmp_path)


def test_layer_with_an_attention_of_its_own_is_built_in(tmp_path):
    model = make_model(NAME)

    class OtherAttention(paddle.nn.Linear):
        pass

    model.model.layers[1].self_attn = OtherAttention(64, 64)
    layer = paddleformers.report(model).layers[1]
    assert layer.backend == "built-in"
    assert "OtherAttention has an attention of its own" in layer.reason
    make_trainer(model, [], tmp_path)  # said in the log
    paddleformers.register(strict=True)
    with pytest.raises(paddleformers.NotOursError, match="1 of 2 layers"):
        make_trainer(model, [], tmp_path)


@pytest.mark.parametrize("attention", ["eager", "flashmask"])
def test_yaml_that_registers_and_does_not_choose_is_refused_once(attention, tmp_path):
    paddleformers.register(must_use=True)
    model = make_model(attention)
    with pytest.raises(paddleformers.NotOursError, match=f"is {attention}; set _attn_implementat"):
        make_trainer(model, [], tmp_path)
    make_trainer(model, [], tmp_path)


def dropping(model):
    """The model as one whose forward knows nothing of the field."""

    class Dropping(type(model)):
        def forward(self, input_ids, **dropped):
            return super().forward(input_ids)

    model.__class__ = Dropping
    return model


def test_model_whose_forward_lacks_the_argument_is_refused(tmp_path):
    with pytest.raises(paddleformers.NotOursError, match=f"has no argument {FIELD}"):
        make_trainer(dropping(make_model(NAME)), [], tmp_path)


def test_masks_that_a_model_drops_are_an_error(batch):
    with pytest.raises(RuntimeError, match=r"indices was .* reach model\.layers\.0"):
        dropping(make_model(NAME))(**batch)
    padding = paddle.ones([2, SEQ_LEN], dtype="int64")
    dropping(make_model(NAME))(input_ids=batch["input_ids"], attention_mask=padding)
    padding[:, 3] = 0
    with pytest.raises(RuntimeError, match=r"attention_mask was passed to Dropping and did not re"):
        dropping(make_model(NAME))(input_ids=batch["input_ids"], attention_mask=padding)


def test_indices_under_the_old_name_are_joined_with_a_padding_mask_too(batch):
    model, ones = make_model(NAME), paddle.ones([2, SEQ_LEN], dtype="bool")
    plain = logits_of(model, **batch)
    field = batch.pop(FIELD)
    again = logits_of(model, **batch, attn_mask_start_row_indices=field, attention_mask=ones)
    assert np.array_equal(again, plain)


def test_auto_cast_to_bfloat16_is_as_near_to_eager_as_it_should_be(batch):
    real = batch[FIELD].numpy()[:, 0, :, 0] > np.arange(SEQ_LEN)
    with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
        ours, theirs = (logits_of(make_model(one), **batch)[real] for one in (NAME, "eager"))
    assert_logits_close(ours, theirs, BFLOAT16_LOGITS * np.abs(theirs).max())


@pytest.mark.parametrize(
    "setting", ["context_parallel_size", "sep_parallel_size", "pipeline_model_parallel_size"]
)
def test_settings_that_lose_the_mask_are_refused(setting, batch):
    model = make_model(NAME)
    arguments = types.SimpleNamespace(**{setting: 2})
    with pytest.raises(NotImplementedError, match=f"{setting} is not supported .* got 2"):
        guard.check_trainer(model, arguments, must_use=False, strict=False)
    setattr(model.config, setting, 2)
    with pytest.raises(NotImplementedError, match=f"{setting} is not supported .* got 2"):
        model(**batch)
    with pytest.raises(NotImplementedError, match=f"{setting} is not supported .* got 2"):
        model.model.layers[0].self_attn(
            paddle.zeros([1, 4, 64]), position_embeddings=(paddle.ones([1, 4, 16]),) * 2
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padding", [None, 0, 3])
def test_packed_rows_without_anything_that_parts_them_are_refused(name, padding, batch):
    del batch[FIELD]
    if padding is not None:
        batch["attention_mask"] = paddle.ones([2, SEQ_LEN], dtype="int64")
        batch["attention_mask"][:, SEQ_LEN - padding :] = 0
    with pytest.raises(ValueError, match="position_ids restart within a row"):
        make_model(NAME, name)(**batch)


@pytest.mark.parametrize("end", [[0], [0, 0, 0], [0, 5, 6, 0], [2, 1]], ids=str)
def test_short_samples_behind_the_first_are_refused_where_a_mask_says_they_are_real(end, batch):
    positions = paddle.arange(SEQ_LEN).expand([2, -1]).clone()
    positions[:, -len(end) :] = paddle.to_tensor(end)
    inputs = {"input_ids": batch["input_ids"], "position_ids": positions}
    mask = paddle.ones([2, SEQ_LEN], dtype="int64")
    with pytest.raises(ValueError, match="position_ids restart within a row"):
        make_model(NAME)(**inputs, attention_mask=mask)


def test_rows_of_one_sample_and_padding_need_no_mask(batch):
    """What a batch holds without packing; padding has position 0."""
    positions = paddle.arange(SEQ_LEN).expand([2, -1]).clone()
    plain = logits_of(make_model(NAME), input_ids=batch["input_ids"], position_ids=positions)
    positions[:, -5:] = 0
    padded = logits_of(make_model(NAME), input_ids=batch["input_ids"], position_ids=positions)
    assert_logits_close(padded[:, :-5], plain[:, :-5])


def test_positions_that_start_behind_padding_need_no_indices(batch):
    mask = paddle.ones([2, SEQ_LEN], dtype="int64")
    mask[:, :4] = 0
    positions = (mask.cumsum(-1) - 1).clip(0)
    positions[:, :4] = 1  # as some libraries fill it
    inputs = {"input_ids": batch["input_ids"], "position_ids": positions, "attention_mask": mask}
    ours, theirs = (logits_of(make_model(one), **inputs)[:, 4:] for one in (NAME, "eager"))
    assert_logits_close(ours, theirs)


@pytest.mark.parametrize("how", ["argument", "config"])
def test_attention_weights_are_refused(how, batch):
    model = make_model(NAME, "Phi3")
    if how == "argument":
        batch["output_attentions"] = True
    else:
        model.config.output_attentions = True
    with pytest.raises(NotImplementedError, match="output_attentions is not supported"):
        model(**batch)


@pytest.mark.parametrize("name", MODELS)
def test_later_samples_do_not_see_an_earlier_one(name, batch):
    model = make_model(NAME, name)
    before = logits_of(model, **batch)
    end = int(batch[FIELD][0, 0, 0, 0])  # of the first sample of the first row
    batch["input_ids"][0, :end] = 7
    after = logits_of(model, **batch)
    assert np.array_equal(after[0, end:], before[0, end:])
    assert not np.array_equal(after[0, :end], before[0, :end])
    assert np.array_equal(after[1], before[1])


def test_padding_mask_of_ones_changes_nothing(batch):
    model = make_model(NAME)
    plain = logits_of(model, **batch)
    ones = paddle.ones([2, SEQ_LEN], dtype="int64")
    assert np.array_equal(logits_of(model, **batch, attention_mask=ones), plain)


def test_padding_mask_and_indices_hide_what_either_hides(batch):
    model = make_model(NAME)
    padding = paddle.ones([2, SEQ_LEN], dtype="int64")
    padding[:, 3] = 0
    hidden = batch[FIELD].clone()
    hidden[:, :, 3] = 0
    joined = logits_of(model, **batch, attention_mask=padding)
    assert np.array_equal(joined, logits_of(model, **batch | {FIELD: hidden}))
    assert not np.array_equal(joined, logits_of(model, **batch))


def test_dense_mask_beside_indices_is_refused(batch):
    dense = paddle.ones([2, 1, SEQ_LEN, SEQ_LEN], dtype="bool")
    with pytest.raises(ValueError, match=r"attention_mask beside .* a padding mask; got shapes"):
        make_model(NAME)(**batch, attention_mask=dense)


@pytest.mark.parametrize("name", MODELS)
def test_dense_mask_alone_means_what_the_indices_mean(name, batch):
    """What a batch holds with use_attn_mask_startend_row_indices: false."""
    from paddle_flashmask import indices

    given = batch.pop(FIELD)
    dense = indices.to_dense(given.numpy(), causal=True, seqlen_q=SEQ_LEN)
    model, eager = make_model(NAME, name), make_model("eager", name)
    ours = logits_of(model, **batch, attention_mask=paddle.to_tensor(dense.astype("float32")))
    real = given.numpy()[:, 0, :, 0] > np.arange(SEQ_LEN)
    theirs = logits_of(eager, **batch, **{FIELD: given})
    assert_logits_close(ours[real], theirs[real])


def test_gemma_goes_on_with_ours_after_a_call_without_a_mask(batch):
    """Its layers would ask for "sdpa" from then on."""
    model = make_model(NAME, "Gemma3")
    first = logits_of(model, **batch)
    logits_of(model, input_ids=batch["input_ids"])
    assert paddleformers.report(model, strict=True).is_ours
    assert np.array_equal(logits_of(model, **batch), first)


@pytest.mark.parametrize("name", MODELS)
def test_no_mask_is_plain_causal_attention_as_eager_has_it(name, batch):
    inputs = {"input_ids": batch["input_ids"]}
    ours, theirs = (logits_of(make_model(one, name), **inputs) for one in (NAME, "eager"))
    assert_logits_close(ours, theirs)


@pytest.mark.parametrize("name", ["Gemma3", "Phi3"])
def test_a_window_holds_with_indices_and_without(name, batch):
    """The layer's own window, whether or not PaddleFormers wrote it into the indices."""
    window = {"sliding_window": 5}
    for inputs in (batch, {"input_ids": batch["input_ids"]}):
        ours, theirs = (
            logits_of(make_model(one, name, **window), **inputs) for one in (NAME, "eager")
        )
        real = batch[FIELD].numpy()[:, 0, :, 0] > np.arange(SEQ_LEN)
        assert_logits_close(ours[real], theirs[real])


def test_unregister_leaves_nothing_behind(batch):
    paddleformers.unregister()
    with pytest.raises(KeyError, match=NAME):
        make_model(NAME)(**batch)
    assert "__call__" not in vars(registration.seams().model)
    assert [kind.__name__ for kind in registration.seams().trainer.DEFAULT_CALLBACKS] == [
        "DefaultFlowCallback"
    ]


# What PaddleFormers itself would turn into plain causal attention.


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["numbered", "additive"])
def test_a_padding_mask_holds_ones_and_zeros_or_is_refused(kind, name, batch):
    ids = batch["input_ids"]
    numbered = paddle.to_tensor(np.repeat([[1, 2]], SEQ_LEN // 2, axis=1)).expand(ids.shape)
    mask = numbered if kind == "numbered" else paddle.where(numbered == 1, 0.0, -1e9)
    with pytest.raises(ValueError, match=r"hold 1 \(seen\) or 0; got (2|-1e\+09|-1000000000)"):
        make_model(NAME, name)(input_ids=ids, attention_mask=mask)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dense_mask_to_be_added_to_scores_is_refused(dtype, name, batch):
    """The models take it for ones where it hides, so that rows would see what lies behind them."""
    ids = batch["input_ids"]
    seen = paddle.ones([ids.shape[0], 1, SEQ_LEN, SEQ_LEN]).tril()
    mask = paddle.where(seen == 1, 0.0, -1e9).astype(dtype)
    with pytest.raises(ValueError, match=r"attention_mask must be bool or hold 1 \(seen\) or 0"):
        make_model(NAME, name)(input_ids=ids, attention_mask=mask)


def test_a_mask_of_numpy_is_refused(batch):
    ids = batch["input_ids"]
    with pytest.raises(
        TypeError, match=r"attention_mask must be a paddle\.Tensor; got a numpy array"
    ):
        make_model(NAME)(input_ids=ids, attention_mask=np.ones(ids.shape, np.int64))


@pytest.mark.parametrize("name", ["Llama", "Ernie4_5", "Phi3"])
def test_a_dense_mask_that_sees_everything_is_not_read_as_causal(name, batch):
    ids = batch["input_ids"]
    everything = paddle.ones([ids.shape[0], 1, SEQ_LEN, SEQ_LEN], dtype="bool")
    with pytest.raises(RuntimeError, match=r"attention_mask was passed to .* did not reach"):
        make_model(NAME, name)(input_ids=ids, attention_mask=everything)


def test_two_index_fields_are_refused(batch):
    both = batch | {guard.OLD_FIELD: batch[FIELD]}
    with pytest.raises(ValueError, match="must not both be given"):
        make_model(NAME)(**both)


def test_answers_behind_a_window_are_refused():
    """The window counts columns: the prompt would be out of the second answer's sight."""
    model = make_model(NAME, "Gemma3", sliding_window=5)
    ends = [7, 7, 5, 5, 5, 7, 7]
    row = {
        "input_ids": paddle.to_tensor([[5, 9, 7, 11, 12, 7, 20]]),
        "position_ids": paddle.to_tensor([[0, 1, 2, 3, 4, 2, 3]]),
        FIELD: paddle.to_tensor(np.array(ends, np.int32)[None, None, :, None]),
    }
    with pytest.raises(NotImplementedError, match="several answers to one prompt"):
        model(**row)
    assert make_model(NAME, "Gemma3", sliding_window=7)(**row) is not None


@pytest.mark.parametrize("name", ["Gemma3", "Phi3"])
def test_tokens_after_a_cache_longer_than_the_window_equal_the_whole_row(name, rng):
    model = make_model(NAME, name, sliding_window=4)
    ids = paddle.to_tensor(rng.integers(3, 90, (1, 11)))
    whole = logits_of(model, input_ids=ids)
    with paddle.no_grad():
        cache, steps = None, []
        for at in range(ids.shape[1]):
            found = model(
                input_ids=ids[:, at : at + 1],
                position_ids=paddle.to_tensor([[at]]),
                attention_mask=paddle.ones([1, at + 1], dtype="int64"),
                past_key_values=cache,
                use_cache=True,
                return_dict=True,
            )
            cache = found.past_key_values
            steps.append(found.logits)
    together = paddle.concat(steps, axis=1)
    np.testing.assert_allclose(together.numpy(), whole, rtol=0, atol=1e-5)
