"""Trainers of PaddleNLP with the flag: a mixin for any of them, and three that know their loss."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from paddle_flashmask.integrations._report import NotOursError
from paddle_flashmask.integrations.paddlenlp.arguments import flag_of
from paddle_flashmask.integrations.paddlenlp.enabling import (
    check_still_carried,
    disable,
    enable,
    report,
)
from paddle_flashmask.integrations.paddlenlp.framework import import_module
from paddle_flashmask.integrations.paddlenlp.inputs import model_inputs
from paddle_flashmask.integrations.paddlenlp.objectives import (
    DpoObjective,
    Loss,
    RmObjective,
    SftObjective,
)
from paddle_flashmask.integrations.paddlenlp.patches import CALLS

if TYPE_CHECKING:
    import paddle

__all__ = ["FlashMaskMixin", "trainer_class"]

REFUSED_FLAGS = ("sequence_parallel", "to_static")
PARALLEL_DEGREES = ("pipeline_parallel_degree", "sep_parallel_degree", "context_parallel_degree")


class FlashMaskMixin:
    """The flag for a `paddlenlp.trainer.Trainer`: `class MyTrainer(FlashMaskMixin, Trainer)`.

    Takes the arguments of the trainer and `flash_mask_args`, a `FlashMaskArguments` (or None if
    the training arguments have the field `flash_mask` themselves). With the flag the model is
    switched at once and a batch without indices is an error; a step in which our attention did
    not run once per layer is one too. Without it batches with indices get the dense mask.
    """

    def __init__(self, *args: object, flash_mask_args: object = None, **kwargs: object) -> None:
        """Make the trainer and switch its model.

        Raises:
            TypeError: there is no flag, see `flag_of`.
            NotImplementedError: the model or the training arguments rule our attention out.
            NotOursError: a layer would not run our operator.
        """
        parent: Any = super()
        own: Any = self
        parent.__init__(*args, **kwargs)
        self.flash_mask = flag_of(flash_mask_args, own.args)
        # A frozen reference is given the same batches, so it must read masks the same way.
        models = (own.model, *getattr(self, "frozen_models", ()))
        logger = import_module("paddlenlp.utils.log").logger
        if not self.flash_mask:
            for model in models:
                disable(model)
            logger.info("flash_mask is off: attention is PaddleNLP's own, masks are dense")
            return
        _check_arguments(own.args)
        for model in models:
            enable(model, dtype=_amp_dtype(own.args))
        self._attention_layers = sum(len(report(model).layers) for model in models)
        logger.info(f"flash_mask is on:\n{report(own.model)}")

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        parent: Any = super()
        own: Any = self
        if self.flash_mask:
            check_still_carried(own.model)
        return model_inputs(parent._prepare_inputs(inputs), flash_mask=self.flash_mask)

    def compute_loss(
        self, model: paddle.nn.Layer, inputs: dict[str, Any], return_outputs: bool = False
    ) -> Loss:
        """Return the loss of the trainer, having seen that our attention computed it.

        Raises:
            NotOursError: with the flag, and it ran in fewer layers than there are.
        """
        parent: Any = super()
        before = CALLS.count
        loss: Loss = parent.compute_loss(model, inputs, return_outputs)
        ran = CALLS.count - before
        if self.flash_mask and ran < self._attention_layers:
            raise NotOursError(
                f"flash_mask=True, but flashmask_attention ran {ran} times in a forward of "
                f"{self._attention_layers} attention layers"
            )
        return loss


def _amp_dtype(args: object) -> str | None:
    """Return what auto_cast turns the calls into: weights may be float32 beside it."""
    if getattr(args, "fp16", False):
        return "float16"
    return "bfloat16" if getattr(args, "bf16", False) else None


def _check_arguments(args: object) -> None:
    refused = [name for name in PARALLEL_DEGREES if (getattr(args, name, 1) or 1) > 1]
    refused += [flag for flag in REFUSED_FLAGS if getattr(args, flag, False)]
    if refused:
        raise NotImplementedError(f"flash_mask does not support {', '.join(refused)}")


_OBJECTIVES: dict[str, tuple[type, ...]] = {
    "FlashMaskTrainer": (FlashMaskMixin,),
    "SftTrainer": (FlashMaskMixin, SftObjective),
    "DpoTrainer": (FlashMaskMixin, DpoObjective),
    "RmTrainer": (FlashMaskMixin, RmObjective),
}


@functools.cache
def trainer_class(name: str) -> type:
    """Return one of the trainers by name; PaddleNLP is imported here.

    Raises:
        ImportError: PaddleNLP is missing.
    """
    trainer = import_module("paddlenlp.trainer").Trainer
    bases = (*_OBJECTIVES[name], trainer)
    described = {"__doc__": f"{name}: {_OBJECTIVES[name][-1].__doc__}", "__module__": __name__}
    return type(name, bases, described)
