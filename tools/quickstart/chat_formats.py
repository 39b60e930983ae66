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

from records import InputError, Problem, read_records

__all__ = ["Conversation", "RecordError", "Turn", "conversation_of", "load_conversations"]

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


def load_conversations(paths: list[str]) -> tuple[list[Conversation], list[Problem]]:
    """Return the conversations of all files, in order, and the records that were skipped.

    Raises:
        InputError: a file cannot be read or holds no usable record.
    """
    conversations: list[Conversation] = []
    problems: list[Problem] = []
    for path in paths:
        records, skipped = read_records(path)
        used = len(conversations)
        for record in records:
            try:
                conversations.append(conversation_of(record.value))
            except RecordError as error:
                skipped.append(Problem(path, record.line, str(error)))
        skipped.sort(key=lambda problem: problem.line)
        if len(conversations) == used:
            raise InputError(f"{path}: no usable record{_first(skipped)}")
        problems += skipped
    return conversations, problems


def _first(problems: list[Problem]) -> str:
    if not problems:
        return ""
    return f"; first of {len(problems)}: line {problems[0].line}, {problems[0].reason}"


def conversation_of(value: object) -> Conversation:
    """Return the turns of one record.

    Raises:
        RecordError: it has no known format, a field has the wrong kind, or nothing is trained.
    """
    if not isinstance(value, dict):
        raise RecordError(f"a record must be a JSON object; got {_kind(value)}")
    if "chosen" in value or "rejected" in value:
        raise RecordError("a preference pair (chosen, rejected), not a conversation to train on")
    if "messages" in value:
        turns = _named_turns(value["messages"], "messages", ("role", "content"), MESSAGE_ROLES)
    elif "conversations" in value:
        named = _named_turns(
            value["conversations"], "conversations", ("from", "value"), SPEAKER_ROLES
        )
        turns = _system(value) + named
    elif "src" in value or "tgt" in value:
        turns = _system(value) + _erniekit(value)
    elif "instruction" in value or "output" in value:
        turns = _system(value) + _alpaca(value)
    else:
        raise RecordError(
            "a record must have instruction and output, messages, conversations, or src and tgt; "
            f"got keys {', '.join(map(str, value)) or '(none)'}"
        )
    if not any(turn.trained and turn.text for turn in turns):
        raise RecordError("no assistant text to train on")
    for turn in turns:
        _check_unicode(turn.text)
    return turns


def _alpaca(value: dict[str, Any]) -> Conversation:
    instruction = _string(value.get("instruction"), "instruction")
    extra = _string(value.get("input") or "", "input")
    prompt = f"{instruction}\n\n{extra}" if extra else instruction
    output = _string(value.get("output"), "output")
    return [Turn("user", prompt, trained=False), Turn("assistant", output, trained=True)]


def _named_turns(
    entries: object, name: str, keys: tuple[str, str], roles: dict[str, str]
) -> Conversation:
    if not isinstance(entries, list) or not entries:
        raise RecordError(f"{name} must be a list of turns; got {_kind(entries)}")
    turns = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise RecordError(f"{name}[{number}] must be an object; got {_kind(entry)}")
        speaker = entry.get(keys[0])
        if not isinstance(speaker, str) or speaker not in roles:
            raise RecordError(
                f"{name}[{number}].{keys[0]} must be one of {', '.join(roles)}; got {speaker!r}"
            )
        text = _content(entry.get(keys[1]), f"{name}[{number}].{keys[1]}")
        turns.append(Turn(roles[speaker], text, trained=roles[speaker] == "assistant"))
    return turns


def _content(content: object, name: str) -> str:
    if not isinstance(content, list):
        return _string(content, name)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else _kind(part)
        if kind != "text":
            raise RecordError(f"{name}[{number}] must be a part of type 'text'; got {kind!r}")
        texts.append(_string(part.get("text"), f"{name}[{number}].text"))
    return "".join(texts)


def _erniekit(value: dict[str, Any]) -> Conversation:
    questions = _strings(value.get("src"), "src")
    answers = _strings(value.get("tgt"), "tgt")
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


def _system(value: dict[str, Any]) -> Conversation:
    text = _string(value.get("system") or "", "system")
    return [Turn("system", text, trained=False)] if text else []


def _strings(value: object, name: str) -> list[str]:
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise RecordError(f"{name} must hold at least one turn; got an empty list")
    return [_string(entry, f"{name}[{number}]") for number, entry in enumerate(entries)]


def _string(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise RecordError(f"{name} must be a string; got {_kind(value)}")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "nothing"
    if isinstance(value, list) and not value:
        return "an empty list"
    return names.get(type(value), "a number")


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RecordError("text holds half of a surrogate pair, which is no character") from None
