"""For `custom_register_path` of a YAML file: PaddleFormers runs this file before all else.

It runs it under a name of its own; imported as a part of the package it does nothing.
"""

from __future__ import annotations

if not __name__.startswith("paddle_flashmask."):
    from paddle_flashmask.integrations.paddleformers import register

    register(must_use=True)
