"""Records to preferences: a prompt with the answers to it, ranked.

| keys                                | shape                                                     |
|-------------------------------------|-----------------------------------------------------------|
| conversations, chosen, rejected     | turns with from, value; the answers too, or strings       |
| messages, chosen, rejected          | turns with role, content; the answers too, or strings     |
| prompt, chosen, rejected            | strings, or as with messages                              |
| instruction, (input,) chosen, rej.  | strings                                                   |
| src, (tgt,) response, sort          | ERNIEKit: any number of answers, the larger sort, the     |
|                                     | better; tgt answers all questions of src but the last     |

An answer that is a list of turns must hold one. A record may hold `system`, a string, except with
`messages`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from chat_formats import (
    MESSAGE_ROLES,
    SPEAKER_ROLES,
    Conversation,
    RecordError,
    Turn,
    alpaca_question,
    check_unicode,
    kind_of,
    named_turns,
    string_of,
    strings_of,
    system_of,
)

__all__ = ["Preference", "is_preference", "preference_of"]

MESSAGE_KEYS = ("role", "content")
SPEAKER_KEYS = ("from", "value")


class Preference(NamedTuple):
    """A prompt and its answers.

    Attributes:
        prompt: the turns before the answer, the last one not the assistant's.
        answers: what the assistant might say, at least two texts.
        ranks: one number per answer, the lower, the better.
    """

    prompt: Conversation
    answers: list[str]
    ranks: list[int]

    def conversations(self) -> list[Conversation]:
        """Return the prompt with each answer in turn, as conversations."""
        said = [Turn("assistant", answer, trained=True) for answer in self.answers]
        return [[*self.prompt, answer] for answer in said]


def is_preference(value: object) -> bool:
    """Return whether a record is meant as a preference rather than as a conversation."""
    return isinstance(value, dict) and not {"chosen", "rejected", "response"}.isdisjoint(value)


def preference_of(value: dict[str, Any]) -> Preference:
    """Return the preference of one record.

    Raises:
        RecordError: a field is missing or has the wrong kind, or nothing is preferred.
    """
    preference = _erniekit(value) if "response" in value else _chosen_rejected(value)
    prompt, answers, ranks = preference
    if prompt[-1].role == "assistant":
        raise RecordError("the last turn before the answers must not be the assistant's")
    if not all(answers):
        raise RecordError("an answer holds no text")
    if len(set(ranks)) == 1:
        raise RecordError("no answer is preferred to another")
    if len(set(answers)) < len(answers):
        raise RecordError("two answers are the same text")
    for text in [*answers, *(turn.text for turn in prompt)]:
        check_unicode(text)
    return preference


def _chosen_rejected(value: dict[str, Any]) -> Preference:
    keys, roles = MESSAGE_KEYS, MESSAGE_ROLES
    if "conversations" in value:
        keys, roles = SPEAKER_KEYS, SPEAKER_ROLES
        turns = system_of(value) + named_turns(value["conversations"], "conversations", keys, roles)
    elif "messages" in value:
        turns = named_turns(value["messages"], "messages", keys, roles)
    elif isinstance(value.get("prompt"), list):
        turns = system_of(value) + named_turns(value["prompt"], "prompt", keys, roles)
    elif "prompt" in value:
        text = string_of(value["prompt"], "prompt")
        turns = [*system_of(value), Turn("user", text, trained=False)]
    elif "instruction" in value:
        turns = [*system_of(value), alpaca_question(value)]
    else:
        raise RecordError(
            "a preference must have conversations, messages, prompt or instruction beside chosen "
            f"and rejected; got keys {', '.join(map(str, value))}"
        )
    answers = [_answer(value.get(name), name, keys, roles) for name in ("chosen", "rejected")]
    return Preference([turn._replace(trained=False) for turn in turns], answers, [0, 1])


def _answer(value: object, name: str, keys: tuple[str, str], roles: dict[str, str]) -> str:
    if isinstance(value, str):
        return value
    entries = value if isinstance(value, list) else [value]
    if len(entries) != 1 or not isinstance(entries[0], dict):
        raise RecordError(f"{name} must be a string or one turn; got {kind_of(value)}")
    (turn,) = named_turns(entries, name, keys, roles)
    if turn.role != "assistant":
        raise RecordError(f"{name} must be the assistant's turn; got {turn.role}'s")
    return turn.text


def _erniekit(value: dict[str, Any]) -> Preference:
    questions = strings_of(value.get("src"), "src")
    said = strings_of(value["tgt"], "tgt") if value.get("tgt") else []
    if len(said) != len(questions) - 1:
        raise RecordError(
            "tgt must answer every question of src but the last; "
            f"got {len(questions)} and {len(said)} turns"
        )
    turns = system_of(value)
    for question, answer in zip(questions, [*said, ""], strict=True):
        turns.append(Turn("user", question, trained=False))
        turns.append(Turn("assistant", answer, trained=False))
    responses, sort = value["response"], value.get("sort")
    if not isinstance(responses, list) or len(responses) < 2:
        raise RecordError(f"response must be a list of 2 or more answers; got {kind_of(responses)}")
    if not isinstance(sort, list) or len(sort) != len(responses) or not all(map(_is_int, sort)):
        raise RecordError(f"sort must be a list of {len(responses)} whole numbers; got {sort!r}")
    answers = [_response(entry, number) for number, entry in enumerate(responses)]
    return Preference(turns[:-1], answers, [-number for number in sort])


def _response(entry: object, number: int) -> str:
    texts = strings_of(entry, f"response[{number}]")
    if len(texts) != 1:
        raise RecordError(f"response[{number}] must hold one text; got {len(texts)}")
    return texts[0]


def _is_int(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
