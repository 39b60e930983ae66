"""Long sequences, tensors beyond 2^31 elements, streams and graphs, through the C door."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from support import cases, gpu, tolerance
from support.gpu import capi, torch

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

CHUNK = 2048  # rows at a time of the reference: 2 GB of float64 scores at 128K columns
LENGTH = 128 * 1024
SAMPLES = 48
Rounding = Callable[[torch.Tensor], torch.Tensor]


class Head(NamedTuple):
    """One head in float64 and its mask: causal, rows from `row_end[j]` on do not see column j."""

    query: torch.Tensor  # [S, D]
    key: torch.Tensor
    value: torch.Tensor
    grad_out: torch.Tensor
    grad_lse: torch.Tensor  # [S]
    row_end: torch.Tensor  # [S]
    scale: float

    def sees(self, rows: torch.Tensor) -> torch.Tensor:
        column = torch.arange(len(self.key), device="cuda")
        return (column <= rows[:, None]) & (rows[:, None] < self.row_end)


class Rows(NamedTuple):
    """What some rows of a head give."""

    weights: torch.Tensor  # [rows, S]
    grad_scores: torch.Tensor  # [rows, S]
    out: torch.Tensor
    lse: torch.Tensor


def exactly(array: torch.Tensor) -> torch.Tensor:
    return array


def to_bfloat16(array: torch.Tensor) -> torch.Tensor:
    return array.bfloat16().double()


def compute_rows(head: Head, rows: torch.Tensor, rounded: Rounding = exactly) -> Rows:
    scores = rounded(rounded(head.query[rows] @ head.key.T) * head.scale)
    scores = scores.masked_fill(~head.sees(rows), -torch.inf)
    lse = torch.logsumexp(scores, dim=1)
    weights = rounded(torch.exp(scores - lse[:, None]).nan_to_num(0.0))
    grad_weights = rounded(head.grad_out[rows] @ head.value.T)
    mean = (grad_weights * weights).sum(dim=1, keepdim=True)
    grad_scores = weights * (grad_weights - mean + head.grad_lse[rows][:, None])
    return Rows(
        weights, rounded(rounded(grad_scores) * head.scale), rounded(weights @ head.value), lse
    )


def compute_columns(
    head: Head, columns: torch.Tensor, rounded: Rounding = exactly
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of key and value of some columns, from all rows."""
    shape = (len(columns), head.key.shape[1])
    grad_key, grad_value = (torch.zeros(shape, dtype=torch.float64, device="cuda") for _ in "kv")
    for begin in range(0, len(head.query), CHUNK):
        rows = torch.arange(begin, begin + CHUNK, device="cuda")
        part = compute_rows(head, rows, rounded)
        grad_key += part.grad_scores[:, columns].T @ head.query[rows]
        grad_value += part.weights[:, columns].T @ head.grad_out[rows]
    return rounded(grad_key), rounded(grad_value)


def assert_close(
    name: str, ours: torch.Tensor, exact: torch.Tensor, coarse: torch.Tensor | None, dtype: str
) -> None:
    arrays = (x.double().cpu().numpy() for x in (ours, exact))
    dense = None if coarse is None else coarse.double().cpu().numpy()
    tolerance.assert_array_close(name, *arrays, dense, dtype)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("mask", ["causal", "documents", "eviction"])
def test_sampled_rows_and_columns_of_128k_match_float64(mask, head_dim, rng, seed):
    torch.manual_seed(seed)
    size = (1, LENGTH, 1, head_dim)
    query, key, value, grad_out = (
        torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    grad_lse = torch.randn(1, 1, LENGTH, device="cuda")
    column = np.arange(LENGTH)
    row_end = {
        "causal": np.full(LENGTH, LENGTH),
        "documents": (column // 5000 + 1) * 5000,
        "eviction": column + 1 + rng.integers(0, LENGTH - column),
    }[mask].astype(np.int32)
    indices = torch.from_numpy(row_end)[None, None, :, None].cuda()
    out, lse = capi.forward(query, key, value, indices, True)
    gradients = capi.backward(
        grad_out, query, key, value, out, lse, indices, True, grad_softmax_lse=grad_lse
    )
    head = Head(
        *(x[0, :, 0].double() for x in (query, key, value, grad_out)),
        grad_lse[0, 0].double(),
        indices[0, 0, :, 0],
        head_dim**-0.5,
    )
    edges = [0, 1, LENGTH - 2, LENGTH - 1]
    sample = torch.from_numpy(np.r_[edges, rng.integers(0, LENGTH, SAMPLES)]).cuda()
    exact, coarse = compute_rows(head, sample), compute_rows(head, sample, to_bfloat16)
    assert_close("out", out[0, sample, 0], exact.out, coarse.out, "bfloat16")
    assert_close("softmax_lse", lse[0, 0, sample], exact.lse, None, "float32")
    grad_query = [part.grad_scores @ head.key for part in (exact, coarse)]
    assert_close("grad_query", gradients[0][0, sample, 0], *grad_query, "bfloat16")
    del exact, coarse
    columns = compute_columns(head, sample)
    coarse_columns = compute_columns(head, sample, to_bfloat16)
    for name, ours, right, dense in zip(
        ("grad_key", "grad_value"), gradients[1:], columns, coarse_columns, strict=True
    ):
        assert_close(name, ours[0, sample, 0], right, dense, "bfloat16")


def test_tensors_beyond_2_to_the_31_elements_give_each_head_its_own_bits(seed):
    torch.manual_seed(seed)
    length, heads, head_dim = 8192, 2056, 128
    shape = (1, length, heads, head_dim)
    assert np.prod(shape) > 2**31
    query, key, value, grad_out = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    window = (200, 0)
    common = {"window": window}
    out, lse = capi.forward(query, key, value, None, True, **common)
    gradients = capi.backward(grad_out, query, key, value, out, lse, None, True, **common)
    for head in (0, 1023, heads - 2):
        one = slice(head, head + 2)  # a head alone has so few rows that its keys are split
        alone = [x[:, :, one].contiguous() for x in (query, key, value, grad_out)]
        alone_out, alone_lse = capi.forward(*alone[:3], None, True, **common)
        alone_gradients = capi.backward(
            alone[3], *alone[:3], alone_out, alone_lse, None, True, **common
        )
        assert torch.equal(out[:, :, one], alone_out)
        assert torch.equal(lse[:, one], alone_lse)
        for ours, right in zip(gradients[1:], alone_gradients[1:], strict=True):
            assert torch.equal(ours[:, :, one], right)
        # Sums of the query gradient have no fixed order: a rounding apart at most.
        mine, right = gradients[0][:, :, one].float(), alone_gradients[0].float()
        exact = right.cpu().numpy()
        assert_close(
            "grad_query", mine, right, right + tolerance.floor(exact, "bfloat16"), "bfloat16"
        )


class Problem:
    """One call with memory of its own for all results."""

    def __init__(
        self, seed: int, head_dim: int, deterministic: bool = False, length: int = 1500
    ) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        rng = np.random.default_rng(seed)
        shape = (2, length, 4, head_dim)
        self.query, self.key, self.value, self.grad_out = (
            torch.randn(shape, device="cuda", generator=generator).bfloat16() for _ in range(4)
        )
        mask = cases.MASKS["four"](rng, 2, 1, length, length)
        self.common = (gpu.indices_tensor(mask), mask.causal)
        self.deterministic = deterministic
        self.out = torch.full_like(self.query, torch.nan)
        self.lse = torch.full((2, 4, length), torch.nan, device="cuda")
        self.grads = tuple(
            torch.full_like(x, torch.nan) for x in (self.query, self.key, self.value)
        )
        self.memory = {
            name: torch.empty(
                capi.workspace_bytes(
                    name, self.query, self.key, *self.common, deterministic=deterministic
                ),
                dtype=torch.uint8,
                device="cuda",
            )
            for name in ("forward", "backward")
        }

    def run(self) -> None:
        capi.forward(
            self.query,
            self.key,
            self.value,
            *self.common,
            out=self.out,
            softmax_lse=self.lse,
            workspace=self.memory["forward"],
        )
        capi.backward(
            self.grad_out,
            self.query,
            self.key,
            self.value,
            self.out,
            self.lse,
            *self.common,
            None,
            self.deterministic,
            grads=self.grads,
            workspace=self.memory["backward"],
        )

    def results(self) -> list[torch.Tensor]:
        """All but the gradient of query where its bits may change from run to run."""
        gradients = self.grads if self.deterministic else self.grads[1:]
        return [x.clone() for x in (self.out, self.lse, *gradients)]


ways = pytest.mark.parametrize(
    ("head_dim", "deterministic"),
    [(64, False), (96, True), (128, False), (128, True), (192, False), (256, True)],
)


def assert_equal(ours: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    for mine, other in zip(ours, right, strict=True):
        assert not bool(mine.isnan().any())
        assert torch.equal(mine, other)


@ways
@pytest.mark.usefixtures("short_calls")
def test_calls_on_two_streams_do_not_disturb_each_other(head_dim, deterministic, seed):
    problems = [Problem(seed + i, head_dim, deterministic) for i in range(2)]
    alone = []
    for problem in problems:
        problem.run()
        torch.cuda.synchronize()
        alone.append(problem.results())
        problem.out.fill_(torch.nan)
        for gradient in problem.grads:
            gradient.fill_(torch.nan)
    streams = [torch.cuda.Stream() for _ in problems]
    torch.cuda.synchronize()
    for _ in range(5):
        for problem, stream in zip(problems, streams, strict=True):
            with torch.cuda.stream(stream):
                problem.run()
    torch.cuda.synchronize()
    for problem, right in zip(problems, alone, strict=True):
        assert_equal(problem.results(), right)


@ways
@pytest.mark.usefixtures("short_calls")
def test_a_captured_graph_replays_on_new_inputs(head_dim, deterministic, seed):
    problem, other = (Problem(seed + i, head_dim, deterministic) for i in range(2))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        problem.run()  # loads the kernels, which a capture may not
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        problem.run()
    other.run()
    for name in ("query", "key", "value", "grad_out"):
        getattr(problem, name).copy_(getattr(other, name))
    problem.common[0].copy_(other.common[0])
    problem.out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert_equal(problem.results(), other.results())
