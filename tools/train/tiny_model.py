"""A small random Llama on disk: configuration, weights, and a tokenizer trained on the records."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

__all__ = ["save_model"]

SPECIAL_TOKENS = ("<pad>", "<end>", "<system>", "<user>", "<assistant>")
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
VOCAB_SIZE = 1024  # 256 bytes, the special tokens, and merges that shorten plain text threefold
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,  # fewer: GQA
}


def save_model(folder: Path, texts: Iterable[str], *, max_seq_len: int, seed: int) -> None:
    """Write the model and its tokenizer into a folder, in PaddleFormers' layout.

    Args:
        folder: made if it is not there.
        texts: what the tokenizer is trained on.
        max_seq_len: most tokens of a row.
        seed: of the weights.
    """
    warnings.filterwarnings("ignore")
    import paddle
    from paddleformers.transformers import LlamaConfig, LlamaForCausalLM
    from paddleformers.utils.log import logger

    logger.set_level("ERROR")
    vocab_size = _save_tokenizer(folder, texts, max_seq_len)
    paddle.seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        max_position_embeddings=max_seq_len,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        fuse_rms_norm=False,  # it has a GPU kernel only
        architectures=["LlamaForCausalLM"],
        **SHAPE,
    )
    LlamaForCausalLM(config).save_pretrained(str(folder))


def _save_tokenizer(folder: Path, texts: Iterable[str], max_seq_len: int) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        eos_token="<end>",
        bos_token="<end>",
        model_max_length=max_seq_len,
    )
    tokenizer.chat_template = TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(folder))
    return len(tokenizer)
