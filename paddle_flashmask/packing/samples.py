"""Tokenised samples as the user gives them, and the checks that samples of all kinds share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "IGNORE_INDEX",
    "PreferenceSample",
    "SftSample",
    "checked_sample",
    "id_array",
    "token_array",
]

IGNORE_INDEX = -100  # label of a position that is not trained, as in Paddle's cross_entropy
INT64_MAX = 2**63 - 1

Int64Array: TypeAlias = NDArray[np.int64]
TokenIds: TypeAlias = Sequence[int] | NDArray[np.integer]


class SftSample(NamedTuple):
    """One tokenised sample.

    Attributes:
        input_ids: [n], token ids, n >= 1.
        labels: [n], unshifted: the token at the same position, or -100 where it is not trained
            (the prompt).
    """

    input_ids: TokenIds
    labels: TokenIds


class PreferenceSample(NamedTuple):
    """One tokenised prompt with the answers to compare.

    Attributes:
        prompt_ids: [p], token ids, p >= 1: everything before the answer, earlier turns included.
        answers: n answers, [a] token ids each, a >= 1, each with its end-of-answer token.
        ranks: [n], ints: the lower, the better; equal ones are not compared. None: the answers
            come best first, so (chosen, rejected) needs no ranks.
    """

    prompt_ids: TokenIds
    answers: Sequence[TokenIds]
    ranks: Sequence[int] | NDArray[np.integer] | None = None


def checked_sample(number: int, sample: object) -> tuple[Int64Array, Int64Array]:
    """Return ids and labels of one sample as int64 arrays, or say what is wrong with it.

    Raises:
        TypeError: it is not a pair, or ids are not ints in one dimension.
        ValueError: it is empty, ids are negative, or labels do not fit the ids.
    """
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        raise TypeError(
            f"samples must be (input_ids, labels) pairs; sample {number} is {type(sample).__name__}"
        )
    input_ids = token_array("input_ids", number, sample[0])
    labels = id_array("labels", number, sample[1])
    if labels.size != input_ids.size:
        raise ValueError(
            f"labels of sample {number} must have the length of its input_ids, {input_ids.size}; "
            f"got {labels.size}"
        )
    wrong = np.flatnonzero((labels != IGNORE_INDEX) & (labels != input_ids))
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(
            f"labels of sample {number} must be -100 or the token at the same position "
            f"(unshifted); got {labels[at]} for token {input_ids[at]} at position {at}"
        )
    return input_ids, labels


def token_array(name: str, number: int, ids: object) -> Int64Array:
    """Return token ids as an int64 array.

    Args:
        name: of the field, for messages.
        number: of the sample, for messages.
        ids: [n], what came.

    Raises:
        TypeError: they are not ints in one dimension.
        ValueError: there are none, or one is negative or does not fit int64.
    """
    tokens = id_array(name, number, ids)
    if tokens.size == 0:
        raise ValueError(f"{name} of sample {number} must hold at least 1 token; got 0")
    negative = np.flatnonzero(tokens < 0)
    if negative.size:
        at = int(negative[0])
        raise ValueError(
            f"{name} of sample {number} must be at least 0; got {tokens[at]} at position {at}"
        )
    return tokens


def id_array(name: str, number: int, ids: object) -> Int64Array:
    """Return ints in one dimension as an int64 array, empty ones included.

    Raises:
        TypeError: they are not ints in one dimension.
        ValueError: one does not fit int64.
    """
    try:
        array = np.asarray(ids)
    except ValueError:
        raise TypeError(f"{name} of sample {number} must be ints; got a ragged sequence") from None
    if array.ndim == 1 and array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} of sample {number} must be ints in one dimension; "
            f"got {array.dtype} of shape {list(array.shape)}"
        )
    if int(array.max()) > INT64_MAX:
        raise ValueError(f"{name} of sample {number} must fit int64; got {array.max()}")
    return array.astype(np.int64)
