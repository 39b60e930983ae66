"""Switching on: the attention function, the checks, the corrected DPO indices."""

from __future__ import annotations

from typing import Any

from paddle_flashmask.integrations.paddleformers import dpo, guard
from paddle_flashmask.integrations.paddleformers.forward import attention_forward
from paddle_flashmask.integrations.paddleformers.layers import NAME

__all__ = ["register", "unregister"]

INSTALL_HINT = "pip install paddle_flashmask[paddleformers]"


class _Choice:
    """What was asked for when it was registered; read when a trainer starts."""

    strict = False
    must_use = False


def register(
    *, dpo_indices: str = "corrected", strict: bool = False, must_use: bool = False
) -> None:
    """Make `_attn_implementation: paddle_flashmask` known to PaddleFormers; again changes choices.

    From then on models whose configuration names it are checked at every call, and trainers when
    they start; others are left alone.

    Args:
        dpo_indices: "corrected": DPO data sets give indices in which the rejected answer sees the
            last prompt token once, whichever attention reads them; "built-in": as they are.
        strict: whether a trainer refuses a model that has a layer with another attention.
        must_use: whether the next trainer refuses a model that does not use ours at all.

    Raises:
        ImportError: PaddleFormers is not installed, or does not import.
        TypeError: strict or must_use is not a bool.
        ValueError: dpo_indices is neither.
    """
    for name, value in (("strict", strict), ("must_use", must_use)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be a bool; got {type(value).__name__} {value!r}")
    interface, trainer, pretrained = _seams()
    dpo.choose(dpo_indices)
    _Choice.strict, _Choice.must_use = strict, must_use
    interface.register(NAME, attention_forward)
    pretrained.__call__ = guard.call_checked
    if not any(kind.__name__ == _CALLBACK_NAME for kind in trainer.DEFAULT_CALLBACKS):
        trainer.DEFAULT_CALLBACKS.append(_callback_type())


def unregister() -> None:
    """Take back all that `register` did."""
    interface, trainer, pretrained = _seams()
    dpo.choose(dpo.BUILT_IN)
    interface._global_mapping.pop(NAME, None)
    if vars(pretrained).get("__call__") is guard.call_checked:
        del pretrained.__call__
    trainer.DEFAULT_CALLBACKS[:] = [
        kind for kind in trainer.DEFAULT_CALLBACKS if kind.__name__ != _CALLBACK_NAME
    ]


def _seams() -> tuple[Any, Any, Any]:
    """Return AttentionInterface, the trainer module and PretrainedModel."""
    try:
        from paddleformers.nn.attention.interface import AttentionInterface
        from paddleformers.trainer import trainer
        from paddleformers.transformers.model_utils import PretrainedModel
    except ImportError as error:
        raise ImportError(
            f"paddle_flashmask.integrations.paddleformers needs PaddleFormers, which does not "
            f"import ({error}); install it with its pins: {INSTALL_HINT}"
        ) from error
    return AttentionInterface, trainer, PretrainedModel


_CALLBACK_NAME = "FlashMaskCallback"


def _callback_type() -> type:
    from paddleformers.trainer.trainer_callback import TrainerCallback
    from paddleformers.utils.log import logger

    class FlashMaskCallback(TrainerCallback):  # type: ignore[misc]
        """Check a trainer's model and settings when it starts, and log what attention it uses."""

        def on_init_end(
            self, args: Any, state: object, control: object, model: Any = None, **others: object
        ) -> None:
            must_use, _Choice.must_use = _Choice.must_use, False
            text = guard.check_trainer(model, args, must_use=must_use, strict=_Choice.strict)
            if text:
                logger.info(f"attention of the model, layer by layer:\n{text}")

    return FlashMaskCallback
