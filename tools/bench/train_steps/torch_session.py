"""One attention in one process, in PyTorch: checks its loss and gradients, measures its steps.

Requests and answers are dictionaries that fit in JSON, as in `harness.session`.
"""

from __future__ import annotations

import copy
import gc
import time
from typing import Any

import numpy as np
import torch
from providers.torch_tensors import driver

from train_steps import layouts, torch_losses
from train_steps.checking import Checked, verdict
from train_steps.layouts import LAYOUTS, Layout
from train_steps.sizes import StackSizes
from train_steps.torch_attention import ATTENTIONS, Attention, Plain
from train_steps.torch_losses import Tensors
from train_steps.torch_stack import Stack, gradients

LEARNING_RATE = 1e-5
SLOW, VERY_SLOW = 4.0, 10.0  # seconds of a first step: then one more is timed, or none


class Session:
    """Requests are methods: `session.handle({"do": "measure", ...})`."""

    def __init__(self, name: str, *, place: str = "cuda", dtype: str = "bfloat16") -> None:
        self.place, self.dtype = place, getattr(torch, dtype)
        self.attention = ATTENTIONS[name]()

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        arguments = dict(request)
        arguments["sizes"] = StackSizes(**arguments["sizes"])
        action = getattr(self, arguments.pop("do"))
        answer: dict[str, Any] = action(**arguments)
        self._forget()
        return answer

    def compile(self, sizes: StackSizes, seqlens: list[int]) -> dict[str, Any]:
        """Run the attention once at each length, where that compiles; return seconds."""
        start = time.perf_counter()
        for seqlen in seqlens if self.attention.compiles else ():
            rows = torch.full((1, 1, seqlen, 1), seqlen, dtype=torch.int32, device=self.place)
            attend = self.attention.begin(rows, self.dtype)
            query, key, value = (
                torch.zeros(
                    (1, seqlen, heads * sizes.head_dim),
                    dtype=self.dtype,
                    device=self.place,
                    requires_grad=True,
                ).view(1, seqlen, heads, sizes.head_dim)
                for heads in (sizes.heads, sizes.heads_k, sizes.heads_k)
            )
            attend(query, key, value).sum().backward()
            self._synchronize()
        return {"seconds": time.perf_counter() - start}

    def check(self, sizes: StackSizes, layout: str, seqlen: int) -> dict[str, Any]:
        """Compare loss and gradients with float64; return columns of a row."""
        kind = LAYOUTS[layout]
        stack = self._stack(sizes, kind)
        batch = self._batch(sizes, kind, seqlen, layouts.DOCUMENT_COUNTS[0])
        exact = self._run(copy.deepcopy(stack).double(), kind, batch, Plain())
        plain = self._run(stack, kind, batch, Plain())
        found = self._run(stack, kind, batch, self.attention)
        columns: dict[str, Any] = verdict(exact, plain, found, str(self.dtype).split(".")[-1])
        return columns | {"checked_seqlen": seqlen}

    def measure(self, sizes: StackSizes, layout: str, seqlen: int, turns: int) -> dict[str, Any]:
        """Time steps of one row each; return columns of a row."""
        try:
            return self._measure(sizes, LAYOUTS[layout], seqlen, turns)
        except torch.OutOfMemoryError as error:
            reason = str(error).split(". ")[0]
        self._forget()
        return {"status": "does not fit", "reason": reason, **self._machine()}

    def _measure(
        self, sizes: StackSizes, layout: Layout, seqlen: int, turns: int
    ) -> dict[str, Any]:
        stack = self._stack(sizes, layout)
        trained = list(stack.trained().values())
        optimizer = torch.optim.AdamW(trained, LEARNING_RATE, fused=self.place == "cuda")
        batches = [self._batch(sizes, layout, seqlen, count) for count in layouts.DOCUMENT_COUNTS]

        def step(number: int) -> tuple[float, torch.Tensor]:
            self._synchronize()
            start = time.perf_counter()
            batch = batches[number % len(batches)]
            loss = torch_losses.loss(layout.name, stack, batch, self.attention)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self._synchronize()
            return time.perf_counter() - start, loss.detach()

        first, loss = step(0)
        seconds, warm_ups = [first], 0
        if first <= VERY_SLOW:
            self._reset_peak()
            count = 1 if first > SLOW else turns
            seconds, warm_ups = [step(number)[0] for number in range(count)], 1
        return {
            "status": "ok",
            "kernel": self.attention.kernel,
            "warm_ups": warm_ups,
            "seconds": seconds,
            "peak_bytes": self._peak(),
            "loss": float(loss),
            **self._machine(),
        }

    def _run(self, stack: Stack, layout: Layout, batch: Tensors, attention: Attention) -> Checked:
        dtype = stack.embedding.dtype
        given = {
            name: one.to(dtype) if one.is_floating_point() and dtype == torch.float64 else one
            for name, one in batch.items()
        }
        loss = torch_losses.loss(layout.name, stack, given, attention)
        return Checked(float(loss.detach()), gradients(loss, stack))

    def _stack(self, sizes: StackSizes, layout: Layout) -> Stack:
        return Stack(sizes, layout, place=self.place, dtype=self.dtype)

    def _batch(self, sizes: StackSizes, layout: Layout, seqlen: int, count: int) -> Tensors:
        arrays = layouts.batch(layout, seqlen, count, sizes.vocab)
        return {
            name: torch.from_numpy(np.ascontiguousarray(array)).to(self.place)
            for name, array in arrays.items()
        }

    def _machine(self) -> dict[str, Any]:
        on_gpu = self.place == "cuda"
        versions = f"torch {torch.__version__}"
        if on_gpu:
            versions += f", driver {driver()}"
        device = torch.cuda.get_device_name() if on_gpu else None
        return {"versions": versions, "device_name": device}

    def _synchronize(self) -> None:
        if self.place == "cuda":
            torch.cuda.synchronize()

    def _reset_peak(self) -> None:
        if self.place == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def _peak(self) -> int | None:
        return torch.cuda.max_memory_allocated() if self.place == "cuda" else None

    def _forget(self) -> None:
        gc.collect()
        if self.place == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
