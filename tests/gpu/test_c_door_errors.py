"""What the C door and tools/capi.py say of calls that cannot be run; the device stays usable."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
from support.gpu import capi, torch

pytestmark = pytest.mark.gpu

INPUTS = ("query", "key", "value")
PLACES = (*INPUTS, "out", "grad_out", *(f"grad_{name}" for name in INPUTS))


def small(dtype: str = "bfloat16", head_dim: int = 64) -> list[torch.Tensor]:
    return [torch.ones(1, 5, 2, head_dim, dtype=getattr(torch, dtype), device="cuda")] * 3


def rows(width: int) -> torch.Tensor:
    return torch.zeros(1, 1, 5, width, dtype=torch.int32, device="cuda")


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers two bytes behind a multiple of 16."""
    whole = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")
    return whole[1:].view(tensor.shape).copy_(tensor)


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, heads 68 elements apart."""
    wide = torch.empty(*tensor.shape[:3], 68, dtype=tensor.dtype, device="cuda")
    return wide[..., :64].copy_(tensor)


def call_with(place: str, odd: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A forward and backward in which one tensor lies in another way."""
    query, key, value = small()
    given = {"query": query, "key": key, "value": value, "grad_out": torch.ones_like(query)}
    results = [torch.zeros_like(query) for _ in range(4)]
    given |= dict(zip(("out", "grad_query", "grad_key", "grad_value"), results, strict=True))
    given[place] = odd(given[place])
    inputs = [given[name] for name in INPUTS]
    out, lse = capi.forward(*inputs, None, True, out=given["out"])
    grads = tuple(given[f"grad_{name}"] for name in INPUTS)
    capi.backward(given["grad_out"], *inputs, out, lse, None, True, grads=grads)


def call_with_shifted_workspace() -> None:
    size = capi.workspace_bytes("forward", *small()[:2], rows(1), True)
    workspace = torch.empty(size + 16, dtype=torch.uint8, device="cuda")[16:]
    capi.forward(*small(), rows(1), True, workspace=workspace)


BAD_CALLS = {
    "float32": (lambda: capi.forward(*small("float32"), None, True), "dtype float32"),
    "head_dim 264": (lambda: capi.forward(*small(head_dim=264), None, True), "head_dim 264"),
    "head_dim 12": (lambda: capi.forward(*small(head_dim=12), None, True), "head_dim 12"),
    "width 4, causal": (lambda: capi.forward(*small(), rows(4), True), "index_width must be"),
    "width 1": (lambda: capi.forward(*small(), rows(1), False), "index_width must be"),
    "window": (
        lambda: capi.forward(*small(), rows(1), True, window=(1, 1)),
        "a window cannot be combined",
    ),
    "scale": (lambda: capi.forward(*small(), None, True, math.nan), "softmax_scale must be finite"),
    "workspace": (call_with_shifted_workspace, "workspace must start at a multiple of 256 bytes"),
    **{
        f"{place}, {odd.__name__}": (
            partial(call_with, place, odd),
            f"{place} must on a GPU start at a multiple of 16 bytes and have strides",
        )
        for place in PLACES
        for odd in (shifted, spread)
    },
}


@pytest.mark.parametrize(("call", "text"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls_raise_in_words_and_leave_the_device_usable(call, text):
    with pytest.raises(RuntimeError, match="flashmask: ") as raised:
        call()
    assert text in str(raised.value)
    torch.cuda.synchronize()
    out, _ = capi.forward(*small(), None, True)
    assert bool((out == 1).all())


def test_windows_without_end_are_as_none():
    query, key, value = (torch.randn(2, 70, 4, 64, device="cuda").bfloat16() for _ in range(3))
    right, _ = capi.forward(query, key, value, None, True)
    for width in (2**31, 2**63 - 1):
        out, _ = capi.forward(query, key, value, None, True, window=(width, width))
        assert torch.equal(out, right)


WRONG_TENSORS = {
    "v": ({"v": torch.ones(1, 6, 2, 64)}, ValueError, r"k and v must both be \[1, Sk, Hk, 64\]"),
    "dtypes": ({"k": torch.ones(1, 5, 2, 64)}, TypeError, "q, k and v must have one dtype"),
    "out": ({"out": torch.ones(1, 5, 2, 64)}, ValueError, "out must be .* torch.bfloat16"),
    "lse": ({"softmax_lse": torch.ones(1, 2, 5).double()}, ValueError, "softmax_lse must be"),
    "lse, strides": (
        {"softmax_lse": torch.ones(1, 5, 2).transpose(1, 2)},
        ValueError,
        "softmax_lse must be contiguous",
    ),
    "grad_out": ({"grad_out": torch.ones(1, 5, 2, 64)}, ValueError, "grad_out must be"),
    "grad_lse": ({"grad_softmax_lse": torch.ones(1, 5, 2)}, ValueError, "grad_softmax_lse must be"),
    "grads": ({"grads": (torch.ones(1, 5, 2, 64),) * 3}, ValueError, "dq must be"),
}


@pytest.mark.parametrize(("changes", "error", "text"), WRONG_TENSORS.values(), ids=WRONG_TENSORS)
def test_tensors_that_do_not_fit_are_named(changes, error, text):
    on_gpu = {
        name: tuple(x.cuda() for x in value) if isinstance(value, tuple) else value.cuda()
        for name, value in changes.items()
    }
    query = small()[0]
    given = dict(zip("qkv", small(), strict=True))
    given |= {"out": query, "softmax_lse": torch.zeros(1, 2, 5, device="cuda"), "grad_out": query}
    with pytest.raises(error, match=text):
        capi.backward(**(given | on_gpu), startend_row_indices=None, causal=True)


@pytest.mark.parametrize("window", [(2**63, 0), (0, -2), (1,)], ids=str)
def test_widths_that_no_window_has_are_named(window):
    with pytest.raises(ValueError, match=r"window must be two widths .*; got \(") as raised:
        capi.forward(*small(), None, True, window=window)
    assert str(raised.value).endswith(str(window))


def test_numbers_that_do_not_fit_are_named():
    query = small()[0]
    none = query[:, :0]
    wide = torch.zeros(1, 1, 0, 2**31, dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match=r"startend_row_indices 1, 2 or 4; .* width=2147483648"):
        capi.forward(query, none, none, wide, True)
    long = query[:, :1].expand(1, 2**31, 2, 64)[:0]
    with pytest.raises(RuntimeError, match=r"at most 2147475456, .* lengths 2147483648 and 0"):
        capi.forward(long, none[:0], none[:0], None, True)


def expanded(*shape: int) -> torch.Tensor:
    """One row of numbers at many places of a shape."""
    return torch.ones(shape[-1], dtype=torch.bfloat16, device="cuda").expand(shape)


def overlapping(*shape: int) -> torch.Tensor:
    """Rows that begin within the one before."""
    batch, seqlen, heads, head_dim = shape
    memory = torch.ones(batch * seqlen * heads * head_dim, dtype=torch.bfloat16, device="cuda")
    return memory.as_strided(shape, (seqlen * heads * head_dim, head_dim, head_dim, 1))


@pytest.mark.parametrize("odd", [expanded, overlapping])
@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv"])
def test_results_are_not_written_where_others_are(name, odd):
    query, key, value = small()
    out, lse = capi.forward(query, key, value, None, True)
    grads = {way: torch.zeros_like(query) for way in ("dq", "dk", "dv")}
    grads[name] = wrong = odd(*query.shape)
    call = partial(capi.forward, query, key, value, None, True, out=wrong)
    if name != "out":
        given = (query, query, key, value, out, lse, None, True)
        call = partial(capi.backward, *given, grads=(grads["dq"], grads["dk"], grads["dv"]))
    with pytest.raises(ValueError, match=rf"{name} must have each element .* got .* strides \["):
        call()


def test_results_may_lie_in_a_larger_tensor_in_another_order():
    query, key, value = small()
    right, _ = capi.forward(query, key, value, None, True)
    packed = torch.zeros(2, 5, 3, 1, 64, dtype=query.dtype, device="cuda")  # heads first
    out = packed[:, :, 1].permute(2, 1, 0, 3)
    capi.forward(query, key, value, None, True, out=out)
    assert torch.equal(out, right)
    assert packed.count_nonzero() == right.count_nonzero()


def test_a_workspace_that_is_expanded_is_refused():
    size = capi.workspace_bytes("forward", *small()[:2], rows(1), True)
    workspace = torch.empty(1, dtype=torch.uint8, device="cuda").expand(size)
    with pytest.raises(ValueError, match=rf"workspace must have {size} bytes and be contiguous"):
        capi.forward(*small(), rows(1), True, workspace=workspace)


def test_missing_kernel_says_what_there_is():
    with pytest.raises(RuntimeError, match=r"there is: cpu.*\nsm80 .compute capability 8.0"):
        capi.forward(*small("float32"), None, True)


def test_unknown_device_raises_and_leaves_the_device_usable():
    query = small()[0]
    sizes = capi._sizes(query, query, None, True, None, False, device=torch.cuda.device_count())
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        capi._workspace_bytes("forward", sizes)
    out, _ = capi.forward(query, query, query, None, True)
    assert bool((out == 1).all())
