"""PaddleNLP, imported when it is needed, or one sentence that says how to get it."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["TESTED_VERSION", "import_module", "version"]

TESTED_VERSION = "2.8.1"


def import_module(name: str) -> ModuleType:
    """Return a module of PaddleNLP.

    Raises:
        ImportError: PaddleNLP is not installed, or what it depends on is too new for it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"paddle_flashmask.integrations.paddlenlp needs PaddleNLP {TESTED_VERSION} and older "
            "versions of what it imports than pip chooses on its own: in the repository "
            f'pip install --no-build-isolation ".[paddlenlp]" ({name}: {error})'
        ) from error


def version() -> str:
    """Return the version of the installed PaddleNLP."""
    return str(import_module("paddlenlp").__version__)
