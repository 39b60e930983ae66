"""Files to records: JSON arrays and JSON lines, each record with the line where it starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["InputError", "Problem", "Record", "read_records"]

JSON_SPACE = " \t\r\n"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class InputError(Exception):
    """A file that cannot be used at all; its text is one line for the user."""


class Problem(NamedTuple):
    """A record that was skipped, and why.

    Attributes:
        path: the file as the user named it.
        line: line where the record starts, from 1.
        reason: what is wrong with it.
    """

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        """Return the problem as compilers print one: file, line, reason."""
        return f"{self.path}:{self.line}: {self.reason}"


class Record(NamedTuple):
    """One JSON value.

    Attributes:
        value: as `json` decodes it.
        line: line where it starts, from 1.
    """

    value: Any
    line: int


def read_records(path: str) -> tuple[list[Record], list[Problem]]:
    """Return the records of a file, and the lines that are not JSON.

    A file that starts with `[` is one JSON array; anything else is one JSON value per line (or one
    object over several lines). A byte-order mark and blank lines are skipped.

    Args:
        path: the file.

    Raises:
        InputError: the file cannot be read, is not UTF-8, is empty, or is a broken array.
    """
    text = _read_text(path)
    start = _skip_space(text, 0)
    if start == len(text):
        raise InputError(f"{path}: the file is empty")
    if text[start] == "[":
        return list(_array_records(path, text, start)), []
    whole = _whole_object(text, start)
    return ([whole], []) if whole else _line_records(path, text)


def _read_text(path: str) -> str:
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{path}: is a directory; name a JSON or JSONL file")
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    if data.startswith(UTF16_MARKS):
        raise InputError(f"{path}: is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise InputError(
            f"{path}:{line}: is not UTF-8 (byte 0x{byte:02x}); save it as UTF-8"
        ) from None


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in JSON_SPACE:
        at += 1
    return at


def _decode(text: str, at: int) -> tuple[Any, int]:
    """Return the value at `at` and the position behind it; every failure is a ValueError."""
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _array_records(path: str, text: str, start: int) -> Iterator[Record]:
    at = _skip_space(text, start + 1)
    line = text.count("\n", 0, at) + 1
    wants_value = text[at : at + 1] != "]"
    while wants_value:
        try:
            value, end = _decode(text, at)
        except json.JSONDecodeError as error:
            where = f"{path}:{error.lineno}"
            raise InputError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
        except ValueError as error:
            raise InputError(f"{path}:{line}: not JSON: {error}") from None
        yield Record(value, line)
        comma = _skip_space(text, end)
        wants_value = text[comma : comma + 1] == ","
        following = _skip_space(text, comma + 1) if wants_value else comma
        line += text.count("\n", at, following)
        at = following
    if text[at : at + 1] != "]":
        raise InputError(f"{path}:{line}: not JSON: the array is not closed or lacks a comma here")
    rest = _skip_space(text, at + 1)
    if rest != len(text):
        line += text.count("\n", at, rest)
        raise InputError(f"{path}:{line}: not JSON: more text after the end of the array")


def _whole_object(text: str, start: int) -> Record | None:
    try:
        value, end = _decode(text, start)
    except ValueError:
        return None
    if not isinstance(value, dict) or _skip_space(text, end) != len(text):
        return None
    return Record(value, text.count("\n", 0, start) + 1)


def _line_records(path: str, text: str) -> tuple[list[Record], list[Problem]]:
    records, problems = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        start = _skip_space(line, 0)
        if start == len(line):
            continue
        try:
            value, end = _decode(line, start)
            if _skip_space(line, end) != len(line):
                raise ValueError(f"more text after the value at column {end + 1}")
            records.append(Record(value, number))
        except json.JSONDecodeError as error:
            problems.append(Problem(path, number, f"not JSON: {error.msg} at column {error.colno}"))
        except ValueError as error:
            problems.append(Problem(path, number, f"not JSON: {error}"))
    return records, problems
