from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.groups import IGNORED, preference_samples, size_of, solo_rows, walk

from paddle_flashmask import recipes
from paddle_flashmask.indices import to_dense
from paddle_flashmask.packing import PreferenceSample, pack_dpo, pack_rm

LAYOUTS = ["plain", "repeated"]
SEQ_LEN = 48


def whole(packed):
    return packed.build(range(len(packed)))


def placed_tokens(packed, samples, layout):
    """For each cell of the rows: None for padding, else (sample, token, piece, position id)."""
    cells = [[None] * packed.seq_len for _ in range(len(packed))]
    for sample, row, offset, length in packed.placements:
        tokens = walk(samples[sample], layout)
        assert length == len(tokens)
        for at, token in enumerate(tokens):
            assert cells[row][offset + at] is None
            cells[row][offset + at] = (sample, *token)
    return cells


def test_field_case_one_prompt_two_answers():
    batch = pack_dpo([([1, 2], [[5, 6], [7, 8, 9]])], seq_len=7)[0]
    assert batch["attn_mask_startend_row_indices"].shape == (1, 1, 7, 1)
    assert batch["attn_mask_startend_row_indices"].ravel().tolist() == [7, 7, 4, 4, 7, 7, 7]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 2, 3, 4]]


def test_field_case_scores_are_read_at_each_answers_last_token():
    batch = pack_rm([([1, 2], [[3, 4], [5], [6, 7, 8]])], seq_len=12)[0]
    assert batch["score_positions"].tolist() == [3, 4, 7]
    indices = batch["attn_mask_startend_row_indices"].ravel().tolist()
    assert indices == [8, 8, 4, 4, 5, 8, 8, 8, 8, 9, 10, 11]


def test_repeated_layout_leads_each_answer_with_the_last_prompt_token():
    batch = pack_dpo([([1, 2], [[5, 6], [7, 8, 9]])], seq_len=9, answer_layout="repeated")[0]
    assert batch["input_ids"].tolist() == [[1, 2, 5, 6, 2, 7, 8, 9, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 1, 2, 3, 4, 0]]
    assert batch["labels"].tolist() == [
        [IGNORED, 5, 6, IGNORED, 7, 8, 9, IGNORED, IGNORED],
    ]
    indices = batch["attn_mask_startend_row_indices"].ravel().tolist()
    assert indices == [8, 4, 4, 4, 8, 8, 8, 8, 8]


def test_shapes_and_dtypes():
    samples = [([1, 2], [[5, 6], [7, 8, 9]]), ([3], [[4], [5]])]
    batch = whole(pack_dpo(samples, seq_len=12, pad_token_id=99))
    assert {key: (value.shape, value.dtype.name) for key, value in batch.items()} == {
        "input_ids": ((1, 12), "int64"),
        "labels": ((1, 12), "int64"),
        "position_ids": ((1, 12), "int64"),
        "attn_mask_startend_row_indices": ((1, 1, 12, 1), "int32"),
        "answer_rows": ((4,), "int64"),
        "answer_groups": ((4,), "int64"),
        "answer_samples": ((4,), "int64"),
        "answer_ranks": ((4,), "int64"),
        "answer_spans": ((4, 2), "int64"),
        "score_positions": ((4,), "int64"),
        "target_rows": ((7,), "int64"),
        "target_positions": ((7,), "int64"),
        "target_ids": ((7,), "int64"),
        "target_answers": ((7,), "int64"),
        "target_weights": ((7,), "float32"),
        "pairs": ((2, 2), "int64"),
        "pair_groups": ((2,), "int64"),
    }
    assert batch["input_ids"][0, 10:].tolist() == [99, 99]


@pytest.mark.parametrize("layout", LAYOUTS)
@given(samples=preference_samples(), multiple=st.sampled_from([1, 4, 8]))
def test_rows_equal_a_walk_over_the_tokens(layout, samples, multiple):
    packed = pack_dpo(samples, seq_len=SEQ_LEN, answer_layout=layout, multiple=multiple)
    assert all(place.offset % multiple == 0 for place in packed.placements)
    batch = whole(packed)
    for row, cells in enumerate(placed_tokens(packed, samples, layout)):
        for at, cell in enumerate(cells):
            found = (batch["input_ids"][row, at], batch["position_ids"][row, at])
            assert found == ((0, 0) if cell is None else (cell[1], cell[3]))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(samples=preference_samples(), multiple=st.sampled_from([1, 4]))
def test_mask_shows_the_prompt_and_the_own_answer(layout, samples, multiple):
    packed = pack_dpo(samples, seq_len=SEQ_LEN, answer_layout=layout, multiple=multiple)
    indices = whole(packed)["attn_mask_startend_row_indices"]
    dense = to_dense(indices, causal=True, seqlen_q=SEQ_LEN)
    for row, cells in enumerate(placed_tokens(packed, samples, layout)):
        visible = [
            [
                query is not None and key is not None and column <= at
                and query[0] == key[0] and key[2] in (-1, query[2])
                for column, key in enumerate(cells)
            ]
            for at, query in enumerate(cells)
        ]  # fmt: skip
        assert dense[row, 0].tolist() == visible


@given(samples=preference_samples(least_answers=1))
def test_plain_mask_equals_the_recipe(samples):
    packed = pack_rm(samples, seq_len=SEQ_LEN)
    batch = whole(packed)
    for row in range(len(packed)):
        groups = [
            (len(samples[place.sample][0]), [len(answer) for answer in samples[place.sample][1]])
            for place in packed.row_placements(row)
        ]
        wanted = recipes.rm(groups, SEQ_LEN).startend_row_indices[0]
        assert (batch["attn_mask_startend_row_indices"][row] == wanted).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@given(samples=preference_samples())
def test_every_answer_token_is_the_target_of_the_token_before_it(layout, samples):
    packed = pack_dpo(samples, seq_len=SEQ_LEN, answer_layout=layout)
    batch = whole(packed)
    predicted = {}
    for row, position, token, answer in zip(
        *(batch[f"target_{name}"] for name in ("rows", "positions", "ids", "answers")), strict=True
    ):
        assert token not in predicted
        predicted[token] = batch["input_ids"][row, position]
        start, end = batch["answer_spans"][answer]
        assert token in batch["input_ids"][batch["answer_rows"][answer], start:end]
        prompt = samples[batch["answer_samples"][answer]][0]
        assert position in range(start, end) or batch["input_ids"][row, position] == prompt[-1]
    wanted = {
        token: before
        for (number, _), tokens in solo_rows(samples).items()
        for before, token in pairwise(tokens)
        if token not in samples[number][0]
    }
    assert predicted == wanted


@pytest.mark.parametrize("layout", LAYOUTS)
@given(samples=preference_samples())
def test_labels_never_cross_an_answer(layout, samples):
    packed = pack_dpo(samples, seq_len=SEQ_LEN, answer_layout=layout)
    batch = whole(packed)
    for row, cells in enumerate(placed_tokens(packed, samples, layout)):
        for at, cell in enumerate(cells):
            after = cells[at + 1] if at + 1 < SEQ_LEN else None
            same = cell and after and cell[2] >= 0 and cell[0] == after[0] and cell[2] == after[2]
            assert batch["labels"][row, at] == (after[1] if same else IGNORED)


@given(samples=preference_samples())
def test_repeated_labels_are_the_targets(samples):
    batch = whole(pack_dpo(samples, seq_len=SEQ_LEN, answer_layout="repeated"))
    labelled = np.full_like(batch["labels"], IGNORED)
    labelled[batch["target_rows"], batch["target_positions"]] = batch["target_ids"]
    assert (labelled == batch["labels"]).all()
    assert len(set(zip(batch["target_rows"], batch["target_positions"], strict=True))) == len(
        batch["target_ids"]
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@given(samples=preference_samples(least_answers=1), random=st.randoms())
def test_tables_name_answers_and_pairs_by_rank(layout, samples, random):
    packed = pack_rm(samples, seq_len=SEQ_LEN, answer_layout=layout)
    order = list(range(len(packed)))
    random.shuffle(order)
    batch = packed.build(order)
    answers = []
    for group, place in enumerate(p for row in order for p in packed.row_placements(row)):
        for tokens, rank in zip(*samples[place.sample][1:], strict=True):
            answers.append((group, place.sample, rank, tokens))
    assert batch["answer_groups"].tolist() == [answer[0] for answer in answers]
    assert batch["answer_samples"].tolist() == [answer[1] for answer in answers]
    assert batch["answer_ranks"].tolist() == [answer[2] for answer in answers]
    for row, (start, end), score, answer in zip(
        batch["answer_rows"], batch["answer_spans"], batch["score_positions"], answers, strict=True
    ):
        assert batch["input_ids"][row, start:end].tolist() == answer[3]
        assert batch["input_ids"][row, score] == answer[3][-1]
    wanted = {
        tuple(sorted(pair, key=lambda number: answers[number][2]))
        for pair in combinations(range(len(answers)), 2)
        if answers[pair[0]][0] == answers[pair[1]][0]
    }
    assert {tuple(pair) for pair in batch["pairs"].tolist()} == wanted
    assert len(batch["pairs"]) == len(wanted)
    assert (batch["answer_groups"][batch["pairs"]] == batch["pair_groups"][:, None]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@given(samples=preference_samples())
def test_unpack_answers_gives_prompt_and_answer(layout, samples):
    packed = pack_dpo(samples, seq_len=SEQ_LEN, answer_layout=layout)
    batch, wanted = whole(packed), solo_rows(samples)
    found = packed.unpack_answers(batch["input_ids"])
    positions = packed.unpack_answers(batch["position_ids"])
    assert sum(map(len, found.values())) == len(wanted)
    for (number, answer), tokens in wanted.items():
        assert found[number][answer].tolist() == tokens
        assert positions[number][answer].tolist() == list(range(len(tokens)))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(samples=preference_samples(), multiple=st.sampled_from([1, 8]))
def test_statistics_equal_a_count_over_the_rows(layout, samples, multiple):
    packed = pack_dpo(samples, seq_len=SEQ_LEN, answer_layout=layout, multiple=multiple)
    batch, statistics = whole(packed), packed.statistics
    indices = batch["attn_mask_startend_row_indices"]
    dense = to_dense(indices, causal=True, seqlen_q=SEQ_LEN)
    real = batch["input_ids"] > 0
    assert statistics.samples == len(samples)
    assert statistics.tokens == real.sum() == sum(size_of(s, layout) for s in samples)
    assert statistics.trained_tokens == batch["target_ids"].size
    assert (statistics.truncated, statistics.dropped) == (0, 0)
    if real.size:
        assert statistics.padding_fraction == pytest.approx(1 - real.mean())
        assert statistics.density == pytest.approx(dense.mean())


@pytest.mark.parametrize("layout", LAYOUTS)
@given(samples=preference_samples(), seq_len=st.integers(3, 20))
def test_truncation_cuts_only_the_tails_of_the_longest_answers(layout, samples, seq_len):
    packed = pack_dpo(samples, seq_len=seq_len, overlong="truncate", answer_layout=layout)
    found = packed.unpack_answers(whole(packed)["input_ids"])
    cut = 0
    for number, sample in enumerate(samples):
        prompt, answers, ranks = sample
        least = size_of((prompt, [answer[:1] for answer in answers], ranks), layout)
        assert (number in found) == (least <= seq_len)
        if number not in found:
            continue
        limits = [limit for limit in range(1, 7) if seq_len >= size_of(
            (prompt, [answer[:limit] for answer in answers], ranks), layout
        )]  # fmt: skip
        wanted = [prompt + answer[: max(limits)] for answer in answers]
        assert [tokens.tolist() for tokens in found[number]] == wanted
        cut += size_of(sample, layout) > seq_len
    assert packed.statistics.truncated == cut
    assert packed.statistics.dropped == len(samples) - len(found)


def test_dropped_groups_are_counted():
    samples = [([1], [[2], [3]]), ([1, 2, 3], [[2], [3]])]
    packed = pack_dpo(samples, seq_len=4, overlong="drop")
    assert [place.sample for place in packed.placements] == [0]
    assert (packed.statistics.samples, packed.statistics.dropped) == (2, 1)


def test_best_worst_gives_one_pair_a_group():
    sample = PreferenceSample([1], [[2], [3], [4], [5]], [2, 1, 3, 1])
    assert pack_dpo([sample], seq_len=9, pairs="best_worst")[0]["pairs"].tolist() == [[1, 2]]
    all_pairs = pack_dpo([sample], seq_len=9)[0]["pairs"].tolist()
    assert all_pairs == [[1, 0], [1, 2], [3, 0], [3, 2], [0, 2]]


def test_reward_groups_without_a_pair_are_scored():
    batch = pack_rm([([1], [[2, 3]]), ([1], [[4], [5]], [0, 0])], seq_len=6)[0]
    assert batch["score_positions"].tolist() == [2, 4, 5]
    assert batch["pairs"].shape == (0, 2)


def test_weights_by_sample_sum_to_one_in_each_answer():
    samples = [([1, 2], [[5, 6], [7, 8, 9]])]
    by_token = pack_dpo(samples, seq_len=7)[0]["target_weights"]
    by_sample = pack_dpo(samples, seq_len=7, weights="sample")[0]["target_weights"]
    assert by_token.tolist() == [1.0] * 5
    assert by_sample.tolist() == np.float32([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3]).tolist()


def test_reference_fills_a_place_for_each_answer_and_follows_the_rows():
    samples = [([1, 2], [[10 * n + m] for m in range(n + 1)]) for n in range(1, 6)]

    def first_tokens(batch):
        return batch["input_ids"][batch["answer_rows"], batch["answer_spans"][:, 0]] / 7

    packed = pack_dpo(samples, seq_len=10)
    assert len(packed) > 2
    assert "reference_log_probs" not in packed[0]
    filled = packed.with_reference(first_tokens, batch_size=2)
    batch = filled.build([2, 0])
    assert batch["reference_log_probs"].dtype == np.float32
    assert batch["reference_log_probs"].tolist() == np.float32(first_tokens(batch)).tolist()
    assert "reference_log_probs" not in packed[0]


def test_reference_may_keep_float64():
    packed = pack_dpo([([1], [[2], [3]])], seq_len=3)
    filled = packed.with_reference(lambda batch: [0.1, 0.2], dtype="float64")
    assert filled[0]["reference_log_probs"].tolist() == [0.1, 0.2]
    with pytest.raises(ValueError, match=r"^dtype must be one of float32, float64; got 'int'$"):
        packed.with_reference(lambda batch: [1, 2], dtype="int")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            [1.0],
            "reference must return [2] log-probabilities, one per answer; got shape [1]",
        ),
        ([1.0, float("nan")], "reference must return finite numbers; got NaN or infinity"),
    ],
)
def test_wrong_references_are_named(values, text):
    packed = pack_dpo([([1], [[2], [3]])], seq_len=3)
    with pytest.raises(ValueError, match="reference must") as caught:
        packed.with_reference(lambda batch: values)
    assert str(caught.value) == text


def test_rows_are_an_indexed_sequence():
    packed = pack_dpo([([1, n], [[2], [3]]) for n in range(4)], seq_len=4)
    assert [batch["input_ids"][0, 1] for batch in packed] == [0, 1, 2, 3]
    with pytest.raises(IndexError, match=r"row must be in \[0, 4\); got 4"):
        packed[4]


def test_a_reference_may_fill_one_array_again_and_again():
    packed = pack_dpo([([1], [[2], [3]])] * 3, seq_len=3)
    buffer = np.zeros(2, np.float32)

    def reference(batch):
        buffer[:] -= 1
        return buffer

    filled = packed.with_reference(reference)
    found = [filled.build([row])["reference_log_probs"][0] for row in range(3)]
    assert found == [-1, -2, -3]


@pytest.mark.parametrize("values", [np.array([49024, 49152], np.uint16), ["1", "2"], [True, False]])
def test_a_reference_returns_numbers(values):
    packed = pack_dpo([([1], [[2], [3]])], seq_len=3)
    with pytest.raises(TypeError, match="reference must return floats that numpy can read"):
        packed.with_reference(lambda batch: values)
