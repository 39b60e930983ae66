"""The three stages: what each packs, which model it trains, and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import paddle
from chat_tokens import ChatTokenizer
from comparison import Objective, Tensors
from decoder import Decoder, DecoderConfig, RewardModel
from inputs import Inputs
from paddle import Tensor, nn
from preference_formats import Preference
from records import InputError

from paddle_flashmask import losses
from paddle_flashmask.nn import Attend
from paddle_flashmask.packing import (
    IGNORE_INDEX,
    PackedPreference,
    PackedRows,
    PackedSft,
    SftSample,
    pack_dpo,
    pack_rm,
    pack_sft,
)

__all__ = [
    "LEARNT",
    "OBJECTIVES",
    "PEAK_RATES",
    "Stage",
    "answer_log_probs",
    "make_model",
    "prepare",
]

# The nearer a pairwise loss comes to 0, the larger a share of it is rounding, so preferences are
# learnt slowly and only until LEARNT.
PEAK_RATES = {"sft": 1e-3, "dpo": 1e-4, "rm": 5e-5}
LEARNT = {"sft": 0.0, "dpo": 0.02, "rm": 0.02}  # a loss below ends the stage


@dataclass(frozen=True)
class Stage:
    """One stage, ready to be trained.

    Attributes:
        name: sft, dpo or rm.
        packed: its rows.
        left_out: records without anything to train within the row length.
    """

    name: str
    packed: PackedRows[Any]
    left_out: int


def prepare(name: str, inputs: Inputs, tokenizer: ChatTokenizer, seq_len: int) -> Stage:
    """Return a stage with its rows.

    Raises:
        InputError: nothing in the records can be trained at this row length.
    """
    if name == "sft":
        samples = [tokenizer.sample(conversation) for conversation in inputs.conversations]
        trainable = [sample for sample in samples if _is_trainable(sample, seq_len)]
        packed = _pack_sft(trainable, tokenizer, seq_len)
        left_out = len(samples) - len(trainable)
    else:
        packed = _pack_preferences(name, inputs.preferences, tokenizer, seq_len)
        left_out = packed.statistics.dropped
    if len(packed) == 0:
        raise InputError(f"{name}: no answer starts within --seq-len {seq_len} tokens; raise it")
    return Stage(name, packed, left_out)


def _pack_sft(samples: Sequence[SftSample], tokenizer: ChatTokenizer, seq_len: int) -> PackedSft:
    pad = tokenizer.special_ids["pad"]
    return pack_sft(samples, seq_len=seq_len, pad_token_id=pad, overlong="truncate")


def _pack_preferences(
    name: str, preferences: Sequence[Preference], tokenizer: ChatTokenizer, seq_len: int
) -> PackedPreference:
    samples = [tokenizer.preference_sample(preference) for preference in preferences]
    pack = pack_dpo if name == "dpo" else pack_rm
    pad = tokenizer.special_ids["pad"]
    return pack(samples, seq_len=seq_len, pad_token_id=pad, overlong="truncate")


def _is_trainable(sample: SftSample, seq_len: int) -> bool:
    return any(label != IGNORE_INDEX for label in sample.labels[1:seq_len])


def make_model(
    name: str,
    config: DecoderConfig,
    attend: Attend,
    *,
    seed: int,
    weights: dict[str, Tensor] | None,
) -> nn.Layer:
    """Return the model of a stage; the same arguments give the same weights.

    Args:
        name: of the stage.
        config: sizes of the decoder.
        attend: what the decoder attends with.
        seed: of the random weights.
        weights: of the decoder, from an earlier stage; None keeps the random ones.
    """
    paddle.seed(seed)
    decoder = Decoder(config, attend)
    if weights is not None:
        decoder.set_state_dict(weights)
    return RewardModel(decoder) if name == "rm" else decoder


def _sft(model: nn.Layer, batch: Tensors) -> tuple[Tensor, None]:
    logits = _outputs(model, batch)
    return losses.sft_loss(logits, batch["labels"], batch["loss_weights"]), None


def _dpo(model: nn.Layer, batch: Tensors) -> tuple[Tensor, Tensor]:
    log_probs = answer_log_probs(model, batch)
    loss, margins = losses.dpo_loss(log_probs, batch["pairs"], batch["reference_log_probs"])
    return loss, margins.mean()


def _rm(model: nn.Layer, batch: Tensors) -> tuple[Tensor, Tensor]:
    values = _outputs(model, batch)
    scores = losses.answer_scores(values, batch["answer_rows"], batch["score_positions"])
    loss, margins = losses.rm_pairwise_loss(scores, batch["pairs"], batch["pair_groups"])
    return loss, losses.pair_accuracy(margins)


OBJECTIVES: dict[str, Objective] = {"sft": _sft, "dpo": _dpo, "rm": _rm}


def answer_log_probs(model: nn.Layer, batch: Tensors) -> Tensor:
    """Return the log-probability of every answer of a batch, [N], float64."""
    return losses.answer_log_probs(
        _outputs(model, batch),
        batch["target_rows"],
        batch["target_positions"],
        batch["target_ids"],
        batch["target_answers"],
        # In float64: as float32 the sum over a long answer has fewer digits than LOSS_TOLERANCE.
        batch["target_weights"].astype("float64"),
        num_answers=batch["answer_rows"].shape[0],
    )


def _outputs(model: nn.Layer, batch: Tensors) -> Tensor:
    return model(batch["input_ids"], batch["position_ids"], batch["mask"])
