"""What a mask costs, in lines of words: cells, tiles, operations, memory, estimated speed."""

from __future__ import annotations

from typing import NamedTuple

from paddle_flashmask.indices import (
    ColumnMask,
    Cost,
    cost,
    inspect,
    tile_statistics,
    visible_per_row,
)
from paddle_flashmask.viewer import rates

GIGA = 1e9
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
UNIT = 1024


class Shape(NamedTuple):
    """What the estimate is for, beside the mask.

    Attributes:
        num_heads: query heads, Hq, a multiple of the mask heads.
        head_dim: width of a head.
        dtype: "float32" or "bfloat16".
        tile: rows and columns of a tile.
    """

    num_heads: int
    head_dim: int
    dtype: str
    tile: int


def summarize(mask: ColumnMask, *, seqlen_q: int, shape: Shape) -> list[str]:
    """Return lines about all samples and heads of a mask.

    Args:
        mask: int32 indices [B, Hm, Sk, C].
        seqlen_q: query rows, Sq.
        shape: heads, head dim, dtype and tile of the estimate.

    Raises:
        TypeError, ValueError: see `indices.cost`.
    """
    rows, causal = mask
    batch, _, seqlen_k, _ = rows.shape
    tiles = tile_statistics(
        rows, causal=causal, seqlen_q=seqlen_q, tile_rows=shape.tile, tile_columns=shape.tile
    )
    price = cost(
        rows,
        causal=causal,
        seqlen_q=seqlen_q,
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        tile_rows=shape.tile,
        tile_columns=shape.tile,
    )
    total = int(tiles.total.sum())
    return [
        f"startend_row_indices int32 {list(rows.shape)}, causal={causal}, {seqlen_q} rows",
        density(mask, seqlen_q),
        f"tiles of {shape.tile} x {shape.tile}: {int(tiles.skip.sum())} skip, "
        f"{int(tiles.partial.sum())} partial, {int(tiles.full.sum())} full, of {total}",
        *_work(price, batch * shape.num_heads, seqlen_q, seqlen_k, shape),
        *_memory(price),
        *_speed(mask, seqlen_q, shape),
        *(
            f"{one.severity}: {one.sentence}"
            for one in inspect(rows, causal=causal, seqlen_q=seqlen_q).findings
            if one.severity != "note"
        ),
    ]


def density(mask: ColumnMask, seqlen_q: int) -> str:
    """Return the line about the visible cells of all samples and heads of a mask."""
    rows, causal = mask
    batch, heads, seqlen_k, _ = rows.shape
    cells = batch * heads * seqlen_q * seqlen_k
    visible = int(visible_per_row(rows, causal=causal, seqlen_q=seqlen_q).sum())
    share = f"{visible / cells:.4g}" if cells else "undefined"
    return f"density {share}: {visible} of {cells} cells visible"


def causal_cells(seqlen_q: int, seqlen_k: int) -> int:
    """Return the visible cells of a plain causal mask, its diagonal ending bottom right."""
    first = seqlen_k - seqlen_q  # row i sees first + i + 1 columns, if that is positive
    seeing = min(seqlen_q, seqlen_k)
    least = max(first + 1, 1) if seeing else 0
    return seeing * (least + seqlen_k) // 2


def _work(price: Cost, pairs: int, seqlen_q: int, seqlen_k: int, shape: Shape) -> list[str]:
    line = (
        f"FLOPs of {shape.num_heads} heads of {shape.head_dim}: forward "
        f"{price.forward_flops / GIGA:.4g} G, backward {price.backward_flops / GIGA:.4g} G"
    )
    saved = (
        _saved(price.visible_cells, pairs * causal_cells(seqlen_q, seqlen_k)),
        _saved(price.visible_cells, pairs * seqlen_q * seqlen_k),
    )
    computed = (price.saving_to_causal, price.saving_to_dense)
    return [
        line,
        f"  saved against causal: {saved[0]:.1%} of the FLOPs, {computed[0]:.1%} of its tiles",
        f"  saved against dense: {saved[1]:.1%} of the FLOPs, {computed[1]:.1%} of all tiles",
    ]


def _memory(price: Cost) -> list[str]:
    bools, floats = price.dense_bool_bytes, price.dense_float32_bytes
    return [
        f"memory of the mask: {_size(price.indices_bytes)}; dense {_size(bools)} as bool, "
        f"{_size(floats)} as float32, a causal one the same; of dense float32 scores "
        f"{_size(price.scores_bytes)}",
        f"  saved against the dense mask: {_saved(price.indices_bytes, bools):.2%} of bool, "
        f"{_saved(price.indices_bytes, floats):.2%} of float32",
    ]


def _speed(mask: ColumnMask, seqlen_q: int, shape: Shape) -> list[str]:
    batch, _, seqlen_k, _ = mask.startend_row_indices.shape
    price = cost(
        mask.startend_row_indices,
        causal=mask.causal,
        seqlen_q=seqlen_q,
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        tile_rows=rates.TILE,
        tile_columns=rates.TILE,
    )
    found = rates.estimate(
        live_tiles=price.live_tiles,
        causal_tiles=price.causal_tiles,
        all_tiles=price.all_tiles,
        cells=batch * shape.num_heads * seqlen_q * seqlen_k,
        seqlen=min(seqlen_q, seqlen_k),
        dtype=shape.dtype,
    )
    if isinstance(found, str):
        return [f"estimated speedup: none, {found}"]
    rivals = (
        ("Paddle with a dense mask", found.paddle_dense),
        ("torch SDPA with a dense mask", found.torch_sdpa),
    )
    told = [f"{found.causal:.3g}x over our causal mask", f"{found.full:.3g}x over no mask"]
    told += [f"{ratio:.3g}x over {name}" for name, ratio in rivals if ratio is not None]
    return [
        f"estimated speedup in CPU time, {shape.dtype}, forward and backward: {', '.join(told)}",
        f"  from rates measured at S={found.seqlen} ({rates.SOURCE}); within {rates.ACCURACY} "
        "of what was measured for other masks there",
    ]


def _saved(ours: int, theirs: int) -> float:
    return 1 - ours / theirs if theirs else 0.0


def _size(count: float) -> str:
    size = float(count)
    for unit in UNITS[:-1]:
        if size < UNIT:
            return f"{size:.4g} {unit}"
        size /= UNIT
    return f"{size:.4g} {UNITS[-1]}"
