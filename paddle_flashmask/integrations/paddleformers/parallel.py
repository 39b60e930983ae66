"""Models split over processes: each rank's mask heads, and the splits that would lose the mask."""

from __future__ import annotations

import paddle

from paddle_flashmask.integrations.paddleformers.foreign import FIELD, Foreign

__all__ = ["own_mask_heads", "refuse_split_sequences"]

# Settings with which a rank holds a part of the rows or columns, or hands its input on without the
# indices, by their names in configurations and training arguments.
SPLITS = {
    "context_parallel_size": "the sequence is split over ranks and the indices are not",
    "sep_parallel_size": "the sequence is split over ranks and the indices are not",
    "pipeline_model_parallel_size": "stages hand int64 indices on as a dense mask",
}
TENSOR_PARALLEL = "tensor_model_parallel_size"


def refuse_split_sequences(settings: object) -> None:
    """Raise if a configuration or training arguments split sequences or layers over ranks.

    Raises:
        NotImplementedError: such a setting is above 1.
    """
    for name, reason in SPLITS.items():
        size = getattr(settings, name, None)
        if isinstance(size, int) and size > 1:
            raise NotImplementedError(
                f"{name} is not supported with paddle_flashmask, only 1 ({reason}: the mask would "
                f"be lost); got {size}"
            )


def own_mask_heads(
    startend_row_indices: paddle.Tensor, config: Foreign, *, num_heads: int, num_heads_k: int
) -> paddle.Tensor:
    """Return the mask heads that belong to the query heads of this rank.

    Args:
        startend_row_indices: [B, Hm, Sk, C]; Hm is 1 or counts key or query heads of the whole
            model, whatever part of them this rank has.
        config: of the layer.
        num_heads: query heads of this rank.
        num_heads_k: key heads of this rank.

    Raises:
        ValueError: Hm is another number.
        NotImplementedError: there are several processes and mask heads, and no configuration that
            says how the heads are split.
    """
    heads = startend_row_indices.shape[1]
    if config is None and heads > 1 and paddle.distributed.get_world_size() > 1:
        raise NotImplementedError(
            f"{FIELD} with several mask heads is not supported in several processes for a layer "
            f"without a config, only 1; got {heads} in shape {list(startend_row_indices.shape)}"
        )
    ranks = _ranks(config, num_heads)
    if ranks == 1 or heads == 1:
        return startend_row_indices
    if heads not in (num_heads_k * ranks, num_heads * ranks):
        raise ValueError(
            f"{FIELD} must have 1, {num_heads_k * ranks} (key heads) or {num_heads * ranks} (query "
            f"heads) mask heads, those of the whole model: each of {ranks} tensor parallel ranks "
            f"takes its own; got {heads} in shape {list(startend_row_indices.shape)}"
        )
    rank = _tensor_parallel_rank()
    size = heads // ranks
    return startend_row_indices[:, rank * size : (rank + 1) * size]


def _ranks(config: Foreign, num_heads: int) -> int:
    """Return over how many ranks the heads of a layer are split; a layer may stay whole."""
    ranks = getattr(config, TENSOR_PARALLEL, None)
    if isinstance(ranks, int) and ranks > 1:
        return ranks if config.num_attention_heads == num_heads * ranks else 1
    return 1


def _tensor_parallel_rank() -> int:
    group = paddle.distributed.fleet.get_hybrid_communicate_group()
    return int(group.get_model_parallel_rank())
