"""PaddleNLP 3, which knows FlashMask: its calls of Paddle's function go to our operator.

PaddleNLP 3 is on no package index; this is tested against a stand-in with the same call
(`F.flashmask_attention(q, k, v, startend_row_indices=..., causal=True)`), not against itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import paddle

from paddle_flashmask import flashmask_attention
from paddle_flashmask.integrations.paddlenlp.inputs import narrowed

__all__ = ["Redirection", "redirect_functional"]

NAME = "flashmask_attention"
ABSENT = object()


class Redirection:
    """What `redirect_functional` did; `undo` it, or use it in a with statement."""

    def __init__(self, original: object) -> None:
        """Remember what was there."""
        self._original = original

    def undo(self) -> None:
        """Give Paddle its own function back."""
        if self._original is ABSENT:
            delattr(paddle.nn.functional, NAME)
        else:
            setattr(paddle.nn.functional, NAME, self._original)

    def __enter__(self) -> Redirection:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Undo it."""
        self.undo()


def redirect_functional() -> Redirection:
    """Make `paddle.nn.functional.flashmask_attention` our operator, and return how to undo it.

    Callers that look the function up when they call it, as PaddleNLP 3 does, run ours from now on;
    those that imported the name before do not. Same arguments; int64 indices are cast.

    Raises:
        RuntimeError: it is redirected already.
    """
    functional: Any = paddle.nn.functional
    original = getattr(functional, NAME, ABSENT)
    if original is _redirected:
        raise RuntimeError("paddle.nn.functional.flashmask_attention is redirected already")
    setattr(functional, NAME, _redirected)
    return Redirection(original)


def _redirected(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    startend_row_indices: paddle.Tensor | None = None,
    **options: object,
) -> paddle.Tensor | list[paddle.Tensor]:
    if isinstance(startend_row_indices, paddle.Tensor):
        startend_row_indices = narrowed("startend_row_indices", startend_row_indices)
    attend: Callable[..., paddle.Tensor | list[paddle.Tensor]] = flashmask_attention
    return attend(query, key, value, startend_row_indices, **options)
