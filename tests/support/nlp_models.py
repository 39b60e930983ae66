"""Tiny models of PaddleNLP, batches for them, and runs of its Trainer; it is imported when used."""

from __future__ import annotations

import numpy as np
import paddle

from paddle_flashmask.integrations import paddlenlp as integration
from paddle_flashmask.packing import pack_dpo, pack_rm, pack_sft

VOCAB = 37
SEQ_LEN = 24
MODELS = ("llama", "mixtral")
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "seq_length": SEQ_LEN,
    "initializer_range": 0.3,  # scores far from equal, so that a wrong mask shows
}


def make(name: str = "llama", **options) -> paddle.nn.Layer:
    """A model whose weights depend on its options only."""
    from paddlenlp import transformers

    config_class, model_class = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    }[name]
    options = {**SIZES, **options}
    if name == "mixtral":
        from mixtral_experts import mend_experts

        mend_experts()
        options = {"num_local_experts": 4, "num_experts_per_tok": 2, **options}
    paddle.seed(5)
    model = model_class(config_class(vocab_size=VOCAB, **options))
    model.eval()
    return model


def ids(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, VOCAB, count).tolist()


def packed_sft(*lengths: int, seq_len: int = SEQ_LEN, seed: int = 0):
    tokens = [ids(length, seed + place) for place, length in enumerate(lengths)]
    return pack_sft([(one, one) for one in tokens], seq_len=seq_len)


def groups(seed: int = 0, answers: tuple[int, ...] = (3, 4)):
    return [
        (ids(5, seed + 10 * place), [ids(n, seed + 10 * place + n) for n in answers])
        for place in range(6)
    ]


def packed_of(stage: str, **options):
    if stage == "sft":
        return packed_sft(9, 5, 11, 7, 3, 14, 6, 2, 8, 4)
    return (pack_dpo if stage == "dpo" else pack_rm)(groups(**options), seq_len=SEQ_LEN)


def tensors(batch) -> dict[str, paddle.Tensor]:
    return {name: paddle.to_tensor(values) for name, values in batch.items()}


def call(model, batch, *, flash_mask: bool) -> paddle.Tensor:
    """Logits of a batch."""
    inputs = integration.model_inputs(tensors(batch), flash_mask=flash_mask)
    fields = ("input_ids", "position_ids", "attention_mask")
    return model(**{name: inputs[name] for name in fields}, return_dict=True).logits


def arguments(folder, **options):
    """TrainingArguments for a few small steps."""
    from paddlenlp.trainer import TrainingArguments

    settings = {
        "max_steps": 6,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "device": "cpu",
        "seed": 3,
        "disable_tqdm": True,
        "report_to": [],
    }
    return TrainingArguments(output_dir=str(folder), **{**settings, **options})


def trainer_of(stage: str, model, args, packed, *, flash_mask: bool, **options):
    """A trainer of a stage over packed rows, which it also evaluates on."""
    kind = {
        "sft": integration.SftTrainer,
        "dpo": integration.DpoTrainer,
        "rm": integration.RmTrainer,
    }[stage]
    rows = integration.RowDataset(packed)
    return kind(
        model=model,
        args=args,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=integration.collate_rows,
        flash_mask_args=integration.FlashMaskArguments(flash_mask=flash_mask),
        **options,
    )


def losses_of(trainer) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
