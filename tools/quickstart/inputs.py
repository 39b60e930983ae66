"""Files to what each stage can train on: conversations for SFT, preferences for DPO and RM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from chat_formats import Conversation, RecordError, conversation_of
from preference_formats import Preference, is_preference, preference_of
from records import InputError, Problem, read_records

__all__ = ["RESULTS", "STAGES", "FileUse", "Inputs", "load_inputs", "plan_stages"]

STAGES = ("sft", "dpo", "rm")
RESULTS = ("losses.csv", "loss_curves.png", "packed_mask.png")  # files of each stage
KIND_OF_STAGE = {"sft": "conversation", "dpo": "preference", "rm": "preference"}
FITTING = {
    "conversation": "alpaca, messages, conversations or ERNIEKit records",
    "preference": "records with chosen and rejected, or ERNIEKit's src, response and sort",
}


class FileUse(NamedTuple):
    """How many records of each kind a file gave.

    Attributes:
        path: the file as the user named it.
        conversation: records that SFT trains on.
        preference: records that DPO and RM train on.
    """

    path: str
    conversation: int
    preference: int


class Inputs(NamedTuple):
    """All records of all files.

    Attributes:
        conversations: for SFT, in order.
        preferences: for DPO and RM, in order.
        problems: records that were skipped.
        files: what each file gave.
    """

    conversations: list[Conversation]
    preferences: list[Preference]
    problems: list[Problem]
    files: list[FileUse]


def load_inputs(paths: Sequence[str]) -> Inputs:
    """Return the records of all files, and those that were skipped.

    Raises:
        InputError: a file cannot be read or holds no usable record.
    """
    inputs = Inputs([], [], [], [])
    for path in paths:
        records, skipped = read_records(path)
        conversations: list[Conversation] = []
        preferences: list[Preference] = []
        for record in records:
            try:
                if is_preference(record.value):
                    preferences.append(preference_of(record.value))
                else:
                    conversations.append(conversation_of(record.value))
            except RecordError as error:
                skipped.append(Problem(path, record.line, str(error)))
        skipped.sort(key=lambda problem: problem.line)
        if not conversations and not preferences:
            raise InputError(f"{path}: no usable record{_first(skipped)}")
        inputs.conversations.extend(conversations)
        inputs.preferences.extend(preferences)
        inputs.problems.extend(skipped)
        inputs.files.append(FileUse(path, len(conversations), len(preferences)))
    return inputs


def plan_stages(wanted: Sequence[str], inputs: Inputs) -> tuple[list[str], list[str]]:
    """Return the stages that have records, in order, and one line per wanted stage.

    Raises:
        InputError: no wanted stage has any.
    """
    stages: list[str] = []
    lines: list[str] = []
    for stage in (name for name in STAGES if name in wanted):
        kind = KIND_OF_STAGE[stage]
        takes = [(Path(use.path).name, getattr(use, kind)) for use in inputs.files]
        named = ", ".join(f"{name} ({count})" for name, count in takes if count)
        if named:
            stages.append(stage)
        why = f"skipped: no file has {FITTING[kind]}"
        lines.append(f"{stage}: " + (f"takes {named}" if named else why))
    if not stages:
        raise InputError(f"no stage can run; {'; '.join(lines)}")
    return stages, lines


def _first(problems: list[Problem]) -> str:
    if not problems:
        return ""
    return f"; first of {len(problems)}: line {problems[0].line}, {problems[0].reason}"
