"""One attention in one process, in Paddle on the CPU: the decoder of the quickstart, our losses.

Requests and answers are as in `torch_session`. The stack is float32, nothing is recomputed.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import paddle
from harness.meters import CpuMeter, peak_resident
from paddle import Tensor, nn

from paddle_flashmask import flashmask_attention, losses
from paddle_flashmask.nn import Attend
from train_steps import layouts
from train_steps.checking import Checked, verdict
from train_steps.layouts import LAYOUTS, Layout
from train_steps.sizes import StackSizes

Tensors = dict[str, Tensor]

QUICKSTART = Path(__file__).resolve().parents[2] / "quickstart"
LEARNING_RATE = 1e-5
ADAPTER_SCALE = 2.0  # alpha 16 over rank 8
ADAPTER_STD = 0.02


def added_mask(rows: Tensor, dtype: Any, heads: int) -> Tensor:
    """Return a dense mask [B, heads, S, S]: 0 where a row sees a column, -inf elsewhere."""
    seqlen = rows.shape[2]
    column = paddle.arange(seqlen, dtype="int32")
    row = column.unsqueeze(-1)
    seen = paddle.logical_and(row >= column, row < rows.transpose([0, 1, 3, 2]))
    zero = paddle.zeros([], dtype)
    one = paddle.where(seen, zero, zero - float("inf"))
    return paddle.tile(one, [1, heads, 1, 1])


def ours(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return attention by the operator; `mask` is the index tensor of a batch."""
    return flashmask_attention(query, key, value, mask, causal=True)


def paddle_dense(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return Paddle's attention; `mask` is dense, for every head: so it adds it fastest."""
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return the definition, in any dtype; `mask` is dense."""
    query, key, value = (one.transpose([0, 2, 1, 3]) for one in (query, key, value))
    scores = paddle.matmul(query, key, transpose_y=True) / query.shape[-1] ** 0.5 + mask
    return paddle.matmul(nn.functional.softmax(scores, -1), value).transpose([0, 2, 1, 3])


class Attention(NamedTuple):
    """What attends, and whether it wants a dense mask."""

    attend: Attend
    is_dense: bool


ATTENTIONS = {"ours": Attention(ours, False), "paddle_dense": Attention(paddle_dense, True)}
PLAIN = Attention(plain, True)


class Session:
    """Requests are methods: `session.handle({"do": "measure", ...})`."""

    def __init__(self, name: str) -> None:
        self.attention = ATTENTIONS[name]
        self._meter = CpuMeter()
        sys.path.append(str(QUICKSTART))
        self._decoder = importlib.import_module("decoder")

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        arguments = dict(request)
        arguments["sizes"] = StackSizes(**arguments["sizes"])
        action = getattr(self, arguments.pop("do"))
        answer: dict[str, Any] = action(**arguments)
        gc.collect()
        return answer

    def compile(self, sizes: StackSizes, seqlens: list[int]) -> dict[str, Any]:
        """Do nothing: nothing compiles here."""
        return {"seconds": 0.0}

    def check(self, sizes: StackSizes, layout: str, seqlen: int) -> dict[str, Any]:
        """Compare loss and gradients with float64; return columns of a row."""
        kind = LAYOUTS[layout]
        batch = self._batch(sizes, kind, seqlen, layouts.DOCUMENT_COUNTS[0])
        exact, written, found = (
            self._run(sizes, kind, batch, attention, dtype)
            for attention, dtype in (
                (PLAIN, "float64"),
                (PLAIN, "float32"),
                (self.attention, "float32"),
            )
        )
        return verdict(exact, written, found, "float32") | {"checked_seqlen": seqlen}

    def measure(self, sizes: StackSizes, layout: str, seqlen: int, turns: int) -> dict[str, Any]:
        """Time steps of one row each; return columns of a row."""
        kind = LAYOUTS[layout]
        model = self._model(sizes, kind, self.attention)
        trained = [one for one in model.parameters() if not one.stop_gradient]
        optimizer = paddle.optimizer.AdamW(LEARNING_RATE, parameters=trained)
        batches = [self._batch(sizes, kind, seqlen, count) for count in layouts.DOCUMENT_COUNTS]

        def step(number: int) -> float:
            batch = batches[number % len(batches)]
            loss = _loss(model, sizes, kind, batch, self.attention)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            return float(loss)

        first = step(0)
        self._meter.start_memory()
        timings = [self._meter.time(lambda n=n: step(n), 1)[0] for n in range(turns)]
        return {
            "status": "ok",
            "warm_ups": 1,
            "seconds": [timing.wall for timing in timings],
            "cpu_seconds": [timing.cpu for timing in timings],
            "peak_bytes": peak_resident(),
            "loss": first,
            "versions": f"paddle {paddle.version.full_version}",
        }

    def _run(
        self, sizes: StackSizes, layout: Layout, batch: Tensors, attention: Attention, dtype: str
    ) -> Checked:
        model = self._model(sizes, layout, attention)
        model.to(dtype=dtype)
        loss = _loss(model, sizes, layout, batch, attention)
        loss.backward()
        found = {
            name: one.grad.astype("float64")
            for name, one in model.named_parameters()
            if not one.stop_gradient and one.grad is not None
        }
        return Checked(float(loss), found)

    def _model(self, sizes: StackSizes, layout: Layout, attention: Attention) -> nn.Layer:
        paddle.seed(0)
        config = self._decoder.DecoderConfig(
            vocab_size=sizes.vocab,
            hidden_size=sizes.hidden,
            num_layers=sizes.blocks,
            num_heads=sizes.heads,
            num_heads_k=sizes.heads_k,
            ffn_size=sizes.ffn,
        )
        model = self._decoder.Decoder(config, attention.attend)
        if layout.adapters:
            _add_adapters(model, layout.adapters)
        return self._decoder.RewardModel(model) if layout.name == "rm" else model

    def _batch(self, sizes: StackSizes, layout: Layout, seqlen: int, count: int) -> Tensors:
        arrays = layouts.batch(layout, seqlen, count, sizes.vocab)
        return {name: paddle.to_tensor(array) for name, array in arrays.items()}


class _Adapted(nn.Layer):
    """A frozen linear layer with an adapter beside it (LoRA, arXiv 2106.09685)."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        size_in, size_out = linear.weight.shape
        attr = paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, ADAPTER_STD))
        self.linear = linear
        self.adapter_in = nn.Linear(size_in, rank, weight_attr=attr, bias_attr=False)
        # Not 0 as in training, so that the check sees the gradient of both halves.
        self.adapter_out = nn.Linear(rank, size_out, weight_attr=attr, bias_attr=False)

    def forward(self, hidden: Tensor) -> Tensor:
        narrow = self.adapter_out(self.adapter_in(hidden))
        return self.linear(hidden) + narrow * ADAPTER_SCALE


def _add_adapters(model: nn.Layer, rank: int) -> None:
    for weight in model.parameters():
        weight.stop_gradient = True
    for block in model.blocks:
        for name in ("query", "key", "value", "output"):
            linear = getattr(block.attention, name)
            setattr(block.attention, name, _Adapted(linear, rank))


def _loss(
    model: nn.Layer, sizes: StackSizes, layout: Layout, batch: Tensors, attention: Attention
) -> Tensor:
    """Return the loss; the dense mask is made here, where there is one."""
    mask = batch["attn_mask_startend_row_indices"]
    if attention.is_dense:
        mask = added_mask(mask, model.parameters()[0].dtype, sizes.heads)
    outputs = model(batch["input_ids"], batch["position_ids"], mask)
    return LOSSES[layout.name](outputs, batch)


def _sft(logits: Tensor, batch: Tensors) -> Tensor:
    return losses.sft_loss(logits, batch["labels"], batch["loss_weights"])


def _dpo(logits: Tensor, batch: Tensors) -> Tensor:
    targets = {name: one for name, one in batch.items() if name.startswith("target_")}
    count = batch["answer_rows"].shape[0]
    log_probs = losses.answer_log_probs(logits, **targets, num_answers=count)
    return losses.dpo_loss(log_probs, batch["pairs"], batch["reference_log_probs"]).loss


def _rm(values: Tensor, batch: Tensors) -> Tensor:
    scores = losses.answer_scores(values, batch["answer_rows"], batch["score_positions"])
    return losses.rm_pairwise_loss(scores, batch["pairs"], batch["pair_groups"]).loss


LOSSES: dict[str, Callable[[Tensor, Tensors], Tensor]] = {
    "sft": _sft,
    "lora": _sft,
    "dpo": _dpo,
    "rm": _rm,
}
