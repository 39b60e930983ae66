"""Small models of PaddleFormers, packed batches for them, and trainings of a few steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddleformers import transformers
from paddleformers.trainer import Trainer, TrainerCallback, TrainingArguments
from support.tolerance import LOSSES

from paddle_flashmask import packing

VOCAB_SIZE = 97
SEQ_LEN = 64
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2 * SEQ_LEN,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "fuse_rms_norm": False,  # it has a GPU kernel only
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Ernie4_5": {},
    "Gemma3": {
        "head_dim": 16,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Phi3": {"original_max_position_embeddings": 2 * SEQ_LEN},
}
CLASSES = {"Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM")}


def make_model(attention: str, name: str = "Llama", *, seed: int = 0, **changes: Any) -> Any:
    config_class, model_class = CLASSES.get(name, (f"{name}Config", f"{name}ForCausalLM"))
    settings = {**SHAPE, **MODELS[name], **changes}
    config = getattr(transformers, config_class)(**settings, _attn_implementation=attention)
    paddle.seed(seed)
    return getattr(transformers, model_class)(config)


def packed_rows(rng: np.random.Generator, rows: int) -> list[dict[str, np.ndarray]]:
    """Rows of a few samples and padding, as PaddleFormers' collator makes them."""
    samples = []
    for length in rng.integers(8, 24, 8 * rows):
        ids = rng.integers(3, VOCAB_SIZE, length)
        samples.append((ids, ids))
    packed = packing.pack_sft(samples, seq_len=SEQ_LEN)
    assert len(packed) >= rows
    names = ("input_ids", "labels", "position_ids", "attn_mask_startend_row_indices")
    return [{name: batch[name][0] for name in names} for batch in list(packed.batches(1))[:rows]]


def collate(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def tensors(batch: dict[str, np.ndarray]) -> dict[str, paddle.Tensor]:
    return {name: paddle.to_tensor(values) for name, values in batch.items()}


def logits_of(model: Any, **inputs: paddle.Tensor) -> np.ndarray:
    model.eval()
    with paddle.no_grad():
        out = model(**inputs)
    out = getattr(out, "logits", out)
    return (out[0] if isinstance(out, (tuple, list)) else out).numpy()


class _Log(TrainerCallback):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.evaluations: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        for name, kept in (("loss", self.losses), ("eval_loss", self.evaluations)):
            if name in logs:
                kept.append(float(logs[name]))


class _Rows(paddle.io.Dataset):
    def __init__(self, rows: list[dict[str, np.ndarray]]) -> None:
        super().__init__()
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        return self.rows[number]


def make_trainer(model: Any, rows: list[dict[str, np.ndarray]], folder: Any, **changes: Any) -> Any:
    settings = {
        "output_dir": str(folder),
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "device": "cpu",
        "bf16": False,
        "amp_master_grad": False,
        "disable_tqdm": True,
        "report_to": [],
    }
    evaluation = changes.pop("eval_rows", None)
    log = _Log()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**settings | changes),
        train_dataset=_Rows(rows),
        eval_dataset=None if evaluation is None else _Rows(evaluation),
        data_collator=collate,
        callbacks=[log],
    )
    trainer.kept = log
    return trainer


def assert_losses_equal(ours: list[float], theirs: list[float], count: int) -> None:
    assert len(ours) == len(theirs) == count
    worst = largest_difference(ours, theirs)
    assert worst <= LOSSES, f"losses differ by {worst:.1e}: {ours} and {theirs}"


def largest_difference(ours: list[float], theirs: list[float]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(abs(mine - other) / abs(other) for mine, other in pairs)
