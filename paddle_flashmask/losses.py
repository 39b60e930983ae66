"""Losses on packed logits and scores: SFT, DPO, SimPO and reward models, in Paddle's operators.

Pure functions. The tables they take (`target_*`, `pairs`, ...) are the fields of the same name in
the batches of `paddle_flashmask.packing`, as tensors. Losses are float32, logarithms natural.

| training      | log-probability of an answer       | loss                               |
|---------------|------------------------------------|------------------------------------|
| SFT           |                                    | `sft_loss`                         |
| DPO, CPO      | `answer_log_probs`, sum of tokens  | `dpo_loss`, with or without a      |
|               | (weights="token")                  | frozen reference                   |
| SimPO         | `answer_log_probs`, mean of tokens | `simpo_loss`                       |
|               | (weights="sample")                 |                                    |
| reward models | `answer_scores`                    | `rm_pairwise_loss`                 |
"""

from __future__ import annotations

import math
import numbers
from reprlib import repr as short
from typing import NamedTuple

import numpy as np
import paddle
from paddle import Tensor
from paddle.jit.sot import psdb
from paddle.nn import functional

from paddle_flashmask.packing import IGNORE_INDEX

__all__ = [
    "PairLoss",
    "answer_log_probs",
    "answer_scores",
    "dpo_loss",
    "pair_accuracy",
    "rm_pairwise_loss",
    "sft_loss",
    "simpo_loss",
]

INTEGERS = ("int64", "int32")
WEIGHT_DTYPES = ("float32", "float64")
FLOATS = ("float32", "bfloat16", "float16", "float64")


class PairLoss(NamedTuple):
    """The loss of a batch of pairs and what it is made of.

    Attributes:
        loss: [], float32.
        margins: [P], float32, how far each chosen answer is ahead: what the logistic function of
            the loss is applied to, before label smoothing.
    """

    loss: Tensor
    margins: Tensor


def sft_loss(logits: Tensor, labels: Tensor, loss_weights: Tensor | None = None) -> Tensor:
    """Return the weighted mean of the cross-entropy over labelled positions.

        loss = sum_t w_t * -log softmax(logits_t)[label_t] / sum_t w_t

    Without weights, and with those of weights="token", every labelled token counts the same; with
    those of weights="sample" every sample does. (Paddle 3.3's own mean divides by all positions
    when ignore_index is negative; this one does not.)

    Args:
        logits: [B, S, V], floating.
        labels: [B, S], int64, shifted, -100 where not trained.
        loss_weights: [B, S], float32, at least 0; None: 1 at each label. What stands where there
            is no label does not count.

    Returns:
        [], float32; 0 without any label.

    Raises:
        TypeError: logits are not floating, or labels no integers.
        ValueError: shapes do not fit; or, in eager mode on the CPU, a label or a weight is out of
            range.
    """
    _check_rank("logits", logits, "[B, S, V]", 3)
    _check_floating("logits", logits)
    _check_shape("labels", labels, logits, axes=2)
    _check_dtype("labels", labels, INTEGERS)
    _check_range("labels", labels, logits.shape[2], besides=IGNORE_INDEX)
    if loss_weights is not None:
        _check_shape("loss_weights", loss_weights, logits, axes=2)
        _check_weights(loss_weights, labels)
    flat_labels = labels.reshape([-1])
    losses = _token_losses(logits.reshape([-1, logits.shape[-1]]), flat_labels)
    has_label = flat_labels != IGNORE_INDEX
    weights = has_label.astype("float32")
    if loss_weights is not None:
        given = loss_weights.reshape([-1]).astype("float32")
        weights = paddle.where(has_label, given, weights)
    total = weights.sum()
    return (losses * weights).sum() / (total + (total == 0).astype("float32"))


def _token_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Return -log softmax(logits[n])[id_n], 0 where the id is IGNORE_INDEX: [N], float32."""
    logits = logits.astype("float32")
    if paddle.device.get_device() != "cpu":
        return _cross_entropy(logits, ids)
    # Paddle's kernel for the CPU takes no probability for less than exp(-64). That of the likeliest
    # token is never so small, and what the other is behind it the logits say.
    has_id = ids != IGNORE_INDEX
    likeliest = logits.argmax(-1).astype(ids.dtype)
    losses = _cross_entropy(logits, paddle.where(has_id, likeliest, ids))
    both = paddle.stack([likeliest, paddle.where(has_id, ids, likeliest)], axis=1)
    ahead, own = paddle.take_along_axis(logits, both, 1).unbind(1)
    return paddle.where(has_id, losses + (ahead - own), losses)


def _cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    losses = functional.cross_entropy(logits, ids, ignore_index=IGNORE_INDEX, reduction="none")
    return losses.reshape([-1])


def answer_log_probs(
    logits: Tensor,
    target_rows: Tensor,
    target_positions: Tensor,
    target_ids: Tensor,
    target_answers: Tensor,
    target_weights: Tensor,
    *,
    num_answers: int,
) -> Tensor:
    """Return the log-probability of each answer given its prompt.

        log_prob_n = sum_{m: answer_m = n} w_m * log softmax(logits[row_m, position_m])[id_m]

    A position may occur several times: the last prompt token predicts the first token of every
    answer. Only M rows of logits are copied, never [B, S, V].

    Args:
        logits: [B, S, V], floating.
        target_rows: [M], int64, row of each target.
        target_positions: [M], int64, position of the logit in its row.
        target_ids: [M], int64, token to be predicted.
        target_answers: [M], int64, answer of the token, in [0, num_answers).
        target_weights: [M], float32 or float64: 1 for sums, 1 / (targets of the answer) for
            means. Their dtype is the one summed in: float32 keeps about 7 digits, so the sum over
            an answer of a thousand tokens is good to 1e-4.
        num_answers: N.

    Returns:
        [N], dtype of target_weights.

    Raises:
        TypeError: logits are not floating, target_weights have another dtype, or the other tables
            are no integers.
        ValueError: shapes do not fit; or, in eager mode on the CPU, a number of the table is out of
            range.
    """
    _check_rank("logits", logits, "[B, S, V]", 3)
    _check_floating("logits", logits)
    _check_rank("target_rows", target_rows, "[M]", 1)
    _check_shape("target_positions", target_positions, target_rows)
    _check_shape("target_ids", target_ids, target_rows)
    _check_shape("target_answers", target_answers, target_rows)
    _check_shape("target_weights", target_weights, target_rows)
    _check_dtype("target_ids", target_ids, INTEGERS)
    _check_dtype("target_weights", target_weights, WEIGHT_DTYPES)
    _check_range("target_rows", target_rows, logits.shape[0])
    _check_range("target_positions", target_positions, logits.shape[1])
    _check_range("target_ids", target_ids, logits.shape[2], besides=IGNORE_INDEX)
    _check_count("num_answers", num_answers)
    _check_range("target_answers", target_answers, num_answers)
    losses = _token_losses(_gathered(logits, target_rows, target_positions), target_ids)
    dtype = target_weights.dtype
    zeros = paddle.zeros([num_answers], dtype)
    return paddle.index_add(zeros, target_answers, 0, -losses.astype(dtype) * target_weights)


def answer_scores(values: Tensor, answer_rows: Tensor, score_positions: Tensor) -> Tensor:
    """Return the score of each answer, read at its own last token.

    Args:
        values: [B, S] or [B, S, 1], floating, a score head's output at every position.
        answer_rows: [N], int64, row of each answer.
        score_positions: [N], int64, position of its last token.

    Returns:
        [N], float32.

    Raises:
        TypeError: values are not floating, or the tables no integers.
        ValueError: shapes do not fit; or, in eager mode on the CPU, a number is out of range.
    """
    if len(values.shape) == 3 and values.shape[-1] == 1:
        values = values.squeeze(-1)
    _check_rank("values", values, "[B, S] or [B, S, 1]", 2)
    _check_floating("values", values)
    _check_rank("answer_rows", answer_rows, "[N]", 1)
    _check_shape("score_positions", score_positions, answer_rows)
    _check_range("answer_rows", answer_rows, values.shape[0])
    _check_range("score_positions", score_positions, values.shape[1])
    return _gathered(values, answer_rows, score_positions).astype("float32")


def dpo_loss(
    log_probs: Tensor,
    pairs: Tensor,
    reference_log_probs: Tensor | None = None,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    pair_groups: Tensor | None = None,
) -> PairLoss:
    """Return the loss of direct preference optimisation.

        margin = beta * ((log_prob - reference)[chosen] - (log_prob - reference)[rejected])
        loss   = -(1 - e) * log sigmoid(margin) - e * log sigmoid(-margin)

    Rafailov et al., "Direct Preference Optimization" (arXiv 2305.18290), equation 7; label
    smoothing e as in Mitchell, "A note on DPO with noisy preferences" (2023), equation 3. Without
    a reference the reference is uniform, which gives the preference term of CPO (arXiv 2401.08417,
    equation 3). With policy = reference every margin is 0 and the loss ln 2.

    Args:
        log_probs: [N], floating, of the policy: sums over tokens.
        pairs: [P, 2], int64, answers (chosen, rejected).
        reference_log_probs: [N], floating, of the frozen model; no gradient goes into it.
        beta: strength of the tie to the reference, above 0.
        label_smoothing: e, the share of pairs thought to be labelled wrongly, in [0, 0.5).
        pair_groups: [P], int64: average within each group first; None: over all pairs at once.

    Returns:
        `PairLoss` with the mean over pairs.

    Raises:
        TypeError: log-probabilities are not floating, pairs no integers, or a number is none.
        ValueError: shapes do not fit, there is no pair, or a number is out of range.
    """
    _check_positive("beta", beta)
    _check_number("label_smoothing", label_smoothing)
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing must be in [0, 0.5); got {label_smoothing}")
    _check_rank("log_probs", log_probs, "[N]", 1)
    _check_floating("log_probs", log_probs)
    ratios = log_probs if log_probs.dtype == paddle.float64 else log_probs.astype("float32")
    if reference_log_probs is not None:
        _check_shape("reference_log_probs", reference_log_probs, log_probs)
        _check_floating("reference_log_probs", reference_log_probs)
        ratios = ratios - reference_log_probs.detach().astype(ratios.dtype)
    margins = (beta * _differences(ratios, pairs)).astype("float32")
    losses = -(1 - label_smoothing) * functional.log_sigmoid(margins)
    if label_smoothing > 0:
        losses = losses - label_smoothing * functional.log_sigmoid(-margins)
    return PairLoss(_mean(losses, pair_groups), margins)


def simpo_loss(
    mean_log_probs: Tensor,
    pairs: Tensor,
    *,
    beta: float = 2.0,
    gamma: float = 1.0,
    pair_groups: Tensor | None = None,
) -> PairLoss:
    """Return the loss of simple preference optimisation, which needs no reference.

        margin = beta * (mean_log_prob[chosen] - mean_log_prob[rejected]) - gamma
        loss   = -log sigmoid(margin)

    Meng et al., "SimPO" (arXiv 2405.14734), equation 6.

    Args:
        mean_log_probs: [N], floating, means over tokens: pack with weights="sample".
        pairs: [P, 2], int64, answers (chosen, rejected).
        beta: scale of the reward, above 0.
        gamma: margin by which the chosen answer shall win, at least 0.
        pair_groups: [P], int64: average within each group first; None: over all pairs at once.

    Returns:
        `PairLoss` with the mean over pairs.

    Raises:
        TypeError: log-probabilities are not floating, pairs no integers, or a number is none.
        ValueError: shapes do not fit, there is no pair, or a number is out of range.
    """
    _check_positive("beta", beta)
    _check_number("gamma", gamma)
    if not 0 <= gamma < math.inf:
        raise ValueError(f"gamma must be at least 0 and finite; got {gamma}")
    _check_rank("mean_log_probs", mean_log_probs, "[N]", 1)
    _check_floating("mean_log_probs", mean_log_probs)
    margins = beta * _differences(mean_log_probs.astype("float32"), pairs) - gamma
    return PairLoss(_mean(-functional.log_sigmoid(margins), pair_groups), margins)


def rm_pairwise_loss(scores: Tensor, pairs: Tensor, pair_groups: Tensor) -> PairLoss:
    """Return the Bradley-Terry loss of ranked answers.

        margin = score[chosen] - score[rejected]
        loss   = mean over groups of: mean over the group's pairs of -log sigmoid(margin)

    Ouyang et al., "InstructGPT" (arXiv 2203.02155), equation 1: all pairs of one prompt together
    weigh as much as those of any other. Groups without a pair do not count.

    Args:
        scores: [N], floating.
        pairs: [P, 2], int64, answers (chosen, rejected).
        pair_groups: [P], int64, group of each pair.

    Returns:
        `PairLoss`.

    Raises:
        TypeError: an argument is no tensor, scores are not floating, or pairs no integers.
        ValueError: shapes do not fit, or there is no pair.
    """
    _check_rank("scores", scores, "[N]", 1)
    _check_floating("scores", scores)
    _check_tensor("pair_groups", pair_groups)
    margins = _differences(scores.astype("float32"), pairs)
    return PairLoss(_mean(-functional.log_sigmoid(margins), pair_groups), margins)


def pair_accuracy(margins: Tensor) -> Tensor:
    """Return the share of pairs whose chosen answer is ahead; a margin of 0 counts as wrong.

    Args:
        margins: [P], floating, P >= 1.

    Returns:
        [], float32, in [0, 1].
    """
    return (margins > 0).astype("float32").mean()


def _gathered(values: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """Return values[rows[n], positions[n]]; the two may differ in their integers."""
    places = paddle.stack([rows.astype("int64"), positions.astype("int64")], axis=1)
    return paddle.gather_nd(values, places)


def _differences(values: Tensor, pairs: Tensor) -> Tensor:
    _check_pairs(pairs)
    _check_range("pairs", pairs, values.shape[0])
    return paddle.gather(values, pairs[:, 0]) - paddle.gather(values, pairs[:, 1])


def _mean(losses: Tensor, groups: Tensor | None) -> Tensor:
    if groups is None:
        return losses.mean()
    _check_shape("pair_groups", groups, losses)
    _, group_of, sizes = paddle.unique(
        groups, return_index=False, return_inverse=True, return_counts=True
    )
    weights = 1.0 / paddle.gather(sizes, group_of).astype("float32")
    return (losses * weights).sum() / weights.sum()


def _check_tensor(name: str, value: object) -> None:
    if isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a paddle.Tensor; got a numpy array: use paddle.to_tensor")
    if not hasattr(value, "shape"):
        raise TypeError(f"{name} must be a paddle.Tensor; got {type(value).__name__}")


# Shapes are checked outside of what is traced into a graph: there their unknown sizes are values.
@paddle.jit.not_to_static
def _check_rank(name: str, tensor: Tensor, form: str, rank: int) -> None:
    _check_tensor(name, tensor)
    if len(tensor.shape) != rank:
        raise ValueError(f"{name} must be {form}; got shape {list(tensor.shape)}")


@paddle.jit.not_to_static
def _check_pairs(pairs: Tensor) -> None:
    _check_tensor("pairs", pairs)
    if len(pairs.shape) != 2 or pairs.shape[1] != 2 or pairs.shape[0] == 0:
        raise ValueError(f"pairs must be [P, 2] with P >= 1; got shape {list(pairs.shape)}")


@paddle.jit.not_to_static
def _check_shape(name: str, tensor: Tensor, like: Tensor, *, axes: int | None = None) -> None:
    _check_tensor(name, tensor)
    mine, wanted = list(tensor.shape), list(like.shape)[:axes]  # -1: unknown
    is_same = all(a == b or -1 in (a, b) for a, b in zip(mine, wanted, strict=False))
    if len(mine) != len(wanted) or not is_same:
        raise ValueError(f"{name} must have shape {wanted}; got {mine}")


def _has_values(tensor: Tensor) -> bool:
    """Whether values are at hand without waiting for a device: in eager mode on the CPU."""
    # Asked first, since to_static's tracer stumbles over questions to a place.
    if psdb.in_sot() or not paddle.in_dynamic_mode():
        return False
    return bool(tensor.place.is_cpu_place())


@paddle.jit.not_to_static
def _check_range(name: str, tensor: Tensor, end: int, *, besides: int | None = None) -> None:
    if not psdb.in_sot():  # whose graphs a question for a dtype would break
        _check_dtype(name, tensor, INTEGERS)
    if not _has_values(tensor):
        return
    values = tensor.numpy()
    is_wrong = (values < 0) | (values >= end)
    if besides is not None:
        is_wrong &= values != besides
    for value in values[is_wrong][:1]:
        or_that = "" if besides is None else f" or {besides}"
        raise ValueError(f"{name} must be in [0, {end}){or_that}; got {value}")


@paddle.jit.not_to_static
def _check_weights(weights: Tensor, labels: Tensor) -> None:
    if not (_has_values(weights) and _has_values(labels)):
        return
    given = weights.astype("float32").numpy()
    is_wrong = (labels.numpy() != IGNORE_INDEX) & ~((given >= 0) & np.isfinite(given))
    for number in given[is_wrong][:1]:
        raise ValueError(f"loss_weights must be at least 0 and finite; got {number}")


def _check_floating(name: str, tensor: Tensor) -> None:
    if not psdb.in_sot():
        _check_dtype(name, tensor, FLOATS)


def _check_dtype(name: str, tensor: Tensor, allowed: tuple[str, ...]) -> None:
    found = str(tensor.dtype).removeprefix("paddle.")
    if found not in allowed:
        raise TypeError(f"{name} must be {' or '.join(allowed)}; got {found}")


@paddle.jit.not_to_static
def _check_count(name: str, value: object) -> None:
    if isinstance(value, (Tensor, paddle.base.libpaddle.pir.Value)):
        return  # a length that a graph knows when it runs
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an int; got {type(value).__name__} {short(value)}")
    if value < 0:
        raise ValueError(f"{name} must be at least 0; got {value}")


def _check_number(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number; got {type(value).__name__} {short(value)}")


def _check_positive(name: str, value: float) -> None:
    _check_number(name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0 and finite; got {value}")
