"""Conversations to samples: a byte-level BPE trained on the input, and a chat template.

A turn becomes <role> text <end>. In the assistant's turns text and <end> are trained. The special
tokens lie behind the BPE's own ids, so no text, whatever it says, can be read as one.
"""

from __future__ import annotations

from chat_formats import Conversation
from preference_formats import Preference
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from paddle_flashmask.packing import IGNORE_INDEX, PreferenceSample, SftSample

__all__ = ["ChatTokenizer"]

SPECIAL_TOKENS = ("pad", "end", "system", "user", "assistant", "tool")
DEFAULT_VOCAB_SIZE = 1024  # 256 bytes and 768 merges: enough to shorten plain text about threefold


class ChatTokenizer:
    """Byte-level BPE with a few special tokens behind it.

    Attributes:
        bpe: the trained tokenizer, without special tokens.
        special_ids: id of each special token by name.
    """

    def __init__(
        self, conversations: list[Conversation], vocab_size: int = DEFAULT_VOCAB_SIZE
    ) -> None:
        """Train on the text of all turns; the same text always gives the same ids.

        Args:
            conversations: what to train on.
            vocab_size: most ids of the BPE, at least 256.
        """
        self.bpe = Tokenizer(models.BPE())
        self.bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.bpe.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        texts = (turn.text for conversation in conversations for turn in conversation)
        self.bpe.train_from_iterator(texts, trainer)
        base: int = self.bpe.get_vocab_size()
        self.special_ids = {name: base + number for number, name in enumerate(SPECIAL_TOKENS)}

    @property
    def vocab_size(self) -> int:
        """Return the number of ids, special ones included."""
        return int(self.bpe.get_vocab_size()) + len(SPECIAL_TOKENS)

    def sample(self, conversation: Conversation) -> SftSample:
        """Return token ids and unshifted labels of one conversation."""
        input_ids: list[int] = []
        labels: list[int] = []
        for turn in conversation:
            said = [*self.bpe.encode(turn.text).ids, self.special_ids["end"]]
            input_ids += [self.special_ids[turn.role], *said]
            labels += [IGNORE_INDEX, *(said if turn.trained else [IGNORE_INDEX] * len(said))]
        return SftSample(input_ids, labels)

    def preference_sample(self, preference: Preference) -> PreferenceSample:
        """Return token ids of prompt and answers; the prompt ends with <assistant>."""
        prompt = [*self.sample(preference.prompt).input_ids, self.special_ids["assistant"]]
        end = self.special_ids["end"]
        answers = [[*self.bpe.encode(answer).ids, end] for answer in preference.answers]
        return PreferenceSample(prompt, answers, preference.ranks)

    def text(self, input_ids: list[int]) -> str:
        """Return the text of ids, special tokens left out."""
        return str(
            self.bpe.decode([token for token in input_ids if token < self.special_ids["pad"]])
        )
