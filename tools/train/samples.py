"""The records that a trainer is given: clean JSONL of its own format, from files of any format.

Files are read by the quickstart's readers. A trainer may choke on a record of another form (that of
PaddleFormers tries it again for ever), so only records whose turns alternate are passed on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

QUICKSTART = Path(__file__).resolve().parents[1] / "quickstart"
sys.path.insert(0, str(QUICKSTART))

from chat_formats import Conversation  # noqa: E402
from cores import import_quietly  # noqa: E402
from inputs import Inputs, load_inputs  # noqa: E402
from preference_formats import Preference  # noqa: E402
from records import InputError  # noqa: E402

__all__ = [
    "InputError",
    "conversation_records",
    "import_quietly",
    "load",
    "preference_records",
    "write_jsonl",
]

OWN_SAMPLES = QUICKSTART / "samples"


def load(files: Sequence[str]) -> Inputs:
    """Return the records of the files, or of the project's own samples if none is named.

    Raises:
        InputError: a file cannot be read or holds no usable record.
    """
    own = sorted(str(path) for path in OWN_SAMPLES.iterdir() if path.suffix in (".json", ".jsonl"))
    return load_inputs(files or own)


def conversation_records(conversations: Iterable[Conversation]) -> list[dict[str, Any]]:
    """Return `messages` records of the conversations that alternate and end with an answer."""
    records = []
    for turns in conversations:
        if _alternates(turns) and turns[-1].role == "assistant":
            records.append(
                {"messages": [{"role": turn.role, "content": turn.text} for turn in turns]}
            )
    return records


def preference_records(preferences: Iterable[Preference]) -> list[dict[str, Any]]:
    """Return ERNIEKit records, best answer against worst, of the prompts that alternate."""
    records = []
    for preference in preferences:
        turns = preference.prompt
        if not _alternates(turns) or turns[-1].role != "user":
            continue
        ranked = sorted(zip(preference.ranks, preference.answers, strict=True))
        record: dict[str, Any] = {
            "src": [turn.text for turn in turns if turn.role == "user"],
            "tgt": [turn.text for turn in turns if turn.role == "assistant"],
            "response": [[ranked[0][1]], [ranked[-1][1]]],
            "sort": [1, 0],
        }
        if turns[0].role == "system":
            record["system"] = turns[0].text
        records.append(record)
    return records


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one record per line."""
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8")


def _alternates(turns: Conversation) -> bool:
    said = turns[1:] if turns[0].role == "system" else turns
    wanted = ("user", "assistant")
    return bool(said) and all(
        turn.role == wanted[number % 2] and turn.text.strip() for number, turn in enumerate(said)
    )
