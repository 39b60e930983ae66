"""Switching on: the attention function, the checks, the corrected DPO indices."""

from __future__ import annotations

from paddle_flashmask.integrations.paddleformers import dpo, guard, kept_choice
from paddle_flashmask.integrations.paddleformers.foreign import Foreign, seams
from paddle_flashmask.integrations.paddleformers.forward import attention_forward
from paddle_flashmask.integrations.paddleformers.layers import NAME

__all__ = ["register", "unregister"]


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
    foreign = seams()
    dpo.choose(foreign.preference_data, dpo_indices)
    _Choice.strict, _Choice.must_use = strict, must_use
    foreign.interface.register(NAME, attention_forward)
    foreign.model.__call__ = guard.call_checked
    foreign.model.generate = guard.generate_checked
    if not any(kind.__name__ == _CALLBACK_NAME for kind in foreign.trainer.DEFAULT_CALLBACKS):
        foreign.trainer.DEFAULT_CALLBACKS.append(_callback_type())


def unregister() -> None:
    """Take back all that `register` did."""
    foreign = seams()
    dpo.choose(foreign.preference_data, dpo.BUILT_IN)
    kept_choice.give_back()
    foreign.interface._global_mapping.pop(NAME, None)
    if vars(foreign.model).get("__call__") is guard.call_checked:
        del foreign.model.__call__
    if vars(foreign.model).get("generate") is guard.generate_checked:
        del foreign.model.generate
    foreign.trainer.DEFAULT_CALLBACKS[:] = [
        kind for kind in foreign.trainer.DEFAULT_CALLBACKS if kind.__name__ != _CALLBACK_NAME
    ]


_CALLBACK_NAME = "FlashMaskCallback"


def _callback_type() -> type:
    from paddleformers.trainer.trainer_callback import TrainerCallback
    from paddleformers.utils.log import logger

    class FlashMaskCallback(TrainerCallback):  # type: ignore[misc]
        """Check a trainer's model and settings when it starts, and log what attention it uses."""

        def on_init_end(
            self,
            args: Foreign,
            state: object,
            control: object,
            model: Foreign = None,
            **others: object,
        ) -> None:
            must_use, _Choice.must_use = _Choice.must_use, False
            text = guard.check_trainer(model, args, must_use=must_use, strict=_Choice.strict)
            if text:
                logger.info(f"attention of the model, layer by layer:\n{text}")

    return FlashMaskCallback
