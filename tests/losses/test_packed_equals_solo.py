"""Packed rows through a small decoder with flashmask_attention, against one row per answer."""

from functools import partial

import numpy as np
import paddle
import pytest
from decoder import Decoder, DecoderConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.groups import preference_samples
from support.tolerance import assert_array_close

from paddle_flashmask import flashmask_attention, losses
from paddle_flashmask.packing import PackedStream, pack_dpo, pack_rm, pack_sft

VOCABULARY = 29
SEQ_LEN = 64
LAYOUTS = ["plain", "repeated"]
FEW = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
SAMPLE = (list(range(3, 8)), [[9, 10, 11], [12, 13, 14, 15, 16]])  # p = 5, c = 3, r = 5


def attention(query, key, value, mask):
    return flashmask_attention(query, key, value, mask, causal=True)


@pytest.fixture(scope="module")
def model():
    paddle.seed(7)
    decoder = Decoder(DecoderConfig(vocab_size=VOCABULARY, hidden_size=32, ffn_size=48), attention)
    for weight in decoder.parameters():
        weight.set_value(weight * 4)  # attention far from uniform, so that a leak shows
    decoder.score = paddle.nn.Linear(VOCABULARY, 1)
    return decoder


def in_vocabulary(samples):
    def folded(ids):
        return [1 + token % (VOCABULARY - 1) for token in ids]

    return [(folded(prompt), list(map(folded, answers)), r) for prompt, answers, r in samples]


def logits_of(model, batch):
    names = ("input_ids", "position_ids", "attn_mask_startend_row_indices")
    return model(*(paddle.to_tensor(batch[name]) for name in names))


def whole(packed):
    return packed.build(range(len(packed)))


def log_probs_of(model, batch):
    names = ("rows", "positions", "ids", "answers", "weights")
    tables = [paddle.to_tensor(batch[f"target_{name}"]) for name in names]
    return losses.answer_log_probs(
        logits_of(model, batch), *tables, num_answers=batch["answer_rows"].size
    )


def solo_logits(model, tokens):
    (batch,) = pack_sft([(tokens, tokens)], seq_len=len(tokens)).batches(1)
    return logits_of(model, batch)


def solo_log_probs(model, sample):
    """Log-probability of each answer from its own row, by Paddle's own log_softmax."""
    found = []
    for answer in sample[1]:
        tokens = [*sample[0], *answer]
        rows = paddle.nn.functional.log_softmax(solo_logits(model, tokens)[0], axis=-1)
        before = range(len(sample[0]) - 1, len(tokens) - 1)
        found.append(sum(rows[at, tokens[at + 1]] for at in before))
    return found


def gradients(model):
    found = {name: weight.grad for name, weight in model.named_parameters()}
    arrays = {name: grad.numpy().copy() for name, grad in found.items() if grad is not None}
    model.clear_gradients()
    return arrays


def assert_close(name, ours, exact):
    assert_array_close(name, np.asarray(ours), np.asarray(exact, np.float64), None, "float32")


def assert_same_gradients(ours, exact):
    assert ours.keys() == exact.keys() != set()
    for name in exact:
        # Sums over many tokens that nearly cancel are judged by the largest gradient of all.
        largest = max(np.abs(grad).max() for grad in exact.values())
        assert_close(name, ours[name] / largest, exact[name] / largest)


@pytest.mark.parametrize("layout", LAYOUTS)
@FEW
@given(samples=preference_samples(most=3), multiple=st.sampled_from([1, 8]))
def test_packed_logits_equal_prompt_and_answer_alone(model, layout, samples, multiple):
    samples = in_vocabulary(samples)
    packed = pack_dpo(samples, seq_len=SEQ_LEN, answer_layout=layout, multiple=multiple)
    if not samples:
        return
    found = packed.unpack_answers(logits_of(model, whole(packed)).numpy())
    for number, (prompt, answers, _) in enumerate(samples):
        for index, answer in enumerate(answers):
            exact = solo_logits(model, [*prompt, *answer]).numpy()[0]
            assert_close("logits", found[number][index], exact)


@pytest.mark.parametrize("layout", LAYOUTS)
@FEW
@given(samples=preference_samples(most=3))
def test_log_probs_of_all_answers_equal_solo_rows(model, layout, samples):
    samples = in_vocabulary(samples)
    if not samples:
        return
    batch = whole(pack_dpo(samples, seq_len=SEQ_LEN, answer_layout=layout))
    found = log_probs_of(model, batch).numpy()
    exact = {number: solo_log_probs(model, sample) for number, sample in enumerate(samples)}
    for number, logs in exact.items():
        own = found[batch["answer_samples"] == number]
        assert_close("log_probs", own, [float(log) for log in logs])


def pair_batch(numbers):
    """Upstream's row for SAMPLE: prompt, chosen, then the last prompt token and rejected."""
    prompt, (chosen, rejected) = SAMPLE
    tokens = [*prompt, *chosen[:-1], prompt[-1], *rejected[:-1]]
    p, c = len(prompt), len(chosen)
    positions = [*range(p + c - 1), *range(p - 1, p - 1 + len(rejected))]
    assert len(tokens) == len(positions) == len(numbers)
    return {
        "input_ids": np.array([tokens]),
        "position_ids": np.array([positions]),
        "attn_mask_startend_row_indices": np.int32(numbers)[None, None, :, None],
    }


def rejected_error(model, numbers):
    prompt, (chosen, rejected) = SAMPLE
    start = len(prompt) + len(chosen) - 1
    packed = logits_of(model, pair_batch(numbers)).numpy()[0, start:]
    exact = solo_logits(model, [*prompt, *rejected]).numpy()[0, len(prompt) - 1 : -1]
    return packed, exact


def test_the_corrected_paddleformers_indices_pass_the_same_test(model):
    p, c, r = 5, 3, 5
    n = p + c + r - 1
    packed, exact = rejected_error(model, [n] * (p - 1) + [p + c - 1] * c + [n] * r)
    assert_close("logits", packed, exact)


def test_the_leaking_paddleformers_indices_fail_the_same_test(model):
    p, c, r = 5, 3, 5
    n = p + c + r - 1
    packed, exact = rejected_error(model, [n] * p + [p + c - 1] * (c - 1) + [n] * r)
    with pytest.raises(AssertionError, match="logits: error"):
        assert_close("logits", packed, exact)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weights", ["token", "sample"])
def test_packed_dpo_loss_and_gradients_equal_solo_rows(model, layout, weights):
    samples = [SAMPLE, ([1, 2], [[3], [4, 5, 6], [7, 8]]), ([9] * 4, [[10] * 6, [11]])]
    packed = pack_dpo(samples, seq_len=24, answer_layout=layout, weights=weights)
    batch = whole(packed)
    assert len(packed) > 1
    reference = np.linspace(-9, -2, batch["answer_rows"].size).astype(np.float32)
    pairs = paddle.to_tensor(batch["pairs"])
    loss = losses.dpo_loss(log_probs_of(model, batch), pairs, paddle.to_tensor(reference)).loss
    loss.backward()
    ours = gradients(model)
    terms, first = [], {}
    for at, number in enumerate(batch["answer_samples"].tolist()):
        first.setdefault(number, at)
    for number, sample in enumerate(samples):
        logs = solo_log_probs(model, sample)
        if weights == "sample":
            logs = [log / len(answer) for log, answer in zip(logs, sample[1], strict=True)]
        ratios = [log - float(reference[first[number] + at]) for at, log in enumerate(logs)]
        for better in range(len(ratios)):
            for worse in range(better + 1, len(ratios)):
                margin = 0.1 * (ratios[better] - ratios[worse])
                terms.append(paddle.log(1 + paddle.exp(-margin)))
    exact = sum(terms) / len(terms)
    exact.backward()
    assert_close("loss", loss.numpy(), exact.numpy())
    assert_same_gradients(ours, gradients(model))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_rm_loss_and_gradients_equal_solo_rows(model, layout):
    samples = [SAMPLE, ([1, 2], [[3], [4, 5, 6], [7, 8]]), ([9], [[10]])]
    batch = whole(pack_rm(samples, seq_len=20, answer_layout=layout))
    tables = {name: paddle.to_tensor(value) for name, value in batch.items()}
    values = model.score(logits_of(model, batch))
    scores = losses.answer_scores(values, tables["answer_rows"], tables["score_positions"])
    loss = losses.rm_pairwise_loss(scores, tables["pairs"], tables["pair_groups"]).loss
    loss.backward()
    ours = gradients(model)
    groups = []
    for prompt, answers in samples[:2]:
        own = [model.score(solo_logits(model, [*prompt, *a])[0, -1])[0] for a in answers]
        terms = [
            paddle.log(1 + paddle.exp(own[worse] - own[better]))
            for better in range(len(own))
            for worse in range(better + 1, len(own))
        ]
        groups.append(sum(terms) / len(terms))
    exact = sum(groups) / len(groups)
    exact.backward()
    assert_close("loss", loss.numpy(), exact.numpy())
    assert_same_gradients(ours, gradients(model))


def test_swapping_answers_permutes_the_scores(model):
    prompt, answers = [1, 2], [[3, 4], [5], [6, 7, 8]]

    def scores(order):
        batch = pack_rm([(prompt, [answers[at] for at in order])], seq_len=8)[0]
        values = model.score(logits_of(model, batch))
        places = (batch["answer_rows"], batch["score_positions"])
        return losses.answer_scores(values, *map(paddle.to_tensor, places)).numpy()

    assert_close("scores", scores([2, 1, 0]), scores([0, 1, 2])[::-1])


@pytest.mark.parametrize("weights", ["token", "sample"])
def test_packed_sft_loss_and_gradients_equal_solo_rows(model, weights):
    samples = [([3, 4, 5, 6], [-100, -100, 5, 6]), ([7, 8], [7, 8]), ([9] * 6, [9] * 6)]
    batch = whole(pack_sft(samples, seq_len=8, weights=weights))
    labels, shares = (paddle.to_tensor(batch[name]) for name in ("labels", "loss_weights"))
    loss = losses.sft_loss(logits_of(model, batch), labels, shares)
    loss.backward()
    ours = gradients(model)
    means, counts = [], []
    for ids, targets in samples:
        rows = paddle.nn.functional.log_softmax(solo_logits(model, ids)[0], axis=-1)
        logs = [rows[at - 1, ids[at]] for at in range(1, len(ids)) if targets[at] != -100]
        means.append(-sum(logs) / len(logs))
        counts.append(len(logs) if weights == "token" else 1)
    exact = sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts)
    exact.backward()
    assert_close("loss", loss.numpy(), exact.numpy())
    assert_same_gradients(ours, gradients(model))


def test_a_data_loader_builds_batches_from_row_numbers():
    packed = pack_dpo([SAMPLE] * 5, seq_len=13)
    loader = paddle.io.DataLoader(
        range(len(packed)), batch_size=2, collate_fn=packed.build, return_list=False
    )
    assert [len(batch["answer_rows"]) for batch in loader] == [4, 4, 2]


def test_a_data_loader_passes_a_stream_through():
    class Stream(paddle.io.IterableDataset):
        def __iter__(self):
            return iter(PackedStream([SAMPLE] * 5, partial(pack_dpo, seq_len=13), batch_size=2))

    loader = paddle.io.DataLoader(Stream(), batch_size=None)
    assert [len(batch["answer_rows"]) for batch in loader] == [4, 4, 2]
