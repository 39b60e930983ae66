from pathlib import Path

import chat_tokens
import pytest
from chat_formats import Turn
from chat_tokens import ChatTokenizer
from inputs import load_inputs
from preference_formats import Preference

IGNORED = -100
SAMPLES = Path(chat_tokens.__file__).parent / "samples"


@pytest.fixture(scope="module")
def conversations():
    return load_inputs([str(path) for path in sorted(SAMPLES.iterdir())]).conversations


@pytest.fixture(scope="module")
def tokenizer(conversations):
    return ChatTokenizer(conversations)


def test_own_samples_are_all_usable():
    inputs = load_inputs([str(path) for path in SAMPLES.iterdir()])
    assert inputs.problems == []
    assert {Path(use.path).name: use[1:] for use in inputs.files} == {
        "alpaca.json": (24, 0),
        "messages.jsonl": (16, 0),
        "conversations.json": (16, 0),
        "erniekit.jsonl": (16, 0),
        "preference_conversations.json": (0, 16),
        "preference_messages.jsonl": (0, 16),
        "preference_erniekit.jsonl": (0, 16),
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


def test_prompt_and_answer_are_the_tokens_of_the_conversation(tokenizer):
    prompt = [Turn("system", "s", trained=False), Turn("user", "which?", trained=False)]
    preference = Preference(prompt, ["this one", "that"], [1, 0])
    sample = tokenizer.preference_sample(preference)
    assert sample.ranks == [1, 0]
    for answer, said in zip(sample.answers, preference.conversations(), strict=True):
        whole = tokenizer.sample(said)
        assert [*sample.prompt_ids, *answer] == whole.input_ids
        assert whole.labels == [IGNORED] * len(sample.prompt_ids) + answer


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
