"""What is learnt from a packed batch: SFT, DPO and reward models, for PaddleNLP's Trainer.

Mixins for `compute_loss`; they know nothing of the flag. The batches are those of
`paddle_flashmask.packing`, the losses those of `paddle_flashmask.losses`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import paddle

from paddle_flashmask import losses
from paddle_flashmask.integrations.paddlenlp.seams import find_backbones

__all__ = ["DpoObjective", "RmObjective", "SftObjective", "answer_log_probs"]

# With return_outputs: (loss, (loss, what evaluation collects)).
Loss: TypeAlias = paddle.Tensor | tuple[paddle.Tensor, tuple[paddle.Tensor, ...]]
Outputs: TypeAlias = Any  # a ModelOutput of PaddleNLP
NO_PAIR = -100.0  # with which the trainer itself pads what batches give
MODEL_FIELDS = ("input_ids", "position_ids", "attention_mask")


class SftObjective:
    """Cross-entropy over labels, weighted by `loss_weights` if the batch has them (`pack_sft`)."""

    def compute_loss(
        self, model: paddle.nn.Layer, inputs: dict[str, Any], return_outputs: bool = False
    ) -> Loss:
        """Return the loss, or (loss, (loss, logits))."""
        outputs = _forward(model, inputs)
        loss = losses.sft_loss(outputs.logits, inputs["labels"], inputs.get("loss_weights"))
        loss = _with_router_loss(loss, model, outputs)
        return (loss, (loss, outputs.logits)) if return_outputs else loss


class DpoObjective:
    """Direct preference optimisation (`pack_dpo`); the reference is one of three.

    Arguments beside those of the trainer: `beta`, `label_smoothing`, and for a batch without
    `reference_log_probs` (`PackedPreference.with_reference`) either `reference_model`, frozen and
    run in each step, or `reference_free=True`.
    """

    def __init__(
        self,
        *args: object,
        beta: float = 0.1,
        label_smoothing: float = 0.0,
        reference_model: paddle.nn.Layer | None = None,
        reference_free: bool = False,
        **kwargs: object,
    ) -> None:
        """Make the trainer.

        Raises:
            ValueError: reference_model with reference_free, or it is the trained model itself.
        """
        if reference_free and reference_model is not None:
            raise ValueError("reference_model must be None with reference_free=True; got both")
        parent: Any = super()
        parent.__init__(*args, **kwargs)
        self.beta, self.label_smoothing = beta, label_smoothing
        self.reference_free = reference_free
        own: Any = getattr(self, "model", None)
        if reference_model is not None and reference_model is own:
            raise ValueError(
                "reference_model must be another model than the trained one, or the loss stays "
                "ln 2; got the same object"
            )
        self.frozen_models = [] if reference_model is None else [reference_model]

    def compute_loss(
        self, model: paddle.nn.Layer, inputs: dict[str, Any], return_outputs: bool = False
    ) -> Loss:
        """Return the loss, or (loss, (loss, margins [B, most pairs in a row]))."""
        outputs = _forward(model, inputs)
        log_probs = answer_log_probs(outputs.logits, inputs)
        loss, margins = losses.dpo_loss(
            log_probs,
            inputs["pairs"],
            self._reference_log_probs(inputs),
            beta=self.beta,
            label_smoothing=self.label_smoothing,
        )
        loss = _with_router_loss(loss, model, outputs)
        return (loss, (loss, _by_row(margins, inputs))) if return_outputs else loss

    def _reference_log_probs(self, inputs: dict[str, Any]) -> paddle.Tensor | None:
        given: paddle.Tensor | None = inputs.get("reference_log_probs")
        if self.reference_free:
            if given is not None:
                raise ValueError("a batch must not have reference_log_probs with reference_free")
            return None
        if given is not None and self.frozen_models:
            raise ValueError(
                "a batch must not have reference_log_probs if a reference_model is given"
            )
        if given is None and not self.frozen_models:
            raise ValueError(
                "DPO needs a reference: reference_log_probs in the batch (with_reference), a "
                "reference_model, or reference_free=True; got none"
            )
        if given is not None:
            return given
        model = self.frozen_models[0]
        model.eval()
        with paddle.no_grad():
            return answer_log_probs(_forward(model, inputs).logits, inputs)


class RmObjective:
    """Ranking of scored answers (`pack_rm`), the model a `RewardModel`."""

    def compute_loss(
        self, model: paddle.nn.Layer, inputs: dict[str, Any], return_outputs: bool = False
    ) -> Loss:
        """Return the loss, or (loss, (loss, margins [B, most pairs in a row]))."""
        values = model(**_fields(inputs))
        scores = losses.answer_scores(values, inputs["answer_rows"], inputs["score_positions"])
        if inputs["pairs"].shape[0] == 0:  # `pack_rm` takes groups that give none
            loss, margins = 0.0 * scores.sum(), paddle.zeros([0])
        else:
            loss, margins = losses.rm_pairwise_loss(scores, inputs["pairs"], inputs["pair_groups"])
        return (loss, (loss, _by_row(margins, inputs))) if return_outputs else loss


def answer_log_probs(logits: paddle.Tensor, inputs: dict[str, Any]) -> paddle.Tensor:
    """Return the log-probability of each answer of a packed batch, [N], float64.

    In float64: a long answer's sum has more digits than float32 holds.

    Args:
        logits: [B, S, V], floating.
        inputs: the batch, with its `target_*` tables.
    """
    return losses.answer_log_probs(
        logits,
        inputs["target_rows"],
        inputs["target_positions"],
        inputs["target_ids"],
        inputs["target_answers"],
        inputs["target_weights"].astype("float64"),
        num_answers=inputs["answer_rows"].shape[0],
    )


def _by_row(margins: paddle.Tensor, inputs: dict[str, Any]) -> paddle.Tensor:
    """Return margins as [B, most pairs in a row], NO_PAIR where a row has fewer.

    The trainer joins what batches give along rows and cuts it to the number of rows.
    """
    pairs = inputs["pairs"].numpy()
    rows = inputs["answer_rows"].numpy()[pairs[:, 0]]  # rising
    counts = np.bincount(rows, minlength=inputs["input_ids"].shape[0])
    place = np.arange(rows.size) - (np.cumsum(counts) - counts)[rows]
    table = np.full((counts.size, max(1, counts.max())), NO_PAIR, np.float32)
    table[rows, place] = margins.numpy()
    return paddle.to_tensor(table, place=margins.place)


def _fields(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: inputs[name] for name in MODEL_FIELDS if name in inputs}


def _forward(model: paddle.nn.Layer, inputs: dict[str, Any]) -> Outputs:
    # By name: a tuple of outputs starts with another thing if the router's logits are wanted.
    return model(**_fields(inputs), return_dict=True)


def _with_router_loss(
    loss: paddle.Tensor, model: paddle.nn.Layer, outputs: Outputs
) -> paddle.Tensor:
    """Add the router's balancing loss, which PaddleNLP adds if config.output_router_logits."""
    router_loss = getattr(outputs, "aux_loss", None)
    if router_loss is None:
        return loss
    config = find_backbones(model)[0].layer.config  # an adapter around the model may hide its own
    coefficient = float(config.router_aux_loss_coef)
    total: paddle.Tensor = loss + coefficient * router_loss
    return total
