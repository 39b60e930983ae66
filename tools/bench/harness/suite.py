"""What is measured if no shape is given: the cells of README's table and drawings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from providers import ON_DEVICE

from harness.cells import Cell
from harness.masks import PRESETS

THREADS = 2
SEQLENS = (1024, 4096, 8192)
DTYPES = ("float32", "bfloat16")
MIDDLE = 4096
README_MASKS = ("causal", "causal_document:n=8", "document:n=8")
MEMORY_MASK = "causal_document:n=8"  # of the drawing of memory against length
MANY_DOCUMENTS = "causal_document:n=16"  # at the longest length, where a dense mask costs most
DOCUMENT_COUNTS = (1, 2, 4, 8, 16, 32)
WINDOWS = (512, 2048)
GPU_TOKENS = 128 * 1024  # of a call, as in the paper
GPU_LENGTH, GPU_SHORT, GPU_LONG = 32768, 8192, 131072
GPU_WIDTH = 4096  # heads by head_dim
GPU_HEADS_K = 4  # of grouped queries
# The matrix of what users train: heads of each head_dim, and how many share a key head.
MATRIX_HEADS = {64: 64, 96: 32, 128: 32, 192: 16, 256: 16}
MATRIX_GROUPS = (1, 8)
MATRIX_DTYPES = ("bfloat16", "float16")
MATRIX_MASKS = ("causal", "causal_document")
MATRIX_PROVIDERS = ("ours", "torch_flex")  # what else there is knows no documents
# Heads, key heads and head_dim of small calls.
SMALL_HEADS = ((32, 8, 128), (8, 2, 128), (16, 1, 256))
SMALL_LENGTHS = (2048, 8192)
# The most telling first: a run may be ended by its budget.
GPU_MASKS = ("causal", "causal_document", "document", "share_question", "full")
GPU_MASKS += tuple(name for name in PRESETS if name not in GPU_MASKS)
LONG = (16384, 32768)  # ours alone: a dense mask of all heads would take 8 GiB and more


def cpu_cells() -> list[Cell]:
    """Return the cells of the CPU, 10 to 15 minutes on 2 idle cores."""
    everyone = ON_DEVICE["cpu"]
    # FlexAttention compiles for each mask, which takes longer than a cell.
    quick = tuple(name for name in everyone if name != "torch_flex")
    with_memory = (*everyone, "paddle_dense_shared")
    cells = [
        _cpu(mask, seqlen, with_memory if mask == MEMORY_MASK else everyone, dtype=dtype)
        for dtype, seqlen, mask in product(DTYPES, SEQLENS, README_MASKS)
    ]
    cells.append(_cpu(MEMORY_MASK, MIDDLE, everyone, head_dim=128))
    cells.append(_cpu(MEMORY_MASK, MIDDLE, quick, threads=1))
    known = {cell.mask for cell in cells}
    series = [f"document:n={count}" for count in DOCUMENT_COUNTS]
    series += [f"sliding_window:w={width}" for width in WINDOWS]
    cells += [_cpu(mask, MIDDLE, quick) for mask in series if mask not in known]
    cells.append(_cpu(MANY_DOCUMENTS, SEQLENS[-1], quick))
    cells += [_cpu(MEMORY_MASK, seqlen, ("ours",)) for seqlen in LONG]
    return cells


def gpu_batch(seqlen: int) -> int:
    """Return how many rows of that length a call of a GPU takes."""
    return max(1, GPU_TOKENS // seqlen)


def gpu_cells(groups: Sequence[str] = ()) -> list[Cell]:
    """Return the cells of groups of a GPU; of none: those of `GPU_DEFAULT`."""
    return [cell for group in groups or GPU_DEFAULT for cell in GPU_GROUPS[group]]


def _gpu(
    mask: str,
    seqlen: int = GPU_LENGTH,
    *,
    head_dim: int = 128,
    num_heads: int | None = None,
    num_heads_k: int | None = None,
    batch: int | None = None,
    dtype: str = "bfloat16",
    providers: tuple[str, ...] = ON_DEVICE["gpu"],
) -> Cell:
    num_heads = num_heads or GPU_WIDTH // head_dim
    return Cell(
        mask=mask,
        seqlen=seqlen,
        batch=batch or gpu_batch(seqlen),
        num_heads=num_heads,
        num_heads_k=num_heads_k or num_heads,
        head_dim=head_dim,
        dtype=dtype,
        device="gpu",
        threads=0,
        providers=providers,
    )


def _small() -> list[Cell]:
    """Return calls of one row and few key heads, whose blocks hardly fill a GPU."""
    return [
        _gpu(
            mask,
            seqlen,
            head_dim=head_dim,
            num_heads=num_heads,
            num_heads_k=num_heads_k,
            batch=1,
            providers=MATRIX_PROVIDERS,
        )
        for (num_heads, num_heads_k, head_dim), seqlen, mask in product(
            SMALL_HEADS, SMALL_LENGTHS, MATRIX_MASKS
        )
    ]


def _matrix() -> list[Cell]:
    """Return every head_dim, dtype and grouping, the rarely measured first.

    Cells of other groups are left out: a table's rows are of one run.
    """
    dims = sorted(MATRIX_HEADS, key=lambda head_dim: head_dim in (64, 128, 256))
    known = {_shape_of(cell) for cells in GPU_GROUPS.values() for cell in cells}
    cells = [
        _gpu(
            mask,
            head_dim=head_dim,
            num_heads=MATRIX_HEADS[head_dim],
            num_heads_k=MATRIX_HEADS[head_dim] // group,
            dtype=dtype,
            providers=MATRIX_PROVIDERS,
        )
        for dtype, head_dim, group, mask in product(
            MATRIX_DTYPES, dims, MATRIX_GROUPS, MATRIX_MASKS
        )
    ]
    return [cell for cell in cells if _shape_of(cell) not in known]


def _shape_of(cell: Cell) -> tuple[object, ...]:
    return (cell.mask, cell.seqlen, cell.num_heads, cell.num_heads_k, cell.head_dim, cell.dtype)


GPU_GROUPS: dict[str, list[Cell]] = {
    "32k": [_gpu(mask) for mask in GPU_MASKS],
    "gqa": [_gpu(mask, num_heads_k=GPU_HEADS_K) for mask in GPU_MASKS[:2]],
    "hdim64": [_gpu(mask, head_dim=64) for mask in GPU_MASKS[:4]],
    "hdim256": [_gpu(mask, head_dim=256) for mask in GPU_MASKS[:4]],
    "8k": [_gpu(mask, GPU_SHORT) for mask in GPU_MASKS],
    "128k": [_gpu(mask, GPU_LONG) for mask in GPU_MASKS[:5]],
    "float16": [_gpu("causal_document", dtype="float16")],
    "sm80": [_gpu(mask, providers=("ours_sm80", "torch_flash")) for mask in GPU_MASKS],
}
GPU_GROUPS["matrix"] = _matrix()
GPU_GROUPS["small"] = _small()
GPU_DEFAULT = tuple(name for name in GPU_GROUPS if name not in ("sm80", "matrix", "small"))


def _cpu(
    mask: str,
    seqlen: int,
    providers: tuple[str, ...],
    *,
    dtype: str = "float32",
    head_dim: int = 64,
    threads: int = THREADS,
) -> Cell:
    return Cell(
        mask=mask,
        seqlen=seqlen,
        batch=1,
        num_heads=8,
        num_heads_k=8,
        head_dim=head_dim,
        dtype=dtype,
        device="cpu",
        threads=threads,
        providers=providers,
    )
