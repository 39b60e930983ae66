"""Records to conversations: alpaca, messages, conversations and ERNIEKit.

| keys                             | shape                                                        |
|----------------------------------|--------------------------------------------------------------|
| instruction, output, (input)     | one question, one answer                                     |
| messages: role, content          | content is a string or a list of {"type": "text", "text": …} |
| conversations: from, value       | human, gpt, system                                           |
| src, tgt, (label)                | strings, or lists of turns; label 0 leaves an answer out     |

A record of any format but `messages` may hold `system`, a string. Only the assistant's turns are
trained.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "MESSAGE_ROLES",
    "SPEAKER_ROLES",
    "Conversation",
    "RecordError",
    "Turn",
    "alpaca_question",
    "check_unicode",
    "content_of",
    "conversation_of",
    "kind_of",
    "named_turns",
    "string_of",
    "strings_of",
    "system_of",
]

MESSAGE_ROLES = {name: name for name in ("system", "user", "assistant", "tool")}
SPEAKER_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}


class RecordError(Exception):
    """A record that is no conversation; its text says why."""


class Turn(NamedTuple):
    """One turn of a conversation.

    Attributes:
        role: system, user, assistant or tool.
        text: what was said.
        trained: whether the model learns to say it.
    """

    role: str
    text: str
    trained: bool


Conversation: TypeAlias = list[Turn]


def conversation_of(value: object) -> Conversation:
    """Return the turns of one record.

    Raises:
        RecordError: it has no known format, a field has the wrong kind, or nothing is trained.
    """
    if not isinstance(value, dict):
        raise RecordError(f"a record must be a JSON object; got {kind_of(value)}")
    if "chosen" in value or "rejected" in value:
        raise RecordError("a preference pair (chosen, rejected), not a conversation to train on")
    if "messages" in value:
        turns = named_turns(value["messages"], "messages", ("role", "content"), MESSAGE_ROLES)
    elif "conversations" in value:
        named = named_turns(
            value["conversations"], "conversations", ("from", "value"), SPEAKER_ROLES
        )
        turns = system_of(value) + named
    elif "src" in value or "tgt" in value:
        turns = system_of(value) + _erniekit(value)
    elif "instruction" in value or "output" in value:
        turns = system_of(value) + _alpaca(value)
    else:
        raise RecordError(
            "a record must have instruction and output, messages, conversations, or src and tgt; "
            f"got keys {', '.join(map(str, value)) or '(none)'}"
        )
    if not any(turn.trained and turn.text for turn in turns):
        raise RecordError("no assistant text to train on")
    for turn in turns:
        check_unicode(turn.text)
    return turns


def _alpaca(value: dict[str, Any]) -> Conversation:
    question = alpaca_question(value)
    output = string_of(value.get("output"), "output")
    return [question, Turn("assistant", output, trained=True)]


def alpaca_question(value: dict[str, Any]) -> Turn:
    """Return instruction and input as the user's turn."""
    instruction = string_of(value.get("instruction"), "instruction")
    extra = string_of(value.get("input") or "", "input")
    prompt = f"{instruction}\n\n{extra}" if extra else instruction
    return Turn("user", prompt, trained=False)


def named_turns(
    entries: object, name: str, keys: tuple[str, str], roles: dict[str, str]
) -> Conversation:
    """Return a list of turns that name their speaker.

    Args:
        entries: what the record holds.
        name: of the field, for messages.
        keys: of speaker and text in each entry.
        roles: speaker as written to role.
    """
    if not isinstance(entries, list) or not entries:
        raise RecordError(f"{name} must be a list of turns; got {kind_of(entries)}")
    turns = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise RecordError(f"{name}[{number}] must be an object; got {kind_of(entry)}")
        speaker = entry.get(keys[0])
        if not isinstance(speaker, str) or speaker not in roles:
            raise RecordError(
                f"{name}[{number}].{keys[0]} must be one of {', '.join(roles)}; got {speaker!r}"
            )
        text = content_of(entry.get(keys[1]), f"{name}[{number}].{keys[1]}")
        turns.append(Turn(roles[speaker], text, trained=roles[speaker] == "assistant"))
    return turns


def content_of(content: object, name: str) -> str:
    """Return a text that is a string or a list of text parts."""
    if not isinstance(content, list):
        return string_of(content, name)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else kind_of(part)
        if kind != "text":
            raise RecordError(f"{name}[{number}] must be a part of type 'text'; got {kind!r}")
        texts.append(string_of(part.get("text"), f"{name}[{number}].text"))
    return "".join(texts)


def _erniekit(value: dict[str, Any]) -> Conversation:
    questions = strings_of(value.get("src"), "src")
    answers = strings_of(value.get("tgt"), "tgt")
    if len(questions) != len(answers):
        raise RecordError(
            f"src and tgt must have equally many turns; got {len(questions)} and {len(answers)}"
        )
    labels = value.get("label", [1] * len(answers))
    if not isinstance(labels, list) or len(labels) != len(answers) or not _are_flags(labels):
        raise RecordError(f"label must be a list of {len(answers)} numbers 0 or 1; got {labels!r}")
    turns = []
    for question, answer, label in zip(questions, answers, labels, strict=True):
        turns.append(Turn("user", question, trained=False))
        turns.append(Turn("assistant", answer, trained=label == 1))
    return turns


def _are_flags(labels: list[object]) -> bool:
    return all(isinstance(label, int) and label in (0, 1) for label in labels)


def system_of(value: dict[str, Any]) -> Conversation:
    """Return the system turn of a record, if it has one."""
    text = string_of(value.get("system") or "", "system")
    return [Turn("system", text, trained=False)] if text else []


def strings_of(value: object, name: str) -> list[str]:
    """Return a string or a list of strings, at least one, as a list."""
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise RecordError(f"{name} must hold at least one turn; got an empty list")
    return [string_of(entry, f"{name}[{number}]") for number, entry in enumerate(entries)]


def string_of(value: object, name: str) -> str:
    """Return a field that must be a string."""
    if not isinstance(value, str):
        raise RecordError(f"{name} must be a string; got {kind_of(value)}")
    return value


def kind_of(value: object) -> str:
    """Return what kind of JSON value came, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "nothing"
    if isinstance(value, list) and not value:
        return "an empty list"
    return names.get(type(value), "a number")


def check_unicode(text: str) -> None:
    """Check that a text can be encoded."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RecordError("text holds half of a surrogate pair, which is no character") from None
