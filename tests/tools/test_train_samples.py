"""Records that a trainer is given: those whose turns alternate."""

from __future__ import annotations

import json

import pytest
from chat_formats import Turn
from loss_table import is_equal
from preference_formats import Preference
from samples import conversation_records, load, preference_records, write_jsonl


def turns(*roles):
    return [Turn(role, f"{role} {number}", trained=False) for number, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("roles", "is_taken"),
    [
        (("user", "assistant"), True),
        (("system", "user", "assistant", "user", "assistant"), True),
        (("user", "assistant", "user"), False),
        (("user", "user", "assistant"), False),
        (("assistant",), False),
        (("system",), False),
        (("user", "tool", "assistant"), False),
    ],
)
def test_conversations_that_do_not_alternate_are_left_out(roles, is_taken):
    found = conversation_records([turns(*roles)])
    assert bool(found) == is_taken
    if is_taken:
        assert [message["role"] for message in found[0]["messages"]] == list(roles)


def test_empty_turns_are_left_out():
    empty = [Turn("user", " ", trained=False), Turn("assistant", "b", trained=True)]
    assert conversation_records([empty]) == []


def test_preferences_become_the_best_answer_against_the_worst():
    prompt = turns("system", "user", "assistant", "user")
    record = preference_records([Preference(prompt, ["x", "y", "z"], [1, 0, 2])])[0]
    assert record == {
        "src": ["user 1", "user 3"],
        "tgt": ["assistant 2"],
        "response": [["y"], ["z"]],
        "sort": [1, 0],
        "system": "system 0",
    }
    assert preference_records([Preference(turns("system"), ["x", "y"], [0, 1])]) == []


def test_own_samples_are_enough_for_every_stage(tmp_path):
    inputs = load([])
    conversations = conversation_records(inputs.conversations)
    preferences = preference_records(inputs.preferences)
    assert min(len(conversations), len(preferences)) > 20
    write_jsonl(tmp_path / "x.jsonl", preferences)
    lines = (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == preferences


@pytest.mark.parametrize(
    ("ours", "theirs", "equal"),
    [
        ([2.0, 1.0], [2.00001, 1.0], True),
        ([2.0, 1.0], [2.0, 1.00003], False),
        ([2.0], [2.0, 1.0], False),
        ([], [], False),
        ([0.0], [0.0], True),
        ([1e-9], [0.0], False),
        ([float("nan")], [float("nan")], False),
    ],
)
def test_losses_are_equal_if_all_are(ours, theirs, equal):
    assert is_equal(ours, theirs) is equal
