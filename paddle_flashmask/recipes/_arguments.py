"""The argument rules that recipes share: counts, lists of counts, question-answer groups."""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as short
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices import INT32_MAX
from paddle_flashmask.indices._arguments import check_count

Int64Array: TypeAlias = NDArray[np.int64]
Counts: TypeAlias = Sequence[int] | NDArray[np.integer]
Groups: TypeAlias = Sequence[tuple[int, Counts]]

PAIR = 2


class Pieces(NamedTuple):
    """The questions and answers of all groups in the order of their tokens.

    Attributes:
        lengths: [P], int64, tokens of each piece; a group is its question, then its answers.
        per_group: [G], int64, number of pieces of each group, at least 2.
    """

    lengths: Int64Array
    per_group: Int64Array


def check_counts(name: str, values: object, *, at_least: int = 0) -> Int64Array:
    """Return a list, tuple or array of counts as an int64 array.

    Args:
        name: what the message calls it.
        values: the argument as it came.
        at_least: the smallest value allowed; the largest is that of int32.

    Returns:
        [N], int64.

    Raises:
        TypeError: it is no list, tuple or integer array, or holds something else than ints.
        ValueError: an array has not 1 axis, or a value is out of range.
    """
    if isinstance(values, (list, tuple)):
        checked = [
            check_count(f"{name}[{position}]", value, at_least=at_least)
            for position, value in enumerate(values)
        ]
        return np.array(checked, np.int64)
    if not isinstance(values, np.ndarray):
        kind = type(values).__name__
        raise TypeError(
            f"{name} must be a list, tuple or integer array; got {kind} {short(values)}"
        )
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold ints; got an array of {values.dtype}")
    if values.ndim != 1:
        raise ValueError(f"{name} must have 1 axis; got shape {list(values.shape)}")
    outside = np.flatnonzero((values < at_least) | (values > INT32_MAX))
    for position in outside[:1]:
        check_count(f"{name}[{position}]", values[position], at_least=at_least)
    return values.astype(np.int64)


def check_groups(groups: object) -> Pieces:
    """Return the lengths of questions and answers, flat.

    Args:
        groups: [(question_length, [answer_length, ...]), ...], every length at least 1.

    Raises:
        TypeError: something is not of this form, or a length is not an int.
        ValueError: a group has no answer, or a question or answer is empty or too long.
    """
    if not isinstance(groups, (list, tuple)):
        kind = type(groups).__name__
        raise TypeError(f"groups must be a list or tuple; got {kind} {short(groups)}")
    pieces: list[Int64Array] = [np.zeros(0, np.int64)]
    for number, group in enumerate(groups):
        name = f"groups[{number}]"
        if not isinstance(group, (list, tuple)) or len(group) != PAIR:
            raise TypeError(
                f"{name} must be a pair (question_length, answer_lengths); got {short(group)}"
            )
        question = check_count(f"question_length of {name}", group[0], at_least=1)
        answers = check_counts(f"answer_lengths of {name}", group[1], at_least=1)
        if answers.size == 0:
            raise ValueError(f"answer_lengths of {name} must hold at least 1 answer; got none")
        pieces.append(np.append(np.int64(question), answers))
    per_group = np.array([piece.size for piece in pieces[1:]], np.int64)
    return Pieces(np.concatenate(pieces), per_group)


def check_seq_len(seq_len: object, *, tokens: int, source: str) -> int:
    """Return the length of a packed row, by default exactly its tokens.

    Args:
        seq_len: the argument as it came, None for no padding.
        tokens: how many tokens the row must hold.
        source: the argument that the tokens were counted from.

    Raises:
        TypeError: seq_len is not an int.
        ValueError: the tokens do not fit into seq_len or into int32.
    """
    if tokens > INT32_MAX:
        raise ValueError(f"the sum of {source} must be at most {INT32_MAX}; got {tokens}")
    if seq_len is None:
        return tokens
    checked = check_count("seq_len", seq_len)
    if checked < tokens:
        raise ValueError(f"seq_len must be at least the sum of {source}, {tokens}; got {checked}")
    return checked
