"""What is measured if no shape is given: the cells of README's table and drawings."""

from __future__ import annotations

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
GPU_SEQLENS = (8192, 32768)
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


def gpu_cells() -> list[Cell]:
    """Return the cells of a GPU: the paper's masks at each length."""
    return [
        Cell(
            mask=mask,
            seqlen=seqlen,
            batch=gpu_batch(seqlen),
            num_heads=32,
            num_heads_k=32,
            head_dim=128,
            dtype="bfloat16",
            device="gpu",
            threads=0,
            providers=ON_DEVICE["gpu"],
        )
        for seqlen in GPU_SEQLENS
        for mask in PRESETS
    ]


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
