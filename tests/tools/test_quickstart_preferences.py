import json

import pytest
from chat_formats import RecordError, Turn
from inputs import load_inputs, plan_stages
from preference_formats import Preference, is_preference, preference_of
from records import InputError

USER, SYSTEM = Turn("user", "q", trained=False), Turn("system", "s", trained=False)
SAID = Turn("assistant", "a", trained=False)
PAIR = Preference([USER], ["good", "bad"], [0, 1])
QUESTION = [{"from": "human", "value": "q"}]
MESSAGES = [{"role": "user", "content": "q"}]


def speaker(text, who="gpt"):
    return {"from": who, "value": text}


def role(text, who="assistant"):
    return {"role": who, "content": text}


PREFERENCES = [
    ({"conversations": QUESTION, "chosen": speaker("good"), "rejected": speaker("bad")}, PAIR),
    ({"conversations": QUESTION, "chosen": "good", "rejected": [speaker("bad")]}, PAIR),
    (
        {"system": "s", "conversations": QUESTION, "chosen": "good", "rejected": "bad"},
        Preference([SYSTEM, USER], ["good", "bad"], [0, 1]),
    ),
    (
        {
            "conversations": [speaker("s", "system"), *QUESTION, speaker("a"), *QUESTION],
            "chosen": speaker("good"),
            "rejected": speaker("bad"),
        },
        Preference([SYSTEM, USER, SAID, USER], ["good", "bad"], [0, 1]),
    ),
    ({"messages": MESSAGES, "chosen": role("good"), "rejected": role("bad")}, PAIR),
    ({"messages": MESSAGES, "chosen": [role("good")], "rejected": "bad"}, PAIR),
    (
        {
            "messages": MESSAGES,
            "chosen": role([{"type": "text", "text": "good"}]),
            "rejected": "bad",
        },
        PAIR,
    ),
    ({"prompt": "q", "chosen": "good", "rejected": "bad"}, PAIR),
    ({"prompt": MESSAGES, "chosen": [role("good")], "rejected": [role("bad")]}, PAIR),
    ({"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"}, PAIR),
    (
        {"src": "q", "response": ["bad", "good"], "sort": [0, 1]},
        Preference([USER], ["bad", "good"], [0, -1]),
    ),
    (
        {
            "system": "s",
            "src": ["q", "q"],
            "tgt": ["a"],
            "response": [["good"], ["bad"], ["fair"]],
            "sort": [2, 0, 1],
        },
        Preference([SYSTEM, USER, SAID, USER], ["good", "bad", "fair"], [-2, 0, -1]),
    ),
]
MALFORMED = [
    (
        {"chosen": "good", "rejected": "bad"},
        "a preference must have conversations, messages, prompt or instruction beside chosen and "
        "rejected; got keys chosen, rejected",
    ),
    (
        {"conversations": QUESTION, "chosen": speaker("good")},
        "rejected must be a string or one turn; got nothing",
    ),
    (
        {"messages": MESSAGES, "chosen": [role("a"), role("b")], "rejected": "bad"},
        "chosen must be a string or one turn; got a list",
    ),
    (
        {"messages": MESSAGES, "chosen": role("good", "user"), "rejected": "bad"},
        "chosen must be the assistant's turn; got user's",
    ),
    (
        {"conversations": QUESTION, "chosen": {"value": "good"}, "rejected": "bad"},
        "chosen[0].from must be one of human, user, gpt, assistant, system; got None",
    ),
    (
        {"conversations": [], "chosen": "good", "rejected": "bad"},
        "conversations must be a list of turns; got an empty list",
    ),
    ({"prompt": 7, "chosen": "good", "rejected": "bad"}, "prompt must be a string; got a number"),
    (
        {"messages": [*MESSAGES, role("a")], "chosen": "good", "rejected": "bad"},
        "the last turn before the answers must not be the assistant's",
    ),
    ({"prompt": "q", "chosen": "", "rejected": "bad"}, "an answer holds no text"),
    ({"prompt": "q", "chosen": "same", "rejected": "same"}, "two answers are the same text"),
    (
        {"prompt": "q", "chosen": "\ud83d", "rejected": "bad"},
        "text holds half of a surrogate pair, which is no character",
    ),
    (
        {"src": "q", "response": ["good", "bad"]},
        "sort must be a list of 2 whole numbers; got None",
    ),
    (
        {"src": "q", "response": ["good", "bad"], "sort": [1, True]},
        "sort must be a list of 2 whole numbers; got [1, True]",
    ),
    (
        {"src": "q", "response": ["good", "bad"], "sort": [1, 1]},
        "no answer is preferred to another",
    ),
    (
        {"src": "q", "response": ["good"], "sort": [1]},
        "response must be a list of 2 or more answers; got a list",
    ),
    (
        {"src": "q", "response": [["good", "again"], "bad"], "sort": [1, 0]},
        "response[0] must hold one text; got 2",
    ),
    (
        {"src": ["q", "q"], "response": ["good", "bad"], "sort": [1, 0]},
        "tgt must answer every question of src but the last; got 2 and 0 turns",
    ),
    ({"response": ["good", "bad"], "sort": [1, 0]}, "src[0] must be a string; got nothing"),
]


@pytest.mark.parametrize(("record", "preference"), PREFERENCES)
def test_every_format_gives_prompt_answers_and_ranks(record, preference):
    assert is_preference(record)
    assert preference_of(record) == preference


@pytest.mark.parametrize(("record", "reason"), MALFORMED)
def test_malformed_preferences_say_why(record, reason):
    assert is_preference(record)
    with pytest.raises(RecordError) as caught:
        preference_of(record)
    assert str(caught.value) == reason


@pytest.mark.parametrize("record", [{"src": "q", "tgt": "a"}, {"messages": MESSAGES}, [1], None])
def test_conversations_are_no_preferences(record):
    assert not is_preference(record)


@pytest.fixture
def files(tmp_path):
    """A file of each kind, as the demo data of trainers look, and one that mixes both."""
    chats = [{"instruction": "q", "input": "", "output": "a"}] * 3
    pairs = [
        {"conversations": QUESTION, "chosen": speaker("good"), "rejected": speaker("bad")},
        {"src": "q", "tgt": [], "response": [["good"], ["bad"]], "sort": [1, 0]},
    ]
    paths = {}
    for name, records in (("sft", chats), ("dpo", pairs), ("both", chats + pairs)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(records))
        paths[name] = str(path)
    return paths


def test_each_stage_takes_the_records_that_fit(files):
    inputs = load_inputs([files["sft"], files["dpo"], files["both"]])
    assert (len(inputs.conversations), len(inputs.preferences)) == (6, 4)
    stages, lines = plan_stages(["rm", "sft", "dpo"], inputs)
    assert stages == ["sft", "dpo", "rm"]
    assert lines == [
        "sft: takes sft.json (3), both.json (3)",
        "dpo: takes dpo.json (2), both.json (2)",
        "rm: takes dpo.json (2), both.json (2)",
    ]


def test_a_stage_without_fitting_input_is_named(files):
    stages, lines = plan_stages(["sft", "dpo"], load_inputs([files["dpo"]]))
    assert stages == ["dpo"]
    assert lines == [
        "sft: skipped: no file has alpaca, messages, conversations or ERNIEKit records",
        "dpo: takes dpo.json (2)",
    ]


def test_no_stage_at_all_is_an_error(files):
    with pytest.raises(InputError, match=r"^no stage can run; dpo: skipped: .*; rm: skipped: "):
        plan_stages(["dpo", "rm"], load_inputs([files["sft"]]))
