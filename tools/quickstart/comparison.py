"""Train one model twice on the same batches: flashmask_attention against a dense mask.

What is trained, SFT, DPO or a reward model, is an `Objective` and of no concern here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from paddle_flashmask import flashmask_attention
from paddle_flashmask.indices import to_dense
from paddle_flashmask.nn import Attend
from paddle_flashmask.packing import PackedRows
from paddle_flashmask.reference import dense_attention

__all__ = [
    "LOSS_TOLERANCE",
    "Batch",
    "Contestant",
    "Objective",
    "Step",
    "Tensors",
    "compare",
    "contestants",
    "epochs",
]

Batch: TypeAlias = dict[str, NDArray[np.generic]]
Tensors: TypeAlias = dict[str, Tensor]
# (model, batch with the mask under "mask") -> (loss, what is watched beside it, or None)
Objective: TypeAlias = Callable[[nn.Layer, Tensors], tuple[Tensor, Tensor | None]]

LOSS_TOLERANCE = (
    1e-5  # relative; float32 rounding of both sums stays well below, a mask error above
)
WARMUP_STEPS = 10
MAX_GRADIENT_NORM = 1.0
WEIGHT_DECAY = 0.01


class Step(NamedTuple):
    """What one step measured.

    Attributes:
        number: of the step, from 1.
        tokens: tokens in the batch, without padding.
        flashmask_loss: mean loss with flashmask_attention.
        dense_loss: mean loss with the dense mask.
        flashmask_seconds: forward, backward and update.
        dense_seconds: the same for the dense mask (making the mask is not counted).
        watched: what the objective watches beside the loss, with flashmask_attention.
    """

    number: int
    tokens: int
    flashmask_loss: float
    dense_loss: float
    flashmask_seconds: float
    dense_seconds: float
    watched: float | None = None

    @property
    def relative_difference(self) -> float:
        """Return the difference of the losses, relative to the dense one."""
        return abs(self.flashmask_loss - self.dense_loss) / abs(self.dense_loss)

    @property
    def is_equal(self) -> bool:
        """Return whether both losses are finite and equal within LOSS_TOLERANCE."""
        return bool(self.relative_difference <= LOSS_TOLERANCE)


@dataclass
class Contestant:
    """A model, its optimizer, and how it wants the mask.

    Attributes:
        model: the decoder, or a model on top of it.
        objective: its loss.
        mask_from_indices: startend_row_indices [B, 1, S, 1] to what its attention takes.
        peak_rate: learning rate after the warm-up.
        learning_rate: linear warm-up, then constant.
        optimizer: AdamW over all weights, with gradients clipped by their norm.
    """

    model: nn.Layer
    objective: Objective
    mask_from_indices: Callable[[NDArray[np.integer]], Tensor]
    peak_rate: float
    learning_rate: paddle.optimizer.lr.LRScheduler = field(init=False)
    optimizer: paddle.optimizer.AdamW = field(init=False)

    def __post_init__(self) -> None:
        """Make the optimizer.

        Without warm-up and clipping the training is so unsteady that rounding alone grows beyond
        LOSS_TOLERANCE within twenty steps; with them it stays near 1e-7 for a hundred.
        """
        self.learning_rate = paddle.optimizer.lr.LinearWarmup(
            self.peak_rate, WARMUP_STEPS, self.peak_rate / WARMUP_STEPS, self.peak_rate
        )
        self.optimizer = paddle.optimizer.AdamW(
            learning_rate=self.learning_rate,
            parameters=self.model.parameters(),
            weight_decay=WEIGHT_DECAY,
            grad_clip=paddle.nn.ClipGradByGlobalNorm(MAX_GRADIENT_NORM),
        )

    def tensors(self, batch: Batch) -> Tensors:
        """Return a batch as tensors, with the mask as the attention takes it."""
        tensors = {name: paddle.to_tensor(values) for name, values in batch.items()}
        tensors["mask"] = self.mask_from_indices(batch["attn_mask_startend_row_indices"])
        return tensors

    def train(self, batch: Batch) -> tuple[float, float, float | None]:
        """Do one step and return the loss before it, the seconds it took and what is watched."""
        tensors = self.tensors(batch)
        start = time.perf_counter()
        loss, watched = self.objective(self.model, tensors)
        loss.backward()
        self.optimizer.step()
        self.learning_rate.step()
        self.optimizer.clear_grad()
        value = float(loss)
        seconds = time.perf_counter() - start
        return value, seconds, None if watched is None else float(watched)


def contestants(
    make_model: Callable[[Attend], nn.Layer], objective: Objective, peak_rate: float
) -> tuple[Contestant, Contestant]:
    """Return two models: flashmask_attention, dense mask.

    Args:
        make_model: from an attention to a model, each time with the same weights.
        objective: their loss.
        peak_rate: learning rate after the warm-up.
    """
    flashmask = Contestant(make_model(_flashmask), objective, paddle.to_tensor, peak_rate)
    dense = Contestant(make_model(dense_attention), objective, _dense_mask, peak_rate)
    return flashmask, dense


def compare(
    flashmask: Contestant, dense: Contestant, batches: Iterator[Batch], steps: int
) -> Iterator[Step]:
    """Yield what each step measured, both models having trained on the same batch."""
    for number in range(1, steps + 1):
        batch = next(batches)
        flashmask_loss, flashmask_seconds, watched = flashmask.train(batch)
        dense_loss, dense_seconds, _ = dense.train(batch)
        yield Step(
            number,
            _real_tokens(batch),
            flashmask_loss,
            dense_loss,
            flashmask_seconds,
            dense_seconds,
            watched,
        )


def epochs(packed: PackedRows[Any], batch_size: int, seed: int) -> Iterator[Batch]:
    """Yield batches without end, the rows shuffled anew in each epoch."""
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(packed)).tolist()
        yield from packed.batches(batch_size, row_order=order, drop_last=len(packed) >= batch_size)


def _flashmask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return flashmask_attention(query, key, value, mask, causal=True)


def _dense_mask(startend_row_indices: NDArray[np.integer]) -> Tensor:
    seqlen = startend_row_indices.shape[2]
    return paddle.to_tensor(to_dense(startend_row_indices, causal=True, seqlen_q=seqlen))


def _real_tokens(batch: Batch) -> int:
    seqlen = batch["input_ids"].shape[1]
    is_padding = batch["attn_mask_startend_row_indices"][:, 0, :, 0] <= np.arange(seqlen)
    return int((~is_padding).sum())
