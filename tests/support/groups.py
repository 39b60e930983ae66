"""Random preference samples, and what packing must make of them, token by token in plain loops."""

from __future__ import annotations

from hypothesis import strategies as st

IGNORED = -100


@st.composite
def preference_samples(draw, least_answers=2, most=5, longest=6):
    """Samples whose tokens are all different, so that a token names its place."""
    samples, token = [], 1
    for _ in range(draw(st.integers(0, most))):
        lengths = draw(st.lists(st.integers(1, longest), min_size=1 + least_answers, max_size=5))
        pieces = []
        for length in lengths:
            pieces.append(list(range(token, token + length)))
            token += length
        ranks = draw(st.permutations(range(len(lengths) - 1)))
        samples.append((pieces[0], pieces[1:], ranks))
    return samples


def solo_rows(samples):
    """(sample, answer) to the tokens of prompt + answer."""
    return {
        (number, index): [*prompt, *answer]
        for number, (prompt, answers, _) in enumerate(samples)
        for index, answer in enumerate(answers)
    }


def size_of(sample, layout):
    prompt, answers, _ = sample
    repeats = len(answers) - 1 if layout == "repeated" else 0
    return len(prompt) + sum(map(len, answers)) + repeats


def walk(sample, layout):
    """The group token by token: (token, piece, position id); piece -1 is the shared prompt."""
    prompt, answers, _ = sample
    shared = prompt if layout == "plain" else prompt[:-1]
    tokens = [(token, -1, at) for at, token in enumerate(shared)]
    for piece, answer in enumerate(answers):
        branch = answer if layout == "plain" else [prompt[-1], *answer]
        tokens += [(token, piece, len(shared) + at) for at, token in enumerate(branch)]
    return tokens
