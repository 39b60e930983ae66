import pytest

from paddle_flashmask.packing import pack_dpo, pack_rm, pack_sft

GOOD = ([1], [[2], [3]])
FORM = "samples must be (prompt_ids, answers) or (prompt_ids, answers, ranks); sample "
SAMPLES = [
    (None, TypeError, "samples must be a sequence; got NoneType"),
    ([7], TypeError, FORM + "0 is int"),
    ([GOOD, "abc"], TypeError, FORM + "1 is str"),
    ([([1],)], TypeError, FORM + "0 is tuple"),
    ([([1], 5)], TypeError, "answers of sample 0 must be a list of token lists; got int"),
    (
        [([1], [2, 3])],
        TypeError,
        "answer 0 of sample 0 must be ints in one dimension; got int64 of shape []",
    ),
    (
        [([1.5], [[2], [3]])],
        TypeError,
        "prompt_ids of sample 0 must be ints in one dimension; got float64 of shape [1]",
    ),
    (
        [GOOD, ([], [[2], [3]])],
        ValueError,
        "prompt_ids of sample 1 must hold at least 1 token; got 0",
    ),
    (
        [GOOD, GOOD, ([1], [[2], []])],
        ValueError,
        "answer 1 of sample 2 must hold at least 1 token; got 0",
    ),
    (
        [([1], [[2, -3], [3]])],
        ValueError,
        "answer 0 of sample 0 must be at least 0; got -3 at position 1",
    ),
    ([([1], [[2]])], ValueError, "answers of sample 0 must be at least 2; got 1"),
    ([([1], [])], ValueError, "answers of sample 0 must be at least 2; got 0"),
    (
        [([1], [[2], [3]], [1])],
        ValueError,
        "ranks of sample 0 must be one for each of its 2 answers; got 1",
    ),
    (
        [([1], [[2], [3]], [0.5, 1])],
        TypeError,
        "ranks of sample 0 must be ints in one dimension; got float64 of shape [2]",
    ),
    (
        [([1], [[2], [3]], [4, 4])],
        ValueError,
        "ranks of sample 0 must not all be equal; got 2 times 4",
    ),
    (
        [GOOD, ([1] * 8, [[2], [3]])],
        ValueError,
        "samples must have at most seq_len=8 tokens with overlong='raise'; sample 1 has 10",
    ),
]
ARGUMENTS = [
    ({"seq_len": 0}, ValueError, "seq_len must be at least 1; got 0"),
    ({"seq_len": 8.0}, TypeError, "seq_len must be an int; got float 8.0"),
    ({"pad_token_id": -1}, ValueError, "pad_token_id must be at least 0; got -1"),
    ({"multiple": 0}, ValueError, "multiple must be at least 1; got 0"),
    ({"multiple": 3}, ValueError, "multiple must divide seq_len=8; got 3"),
    (
        {"overlong": "cut"},
        ValueError,
        "overlong must be one of raise, truncate, drop; got 'cut'",
    ),
    (
        {"strategy": "best"},
        ValueError,
        "strategy must be one of first_fit_decreasing, first_fit, sequential; got 'best'",
    ),
    ({"weights": None}, ValueError, "weights must be one of token, sample; got None"),
    (
        {"answer_layout": "nlp"},
        ValueError,
        "answer_layout must be one of plain, repeated; got 'nlp'",
    ),
    ({"numbers": [4, 5]}, ValueError, "numbers must name all 1 samples; got 2 numbers"),
]


@pytest.mark.parametrize(("samples", "error", "text"), SAMPLES)
def test_wrong_samples_are_named(samples, error, text):
    with pytest.raises(error) as caught:
        pack_dpo(samples, seq_len=8)
    assert str(caught.value) == text


@pytest.mark.parametrize(("arguments", "error", "text"), ARGUMENTS)
@pytest.mark.parametrize("pack", [pack_dpo, pack_rm])
def test_wrong_arguments_are_named(pack, arguments, error, text):
    with pytest.raises(error) as caught:
        pack([GOOD], **{"seq_len": 8, **arguments})
    assert str(caught.value) == text


def test_unknown_pairs_are_named():
    with pytest.raises(ValueError, match=r"pairs must be one of all, best_worst; got 'some'"):
        pack_dpo([GOOD], seq_len=8, pairs="some")


def test_reward_models_need_one_answer():
    with pytest.raises(ValueError, match=r"^answers of sample 0 must be at least 1; got 0$"):
        pack_rm([([1], [])], seq_len=8)


@pytest.mark.parametrize("pack", [pack_dpo, pack_rm])
def test_messages_use_the_callers_numbers(pack):
    with pytest.raises(ValueError, match=r"^prompt_ids of sample 17 must hold at least 1 token"):
        pack([GOOD, ([], [[2], [3]])], seq_len=8, numbers=[3, 17])
    with pytest.raises(ValueError, match=r"sample 17 has 12$"):
        pack([GOOD, ([1] * 10, [[2], [3]])], seq_len=8, numbers=[3, 17])
    with pytest.raises(ValueError, match=r"^input_ids of sample 17 must hold"):
        pack_sft([([1], [1]), ([], [])], seq_len=8, numbers=[3, 17])
