"""The flag in PaddleNLP's Trainer: on equals off, a broken mask does not, evaluation included."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments
from support.nlp_models import (
    MODELS,
    SEQ_LEN,
    VOCAB,
    arguments,
    call,
    groups,
    ids,
    losses_of,
    make,
    packed_of,
    packed_sft,
    tensors,
    trainer_of,
)

from paddle_flashmask.integrations import paddlenlp as integration
from paddle_flashmask.integrations.paddlenlp.patches import CALLS
from paddle_flashmask.losses import answer_scores
from paddle_flashmask.packing import pack_dpo, pack_rm, pack_sft

LOSS_TOLERANCE = 1e-5  # relative, of the acceptance
STAGES = ("sft", "dpo", "rm")


def model_of(stage: str, name: str = "llama", **options):
    model = make(name, **options)
    return integration.RewardModel(model) if stage == "rm" else model


def losses(stage: str, folder, *, flash_mask: bool, packed=None, name="llama", **options):
    args = arguments(folder, **options)
    extra = {"reference_free": True} if stage == "dpo" else {}
    packed = packed_of(stage) if packed is None else packed
    trainer = trainer_of(stage, model_of(stage, name), args, packed, flash_mask=flash_mask, **extra)
    return losses_of(trainer)


def assert_equal(ours, dense):
    assert len(ours) == len(dense) > 0
    np.testing.assert_allclose(ours, dense, rtol=LOSS_TOLERANCE)


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ([], False),
        (["--flash_mask"], True),
        (["--flash_mask", "true"], True),
        (["--flash_mask", "false"], False),
    ],
)
def test_flag_is_parsed_beside_training_arguments(given, flag, tmp_path):
    parser = PdArgumentParser((TrainingArguments, integration.FlashMaskArguments))
    training, ours = parser.parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--device", "cpu", *given], look_for_args_file=False
    )
    assert (training.output_dir, ours.flash_mask) == (str(tmp_path), flag)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stage", STAGES)
def test_on_equals_off(stage, name, tmp_path):
    ours, dense = (losses(stage, tmp_path, flash_mask=flag, name=name) for flag in (True, False))
    assert_equal(ours, dense)


@pytest.mark.parametrize("stage", STAGES)
def test_on_equals_off_with_recompute_and_accumulation(stage, tmp_path):
    options = {"recompute": True, "gradient_accumulation_steps": 2}
    ours, dense = (losses(stage, tmp_path, flash_mask=flag, **options) for flag in (True, False))
    assert_equal(ours, dense)
    assert_equal(ours, losses(stage, tmp_path, flash_mask=True, gradient_accumulation_steps=2))


class Leaking:
    """Rows without the borders between samples."""

    def __init__(self, packed):
        self.packed, self.seq_len = packed, packed.seq_len

    def __len__(self):
        return len(self.packed)

    def build(self, rows):
        batch = self.packed.build(rows)
        field = "attn_mask_startend_row_indices"
        return {**batch, field: np.full_like(batch[field], self.seq_len)}


@pytest.mark.parametrize("stage", STAGES)
def test_a_broken_mask_differs_at_once(stage, tmp_path):
    leaking = Leaking(packed_of(stage))
    right = losses(stage, tmp_path, flash_mask=True, max_steps=1)
    wrong = losses(stage, tmp_path, flash_mask=True, max_steps=1, packed=leaking)
    assert abs(wrong[0] - right[0]) > 100 * LOSS_TOLERANCE * right[0]


@pytest.mark.parametrize("stage", STAGES)
def test_evaluation_equals_off(stage, tmp_path):
    found = []
    for flag in (True, False):
        extra = {"reference_free": True} if stage == "dpo" else {}
        model, args = model_of(stage), arguments(tmp_path)
        trainer = trainer_of(stage, model, args, packed_of(stage), flash_mask=flag, **extra)
        found.append(trainer.evaluate()["eval_loss"])
    assert_equal([found[0]], [found[1]])


@pytest.mark.parametrize("stage", STAGES)
def test_prediction_gives_logits_or_margins(stage, tmp_path):
    extra = {"reference_free": True} if stage == "dpo" else {}
    packed = packed_of(stage)
    trainer = trainer_of(
        stage, model_of(stage), arguments(tmp_path), packed, flash_mask=True, **extra
    )
    batch = packed.build([0])
    loss, predicted, labels = trainer.prediction_step(trainer.model, tensors(batch), False)
    shape = [1, SEQ_LEN, VOCAB] if stage == "sft" else [1, len(batch["pairs"])]
    assert list(predicted.shape) == shape
    assert loss.numpy() > 0
    assert labels.shape == [1, SEQ_LEN]


def test_models_own_loss_takes_the_flag_too(tmp_path):
    """The mixin alone, on the Trainer that lets the model compute its loss from labels."""

    class OwnLoss(integration.FlashMaskMixin, Trainer):
        pass

    def collate(rows):
        batch = integration.collate_rows(rows)
        del batch["loss_weights"]  # the model's forward does not take them
        return batch

    found = []
    for flag in (True, False):
        trainer = OwnLoss(
            model=make(),
            args=arguments(tmp_path),
            train_dataset=integration.RowDataset(packed_of("sft")),
            data_collator=collate,
            flash_mask_args=integration.FlashMaskArguments(flash_mask=flag),
        )
        found.append(losses_of(trainer))
    assert_equal(*found)
    assert_equal(found[0], losses("sft", tmp_path, flash_mask=True))


@pytest.mark.parametrize("stage", STAGES)
def test_off_runs_none_of_ours(stage, tmp_path):
    integration.enable(make())  # another model in the same process
    before = CALLS.count
    losses(stage, tmp_path, flash_mask=False, max_steps=1)
    assert CALLS.count == before


def test_router_loss_is_added_as_the_model_does(tmp_path):
    packed = packed_sft(SEQ_LEN)
    batch = packed.build([0])
    model = make("mixtral", output_router_logits=True)
    trainer = trainer_of("sft", model, arguments(tmp_path), packed, flash_mask=True)
    found = trainer.prediction_step(model, tensors(batch), True)[0]
    inputs = integration.model_inputs(tensors(batch), flash_mask=True)
    del inputs["loss_weights"]
    own = model(**inputs, return_dict=True)
    assert float(own.aux_loss) > 0.1
    assert float(found) == pytest.approx(float(own.loss), rel=LOSS_TOLERANCE)


def test_samples_may_weigh_the_same(tmp_path):
    samples = [(ids(length, length),) * 2 for length in (3, 15)]
    packed = pack_sft(samples, seq_len=SEQ_LEN, weights="sample")
    whole = losses("sft", tmp_path, flash_mask=True, packed=packed, max_steps=1)[0]
    alone = [
        losses("sft", tmp_path, flash_mask=True, max_steps=1, packed=pack_sft([one], seq_len=15))
        for one in samples
    ]
    assert whole == pytest.approx(np.mean(alone), rel=LOSS_TOLERANCE)


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (0.5, 0.0), (0.1, 0.3)])
def test_dpo_takes_its_settings(beta, smoothing, tmp_path):
    packed = packed_of("dpo")
    trainer = trainer_of(
        "dpo",
        make(),
        arguments(tmp_path),
        packed,
        flash_mask=True,
        reference_free=True,
        beta=beta,
        label_smoothing=smoothing,
    )
    batch = packed.build([0])
    loss, margins, _ = trainer.prediction_step(trainer.model, tensors(batch), False)
    logits = call(trainer.model, batch, flash_mask=True)
    chosen, rejected = integration.answer_log_probs(logits, tensors(batch)).numpy()[:2]
    margin = beta * (chosen - rejected)
    np.testing.assert_allclose(margins.numpy()[0, 0], margin, rtol=LOSS_TOLERANCE)
    terms = np.log1p(np.exp(-margins.numpy())), np.log1p(np.exp(margins.numpy()))
    exact = np.mean((1 - smoothing) * terms[0] + smoothing * terms[1])
    assert float(loss) == pytest.approx(exact, rel=LOSS_TOLERANCE)


def test_both_layouts_of_answers_train_the_same(tmp_path):
    found = []
    for layout in ("plain", "repeated"):
        packed = pack_dpo(groups(answers=(3, 4, 2)), seq_len=SEQ_LEN, answer_layout=layout)
        found.append(losses("dpo", tmp_path, flash_mask=True, packed=packed, max_steps=1))
    assert_equal(*found)


def test_reference_model_is_frozen_and_evaluated(tmp_path):
    reference = make("mixtral", attention_dropout=0.1)  # refused while training
    reference.train()
    trainer = trainer_of(
        "dpo",
        make(),
        arguments(tmp_path, max_steps=1),
        packed_of("dpo"),
        flash_mask=True,
        reference_model=reference,
    )
    losses_of(trainer)
    assert all(weight.grad is None for weight in reference.parameters())
    inputs = integration.model_inputs(tensors(packed_of("dpo").build([0])), flash_mask=True)
    assert trainer._reference_log_probs(inputs).stop_gradient


def test_three_answers_train_the_same(tmp_path):
    packed = packed_of("rm", answers=(3, 4, 2))
    assert packed.build([0])["pairs"].shape == (3, 2)
    ours, dense = (losses("rm", tmp_path, flash_mask=f, packed=packed) for f in (True, False))
    assert_equal(ours, dense)


def test_packed_scores_equal_answers_alone():
    """Each score is read at its own answer's last token, whichever order the answers have."""
    model = model_of("rm")
    integration.enable(model)
    ((prompt, answers),) = groups(answers=(3, 4, 2))[:1]

    def scores(answers):
        batch = pack_rm([(prompt, answers)], seq_len=SEQ_LEN).build([0])
        inputs = integration.model_inputs(tensors(batch), flash_mask=True)
        fields = ("input_ids", "position_ids", "attention_mask")
        values = model(**{name: inputs[name] for name in fields})
        return answer_scores(values, inputs["answer_rows"], inputs["score_positions"]).numpy()

    together = scores(answers)
    alone = np.concatenate([scores([answer]) for answer in answers])
    np.testing.assert_allclose(together, alone, rtol=LOSS_TOLERANCE, atol=1e-6)
    np.testing.assert_allclose(
        together, scores(answers[::-1])[::-1], rtol=LOSS_TOLERANCE, atol=1e-6
    )
    assert np.ptp(together) > 0.01


def test_flag_may_be_a_field_of_the_training_arguments(tmp_path):
    args = arguments(tmp_path, max_steps=1)
    args.flash_mask = True
    trainer = integration.SftTrainer(
        model=make(),
        args=args,
        train_dataset=integration.RowDataset(packed_of("sft")),
        data_collator=integration.collate_rows,
    )
    assert trainer.flash_mask
    losses_of(trainer)


def test_packed_loss_is_the_mean_over_samples_alone(tmp_path):
    lengths = (9, 5, 7)
    whole = losses("sft", tmp_path, flash_mask=True, packed=packed_sft(*lengths), max_steps=1)[0]
    total = 0.0
    for place, length in enumerate(lengths):
        alone = packed_sft(length, seq_len=length, seed=place)
        total += losses("sft", tmp_path, flash_mask=True, packed=alone, max_steps=1)[0] * (
            length - 1
        )
    assert whole == pytest.approx(total / sum(length - 1 for length in lengths), rel=1e-5)


def test_collator_packs_samples_of_any_batch(tmp_path):
    samples = [{"input_ids": [1, 2, 3, 4], "labels": [-100, 2, 3, 4]}] * 4

    trainer = integration.SftTrainer(
        model=make(),
        args=arguments(tmp_path, max_steps=2, per_device_train_batch_size=4),
        train_dataset=samples,
        data_collator=integration.PackingCollator(partial(pack_sft, seq_len=8)),
        flash_mask_args=integration.FlashMaskArguments(flash_mask=True),
    )
    assert len(losses_of(trainer)) == 2


def test_dpo_starts_at_ln_2_with_the_model_as_its_reference(tmp_path):
    for flag in (True, False):
        trainer = trainer_of(
            "dpo",
            make(),
            arguments(tmp_path, max_steps=3, learning_rate=0.05, warmup_steps=0),
            packed_of("dpo"),
            flash_mask=flag,
            reference_model=make(),
        )
        found = losses_of(trainer)
        assert found[0] == pytest.approx(np.log(2), rel=1e-6)
        assert abs(found[1] - found[0]) > 1e-3  # the reference does not move


def test_stored_reference_equals_a_reference_model(tmp_path):
    reference = make()
    integration.enable(reference)

    def log_probs(batch):
        logits = call(reference, batch, flash_mask=True)
        return integration.answer_log_probs(logits, tensors(batch)).numpy()

    stored = pack_dpo(groups(), seq_len=24).with_reference(log_probs, dtype="float64")
    found = []
    for packed, extra in ((stored, {}), (packed_of("dpo"), {"reference_model": make()})):
        args = arguments(tmp_path)
        trainer = trainer_of("dpo", make(), args, packed, flash_mask=True, **extra)
        found.append(losses_of(trainer))  # before another trainer seeds the order of rows
    assert_equal(*found)


def test_a_model_is_no_reference_of_itself(tmp_path):
    model = model_of("dpo")
    with pytest.raises(ValueError, match="reference_model must be another model"):
        trainer_of(
            "dpo",
            model,
            arguments(tmp_path),
            packed_of("dpo"),
            flash_mask=True,
            reference_model=model,
        )


def test_ranking_takes_a_batch_without_pairs(tmp_path):
    trainer = trainer_of(
        "rm", model_of("rm"), arguments(tmp_path), packed_of("rm"), flash_mask=True
    )
    batch = tensors(packed_of("rm").build([0]))
    batch["pairs"], batch["pair_groups"] = batch["pairs"][:0], batch["pair_groups"][:0]
    loss, margins, _ = trainer.prediction_step(trainer.model, batch, False)
    assert float(loss) == 0
    assert (margins.numpy() == -100).all()
    trainer.training_step(trainer.model, batch)  # dies without the case above


def test_threads_leave_the_configuration_alone():
    model = make()
    integration.enable(model)
    own = model.config.use_flash_attention
    batch = packed_of("sft").build([0])

    def work() -> None:
        for _ in range(10):
            call(model, batch, flash_mask=True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.config.use_flash_attention == own
