"""Each loss against its formula in numpy, float64."""

import math
import re

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.tolerance import assert_array_close

from paddle_flashmask import losses

IGNORED = -100
SCORES = arrays.arrays(np.float32, 6, elements=st.floats(-20, 20, width=32))
PAIRS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]),
    min_size=1,
    max_size=8,
)


def tensor(values, dtype=None):
    return paddle.to_tensor(np.asarray(values, dtype))


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    largest = logits.max(-1, keepdims=True)
    return logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))


def log_sigmoid(values):
    return -np.logaddexp(0, -np.asarray(values, np.float64))


def grouped_mean(values, groups):
    return np.mean([np.mean(values[groups == group]) for group in np.unique(groups)])


def assert_close(name, ours, exact):
    assert_array_close(name, ours.numpy(), np.asarray(exact, np.float64), None, "float32")


def random_logits(rng, *shape):
    return (3 * rng.standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
def test_sft_loss_is_the_weighted_mean_over_labels(rng, weighted):
    logits = random_logits(rng, 2, 6, 11)
    labels = rng.integers(0, 11, (2, 6))
    labels[rng.random((2, 6)) < 0.4] = IGNORED
    labels[0, 0] = 3
    weights = rng.random((2, 6)).astype(np.float32)
    at = np.argwhere(labels != IGNORED)
    terms = np.array([-log_softmax(logits)[b, t, labels[b, t]] for b, t in at])
    shares = np.array([weights[b, t] if weighted else 1.0 for b, t in at], np.float64)
    loss = losses.sft_loss(tensor(logits), tensor(labels), tensor(weights) if weighted else None)
    assert_close("loss", loss, (terms * shares).sum() / shares.sum())


def test_sft_loss_without_a_label_is_zero_with_zero_gradient():
    logits = tensor(np.ones((1, 3, 4), np.float32))
    logits.stop_gradient = False
    loss = losses.sft_loss(logits, tensor(np.full((1, 3), IGNORED)))
    loss.backward()
    assert float(loss) == 0
    assert not logits.grad.numpy().any()


def test_answer_log_probs_sum_each_answers_targets(rng):
    logits = random_logits(rng, 2, 5, 11)
    rows, positions = rng.integers(0, 2, 9), rng.integers(0, 5, 9)
    ids, answers = rng.integers(0, 11, 9), np.sort(rng.integers(0, 3, 9))
    weights = rng.random(9).astype(np.float32)
    terms = log_softmax(logits)[rows, positions, ids] * weights
    exact = [terms[answers == answer].sum() for answer in range(4)]
    tables = map(tensor, (rows, positions, ids, answers, weights))
    ours = losses.answer_log_probs(tensor(logits), *tables, num_answers=4)
    assert ours.dtype == paddle.float32
    assert_close("log_probs", ours, exact)


def test_float64_weights_keep_the_digits_of_long_answers(rng):
    count = 3000
    logits = random_logits(rng, 1, 2, 11)
    ids = rng.integers(0, 11, count)
    zeros = np.zeros(count, np.int64)
    exact = log_softmax(logits)[0, 0, ids].sum()
    tables = map(tensor, (zeros, zeros, ids, zeros, np.ones(count)))
    ours = losses.answer_log_probs(tensor(logits), *tables, num_answers=1)
    assert ours.dtype == paddle.float64
    assert float(ours[0]) == pytest.approx(exact, rel=float(np.finfo(np.float32).eps))
    shifted = losses.dpo_loss(paddle.concat([ours, ours + 1e-3]), tensor([[1, 0]]), beta=1.0)
    assert_close("margin", shifted.margins, [1e-3])


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 1)])
def test_answer_scores_are_read_at_their_positions(rng, shape):
    values = rng.standard_normal(shape).astype(np.float32)
    scores = losses.answer_scores(tensor(values), tensor([1, 0, 1]), tensor([3, 2, 0]))
    flat = values.reshape(2, 4)
    assert scores.numpy().tolist() == [flat[1, 3], flat[0, 2], flat[1, 0]]


@given(SCORES, SCORES, PAIRS, st.sampled_from([0.0, 0.1, 0.3]), st.booleans())
def test_dpo_loss_equals_its_formula(policy, reference, pairs, smoothing, has_reference):
    chosen, rejected = np.array(pairs).T
    ratios = policy.astype(np.float64) - (reference if has_reference else 0)
    margins = 0.3 * (ratios[chosen] - ratios[rejected])
    exact = -(1 - smoothing) * log_sigmoid(margins) - smoothing * log_sigmoid(-margins)
    ours = losses.dpo_loss(
        tensor(policy),
        tensor(pairs),
        tensor(reference) if has_reference else None,
        beta=0.3,
        label_smoothing=smoothing,
    )
    assert_close("margins", ours.margins, margins)
    assert_close("loss", ours.loss, exact.mean())


@given(SCORES, PAIRS)
def test_simpo_loss_equals_its_formula(policy, pairs):
    chosen, rejected = np.array(pairs).T
    margins = 2.5 * (policy.astype(np.float64)[chosen] - policy[rejected]) - 1.5
    ours = losses.simpo_loss(tensor(policy), tensor(pairs), beta=2.5, gamma=1.5)
    assert_close("loss", ours.loss, -log_sigmoid(margins).mean())


@given(SCORES, PAIRS, st.data())
def test_rm_loss_is_the_mean_over_groups_of_the_mean_over_pairs(scores, pairs, data):
    size = len(pairs)
    groups = np.array(data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)))
    chosen, rejected = np.array(pairs).T
    margins = scores.astype(np.float64)[chosen] - scores[rejected]
    ours = losses.rm_pairwise_loss(tensor(scores), tensor(pairs), tensor(groups))
    assert_close("loss", ours.loss, grouped_mean(-log_sigmoid(margins), groups))
    assert float(losses.pair_accuracy(ours.margins)) == pytest.approx((margins > 0).mean())


def test_dpo_and_simpo_may_average_by_group():
    policy, pairs = tensor(np.float32([0, 1, 2, 4])), tensor([[0, 1], [0, 2], [3, 2]])
    groups = np.array([5, 5, 7])
    for loss, scale in ((losses.dpo_loss, {"beta": 1.0}), (losses.simpo_loss, {"beta": 1.0})):
        ours = loss(policy, pairs, pair_groups=tensor(groups), **scale)
        exact = grouped_mean(-log_sigmoid(ours.margins.numpy()), groups)
        assert_close("loss", ours.loss, exact)


def test_dpo_starts_at_ln_2_with_margin_0():
    policy = tensor(np.float32([-120.5, -80.25, -3.0]))
    ours = losses.dpo_loss(policy, tensor([[0, 1], [2, 1]]), policy)
    assert not ours.margins.numpy().any()
    assert float(ours.loss) == np.float32(math.log(2))


def test_no_gradient_goes_into_the_reference():
    policy, reference = tensor(np.float32([1, 2])), tensor(np.float32([2, 1]))
    policy.stop_gradient = reference.stop_gradient = False
    losses.dpo_loss(policy, tensor([[0, 1]]), reference).loss.backward()
    assert reference.grad is None
    assert policy.grad.numpy()[0] < 0 < policy.grad.numpy()[1]


def test_losses_stay_finite_for_large_margins():
    scores = tensor(np.float32([1e4, -1e4]))
    scores.stop_gradient = False
    for pairs in ([[0, 1]], [[1, 0]]):
        loss = losses.rm_pairwise_loss(scores, tensor(pairs), tensor([0])).loss
        loss.backward()
        assert math.isfinite(float(loss))
        assert np.isfinite(scores.grad.numpy()).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_logits_are_summed_in_float32(rng, dtype):
    logits = tensor(random_logits(rng, 1, 4, 7)).astype(dtype)
    labels = tensor([[1, 2, 3, IGNORED]])
    ours, same = (losses.sft_loss(x, labels) for x in (logits, logits.astype("float32")))
    assert ours.dtype == paddle.float32
    assert float(ours) == float(same)


ZEROS = paddle.zeros


def log_probs_of(**changed):
    """Call answer_log_probs with one target, whose numbers are 0 but those that are given."""
    names = ("target_rows", "target_positions", "target_ids", "target_answers")
    table = {name: tensor([changed.get(name, 0)]) for name in names}
    weights, num_answers = tensor([1.0], "float32"), changed.get("num_answers", 1)
    return losses.answer_log_probs(
        ZEROS([2, 3, 4]), **table, target_weights=weights, num_answers=num_answers
    )


ERRORS = [
    (
        lambda: losses.sft_loss(ZEROS([1, 3, 4]), ZEROS([1, 2], "int64")),
        "labels must have shape [1, 3]; got [1, 2]",
    ),
    (
        lambda: losses.sft_loss(ZEROS([1, 3, 4]), ZEROS([1, 3], "int64"), ZEROS([3])),
        "loss_weights must have shape [1, 3]; got [3]",
    ),
    (
        lambda: losses.answer_log_probs(ZEROS([3, 4]), *[ZEROS([2], "int64")] * 5, num_answers=1),
        "logits must be [B, S, V]; got shape [3, 4]",
    ),
    (
        lambda: losses.answer_scores(ZEROS([1, 3, 2]), ZEROS([1]), ZEROS([1])),
        "values must be [B, S] or [B, S, 1]; got shape [1, 3, 2]",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), ZEROS([0, 2], "int64")),
        "pairs must be [P, 2] with P >= 1; got shape [0, 2]",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), ZEROS([1, 2], "int64"), ZEROS([3])),
        "reference_log_probs must have shape [2]; got [3]",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), ZEROS([1, 2], "int64"), beta=0),
        "beta must be above 0 and finite; got 0",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), ZEROS([1, 2], "int64"), label_smoothing=0.5),
        "label_smoothing must be in [0, 0.5); got 0.5",
    ),
    (
        lambda: losses.simpo_loss(ZEROS([2]), ZEROS([1, 2], "int64"), gamma=-1),
        "gamma must be at least 0 and finite; got -1",
    ),
    (
        lambda: losses.rm_pairwise_loss(ZEROS([2]), ZEROS([1, 2], "int64"), ZEROS([2], "int64")),
        "pair_groups must have shape [1]; got [2]",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), ZEROS([1, 2], "int64"), beta=math.inf),
        "beta must be above 0 and finite; got inf",
    ),
    (
        lambda: losses.simpo_loss(ZEROS([2]), ZEROS([1, 2], "int64"), gamma=math.nan),
        "gamma must be at least 0 and finite; got nan",
    ),
    *(
        (
            lambda label=label: losses.sft_loss(ZEROS([1, 2, 4]), tensor([[1, label]])),
            f"labels must be in [0, 4) or -100; got {label}",
        )
        for label in (-1, -101, 4)
    ),
    (
        lambda: losses.sft_loss(ZEROS([1, 2, 4]), tensor([[0, 1]]), tensor([[-1.0, 2.0]])),
        "loss_weights must be at least 0 and finite; got -1.0",
    ),
    (
        lambda: losses.sft_loss(ZEROS([1, 2, 4]), tensor([[0, 1]]), tensor([[math.inf, 2.0]])),
        "loss_weights must be at least 0 and finite; got inf",
    ),
    *(
        (lambda table=table: log_probs_of(**table), f"{text}; got {next(iter(table.values()))}")
        for table, text in [
            ({"target_rows": -1}, "target_rows must be in [0, 2)"),
            ({"target_positions": 3}, "target_positions must be in [0, 3)"),
            ({"target_ids": -1}, "target_ids must be in [0, 4) or -100"),
            ({"target_answers": -1}, "target_answers must be in [0, 1)"),
            ({"num_answers": -1}, "num_answers must be at least 0"),
        ]
    ),
    (
        lambda: losses.answer_scores(ZEROS([1, 3]), tensor([0]), tensor([-1])),
        "score_positions must be in [0, 3); got -1",
    ),
    (
        lambda: losses.answer_scores(ZEROS([1, 3]), tensor([1]), tensor([2])),
        "answer_rows must be in [0, 1); got 1",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), tensor([[0, -1]])),
        "pairs must be in [0, 2); got -1",
    ),
]
TYPE_ERRORS = [
    (
        lambda: losses.sft_loss(ZEROS([1, 3, 4], "int64"), ZEROS([1, 3], "int64")),
        "logits must be float32 or bfloat16 or float16 or float64; got int64",
    ),
    (
        lambda: losses.answer_scores(ZEROS([1, 3], "int32"), tensor([0]), tensor([0])),
        "values must be float32 or bfloat16 or float16 or float64; got int32",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), ZEROS([1, 2])),
        "pairs must be int64 or int32; got float32",
    ),
    (
        lambda: losses.rm_pairwise_loss(ZEROS([2], "int64"), ZEROS([1, 2], "int64"), tensor([0])),
        "scores must be float32 or bfloat16 or float16 or float64; got int64",
    ),
    (
        lambda: log_probs_of(num_answers=1.5),
        "num_answers must be an int; got float 1.5",
    ),
    (
        lambda: log_probs_of(num_answers=True),
        "num_answers must be an int; got bool True",
    ),
    (
        lambda: log_probs_of(num_answers=None),
        "num_answers must be an int; got NoneType None",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), tensor([[0, 1]]), ZEROS([2], "int64")),
        "reference_log_probs must be float32 or bfloat16 or float16 or float64; got int64",
    ),
    (
        lambda: losses.sft_loss(ZEROS([1, 3, 4]), ZEROS([1, 3])),
        "labels must be int64 or int32; got float32",
    ),
    (
        lambda: losses.answer_log_probs(
            ZEROS([1, 3, 4]), *[ZEROS([2], "int64")] * 5, num_answers=1
        ),
        "target_weights must be float32 or float64; got int64",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), ZEROS([1, 2], "int64"), beta=None),
        "beta must be a number; got NoneType None",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), ZEROS([1, 2], "int64"), beta=True),
        "beta must be a number; got bool True",
    ),
    (
        lambda: losses.dpo_loss(ZEROS([2]), ZEROS([1, 2], "int64"), label_smoothing="0.1"),
        "label_smoothing must be a number; got str '0.1'",
    ),
    (
        lambda: losses.simpo_loss(ZEROS([2]), ZEROS([1, 2], "int64"), gamma="1"),
        "gamma must be a number; got str '1'",
    ),
    (
        lambda: losses.rm_pairwise_loss(ZEROS([2]), ZEROS([1, 2], "int64"), None),
        "pair_groups must be a paddle.Tensor; got NoneType",
    ),
]


@pytest.mark.parametrize(("call", "text"), TYPE_ERRORS)
def test_wrong_types_are_named(call, text):
    with pytest.raises(TypeError, match=re.escape(text)):
        call()


def test_tokens_of_tiny_probability_count_in_full(rng):
    # Paddle's cross_entropy on the CPU takes none for less likely than exp(-64).
    logits = 60 * random_logits(rng, 2, 5, 11)
    labels = rng.integers(0, 11, (2, 5))
    labels[0, 1] = IGNORED
    given = tensor(logits)
    given.stop_gradient = False
    loss = losses.sft_loss(given, tensor(labels))
    at = np.argwhere(labels != IGNORED)
    exact = np.array([-log_softmax(logits)[b, t, labels[b, t]] for b, t in at])
    assert exact.max() > 100
    assert_close("loss", loss, exact.mean())
    loss.backward()
    gradient = np.exp(log_softmax(logits))
    gradient[labels == IGNORED] = 0
    for b, t in at:
        gradient[b, t, labels[b, t]] -= 1
    assert_close("gradient", given.grad, gradient / len(at))


def test_what_stands_where_there_is_no_label_does_not_count(rng):
    logits, labels = random_logits(rng, 1, 4, 5), np.array([[1, IGNORED, 3, IGNORED]])
    weights = np.array([[1, np.nan, 2, -np.inf]], np.float32)
    clean = np.array([[1, 0, 2, 0]], np.float32)
    ours, wanted = (losses.sft_loss(*map(tensor, (logits, labels, w))) for w in (weights, clean))
    assert float(ours) == float(wanted)
    logits[0, 1] = np.nan
    given = tensor(logits)
    given.stop_gradient = False
    loss = losses.sft_loss(given, tensor(labels))
    loss.backward()
    assert np.isfinite(float(loss))
    assert np.isfinite(given.grad.numpy()).all()


@pytest.mark.filterwarnings("ignore:Tensor do not have 'place' interface:UserWarning")  # Paddle's
def test_losses_are_traced_with_unknown_sizes(rng):
    spec = paddle.static.InputSpec
    specs = [spec([None, None, 7]), spec([None, None], "int64")]
    traced = paddle.jit.to_static(losses.sft_loss, input_spec=specs, full_graph=True)
    logits, labels = random_logits(rng, 2, 3, 7), rng.integers(0, 7, (2, 3))
    arguments = tensor(logits), tensor(labels)
    assert_close("loss", traced(*arguments), float(losses.sft_loss(*arguments)))

    def dpo(log_probs, pairs):
        return losses.dpo_loss(log_probs, pairs).loss

    specs = [spec([None]), spec([None, 2], "int64")]
    traced = paddle.jit.to_static(dpo, input_spec=specs, full_graph=True)
    arguments = tensor(random_logits(rng, 4)), tensor([[0, 1], [2, 3], [0, 3]])
    assert_close("loss", traced(*arguments), float(dpo(*arguments)))


def log_probs_of_two(logits, rows, positions, ids, answers, weights):
    return losses.answer_log_probs(logits, rows, positions, ids, answers, weights, num_answers=2)


def dpo_of(log_probs, pairs):
    return losses.dpo_loss(log_probs, pairs).loss


def simpo_of(log_probs, pairs):
    return losses.simpo_loss(log_probs, pairs).loss


@pytest.mark.parametrize("full_graph", [True, False], ids=["full_graph", "sot"])
@pytest.mark.parametrize(
    "call", [losses.sft_loss, log_probs_of_two, losses.answer_scores, dpo_of, simpo_of]
)
def test_losses_are_traced(call, full_graph, rng):
    logits, labels = tensor(random_logits(rng, 2, 3, 7)), tensor(rng.integers(0, 7, (2, 3)))
    table = [tensor(rng.integers(0, most, 5)) for most in (2, 3, 7, 2)]
    weights, pairs = tensor(rng.random((2, 3)), "float32"), tensor([[0, 1], [2, 1]])
    arguments = {
        losses.sft_loss: (logits, labels, weights),
        log_probs_of_two: (logits, *table, tensor(rng.random(5), "float32")),
        losses.answer_scores: (logits[..., 0], *table[:2]),
        dpo_of: (logits[0, :, 0], pairs),
        simpo_of: (logits[1, :, 0], pairs),
    }[call]
    traced = paddle.jit.to_static(call, full_graph=full_graph)
    for _ in range(2):  # the second call takes what the first has traced
        assert_close(call.__name__, traced(*arguments), call(*arguments).numpy())


def test_the_number_of_answers_may_be_known_when_a_graph_runs(rng):
    def counted(logits, rows, positions, ids, answers, weights):
        options = {"num_answers": answers.max() + 1}
        return losses.answer_log_probs(logits, rows, positions, ids, answers, weights, **options)

    logits = tensor(random_logits(rng, 2, 3, 7))
    table = [tensor(rng.integers(0, most, 5)) for most in (2, 3, 7)]
    arguments = (logits, *table, tensor([0, 1, 1, 0, 1]), tensor(rng.random(5), "float32"))
    for full_graph in (True, False):
        traced = paddle.jit.to_static(counted, full_graph=full_graph)
        assert_close("log_probs", traced(*arguments), log_probs_of_two(*arguments).numpy())


def test_tables_of_32_and_64_bits_go_together(rng):
    logits = tensor(random_logits(rng, 2, 3, 7))
    table = [rng.integers(0, most, 5) for most in (2, 3, 7, 2)]
    weights = tensor(rng.random(5), "float32")
    wanted = log_probs_of_two(logits, *map(tensor, table), weights)
    for narrow in range(4):
        mixed = [tensor(t, "int32" if at == narrow else "int64") for at, t in enumerate(table)]
        assert_close("log_probs", log_probs_of_two(logits, *mixed, weights), wanted.numpy())
    rows, positions = table[:2]
    scores = losses.answer_scores(logits[..., 0], tensor(rows), tensor(positions))
    mixed = losses.answer_scores(logits[..., 0], tensor(rows, "int32"), tensor(positions))
    assert_close("scores", mixed, scores.numpy())


@pytest.mark.parametrize(("call", "text"), ERRORS)
def test_wrong_shapes_and_numbers_are_named(call, text):
    with pytest.raises(ValueError, match="must") as caught:
        call()
    assert str(caught.value) == text
