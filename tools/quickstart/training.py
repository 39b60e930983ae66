"""The run itself: conversations to packed rows, the compared training, and what it prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from chat_formats import Conversation
from chat_tokens import ChatTokenizer
from comparison import LOSS_TOLERANCE, Step, compare, contestants, epochs
from decoder import DecoderConfig
from records import InputError
from report import draw_losses, draw_mask, memory_line, speed_line, tiles_line, write_losses
from tqdm import tqdm

from paddle_flashmask import _ops
from paddle_flashmask.packing import IGNORE_INDEX, PackedSft, SftSample, pack_sft

__all__ = ["pack", "run"]

EXIT_LOSSES_DIFFER = 1


def run(conversations: list[Conversation], options: argparse.Namespace, output: Path) -> int:
    """Train, print and draw; return the exit code.

    Raises:
        InputError: nothing in the conversations can be trained at this row length.
    """
    tokenizer = ChatTokenizer(conversations)
    packed = pack(conversations, tokenizer, options.seq_len)
    config = DecoderConfig(vocab_size=tokenizer.vocab_size)
    batch_size = min(options.batch_size, len(packed))
    draw_mask(output / "packed_mask.png", packed)
    _ops.reset_tile_counters()
    steps = _train(config, packed, batch_size, options)
    write_losses(output / "losses.csv", steps)
    draw_losses(output / "loss_curves.png", steps)
    _print_numbers(packed, steps, config, batch_size)
    print(f"written to {output}: losses.csv, loss_curves.png, packed_mask.png")
    return _verdict(steps)


def pack(conversations: list[Conversation], tokenizer: ChatTokenizer, seq_len: int) -> PackedSft:
    """Return the packed rows of all conversations that have a label within seq_len.

    Raises:
        InputError: none has.
    """
    samples = [tokenizer.sample(conversation) for conversation in conversations]
    trainable = [sample for sample in samples if _is_trainable(sample, seq_len)]
    if not trainable:
        raise InputError(f"no answer starts within --seq-len {seq_len} tokens; raise it")
    packed = pack_sft(
        trainable,
        seq_len=seq_len,
        pad_token_id=tokenizer.special_ids["pad"],
        overlong="truncate",
    )
    counts = packed.statistics
    print(
        f"packed {counts.samples} samples ({counts.tokens} tokens, {counts.trained_tokens} trained)"
        f" into {counts.rows} rows of {seq_len}: {counts.padding_fraction:.1%} padding, "
        f"{counts.truncated} truncated, {len(samples) - len(trainable)} left out for lack of an "
        f"answer within {seq_len} tokens"
    )
    return packed


def _is_trainable(sample: SftSample, seq_len: int) -> bool:
    return any(label != IGNORE_INDEX for label in sample.labels[1:seq_len])


def _train(
    config: DecoderConfig, packed: PackedSft, batch_size: int, options: argparse.Namespace
) -> list[Step]:
    flashmask, dense = contestants(config, options.seed)
    batches = epochs(packed, batch_size, options.seed)
    steps: list[Step] = []
    with tqdm(total=options.steps, unit="step", file=sys.stderr) as bar:
        for step in compare(flashmask, dense, batches, options.steps):
            steps.append(step)
            bar.update()
            bar.write(
                f"step {step.number:4d}   flashmask {step.flashmask_loss:.6f}   "
                f"dense {step.dense_loss:.6f}   "
                f"relative difference {step.relative_difference:.1e}",
                file=sys.stdout,
            )
            if not step.is_equal:
                break
    return steps


def _print_numbers(
    packed: PackedSft, steps: Sequence[Step], config: DecoderConfig, batch_size: int
) -> None:
    counters = _ops.tile_counters()
    print(speed_line(steps))
    print(f"mask density: {packed.statistics.density:.1%} of all cells are visible")
    forward = (counters.forward_skipped, counters.forward_partial, counters.forward_full)
    backward = (counters.backward_skipped, counters.backward_partial, counters.backward_full)
    print(tiles_line(*forward, direction="forward"))
    print(tiles_line(*backward, direction="backward"))
    print(memory_line(batch_size, packed.seq_len, config.num_heads, config.num_layers))


def _verdict(steps: Sequence[Step]) -> int:
    last = steps[-1]
    if not last.is_equal:
        print(
            f"quickstart: the losses of step {last.number} are not equal: "
            f"{last.flashmask_loss:.8f} with flashmask_attention and {last.dense_loss:.8f} with "
            f"the dense mask differ by {last.relative_difference:.1e} relative, more than "
            f"{LOSS_TOLERANCE:.0e}",
            file=sys.stderr,
        )
        return EXIT_LOSSES_DIFFER
    worst = max(step.relative_difference for step in steps)
    print(
        f"loss {steps[0].flashmask_loss:.3f} to {last.flashmask_loss:.3f} in {len(steps)} steps; "
        f"equal at every step within {LOSS_TOLERANCE:.0e} (worst {worst:.1e})"
    )
    return 0
