"""The four kinds of training: how a row is packed and what is trained on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paddle_flashmask import indices, packing
from train_steps import documents

Batch = dict[str, np.ndarray]

# Documents in the rows of a cell: of the paper's 1 to 10 the middle and both outer thirds.
DOCUMENT_COUNTS = (5, 2, 9)
SEED = 11


@dataclass(frozen=True)
class Layout:
    """One kind of training.

    Attributes:
        answers: to each question, as in the paper.
        at_least: tokens of a document, as in the paper.
        adapters: rank of the adapters that are trained; 0: all weights are.
        seed: of its documents; the same number means the same rows.
    """

    name: str
    answers: int
    at_least: int
    adapters: int
    seed: int


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("sft", answers=1, at_least=128, adapters=0, seed=0),
        Layout("lora", answers=1, at_least=128, adapters=8, seed=0),
        Layout("dpo", answers=2, at_least=128, adapters=0, seed=1),
        Layout("rm", answers=6, at_least=512, adapters=0, seed=2),
    )
}


def batch(layout: Layout, seqlen: int, count: int, vocab_size: int) -> Batch:
    """Return a batch of one row of `paddle_flashmask.packing`, filled by about `count` documents.

    Token ids are random. For DPO `reference_log_probs` are those of a model that knows nothing and
    gives every token the same probability.
    """
    seed = [SEED, layout.seed, seqlen, count]
    drawn = documents.draw(
        seqlen, count, answers=layout.answers, at_least=layout.at_least, seed=seed
    )
    random = np.random.default_rng(seed)

    def tokens(length: int) -> np.ndarray:
        return random.integers(1, vocab_size, length)

    if layout.answers == 1:
        samples = []
        for document in drawn:
            ids = tokens(document.tokens)
            labels = ids.copy()
            labels[: document.question] = packing.IGNORE_INDEX
            samples.append((ids, labels))
        return packing.pack_sft(samples, seq_len=seqlen, strategy="sequential").build([0])
    groups = [(tokens(one.question), [tokens(answer) for answer in one.answers]) for one in drawn]
    pack = packing.pack_dpo if layout.name == "dpo" else packing.pack_rm
    packed = pack(groups, seq_len=seqlen, strategy="sequential")
    if layout.name == "dpo":
        packed = packed.with_reference(lambda given: _uniform(given, vocab_size))
    return packed.build([0])


def density(rows: Batch) -> float:
    """Return visible cells over all cells of a batch."""
    start = rows["attn_mask_startend_row_indices"]
    seqlen = start.shape[2]
    visible = indices.count_visible(start, causal=True, seqlen_q=seqlen)
    return float(visible.mean()) / seqlen**2


def _uniform(given: Batch, vocab_size: int) -> np.ndarray:
    answers = len(given["answer_rows"])
    return -np.log(vocab_size) * np.bincount(given["target_answers"], minlength=answers)
