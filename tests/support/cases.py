"""Case tables: frozen dataclasses whose ids read as what they are, and the masks they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

DTYPES = ("float32", "float16", "bfloat16")
TILE = 64  # rows and columns of a tile of the CPU kernel
ODD_LENGTHS = (1, 63, 64, 65, 127, 128, 129)
HEAD_DIMS = (8, 16, 24, 40, 64, 72, 96, 128, 192, 256)
FORMS = ((True, 1), (True, 2), (False, 2), (False, 4))
SLACK = 5  # how far random bounds may lie outside [0, Sq]


@dataclass(frozen=True)
class Mask:
    """Arguments of the operator that decide what is visible."""

    indices: np.ndarray | None
    causal: bool
    window: int | tuple[int, int] | None = None

    @property
    def window_pair(self) -> tuple[int, int] | None:
        return (self.window, self.window) if isinstance(self.window, int) else self.window


@dataclass(frozen=True)
class AttentionCase:
    """Sizes and options of one call. `mask` names an entry of MASKS."""

    mask: str = "causal_1"
    batch: int = 1
    seqlen_q: int = 65
    seqlen_k: int | None = None
    num_heads: int = 2
    num_heads_k: int = 2
    num_heads_mask: int = 1
    head_dim: int = 16
    dtype: str = "float32"
    softmax_scale: float | None = None
    input_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.seqlen_k is None:
            object.__setattr__(self, "seqlen_k", self.seqlen_q)

    def __str__(self) -> str:
        heads = f"h{self.num_heads}k{self.num_heads_k}m{self.num_heads_mask}"
        text = f"{self.mask}-b{self.batch}-q{self.seqlen_q}k{self.seqlen_k}-{heads}"
        text += f"-d{self.head_dim}-{self.dtype}"
        if self.softmax_scale is not None:
            text += f"-scale{self.softmax_scale:g}"
        return text + (f"-x{self.input_scale:g}" if self.input_scale != 1 else "")

    def make_mask(self, rng: np.random.Generator) -> Mask:
        return MASKS[self.mask](rng, self.batch, self.num_heads_mask, self.seqlen_q, self.seqlen_k)


MaskMaker = Callable[[np.random.Generator, int, int, int, int], Mask]


def random_form(causal: bool, width: int) -> MaskMaker:
    """Random bounds, out of range and crossing as well."""

    def make(rng: np.random.Generator, batch: int, heads: int, rows: int, columns: int) -> Mask:
        bounds = rng.integers(-SLACK, rows + SLACK, (batch, heads, columns, width))
        return Mask(bounds.astype(np.int32), causal)

    return make


def document_lengths(rng: np.random.Generator, total: int) -> list[int]:
    cuts = np.unique(rng.integers(1, total, rng.integers(1, 5))) if total > 1 else np.array([], int)
    return np.diff([0, *cuts, total]).tolist()


def document_bounds(lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """First row and one past the last row of the document of each token."""
    ends = np.cumsum(lengths)
    return np.repeat(ends - lengths, lengths), np.repeat(ends, lengths)


def _per_mask(
    make: Callable[[np.random.Generator, int, int], list[np.ndarray]], causal: bool
) -> MaskMaker:
    """A mask of its own for every sample and head, columns of bounds from `make`."""

    def make_all(rng: np.random.Generator, batch: int, heads: int, rows: int, columns: int) -> Mask:
        masks = [
            np.stack(np.broadcast_arrays(*make(rng, rows, columns)), axis=1)
            for _ in range(batch * heads)
        ]
        width = len(make(rng, rows, columns))
        return Mask(np.reshape(masks, (batch, heads, columns, width)).astype(np.int32), causal)

    return make_all


def _causal_documents(rng: np.random.Generator, rows: int, columns: int) -> list[np.ndarray]:
    return [document_bounds(document_lengths(rng, columns))[1]]


def _documents(rng: np.random.Generator, rows: int, columns: int) -> list[np.ndarray]:
    start, end = document_bounds(document_lengths(rng, columns))
    return [end, start]


def _prefix(rng: np.random.Generator, rows: int, columns: int) -> list[np.ndarray]:
    column = np.arange(columns)
    return [np.full(columns, rows), np.where(column < rng.integers(columns + 1), 0, column)]


def _global_and_window(rng: np.random.Generator, rows: int, columns: int) -> list[np.ndarray]:
    column = np.arange(columns)
    lead, left, right = rng.integers(1, 1 + max(1, columns // 3), 3)
    rest = column >= lead
    far = rest & (column - right > lead)
    return [
        np.where(rest, np.minimum(column + left + 1, rows), rows),
        np.full(columns, rows),
        np.where(far, lead, 0),
        np.where(far, column - right, 0),
    ]


def _dropped_spans(rng: np.random.Generator, rows: int, columns: int) -> list[np.ndarray]:
    column = np.arange(columns)
    begin, end = np.sort(rng.integers(0, columns + 1, 2))
    inside = (column >= begin) & (column < end)
    return [np.where(inside, column, rows), np.where(inside, end, rows)]


def _cut_rows(rng: np.random.Generator, rows: int, columns: int) -> list[np.ndarray]:
    return [np.full(columns, rng.integers(rows + 1))]


def _no_indices(causal: bool) -> MaskMaker:
    return lambda rng, batch, heads, rows, columns: Mask(None, causal)


def _window(causal: bool) -> MaskMaker:
    def make(rng: np.random.Generator, batch: int, heads: int, rows: int, columns: int) -> Mask:
        left, right = (int(width) for width in rng.integers(0, max(1, columns // 2), 2))
        return Mask(None, causal, (left, right))

    return make


MASKS: dict[str, MaskMaker] = {
    "none": _no_indices(causal=False),
    "causal": _no_indices(causal=True),
    "window": _window(causal=False),
    "causal_window": _window(causal=True),
    "causal_1": random_form(causal=True, width=1),
    "causal_2": random_form(causal=True, width=2),
    "two": random_form(causal=False, width=2),
    "four": random_form(causal=False, width=4),
    "causal_documents": _per_mask(_causal_documents, causal=True),
    "documents": _per_mask(_documents, causal=False),
    "prefix": _per_mask(_prefix, causal=False),
    "global_and_window": _per_mask(_global_and_window, causal=False),
    "dropped_spans": _per_mask(_dropped_spans, causal=True),
    "cut_rows": _per_mask(_cut_rows, causal=True),
}


def spans_of_rows(rng: np.random.Generator, rows: int, columns: int, step: int) -> Mask:
    """Return a mask in which 64 keys at a time are seen by a span of rows, or by none."""
    indices = np.empty((1, 1, columns, 4), np.int32)
    for begin in range(0, columns, 64):
        first, last = np.sort(rng.choice(rows // step + 2, 2, replace=False)) * step
        hidden = rng.random() < 0.3
        indices[0, 0, begin : begin + 64] = [0, rows, 0, 0] if hidden else [last, rows, 0, first]
    return Mask(indices, causal=False)


FAMILIES = tuple(MASKS)
STRUCTURED = FAMILIES[8:]
RANDOM_FORMS = FAMILIES[4:8]


def form_cases() -> list[AttentionCase]:
    return [
        AttentionCase(mask, batch=2, seqlen_q=130, num_heads=4, num_heads_k=2, dtype=dtype)
        for mask in FAMILIES
        for dtype in DTYPES
    ]


def length_cases() -> list[AttentionCase]:
    equal = [AttentionCase(mask, seqlen_q=n) for mask in FAMILIES for n in ODD_LENGTHS]
    pairs = [(1, 129), (129, 1), (63, 65), (65, 63), (2, 200), (200, 2), (64, 128), (127, 64)]
    unstructured = (*FAMILIES[:8], "cut_rows")
    unequal = [AttentionCase(m, seqlen_q=q, seqlen_k=k) for m in unstructured for q, k in pairs]
    return equal + unequal


def head_cases() -> list[AttentionCase]:
    layouts = [(1, 1), (2, 2), (4, 2), (6, 2), (8, 1), (6, 3)]
    return [
        AttentionCase(
            mask, batch=2, seqlen_q=70, num_heads=q, num_heads_k=k, num_heads_mask=m, head_dim=8
        )
        for mask in ("causal_1", "four", "causal_documents")
        for q, k in layouts
        for m in sorted({1, q, k})
    ]


def head_dim_cases() -> list[AttentionCase]:
    return [
        AttentionCase(mask, seqlen_q=67, head_dim=head_dim, dtype=dtype)
        for head_dim in HEAD_DIMS
        for mask, dtype in (("causal_1", "float32"), ("two", "bfloat16"), ("four", "float16"))
    ]


def scale_cases() -> list[AttentionCase]:
    return [
        AttentionCase(mask, head_dim=64, dtype=dtype, softmax_scale=scale)
        for scale in (1 / 64, 0.0, -0.25, 0.1, 1.0)
        for mask, dtype in (("causal_documents", "float32"), ("two", "bfloat16"))
    ]
