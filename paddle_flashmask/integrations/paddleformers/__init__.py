"""PaddleFormers: `_attn_implementation: paddle_flashmask`.

    from paddle_flashmask.integrations import paddleformers

    paddleformers.register()
    config = LlamaConfig(..., _attn_implementation=paddleformers.NAME)
    print(paddleformers.report(LlamaForCausalLM(config)))

or, in a YAML file of its command line, the two lines that

    python -m paddle_flashmask.integrations.paddleformers

prints. PaddleFormers itself is imported by the functions, not by this package; see
`paddleformers.md` beside it.
"""

from __future__ import annotations

from paddle_flashmask.integrations._report import AttentionReport, LayerReport, NotOursError
from paddle_flashmask.integrations.paddleformers.forward import attention_forward
from paddle_flashmask.integrations.paddleformers.layers import NAME, report
from paddle_flashmask.integrations.paddleformers.registration import register, unregister

__all__ = [
    "NAME",
    "AttentionReport",
    "LayerReport",
    "NotOursError",
    "attention_forward",
    "register",
    "report",
    "unregister",
]
