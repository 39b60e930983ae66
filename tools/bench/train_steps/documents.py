"""Lengths of documents as in real data, scaled so that a few of them fill a row.

The deciles below are of two public files of LLaMA-Factory's `data` folder, in bytes of UTF-8, which
differ from tokens by a factor that cancels: `alpaca_en_demo.json` (999 samples of instruction,
input and output) and `dpo_en_demo.json` (300 conversations, each with a chosen and a rejected
answer). Only these figures of them are here. A length is drawn by interpolation between deciles, so
the shortest and the longest tenth are cut off.

Scaled as in the FlashMask paper (arXiv 2410.01359, section 5.1 and appendix): a row of any length
holds 1 to 10 documents, of at least 128 tokens, or 512 where there are six answers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LEVELS = np.linspace(0.1, 0.9, 9)
# Bytes of a sample: alpaca (mean 789), and prompt with both answers (mean 4852).
SFT_LENGTHS = (126, 173, 250, 380, 585, 789, 1127, 1444, 1795)
PREFERENCE_LENGTHS = (1179, 1896, 2459, 3007, 3971, 5202, 6460, 7906, 9533)
# The answer's share of a sample of alpaca.
ANSWER_SHARES = (0.314, 0.448, 0.614, 0.762, 0.868, 0.915, 0.942, 0.958, 0.968)
# The mean answer over its prompt, and the chosen answer over the rejected one.
ANSWER_OVER_PROMPT = (0.263, 0.431, 0.579, 0.744, 1.092, 1.787, 3.023, 6.406, 13.04)
ANSWER_OVER_ANSWER = (0.17, 0.49, 0.626, 0.736, 0.911, 1.072, 1.257, 1.585, 2.634)


class Document(NamedTuple):
    """A question and its answers, in tokens; all are at least 1."""

    question: int
    answers: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.question + sum(self.answers)


def draw(
    seqlen: int, count: int, *, answers: int, at_least: int, seed: list[int]
) -> list[Document]:
    """Return documents that fill a row exactly; the same arguments give the same ones.

    Args:
        seqlen: tokens of the row.
        count: of documents; fewer if they could not be twice `at_least` long on average.
        answers: to each question.
        at_least: tokens of the shortest document.
        seed: numbers that seed the draw.

    Raises:
        ValueError: the row has no token for the question and each answer.
    """
    if seqlen <= answers:
        raise ValueError(f"a row must hold more than {answers} tokens; got {seqlen}")
    at_least = min(max(at_least, answers + 1), seqlen)
    random = np.random.default_rng(seed)
    count = max(1, min(count, seqlen // (2 * at_least)))
    lengths = _sample(random, SFT_LENGTHS if answers == 1 else PREFERENCE_LENGTHS, count)
    sizes = _apportion(seqlen, lengths, at_least)
    return [_document(random, int(size), answers) for size in sizes]


def _document(random: np.random.Generator, tokens: int, answers: int) -> Document:
    if answers == 1:
        share = float(_sample(random, ANSWER_SHARES, 1)[0])
        question = min(tokens - 1, max(1, round(tokens * (1 - share))))
        return Document(question, (tokens - question,))
    over_prompt = float(_sample(random, ANSWER_OVER_PROMPT, 1)[0])
    relative = _sample(random, ANSWER_OVER_ANSWER, answers)
    weights = np.concatenate([[1.0], over_prompt * relative / relative.mean()])
    sizes = _apportion(tokens, weights, 1)
    return Document(int(sizes[0]), tuple(int(size) for size in sizes[1:]))


def _sample(random: np.random.Generator, deciles: tuple[float, ...], count: int) -> np.ndarray:
    return np.interp(random.random(count), LEVELS, deciles)


def _apportion(total: int, weights: np.ndarray, at_least: int) -> np.ndarray:
    """Return whole numbers of that sum, in proportion above `at_least`."""
    free = total - at_least * len(weights)
    ends = np.rint(np.cumsum(weights) / weights.sum() * free).astype(np.int64)
    return at_least + np.diff(ends, prepend=0)
