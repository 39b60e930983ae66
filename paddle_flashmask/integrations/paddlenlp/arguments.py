"""The trainer flag, as PaddleNLP's own argument parser reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FlashMaskArguments", "flag_of"]


@dataclass
class FlashMaskArguments:
    """Give this to `PdArgumentParser` beside `TrainingArguments`: `--flash_mask true`.

    Attributes:
        flash_mask: attend with flashmask_attention, in every attention layer or not at all. False
            trains on the same batches with PaddleNLP's own attention and dense masks.
    """

    flash_mask: bool = field(
        default=False,
        metadata={"help": "Attend with paddle_flashmask: masks as row intervals, no dense mask."},
    )


def flag_of(flash_mask_args: object, training_args: object) -> bool:
    """Return the flag, from arguments of its own or from a field of the training arguments.

    Args:
        flash_mask_args: anything with a bool `flash_mask`, or None.
        training_args: what is asked if flash_mask_args is None.

    Raises:
        TypeError: neither has the field, or it is no bool.
    """
    source = training_args if flash_mask_args is None else flash_mask_args
    if not hasattr(source, "flash_mask"):
        raise TypeError(
            "flash_mask_args must be a FlashMaskArguments, unless args has a field flash_mask; "
            f"got {type(source).__name__} without one"
        )
    flag = source.flash_mask
    if not isinstance(flag, bool):
        raise TypeError(f"flash_mask must be a bool; got {type(flag).__name__} {flag!r}")
    return flag
