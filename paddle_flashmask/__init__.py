"""FlashMask attention for PaddlePaddle: structured masks as row intervals per key column.

Importing this package imports neither Paddle nor the operator library; both load at first use, so
data workers may build masks (`paddle_flashmask.recipes`, `.packing`, `.indices`) with numpy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddle_flashmask.version import __version__

if TYPE_CHECKING:
    from paddle_flashmask._ops import load_ops
    from paddle_flashmask.attention import flashmask_attention

__all__ = ["__version__", "flashmask_attention", "load_ops"]


def __getattr__(name: str) -> object:
    if name == "flashmask_attention":
        from paddle_flashmask.attention import flashmask_attention

        return flashmask_attention
    if name == "load_ops":
        from paddle_flashmask._ops import load_ops

        return load_ops
    raise AttributeError(f"module 'paddle_flashmask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "flashmask_attention", "load_ops"])
