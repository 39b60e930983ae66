"""Small random models of PaddleNLP, and what its Trainer is given to train them."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import paddle
from mixtral_experts import mend_experts
from paddlenlp.trainer import Trainer, TrainerCallback, TrainingArguments
from paddlenlp.transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from paddle_flashmask.integrations.paddlenlp import (
    DpoTrainer,
    FlashMaskArguments,
    RewardModel,
    RmTrainer,
    SftTrainer,
    collate_rows,
)

__all__ = ["Run", "make_model", "train"]

TRAINERS = {"sft": SftTrainer, "dpo": DpoTrainer, "rm": RmTrainer}
# As in the quickstart: preferences are learnt slowly, since rounding is a larger share of a small
# pairwise loss.
PEAK_RATES = {"sft": 1e-3, "dpo": 1e-4, "rm": 5e-5}
WARMUP_STEPS = 10


class Run(NamedTuple):
    """What one training gave.

    Attributes:
        losses: of each step, rounded to 8 digits after the point by the Trainer.
        seconds: of each step.
    """

    losses: list[float]
    seconds: list[float]


class _Clock(TrainerCallback):
    """Takes the time of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._start = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._start == 0.0:
            self._start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)
        self._start = 0.0


def make_model(options: argparse.Namespace, vocab_size: int, **sizes: int) -> paddle.nn.Layer:
    """Return the model of a stage; the same arguments give the same weights."""
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "mixtral": (MixtralConfig, MixtralForCausalLM),
    }[options.model]
    shape = {
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": options.seq_len,
        "seq_length": options.seq_len,
        **sizes,
    }
    if options.model == "mixtral":
        mend_experts()
        shape |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    paddle.seed(options.seed)
    model = model_class(config_class(vocab_size=vocab_size, **shape))
    return RewardModel(model) if options.stage == "rm" else model


def train(
    options: argparse.Namespace, model: paddle.nn.Layer, rows: paddle.io.Dataset, *, flash: bool
) -> Run:
    """Train a model on rows with PaddleNLP's Trainer."""
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder, _quiet():
        args = TrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            gradient_accumulation_steps=options.accumulate,
            recompute=options.recompute,
            learning_rate=PEAK_RATES[options.stage],
            warmup_steps=WARMUP_STEPS,
            weight_decay=0.01,
            max_grad_norm=1.0,
            logging_steps=1,
            save_strategy="no",
            seed=options.seed,
            device="cpu",
            dataloader_drop_last=len(rows) >= options.batch_size,
            disable_tqdm=True,
            report_to=[],
        )
        trainer: Trainer = TRAINERS[options.stage](
            model=model,
            args=args,
            train_dataset=rows,
            data_collator=collate_rows,
            callbacks=[clock],
            flash_mask_args=FlashMaskArguments(flash_mask=flash),
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return Run(losses, clock.seconds)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the Trainer's log of every argument off the screen; errors still come through."""
    import logging

    from paddlenlp.utils.log import logger

    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        logger.logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.logger.setLevel(logging.DEBUG)
