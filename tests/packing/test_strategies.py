"""What all kinds of packing share: strategies, seeds, weights, streams."""

from functools import partial
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_flashmask.packing import (
    PackedStream,
    first_fit,
    first_fit_decreasing,
    pack_dpo,
    pack_rm,
    pack_sft,
    sequential,
)
from paddle_flashmask.packing.bins import STRATEGIES

KINDS = {
    "sft": (pack_sft, lambda size, token: ([token] * size, [token] * size)),
    "dpo": (pack_dpo, lambda size, token: ([token] * (size - 2), [[token], [token]])),
    "rm": (pack_rm, lambda size, token: ([token] * (size - 1), [[token]])),
}
SIZES = st.lists(st.integers(3, 9), max_size=30)


def samples_of(kind, sizes):
    return [KINDS[kind][1](size, number + 1) for number, size in enumerate(sizes)]


def rows_of(packed):
    return [[place.sample for place in packed.row_placements(row)] for row in range(len(packed))]


def brute_force(strategy, sizes, capacity):
    """Bins by trying all of them, one item after another."""
    order = range(len(sizes))
    if strategy == "first_fit_decreasing":
        order = sorted(order, key=lambda item: -sizes[item])
    bins, room = {}, []
    for item in order:
        fits = [number for number, left in enumerate(room) if left >= sizes[item]]
        if strategy == "sequential":
            fits = [number for number in fits if number == len(room) - 1]
        if not fits:
            fits = [len(room)]
            room.append(capacity)
        bins[item] = fits[0]
        room[fits[0]] -= sizes[item]
    return [bins[item] for item in range(len(sizes))]


def flat(lists):
    return list(chain.from_iterable(lists))


def tokens_of(batches):
    """The set of tokens in each batch's rows, in order."""
    return [[sorted(set(row) - {0}) for row in batch["input_ids"].tolist()] for batch in batches]


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(sizes=st.lists(st.integers(1, 9), max_size=40), capacity=st.integers(9, 30))
def test_bins_equal_brute_force(strategy, sizes, capacity):
    assert STRATEGIES[strategy](sizes, capacity).tolist() == brute_force(strategy, sizes, capacity)


@pytest.mark.parametrize("bins", [first_fit, first_fit_decreasing, sequential])
def test_every_strategy_refuses_what_fits_nowhere(bins):
    with pytest.raises(ValueError, match=r"^lengths must be in \[1, 6\]; got 7 for item 1$"):
        bins([2, 7], 6)
    with pytest.raises(TypeError, match=r"^lengths must be ints in one dimension; got float64"):
        bins([2.0], 6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(sizes=SIZES)
def test_every_kind_packs_by_every_strategy(kind, strategy, sizes):
    packed = KINDS[kind][0](samples_of(kind, sizes), seq_len=12, strategy=strategy)
    bins = brute_force(strategy, sizes, 12)
    wanted = [[item for item, row in enumerate(bins) if row == r] for r in range(len(packed))]
    assert rows_of(packed) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_shuffles_the_rows_the_same_way_each_time(kind):
    packed = KINDS[kind][0](samples_of(kind, [5] * 20), seq_len=5)
    first, second, other, plain = (
        tokens_of(packed.batches(3, seed=seed)) for seed in (1, 1, 2, None)
    )
    assert first == second
    assert first != other
    assert first != plain
    assert sorted(flat(first)) == sorted(flat(plain)) == [[n + 1] for n in range(20)]


@pytest.mark.parametrize(
    ("seed", "error", "text"),
    [(-1, ValueError, "must be at least 0; got -1"), (1.5, TypeError, "must be an int; got float")],
)
def test_a_wrong_seed_of_a_stream_is_named_at_once(seed, error, text):
    with pytest.raises(error, match=f"seed {text}"):
        PackedStream([], pack_sft, batch_size=1, seed=seed)


def test_seed_and_row_order_exclude_each_other():
    packed = pack_sft([([1], [1])], seq_len=1)
    with pytest.raises(ValueError, match="row_order and seed must not be given together"):
        packed.batches(1, row_order=[0], seed=1)


def test_sft_weights_by_token_and_by_sample():
    samples = [([1, 2, 3], [-100, 2, 3]), ([4, 5], [4, 5]), ([6], [6])]
    by_token = pack_sft(samples, seq_len=7)[0]
    by_sample = pack_sft(samples, seq_len=7, weights="sample")[0]
    assert by_token["loss_weights"].tolist() == [[1, 1, 0, 1, 0, 0, 0]]
    assert by_sample["loss_weights"].tolist() == [[0.5, 0.5, 0, 1, 0, 0, 0]]
    assert by_sample["loss_weights"].dtype == np.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    sizes=SIZES,
    buffer_size=st.integers(1, 12),
    batch_size=st.integers(1, 4),
    seed=st.none() | st.integers(0, 99),
)
def test_a_stream_gives_every_sample_once(kind, strategy, sizes, buffer_size, batch_size, seed):
    pack = partial(KINDS[kind][0], seq_len=12, strategy=strategy)
    stream = PackedStream(
        samples_of(kind, sizes), pack, batch_size=batch_size, buffer_size=buffer_size, seed=seed
    )
    batches = list(stream)
    found = tokens_of(batches)
    assert sorted(flat(flat(found))) == list(range(1, len(sizes) + 1))
    assert [len(rows) for rows in found[:-1]] == [batch_size] * (len(found) - 1)
    assert tokens_of(stream) == found
    statistics = stream.statistics
    real = sum((batch["input_ids"] > 0).sum() for batch in batches)
    assert statistics.tokens == real == sum(sizes)
    assert statistics.samples == len(sizes)
    assert statistics.rows == sum(map(len, found))
    if sizes:
        assert statistics.padding_fraction == pytest.approx(1 - real / (12 * statistics.rows))


@given(sizes=SIZES, buffer_size=st.integers(1, 12), batch_size=st.integers(1, 3))
def test_a_sequential_stream_keeps_the_order(sizes, buffer_size, batch_size):
    samples = samples_of("sft", sizes)
    pack = partial(pack_sft, seq_len=12, strategy="sequential")
    stream = PackedStream(samples, pack, batch_size=batch_size, buffer_size=buffer_size)
    assert flat(flat(tokens_of(stream))) == list(range(1, len(sizes) + 1))


def test_a_stream_reads_no_further_than_its_buffer():
    read = []

    def endless():
        for number in range(10**9):
            read.append(number)
            yield [number + 1] * 4, [number + 1] * 4

    pack = partial(pack_sft, seq_len=4)
    batches = iter(PackedStream(endless(), pack, batch_size=2, buffer_size=6, seed=0))
    for _ in range(3):
        next(batches)
    assert len(read) == 6
    next(batches)
    assert len(read) == 12


def test_a_streams_seed_decides_its_order():
    samples = samples_of("dpo", [5] * 24)
    pack = partial(pack_dpo, seq_len=5)
    first, again, other = (
        tokens_of(PackedStream(samples, pack, batch_size=2, buffer_size=8, seed=seed))
        for seed in (3, 3, 4)
    )
    assert first == again != other


def test_a_stream_drops_counts_and_names_by_stream_number():
    samples = samples_of("rm", [4, 9, 4, 4, 9, 4, 4])
    pack = partial(pack_rm, seq_len=8, overlong="drop")
    stream = PackedStream(samples, pack, batch_size=1, buffer_size=2, drop_last=True)
    numbers = flat(batch["answer_samples"].tolist() for batch in stream)
    assert sorted(numbers) == [0, 2, 3, 5, 6]
    assert (stream.statistics.samples, stream.statistics.dropped) == (7, 2)
    broken = [*samples, ([], [[1]])]
    with pytest.raises(ValueError, match=r"^prompt_ids of sample 7 must hold at least 1 token"):
        list(PackedStream(broken, pack, batch_size=1, buffer_size=3))


@pytest.mark.parametrize("name", ["batch_size", "buffer_size"])
def test_wrong_sizes_of_a_stream_are_named(name):
    with pytest.raises(ValueError, match=f"^{name} must be at least 1; got 0$"):
        PackedStream([], pack_sft, **{"batch_size": 1, name: 0})
