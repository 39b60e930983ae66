"""Preference groups: a prompt and its answers as one run of tokens, each answer blind to the rest.

Prompt 1 2, answers 5 6 and 7 8 9. A target is a pair of a logit position and the token that this
logit must predict; every token of every answer is the target of one position.

layout="plain", each token once (ERNIEKit):

| position   |  0   1 |  2    3 |  4    5    6 |
| token      |  1   2 |  5    6 |  7    8    9 |
| position id|  0   1 |  2    3 |  2    3    4 |
| index      |  7   7 |  4    4 |  7    7    7 |
| label      |  -   - |  6    - |  8    9    - |   (- is -100)
| targets    | 1->5 2->6 | 1->7 4->8 5->9 |      position 1 predicts the first token of BOTH answers

One label cannot hold both first tokens, so the plain labels leave all first tokens out, and only
the targets are complete: losses must gather them (`losses.answer_log_probs`).

layout="repeated", each answer led by the prompt's last token (PaddleNLP 3):

| position   |  0 |  1    2    3 |  4    5    6    7 |
| token      |  1 |  2    5    6 |  2    7    8    9 |
| position id|  0 |  1    2    3 |  1    2    3    4 |   (the repeated token keeps its position id)
| index      |  8 |  4    4    4 |  8    8    8    8 |
| label      |  - |  5    6    - |  7    8    9    - |
| targets    | 1->5 2->6 | 4->7 5->8 6->9 |

Ordinary shifted labels are complete, at the price of one more token for each answer but the first.
PaddleFormers 1.2 mixes the two (prompt, chosen, last prompt token again, rejected), and its indices
let the rejected rows see that token twice; neither layout here does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paddle_flashmask.packing.samples import IGNORE_INDEX, Int64Array, id_array, token_array

__all__ = ["LAYOUTS", "PAIR_RULES", "Group", "LaidGroup", "checked_group", "lay_out", "shortened"]

LAYOUTS = ("plain", "repeated")
PAIR_RULES = ("all", "best_worst")


@dataclass(frozen=True, eq=False)
class Group:
    """A checked preference sample.

    Attributes:
        prompt: [p], int64.
        answers: n arrays [a], int64.
        ranks: [n], int64, lower is better.
        pairs: [P, 2], int64, answers (better, worse), by better, then worse rank.
    """

    prompt: Int64Array
    answers: tuple[Int64Array, ...]
    ranks: Int64Array
    pairs: Int64Array

    def size(self, layout: str) -> int:
        """Return the tokens of the group in this layout."""
        repeats = len(self.answers) - 1 if layout == "repeated" else 0
        return self.prompt.size + repeats + sum(answer.size for answer in self.answers)


class LaidGroup(NamedTuple):
    """A group as one run of n tokens; every position counts from its start.

    Attributes:
        input_ids: [n].
        labels: [n], shifted, -100 where the layout gives none.
        position_ids: [n], going on from the prompt in each answer.
        ends: [n], the first row that no longer sees the column.
        answer_spans: [answers, 2], half-open span of each answer's own tokens.
        solo_positions: for each answer, [p + a], where prompt + that answer lie.
        target_positions: [m], position of the logit.
        target_ids: [m], token it must predict.
        target_answers: [m], answer of that token, never falling.
    """

    input_ids: Int64Array
    labels: Int64Array
    position_ids: Int64Array
    ends: Int64Array
    answer_spans: Int64Array
    solo_positions: tuple[Int64Array, ...]
    target_positions: Int64Array
    target_ids: Int64Array
    target_answers: Int64Array


def checked_group(number: int, sample: object, *, least_answers: int, pairs: str) -> Group:
    """Return one preference sample as arrays, or say what is wrong with it.

    Args:
        number: of the sample, for messages.
        sample: (prompt_ids, answers) or (prompt_ids, answers, ranks).
        least_answers: how many answers it needs; from 2 on some of them must differ in rank.
        pairs: "all" pairs of different rank, or only "best_worst": the first of the best against
            the last of the worst.

    Raises:
        TypeError: it has not this form, or ids are not ints in one dimension.
        ValueError: a prompt or an answer is empty, there are too few answers, ids are negative,
            or ranks do not fit the answers or are all equal.
    """
    if not isinstance(sample, (tuple, list)) or len(sample) not in (2, 3):
        raise TypeError(
            "samples must be (prompt_ids, answers) or (prompt_ids, answers, ranks); "
            f"sample {number} is {type(sample).__name__}"
        )
    prompt = token_array("prompt_ids", number, sample[0])
    if not isinstance(sample[1], (tuple, list)):
        raise TypeError(
            f"answers of sample {number} must be a list of token lists; "
            f"got {type(sample[1]).__name__}"
        )
    answers = tuple(
        token_array(f"answer {index}", number, answer) for index, answer in enumerate(sample[1])
    )
    if len(answers) < least_answers:
        raise ValueError(
            f"answers of sample {number} must be at least {least_answers}; got {len(answers)}"
        )
    given = sample[2] if len(sample) > 2 else None
    ranks = np.arange(len(answers)) if given is None else id_array("ranks", number, given)
    if ranks.size != len(answers):
        raise ValueError(
            f"ranks of sample {number} must be one for each of its {len(answers)} answers; "
            f"got {ranks.size}"
        )
    if least_answers > 1 and np.unique(ranks).size == 1:
        raise ValueError(
            f"ranks of sample {number} must not all be equal; got {len(ranks)} times {ranks[0]}"
        )
    return Group(prompt, answers, ranks, _pairs(ranks, pairs))


def _pairs(ranks: Int64Array, rule: str) -> Int64Array:
    order = np.argsort(ranks, kind="stable")
    if rule == "best_worst":
        order = order[[0, -1]]
    better, worse = np.triu_indices(order.size, 1)
    pairs = np.stack([order[better], order[worse]], axis=1)
    return pairs[ranks[pairs[:, 0]] < ranks[pairs[:, 1]]]


def shortened(group: Group, seq_len: int, layout: str) -> Group:
    """Return the group cut to seq_len tokens: the longest answers lose their tails first.

    All answers get the same limit, the largest that fits; shorter ones stay whole. The prompt is
    never cut, for a chat template without its head is another prompt. If prompt and one token of
    each answer do not fit, the group is returned as it is.

    Args:
        group: any group.
        seq_len: tokens it may have.
        layout: the layout that counts.
    """
    lengths = np.array([answer.size for answer in group.answers])
    room = seq_len - (group.size(layout) - int(lengths.sum()))
    if room >= lengths.sum() or room < lengths.size:
        return group
    limit = _common_limit(lengths, room)
    answers = tuple(answer[:limit] for answer in group.answers)
    return Group(group.prompt, answers, group.ranks, group.pairs)


def _common_limit(lengths: Int64Array, room: int) -> int:
    """Return the largest limit with sum(min(length, limit)) <= room, at least 1."""
    left = lengths.size
    for length in np.sort(lengths).tolist():
        if length * left > room:
            break
        room -= length
        left -= 1
    return room // left


def lay_out(group: Group, layout: str) -> LaidGroup:
    """Return the tokens of a group in this layout and everything that is read by position."""
    lead = 1 if layout == "repeated" else 0
    shared = group.prompt.size - lead
    lengths = np.array([answer.size for answer in group.answers])
    ends = shared + np.cumsum(lengths + lead)
    starts = ends - lengths  # of the answers' own tokens
    pieces = [group.prompt[:shared]]
    labels = [np.full(shared, IGNORE_INDEX)]
    positions = [np.arange(shared)]
    target_positions, solo_positions = [], []
    for answer, start, end in zip(group.answers, starts.tolist(), ends.tolist(), strict=True):
        pieces += [group.prompt[shared:], answer]
        labels += [answer[1 - lead :], np.full(1, IGNORE_INDEX)]
        positions.append(np.arange(shared, shared + lead + answer.size))
        own = np.arange(start - lead, end)
        solo_positions.append(np.concatenate([np.arange(shared), own]))
        target_positions.append(solo_positions[-1][group.prompt.size - 1 : -1])
    return LaidGroup(
        input_ids=np.concatenate(pieces),
        labels=np.concatenate(labels),
        position_ids=np.concatenate(positions),
        ends=np.repeat(np.append(ends[-1], ends), [shared, *(lengths + lead)]),
        answer_spans=np.stack([starts, ends], axis=1),
        solo_positions=tuple(solo_positions),
        target_positions=np.concatenate(target_positions),
        target_ids=np.concatenate(group.answers),
        target_answers=np.repeat(np.arange(lengths.size), lengths),
    )
