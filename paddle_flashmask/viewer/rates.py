"""Measured rates, and what they let a mask expect: an estimate of its speed before it is run.

The table comes from the rows of `tools/bench/results/cpu.csv` with mask causal, 8 heads of 64 and
2 threads (forward and backward added up); a test computes it again from them. On other machines
rates differ, and the ratios less so.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "tools/bench/results/cpu.csv, AMD EPYC, 2 threads, 8 heads of 64, mask causal"
TILE = 64  # of the CPU kernels: rows and columns of the tiles that our rate counts
FARTHEST = 2  # times shorter than measured; below, other costs than those of tiles count
# The estimate was compared with every mask of the CSV whose rivals were measured.
ACCURACY = "a third"


class Rates(NamedTuple):
    """GFLOP/s per core, forward and backward together; None where nothing was measured.

    Attributes:
        ours: over the cells of the 64 x 64 tiles that are computed.
        paddle_dense: of Paddle with a dense mask, over all cells.
        torch_sdpa: of torch's scaled_dot_product_attention with a dense mask, over all cells.
    """

    ours: float
    paddle_dense: float | None
    torch_sdpa: float | None


MEASURED = {
    ("float32", 1024): Rates(68.0, 23.4, 69.7),
    ("float32", 4096): Rates(84.4, 19.8, 70.6),
    ("float32", 8192): Rates(75.7, 14.7, 68.5),
    ("bfloat16", 1024): Rates(126.0, None, 87.7),
    ("bfloat16", 4096): Rates(141.0, None, 89.9),
}


class Speedup(NamedTuple):
    """How many times longer others take, estimated; forward and backward together.

    Attributes:
        seqlen: the measured length whose rates were used, the nearest to the mask's.
        causal: ours with a plain causal mask.
        full: ours without a mask.
        paddle_dense: Paddle with a dense mask, or None.
        torch_sdpa: torch's scaled_dot_product_attention with a dense mask, or None.
    """

    seqlen: int
    causal: float
    full: float
    paddle_dense: float | None
    torch_sdpa: float | None


def estimate(
    *, live_tiles: int, causal_tiles: int, all_tiles: int, cells: int, seqlen: int, dtype: str
) -> Speedup | str:
    """Return the estimate for a mask, or why there is none.

    Time is taken as proportional to computed tiles of 64 x 64, and a rival's to all cells.

    Args:
        live_tiles: tiles of 64 x 64 that are computed.
        causal_tiles: those that a plain causal mask would compute.
        all_tiles: all tiles.
        cells: all cells, Sq * Sk times samples and heads, counted as the tiles are.
        seqlen: of the mask, in tokens: the smaller of rows and keys.
        dtype: "float32" or "bfloat16".

    Raises:
        ValueError: nothing was measured in that dtype.
    """
    lengths = [length for name, length in MEASURED if name == dtype]
    if not lengths:
        known = ", ".join(dict.fromkeys(name for name, _ in MEASURED))
        raise ValueError(f"dtype must be one of {known}; got {dtype!r}")
    if live_tiles == 0:
        return "no tile is computed"
    if seqlen < min(lengths) / FARTHEST:
        return f"the shortest length measured is {min(lengths)}"
    nearest = min(lengths, key=lambda length: max(length, seqlen) / max(1, min(length, seqlen)))
    rates = MEASURED[dtype, nearest]
    time = live_tiles * TILE * TILE / rates.ours

    def times(rival: float | None) -> float | None:
        return None if rival is None else cells / rival / time

    return Speedup(
        seqlen=nearest,
        causal=causal_tiles / live_tiles,
        full=all_tiles / live_tiles,
        paddle_dense=times(rates.paddle_dense),
        torch_sdpa=times(rates.torch_sdpa),
    )
