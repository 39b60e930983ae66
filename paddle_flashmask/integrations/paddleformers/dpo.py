"""PaddleFormers' index lists for DPO, corrected.

Its sample is prompt, chosen without its last token, the prompt's last token once more, rejected
without its last token. Its own dense mask hides the first copy of the repeated token from the
rejected branch; its index list (1.2.0, `datasets/DPODataset.py`) does not, so that the rejected
answer sees the prompt's last token twice. With p, c, r tokens of prompt, chosen and rejected and
n = p + c + r - 1 of the sample

    given      [n] * p        [p + c - 1] * (c - 1)    [n] * r
    corrected  [n] * (p - 1)  [p + c - 1] * c          [n] * r

The positions tell where the branches are: they restart at the repeated token.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from paddle_flashmask.integrations.paddleformers.foreign import FIELD, Foreign

__all__ = ["CHOICES", "choose", "corrected_index_list"]

CORRECTED, BUILT_IN = CHOICES = ("corrected", "built-in")
WARNING = (
    "PaddleFormers' DPO indices let the rejected answer see the last prompt token twice; "
    "paddle_flashmask corrects them in every batch. register(dpo_indices='built-in') keeps them."
)

_originals: dict[str, Callable[..., Foreign]] = {}
_has_warned = False


def corrected_index_list(index_list: Sequence[int], position_ids: Sequence[int]) -> list[int]:
    """Return the index list of one preference pair in which no column is seen twice.

    Args:
        index_list: one number per token, counted from the sample's start: the row from which on
            the token is hidden.
        position_ids: one per token; the rejected branch restarts them.

    Returns:
        A new list. Columns from the position where the rejected branch starts to the end of the
        chosen one are hidden from the rejected branch, whether or not a token is repeated.

    Raises:
        ValueError: the lists are not those of one pair.

    Example:
        >>> corrected_index_list([6, 6, 4, 4, 6, 6], [0, 1, 2, 3, 1, 2])  # p = 2, c = 3, r = 2
        [6, 4, 4, 4, 6, 6]
    """
    length = len(position_ids)
    falls = [at for at in range(1, length) if position_ids[at] <= position_ids[at - 1]]
    if (
        len(index_list) != length
        or len(falls) != 1
        or list(position_ids[: falls[0]]) != list(range(falls[0]))
    ):
        raise ValueError(
            "position_ids must count from 0 and restart once, at the rejected answer, with one "
            f"number per index; got {length} positions, {len(index_list)} indices, restarts at "
            f"{falls}"
        )
    branch, first = falls[0], position_ids[falls[0]]
    corrected = [length] * first + [branch] * (branch - first) + [length] * (length - branch)
    others = [at for at, given in enumerate(index_list) if given != corrected[at]]
    if others not in ([], [first]):
        raise ValueError(
            f"{FIELD} must be those of one preference pair, hidden from row {branch} on in columns "
            f"{first} to {branch - 1}; got other numbers at {others}"
        )
    return corrected


def choose(data_set: Foreign, indices: str) -> None:
    """Make PaddleFormers' DPO data set give corrected indices, or its own again.

    Args:
        data_set: BaseDPODataSet, the class.
        indices: "corrected" or "built-in".

    Raises:
        ValueError: neither.
    """
    if indices not in CHOICES:
        raise ValueError(f"dpo_indices must be one of {', '.join(CHOICES)}; got {indices!r}")
    if indices == BUILT_IN:
        for name in list(_originals):
            setattr(data_set, name, _originals.pop(name))
        return
    if not _originals:
        # Not where a sample is made: exceptions are swallowed there, and the sample tried again.
        for name, ours in (
            ("__init__", _warning_init),
            ("_generate_sequences", _corrected_sequences),
        ):
            _originals[name] = getattr(data_set, name)
            setattr(data_set, name, ours)


def _warning_init(self: Foreign, *arguments: object, **options: object) -> None:
    """Warn in the process that makes the data set, so once however many workers read it."""
    global _has_warned
    _originals["__init__"](self, *arguments, **options)
    if self.use_attn_mask_startend_row_indices and not _has_warned:
        _has_warned = True
        warnings.warn(WARNING, stacklevel=2)


def _corrected_sequences(self: object) -> Iterator[list[Foreign]]:
    for sequences in _originals["_generate_sequences"](self):
        yield [_corrected(sequence) for sequence in sequences]


def _corrected(sequence: Foreign) -> Foreign:
    given = getattr(sequence, FIELD)
    if given is None:
        return sequence
    return replace(sequence, **{FIELD: corrected_index_list(given, sequence.position_ids)})
