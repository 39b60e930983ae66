"""How large the stack is."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class StackSizes:
    """Sizes of a Llama-style stack; `blocks` is how many decoder blocks are run."""

    hidden: int
    blocks: int
    heads: int
    heads_k: int
    head_dim: int
    ffn: int
    vocab: int

    @property
    def text(self) -> str:
        heads = f"{self.heads}" if self.heads == self.heads_k else f"{self.heads}:{self.heads_k}"
        return (
            f"{self.blocks} blocks of {self.hidden}, {heads} heads of {self.head_dim}, "
            f"ffn {self.ffn}, vocab {self.vocab}"
        )


# Blocks as those of Llama-2 7B (which has 32), the smallest model of the paper.
LLAMA_2_7B = StackSizes(
    hidden=4096, blocks=2, heads=32, heads_k=32, head_dim=128, ffn=11008, vocab=32000
)
# A core takes seconds for its step. 4K tokens are to its width what 64K are to Llama-2 7B's.
SMALL = StackSizes(hidden=256, blocks=2, heads=4, heads_k=4, head_dim=64, ffn=704, vocab=2048)
ON_DEVICE = {"gpu": LLAMA_2_7B, "cpu": SMALL}


def changed(sizes: StackSizes, blocks: int | None, heads_k: int | None) -> StackSizes:
    """Return other sizes with so many blocks and key heads, where given."""
    return replace(sizes, blocks=blocks or sizes.blocks, heads_k=heads_k or sizes.heads_k)
