import pytest
from chat_formats import RecordError, Turn, conversation_of

USER, ANSWER = Turn("user", "q", trained=False), Turn("assistant", "a", trained=True)
SYSTEM = Turn("system", "s", trained=False)


def part(text):
    return {"type": "text", "text": text}


CONVERSATIONS = [
    ({"instruction": "q", "output": "a"}, [USER, ANSWER]),
    ({"instruction": "q", "input": "", "output": "a"}, [USER, ANSWER]),
    ({"instruction": "q", "input": None, "output": "a", "system": "s"}, [SYSTEM, USER, ANSWER]),
    (
        {"instruction": "q", "input": "more", "output": "a"},
        [Turn("user", "q\n\nmore", trained=False), ANSWER],
    ),
    (
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [part("q")]},
                {"role": "assistant", "content": [part("a"), part("b")]},
                {"role": "tool", "content": "t"},
                {"role": "assistant", "content": "a"},
            ]
        },
        [
            SYSTEM,
            USER,
            Turn("assistant", "ab", trained=True),
            Turn("tool", "t", trained=False),
            ANSWER,
        ],
    ),
    (
        {
            "conversations": [
                {"from": "system", "value": "s"},
                {"from": "human", "value": "q"},
                {"from": "gpt", "value": "a"},
            ]
        },
        [SYSTEM, USER, ANSWER],
    ),
    (
        {"conversations": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "a"}]},
        [USER, ANSWER],
    ),
    ({"src": "q", "tgt": "a"}, [USER, ANSWER]),
    ({"system": "s", "src": ["q", "q"], "tgt": ["a", "a"]}, [SYSTEM, USER, ANSWER, USER, ANSWER]),
    (
        {"src": ["q", "q"], "tgt": ["a", "a"], "label": [0, 1]},
        [USER, Turn("assistant", "a", trained=False), USER, ANSWER],
    ),
]
UNKNOWN = "a record must have instruction and output, messages, conversations, or src and tgt; "
MALFORMED = [
    (None, "a record must be a JSON object; got nothing"),
    ([1], "a record must be a JSON object; got a list"),
    ("x", "a record must be a JSON object; got a string"),
    ({}, UNKNOWN + "got keys (none)"),
    ({"text": "x"}, UNKNOWN + "got keys text"),
    ({"instruction": "q"}, "output must be a string; got nothing"),
    ({"instruction": 3, "output": "a"}, "instruction must be a string; got a number"),
    (
        {"instruction": "q", "input": {"a": 1}, "output": "a"},
        "input must be a string; got an object",
    ),
    ({"instruction": "q", "output": ""}, "no assistant text to train on"),
    ({"messages": []}, "messages must be a list of turns; got an empty list"),
    ({"messages": "hi"}, "messages must be a list of turns; got a string"),
    ({"messages": ["hi"]}, "messages[0] must be an object; got a string"),
    (
        {"messages": [{"role": "robot", "content": "a"}]},
        "messages[0].role must be one of system, user, assistant, tool; got 'robot'",
    ),
    (
        {"messages": [{"role": ["user"], "content": "a"}]},
        "messages[0].role must be one of system, user, assistant, tool; got ['user']",
    ),
    (
        {"messages": [{"role": "assistant", "content": None}]},
        "messages[0].content must be a string; got nothing",
    ),
    (
        {"messages": [{"role": "user", "content": [part("q"), {"type": "image_url"}]}]},
        "messages[0].content[1] must be a part of type 'text'; got 'image_url'",
    ),
    (
        {"messages": [{"role": "user", "content": ["q"]}]},
        "messages[0].content[0] must be a part of type 'text'; got 'a string'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        "messages[0].content[0].text must be a string; got a number",
    ),
    ({"messages": [{"role": "user", "content": "q"}]}, "no assistant text to train on"),
    (
        {"conversations": [{"from": "function", "value": "a"}]},
        "conversations[0].from must be one of human, user, gpt, assistant, system; got 'function'",
    ),
    (
        {"conversations": [{"from": "gpt", "value": True}]},
        "conversations[0].value must be a string; got a boolean",
    ),
    (
        {"conversations": [], "chosen": {}, "rejected": {}},
        "a preference pair (chosen, rejected), not a conversation to train on",
    ),
    ({"src": "q"}, "tgt[0] must be a string; got nothing"),
    ({"src": [], "tgt": []}, "src must hold at least one turn; got an empty list"),
    (
        {"src": ["q", "r"], "tgt": ["a"]},
        "src and tgt must have equally many turns; got 2 and 1",
    ),
    (
        {"src": "q", "tgt": "a", "label": [[1]]},
        "label must be a list of 1 numbers 0 or 1; got [[1]]",
    ),
    ({"src": "q", "tgt": "a", "label": [0]}, "no assistant text to train on"),
    ({"src": "q", "tgt": "\ud83d"}, "text holds half of a surrogate pair, which is no character"),
]


@pytest.mark.parametrize(("record", "turns"), CONVERSATIONS)
def test_every_format_gives_the_same_turns(record, turns):
    assert conversation_of(record) == turns


@pytest.mark.parametrize(("record", "reason"), MALFORMED)
def test_malformed_records_say_why(record, reason):
    with pytest.raises(RecordError) as caught:
        conversation_of(record)
    assert str(caught.value) == reason
