"""Which attention each layer of a model runs, and why not ours: what every integration answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paddle

__all__ = ["AttentionReport", "LayerReport", "NotOursError", "own_layer"]

OURS = "ours"


class NotOursError(RuntimeError):
    """A layer was to run our operator and does not; the message names it and says why."""


@dataclass(frozen=True)
class LayerReport:
    """The attention of one layer.

    Attributes:
        name: path of the layer in the model, as `named_sublayers` has it.
        backend: "ours, CPU", "ours, CUDA sm80" and the like; "built-in" or "built-in (eager)"; or
            "none" if ours is chosen but refuses the layer.
        reason: why it is not ours; empty if it is.
    """

    name: str
    backend: str
    reason: str = ""

    @property
    def is_ours(self) -> bool:
        """Return whether our operator serves it."""
        return self.backend.startswith(OURS)


@dataclass(frozen=True)
class AttentionReport:
    """The attention of all layers of a model, in the model's order."""

    layers: tuple[LayerReport, ...]

    @classmethod
    def of(cls, layers: Iterable[LayerReport], *, strict: bool = False) -> AttentionReport:
        """Return the report; with strict raise unless every layer is ours.

        Raises:
            NotOursError: strict, and a layer is not ours or there is none.
        """
        report = cls(tuple(layers))
        if strict:
            report.require_ours()
        return report

    @property
    def is_ours(self) -> bool:
        """Return whether there are layers and our operator serves all of them."""
        return bool(self.layers) and all(layer.is_ours for layer in self.layers)

    def require_ours(self) -> None:
        """Raise unless our operator serves every layer.

        Raises:
            NotOursError: a layer is not ours, or the model has no layer with attention.
        """
        if not self.layers:
            raise NotOursError("the model has no layer with attention that paddle_flashmask knows")
        others = [layer for layer in self.layers if not layer.is_ours]
        if others:
            lines = "\n".join(_line(layer) for layer in others)
            raise NotOursError(
                f"{len(others)} of {len(self.layers)} layers do not run paddle_flashmask:\n{lines}"
            )

    def __str__(self) -> str:
        """Return one line per layer: its name, its backend, and why not ours."""
        return "\n".join(_line(layer) for layer in self.layers)


def own_layer(
    name: str, weight: paddle.Tensor, head_dim: int, dtype: str | None = None
) -> LayerReport:
    """Return the report of a layer that has chosen ours: its backend, or "none" and the reason.

    Args:
        name: path of the layer in the model.
        weight: one of its weights: place and dtype count.
        head_dim: width of a head.
        dtype: of the call, if auto_cast makes it another than that of the weight.
    """
    from paddle_flashmask.backends import backend_of

    try:
        return LayerReport(name, f"{OURS}, {backend_of(weight, head_dim, dtype)}")
    except NotImplementedError as error:
        return LayerReport(name, "none", str(error))


def _line(layer: LayerReport) -> str:
    reason = f" ({layer.reason})" if layer.reason else ""
    return f"{layer.name}: {layer.backend}{reason}"
