from pathlib import Path

import chat_tokens
import pytest
from chat_formats import Turn, load_conversations
from chat_tokens import ChatTokenizer

IGNORED = -100
SAMPLES = Path(chat_tokens.__file__).parent / "samples"


@pytest.fixture(scope="module")
def conversations():
    return load_conversations([str(path) for path in sorted(SAMPLES.iterdir())])[0]


@pytest.fixture(scope="module")
def tokenizer(conversations):
    return ChatTokenizer(conversations)


def test_own_samples_are_all_usable():
    counts = {
        path.name: tuple(map(len, load_conversations([str(path)]))) for path in SAMPLES.iterdir()
    }
    assert counts == {
        "alpaca.json": (24, 0),
        "messages.jsonl": (16, 0),
        "conversations.json": (16, 0),
        "erniekit.jsonl": (16, 0),
    }


def test_template_trains_answers_and_their_end(tokenizer):
    conversation = [
        Turn("system", "s", trained=False),
        Turn("user", "q", trained=False),
        Turn("assistant", "a", trained=True),
    ]
    ids, labels = tokenizer.sample(conversation)
    special = tokenizer.special_ids
    (answer,) = tokenizer.bpe.encode("a").ids
    assert ids[0] == special["system"]
    assert ids[3] == special["user"]
    assert ids[6:] == [special["assistant"], answer, special["end"]]
    assert labels == [IGNORED] * 7 + [answer, special["end"]]


def test_any_text_comes_back(tokenizer):
    text = "naïve 天空 \U0001f600\n\t  two  spaces\x00 <end> <pad>"
    ids, _ = tokenizer.sample([Turn("assistant", text, trained=True)])
    assert tokenizer.text(list(ids)) == text


def test_text_never_gives_a_special_token(tokenizer):
    ids = tokenizer.bpe.encode("<pad> <end> <user> [UNK] <|endoftext|>").ids
    assert max(ids) < min(tokenizer.special_ids.values())


def test_same_text_gives_the_same_vocabulary(conversations, tokenizer):
    again = ChatTokenizer(conversations)
    assert again.bpe.get_vocab() == tokenizer.bpe.get_vocab()
    assert again.vocab_size == tokenizer.vocab_size == 1024 + 6
