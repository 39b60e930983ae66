import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_flashmask.indices import to_dense
from paddle_flashmask.packing import PackedStream, SftSample, document_lengths, pack_sft

IGNORED = -100
ERRORS = [
    (5, {}, TypeError, "samples must be a sequence; got int"),
    ([], {"numbers": 5}, TypeError, "numbers must be a sequence; got int"),
    ([1], {}, TypeError, "samples must be (input_ids, labels) pairs; sample 0 is int"),
    (["ab"], {}, TypeError, "samples must be (input_ids, labels) pairs; sample 0 is str"),
    (
        [([1], [1]), ([1.5], [1])],
        {},
        TypeError,
        "input_ids of sample 1 must be ints in one dimension; got float64 of shape [1]",
    ),
    (
        [([True], [1])],
        {},
        TypeError,
        "input_ids of sample 0 must be ints in one dimension; got bool of shape [1]",
    ),
    (
        [([1], [[1]])],
        {},
        TypeError,
        "labels of sample 0 must be ints in one dimension; got int64 of shape [1, 1]",
    ),
    (
        [([[1], [1, 2]], [1])],
        {},
        TypeError,
        "input_ids of sample 0 must be ints; got a ragged sequence",
    ),
    (
        [([1], [1]), ([], [])],
        {},
        ValueError,
        "input_ids of sample 1 must hold at least 1 token; got 0",
    ),
    (
        [([1, 2], [1])],
        {},
        ValueError,
        "labels of sample 0 must have the length of its input_ids, 2; got 1",
    ),
    (
        [([1, -2], [1, -2])],
        {},
        ValueError,
        "input_ids of sample 0 must be at least 0; got -2 at position 1",
    ),
    (
        [([5, 6, 7], [6, 7, IGNORED])],
        {},
        ValueError,
        "labels of sample 0 must be -100 or the token at the same position (unshifted); "
        "got 6 for token 5 at position 0",
    ),
    (
        [([2**63], [2**63])],
        {},
        ValueError,
        "input_ids of sample 0 must fit int64; got 9223372036854775808",
    ),
    (
        [([1], [1]), ([1] * 9, [1] * 9)],
        {},
        ValueError,
        "samples must have at most seq_len=8 tokens with overlong='raise'; sample 1 has 9",
    ),
    ([], {"seq_len": 0}, ValueError, "seq_len must be at least 1; got 0"),
    ([], {"seq_len": 8.0}, TypeError, "seq_len must be an int; got float 8.0"),
    ([], {"seq_len": True}, TypeError, "seq_len must be an int; got bool True"),
    ([], {"pad_token_id": -1}, ValueError, "pad_token_id must be at least 0; got -1"),
    (
        [],
        {"overlong": "cut"},
        ValueError,
        "overlong must be one of raise, truncate, drop; got 'cut'",
    ),
]


def sample_of(length, prompt=0, first=1):
    ids = list(range(first, first + length))
    return SftSample(ids, [IGNORED] * prompt + ids[prompt:])


@st.composite
def sample_lists(draw):
    """Samples whose tokens are all different, so that a token names its place."""
    lengths = draw(st.lists(st.integers(1, 20), max_size=12))
    starts = np.cumsum([1, *lengths]).tolist()
    return [
        sample_of(length, draw(st.integers(0, length)), first)
        for length, first in zip(lengths, starts, strict=False)
    ]


def whole(packed):
    return packed.build(range(len(packed)))


def test_field_case_labels_never_cross_a_sample():
    samples = [([10, 11, 12], [IGNORED, 11, 12]), ([20, 21], [20, 21])]
    (batch,) = pack_sft(samples, seq_len=5).batches(1)
    assert batch["input_ids"].tolist() == [[10, 11, 12, 20, 21]]
    assert batch["labels"].tolist() == [[11, 12, IGNORED, 21, IGNORED]]


def test_field_case_positions_and_indices_restart():
    samples = [sample_of(3), sample_of(2), sample_of(3)]
    (batch,) = pack_sft(samples, seq_len=8).batches(4)
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert batch["attn_mask_startend_row_indices"][0, 0, :, 0].tolist() == [3, 3, 3, 5, 5, 8, 8, 8]


def test_shapes_dtypes_and_padding():
    batch = whole(pack_sft([sample_of(3), sample_of(4)], seq_len=5, pad_token_id=99))
    assert {key: (value.shape, value.dtype.name) for key, value in batch.items()} == {
        "input_ids": ((2, 5), "int64"),
        "labels": ((2, 5), "int64"),
        "position_ids": ((2, 5), "int64"),
        "loss_weights": ((2, 5), "float32"),
        "attn_mask_startend_row_indices": ((2, 1, 5, 1), "int32"),
    }
    assert batch["input_ids"][1].tolist() == [1, 2, 3, 99, 99]
    assert batch["labels"][1].tolist() == [2, 3, IGNORED, IGNORED, IGNORED]
    assert batch["position_ids"][1].tolist() == [0, 1, 2, 0, 0]
    assert batch["attn_mask_startend_row_indices"][1, 0, :, 0].tolist() == [3, 3, 3, 3, 4]


@given(sample_lists(), st.integers(20, 40))
def test_every_token_appears_once_and_predicts_only_its_successor(samples, seq_len):
    batch = whole(pack_sft(samples, seq_len=seq_len))
    ids, labels = batch["input_ids"].ravel(), batch["labels"].ravel()
    tokens = [token for sample in samples for token in sample.input_ids]
    assert sorted(ids[ids > 0].tolist()) == tokens
    wanted = {
        sample.input_ids[at]: sample.labels[at + 1] if at + 1 < len(sample.input_ids) else IGNORED
        for sample in samples
        for at in range(len(sample.input_ids))
    }
    assert labels.tolist() == [wanted.get(token, IGNORED) for token in ids.tolist()]


@given(sample_lists(), st.integers(20, 40))
def test_mask_equals_same_sample_and_causal(samples, seq_len):
    batch = whole(pack_sft(samples, seq_len=seq_len))
    owner = {token: number for number, s in enumerate(samples) for token in s.input_ids}
    dense = to_dense(batch["attn_mask_startend_row_indices"], causal=True, seqlen_q=seq_len)
    for row, ids in enumerate(batch["input_ids"].tolist()):
        visible = [
            [token > 0 and key <= at and owner.get(token) == owner.get(other)
             for key, other in enumerate(ids)]
            for at, token in enumerate(ids)
        ]  # fmt: skip
        assert dense[row, 0].tolist() == visible


@given(sample_lists(), st.integers(20, 40))
def test_positions_restart_in_every_sample(samples, seq_len):
    packed = pack_sft(samples, seq_len=seq_len)
    batch = whole(packed)
    for number, positions in packed.unpack(batch["position_ids"]).items():
        assert positions.tolist() == list(range(len(samples[number].input_ids)))
    for row, lengths in enumerate(document_lengths(batch["position_ids"])):
        real = [place.length for place in packed.row_placements(row)]
        assert lengths == real + [1] * (seq_len - sum(real))


@given(sample_lists(), st.integers(20, 40), st.randoms())
def test_unpack_gives_back_what_was_packed(samples, seq_len, random):
    packed = pack_sft(samples, seq_len=seq_len)
    order = list(range(len(packed)))
    random.shuffle(order)
    found = packed.unpack(packed.build(order)["input_ids"], rows=order)
    assert {number: ids.tolist() for number, ids in found.items()} == {
        number: sample.input_ids for number, sample in enumerate(samples)
    }


@given(sample_lists())
def test_packing_twice_gives_the_same(samples):
    first, second = pack_sft(samples, seq_len=30), pack_sft(iter(samples), seq_len=30)
    assert first.placements == second.placements
    assert first.statistics == second.statistics


def test_equal_samples_keep_input_order():
    packed = pack_sft([sample_of(2)] * 5, seq_len=4)
    assert [place.sample for place in packed.placements] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("overlong", "kept", "truncated", "dropped"),
    [("truncate", {0: [1, 2], 1: [7, 8, 9, 10]}, 1, 0), ("drop", {0: [1, 2]}, 0, 1)],
)
def test_overlong_samples_are_counted(overlong, kept, truncated, dropped):
    samples = [sample_of(2), sample_of(6, first=7)]
    packed = pack_sft(samples, seq_len=4, overlong=overlong)
    found = packed.unpack(whole(packed)["input_ids"])
    assert {number: ids.tolist() for number, ids in found.items()} == kept
    assert (packed.statistics.truncated, packed.statistics.dropped) == (truncated, dropped)
    assert packed.statistics.samples == 2


def test_truncated_sample_predicts_nothing_at_its_cut():
    packed = pack_sft([sample_of(6)], seq_len=4, overlong="truncate")
    assert whole(packed)["labels"].tolist() == [[2, 3, 4, IGNORED]]


@given(sample_lists(), st.integers(5, 40))
def test_statistics_equal_a_count_over_the_rows(samples, seq_len):
    packed = pack_sft(samples, seq_len=seq_len, overlong="drop")
    batch, statistics = whole(packed), packed.statistics
    dense = to_dense(batch["attn_mask_startend_row_indices"], causal=True, seqlen_q=seq_len)
    real = batch["input_ids"] > 0
    assert statistics.tokens == real.sum()
    assert statistics.trained_tokens == (batch["labels"] != IGNORED).sum()
    assert statistics.rows == len(packed) == real.shape[0]
    assert statistics.dropped == sum(len(sample.input_ids) > seq_len for sample in samples)
    if real.size:
        assert statistics.padding_fraction == pytest.approx(1 - real.mean())
        assert statistics.density == pytest.approx(dense.mean())


def test_one_token_sample_is_packed_without_a_label():
    batch = whole(pack_sft([([5], [5])], seq_len=2))
    assert batch["labels"].tolist() == [[IGNORED, IGNORED]]


def test_batches_follow_row_order_and_may_drop_the_last():
    packed = pack_sft([sample_of(4, first=10 * n) for n in range(5)], seq_len=4)
    first_tokens = [
        batch["input_ids"][:, 0].tolist() for batch in packed.batches(2, row_order=[4, 2, 0, 1, 3])
    ]
    assert first_tokens == [[40, 20], [0, 10], [30]]
    assert len(list(packed.batches(2, drop_last=True))) == 2


def test_no_samples_give_no_rows():
    packed = pack_sft([], seq_len=4)
    assert len(packed) == 0
    assert list(packed.batches(2)) == []


def test_samples_may_be_arrays_and_are_not_changed():
    ids = np.array([3, 4, 5], np.int32)
    labels = np.array([IGNORED, 4, 5], np.int64)
    packed = pack_sft([SftSample(ids, labels)], seq_len=3)
    whole(packed)["input_ids"][:] = 0
    assert ids.tolist() == [3, 4, 5]
    assert packed.build([0])["input_ids"].tolist() == [[3, 4, 5]]


@pytest.mark.parametrize(("samples", "arguments", "error", "text"), ERRORS)
def test_wrong_arguments_are_named(samples, arguments, error, text):
    with pytest.raises(error) as caught:
        pack_sft(samples, **{"seq_len": 8, **arguments})
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda packed: packed.build([1]), "rows must be in [0, 1); got 1"),
        (lambda packed: packed.build([-1]), "rows must be in [0, 1); got -1"),
        (lambda packed: packed.batches(0), "batch_size must be at least 1; got 0"),
        (
            lambda packed: packed.unpack(np.zeros((2, 4))),
            "values must start with axes [1, 4] (rows, seq_len); got shape [2, 4]",
        ),
    ],
)
def test_wrong_calls_on_packed_rows_are_named(call, text):
    packed = pack_sft([sample_of(3)], seq_len=4)
    with pytest.raises(ValueError, match="must") as caught:
        call(packed)
    assert str(caught.value) == text


def test_packing_imports_no_paddle():
    code = "import sys, paddle_flashmask.packing; sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes_of_numpy_do_not_overflow():
    samples = [([1], [1])] * 255
    packed = pack_sft(samples, seq_len=np.int16(1))
    assert sum(len(batch["input_ids"]) for batch in packed.batches(np.uint8(50))) == 255
    long = pack_sft(samples[:1], seq_len=np.int32(65536))
    assert long.statistics.density == pytest.approx(65536**-2)
    assert type(long.seq_len) is int


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seq_len": 2**31}, "seq_len must be at most 2147483647; got 2147483648"),
        (
            {"seq_len": 4, "pad_token_id": 2**63},
            "pad_token_id must be at most 9223372036854775807; got 9223372036854775808",
        ),
    ],
)
def test_sizes_beyond_their_dtype_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        pack_sft([([1], [1])], **options)


@pytest.mark.parametrize("number", [1.7, "a", None])
def test_numbers_of_samples_are_ints(number):
    with pytest.raises(TypeError, match=r"numbers\[0\] must be an int; got"):
        pack_sft([([1], [1])], seq_len=4, numbers=[number])


def test_rows_out_of_range_are_refused_before_the_first_batch():
    with pytest.raises(ValueError, match=r"rows must be in \[0, 1\); got 7"):
        pack_sft([([1], [1])], seq_len=4).batches(1, row_order=[7])


def test_a_stream_over_a_generator_is_iterated_once():
    samples = (([n], [n]) for n in range(1, 4))
    stream = PackedStream(samples, partial(pack_sft, seq_len=2), batch_size=1)
    assert len(list(stream)) == 2
    with pytest.raises(ValueError, match=r"samples must be iterable anew .* got generator, which"):
        list(stream)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda packed: packed[0:1], TypeError, "row must be ints of rows; got slice slice(0, 1"),
        (lambda packed: packed.build([0.0]), TypeError, "rows must be ints of rows; got float 0.0"),
        (lambda packed: packed.build(0), TypeError, "rows must be a sequence; got int"),
        (lambda packed: packed.count(0), TypeError, "rows must be a sequence; got int"),
        (
            lambda packed: packed.batches(1, row_order=0),
            TypeError,
            "row_order must be a sequence; got int",
        ),
        (lambda packed: packed.batches(1, seed=-1), ValueError, "seed must be at least 0; got -1"),
        (lambda packed: packed.unpack([[1]]), TypeError, "values must be an array; got list"),
    ],
)
def test_wrong_rows_and_values_are_named(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call(pack_sft([([1], [1])], seq_len=1))
