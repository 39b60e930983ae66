"""The contestants in PyTorch: ours through the C door, SDPA with a dense mask, FlexAttention.

Each is given the index tensor of a batch and brings it into its own form once a step, within the
step: that is what a trainer must do, since every batch has another mask.
"""

from __future__ import annotations

import importlib
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

TOOLS = Path(__file__).resolve().parents[2]
MASK_CHUNK = 4096  # rows of a dense mask that are made at a time


class Attention(ABC):
    """An attention; `kernel` says what computes it, where that is known after a step."""

    compiles: ClassVar[bool] = False
    kernel: str = ""

    @abstractmethod
    def begin(self, rows: Tensor, dtype: torch.dtype) -> Attend:
        """Return attention under a causal mask of one number a column.

        Args:
            rows: [B, 1, S, 1], int32.
            dtype: of query, key and value.
        """


class Ours(Attention):
    """Our kernels by tools/capi.py; they take the indices as they are."""

    def __init__(self) -> None:
        sys.path.append(str(TOOLS))
        self._capi = importlib.import_module("capi")

    def begin(self, rows: Tensor, dtype: torch.dtype) -> Attend:
        return lambda query, key, value: _Ours.apply(query, key, value, rows, self._capi)


class _Ours(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: Tensor, capi: Any):
        out, softmax_lse = capi.forward(query, key, value, rows, True)
        ctx.save_for_backward(query, key, value, rows, out, softmax_lse)
        ctx.capi = capi
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor):
        query, key, value, rows, out, softmax_lse = ctx.saved_tensors
        found = ctx.capi.backward(grad_out, query, key, value, out, softmax_lse, rows, True)
        return (*found, None, None)


class Sdpa(Attention):
    """`scaled_dot_product_attention` with a mask that is added to the scores, [B, 1, S, S].

    It has the dtype of the query. A mask of bool is smaller, but PyTorch makes this one of it in
    every call, so in every block; made once a step it costs less time and less memory.
    """

    def begin(self, rows: Tensor, dtype: torch.dtype) -> Attend:
        mask = added_mask(rows, dtype)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (one.transpose(1, 2) for one in (query, key, value))
            group = query.shape[1] // key.shape[1]
            if group > 1:
                key, value = (one.repeat_interleave(group, 1) for one in (key, value))
            if not self.kernel:
                choice = torch._fused_sdp_choice(query, key, value, attn_mask=mask)
                self.kernel = SDPBackend(choice).name.lower()
            out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            return out.transpose(1, 2)

        return attend


class Flex(Attention):
    """FlexAttention, compiled for each length, with the block mask that its rule wants.

    The rule reads one number a column, as ours. What it reads stays at one address and is
    overwritten, so that nothing is compiled again for another batch.
    """

    compiles = True

    def __init__(self) -> None:
        from torch.nn.attention import flex_attention

        # One length after another, each compiled for itself.
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.automatic_dynamic_shapes = False
        self._module = flex_attention
        self._attention = torch.compile(flex_attention.flex_attention, dynamic=False)
        self._starts: dict[int, Tensor] = {}

    def begin(self, rows: Tensor, dtype: torch.dtype) -> Attend:
        batch, _, seqlen, _ = rows.shape
        if batch != 1:
            raise ValueError(f"one row a step; got {batch}")
        start = self._starts.setdefault(seqlen, torch.empty_like(rows.flatten()))
        start.copy_(rows.flatten())

        def is_seen(b: Tensor, h: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return (row >= column) & (row < start[column])

        blocks = self._module.create_block_mask(
            is_seen, None, None, seqlen, seqlen, device=rows.device, _compile=True
        )

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            out = self._attention(
                query.transpose(1, 2),
                key.transpose(1, 2),
                value.transpose(1, 2),
                block_mask=blocks,
                enable_gqa=query.shape[2] != key.shape[2],
            )
            return out.transpose(1, 2)

        return attend


class Plain(Attention):
    """The definition, head by head, in any dtype: the reference of the check."""

    def begin(self, rows: Tensor, dtype: torch.dtype) -> Attend:
        mask = added_mask(rows, dtype)[:, 0]

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            group = query.shape[2] // key.shape[2]
            scale = 1.0 / math.sqrt(query.shape[3])
            heads = []
            for head in range(query.shape[2]):
                own = key[:, :, head // group].transpose(1, 2)
                weights = (query[:, :, head] @ own * scale + mask).softmax(-1)
                heads.append(weights @ value[:, :, head // group])
            return torch.stack(heads, 2)

        return attend


ATTENTIONS: dict[str, type[Attention]] = {"ours": Ours, "torch_sdpa": Sdpa, "torch_flex": Flex}


def added_mask(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a dense mask [B, 1, S, S]: 0 where a row sees a column, -inf elsewhere."""
    batch, _, seqlen, _ = rows.shape
    mask = torch.empty((batch, 1, seqlen, seqlen), dtype=dtype, device=rows.device)
    column = torch.arange(seqlen, dtype=torch.int32, device=rows.device)
    for first in range(0, seqlen, MASK_CHUNK):
        row = column[first : first + MASK_CHUNK, None]
        seen = (row >= column) & (row < rows[:, :, None, :, 0])
        part = mask[:, :, first : first + MASK_CHUNK]
        part.fill_(-math.inf).masked_fill_(seen, 0.0)
    return mask
