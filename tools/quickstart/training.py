"""The run itself: records to packed rows, the compared training of each stage, what it prints."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import paddle
from chat_tokens import ChatTokenizer
from comparison import (
    LOSS_TOLERANCE,
    Batch,
    Contestant,
    Step,
    compare,
    contestants,
    epochs,
)
from decoder import DecoderConfig
from inputs import RESULTS, Inputs
from numpy.typing import NDArray
from paddle import Tensor
from report import (
    count,
    draw_losses,
    draw_mask,
    ends_of,
    memory_line,
    percent,
    speed_line,
    tiles_line,
    write_losses,
)
from stages import (
    LEARNT,
    OBJECTIVES,
    PEAK_RATES,
    Stage,
    answer_log_probs,
    make_model,
    prepare,
)
from tqdm import tqdm

from paddle_flashmask import _ops
from paddle_flashmask.packing import PackedPreference, PackedRows

__all__ = ["run"]

EXIT_LOSSES_DIFFER = 1
TITLES = {
    "sft": "supervised fine-tuning",
    "dpo": "direct preference optimisation against a frozen copy of the start",
    "rm": "reward model with a score head",
}
NOUNS = {"sft": "sample", "dpo": "group", "rm": "group"}  # a group: a prompt and its answers
WATCHED = {"dpo": "margin", "rm": "pair accuracy"}


def run(stages: Sequence[str], inputs: Inputs, options: argparse.Namespace, output: Path) -> int:
    """Train the stages in turn, print and draw; return the exit code.

    DPO and the reward model start from the weights of the SFT stage, if that ran.

    Raises:
        InputError: a stage has nothing to train at this row length.
    """
    answered = [said for preference in inputs.preferences for said in preference.conversations()]
    tokenizer = ChatTokenizer(inputs.conversations + answered)
    config = DecoderConfig(vocab_size=tokenizer.vocab_size)
    ready = [prepare(name, inputs, tokenizer, options.seq_len) for name in stages]
    code, weights = 0, None
    written: list[str] = []
    for stage in ready:
        print(f"\n== {stage.name}: {TITLES[stage.name]}")
        print(_packed_line(stage))
        names = [f"{stage.name}_{result}" for result in RESULTS]
        table, curves, mask = (output / name for name in names)
        draw_mask(mask, stage.packed, NOUNS[stage.name])
        steps, trained = _train(stage, config, weights, options)
        write_losses(table, steps, WATCHED.get(stage.name))
        draw_losses(curves, steps, TITLES[stage.name])
        written += names
        _print_numbers(stage.packed, steps, config, _batch_size(stage, options))
        code = max(code, _verdict(stage.name, steps))
        if stage.name == "sft":
            weights = trained
    print(f"\nwritten to {output}: {', '.join(written)}")
    return code


def _packed_line(stage: Stage) -> str:
    counts, seq_len = stage.packed.statistics, stage.packed.seq_len
    more = f" (a --seq-len above {seq_len} keeps more)" if stage.left_out else ""
    return (
        f"packed {count(counts.samples - counts.dropped, NOUNS[stage.name])} "
        f"({count(counts.tokens, 'token')}, {counts.trained_tokens} trained) into "
        f"{count(counts.rows, 'row')} of {seq_len}: "
        f"{percent(counts.padding_fraction)} padding, {counts.truncated} truncated, "
        f"{stage.left_out} left out for lack of an answer within {seq_len} tokens{more}"
    )


def _batch_size(stage: Stage, options: argparse.Namespace) -> int:
    return min(options.batch_size, len(stage.packed))


def _train(
    stage: Stage,
    config: DecoderConfig,
    weights: dict[str, Tensor] | None,
    options: argparse.Namespace,
) -> tuple[list[Step], dict[str, Tensor]]:
    """Return what the steps measured and the weights that flashmask_attention ended with."""
    name, packed = stage.name, stage.packed
    flashmask, dense = contestants(
        lambda attention: make_model(name, config, attention, seed=options.seed, weights=weights),
        OBJECTIVES[name],
        PEAK_RATES[name],
    )
    if isinstance(packed, PackedPreference) and name == "dpo":
        # Nothing is trained yet, so the policy itself is the frozen reference.
        packed = packed.with_reference(
            lambda batch: _log_probs(flashmask, batch),
            batch_size=_batch_size(stage, options),
            dtype="float64",
        )
    _ops.reset_tile_counters()
    batches = epochs(packed, _batch_size(stage, options), options.seed)
    steps: list[Step] = []
    # disable=None: no bar where standard error is no terminal.
    with tqdm(total=options.steps, unit="step", file=sys.stderr, disable=None) as bar:
        for step in compare(flashmask, dense, batches, options.steps):
            steps.append(step)
            bar.update()
            bar.write(_step_line(name, step), file=sys.stdout)
            if not step.is_equal or step.flashmask_loss < LEARNT[name]:
                break
    return steps, flashmask.model.state_dict()


@paddle.no_grad()
def _log_probs(contestant: Contestant, batch: Batch) -> NDArray:
    return answer_log_probs(contestant.model, contestant.tensors(batch)).numpy()


def _step_line(name: str, step: Step) -> str:
    watched = ""
    if step.watched is not None:
        watched = f"   {WATCHED[name]} {_watched(name, step.watched)}"
    return (
        f"step {step.number:4d}   flashmask {step.flashmask_loss:.6f}   "
        f"dense {step.dense_loss:.6f}   "
        f"relative difference {step.relative_difference:.1e}{watched}"
    )


def _watched(name: str, value: float) -> str:
    if name == "rm":
        return f"{value:.1%}"
    return f"{round(value, 6) + 0.0:.6f}"  # + 0.0: never -0.000000


def _print_numbers(
    packed: PackedRows, steps: Sequence[Step], config: DecoderConfig, batch_size: int
) -> None:
    counters = _ops.tile_counters()
    print(speed_line(steps))
    print(f"mask density: {percent(packed.statistics.density)} of all cells are visible")
    forward = (counters.forward_skipped, counters.forward_partial, counters.forward_full)
    backward = (counters.backward_skipped, counters.backward_partial, counters.backward_full)
    print(tiles_line(*forward, direction="forward"))
    print(tiles_line(*backward, direction="backward"))
    print(memory_line(batch_size, packed.seq_len, config.num_heads, config.num_layers))


def _learnt(name: str, last: Step) -> str:
    return ", learnt by heart" if last.flashmask_loss < LEARNT[name] else ""


def _verdict(name: str, steps: Sequence[Step]) -> int:
    last = steps[-1]
    if not last.is_equal:
        print(
            f"quickstart: the losses of {name}, step {last.number} are not equal: "
            f"{last.flashmask_loss:.8f} with flashmask_attention and {last.dense_loss:.8f} with "
            f"the dense mask differ by {last.relative_difference:.1e} relative, more than "
            f"{LOSS_TOLERANCE:.0e}",
            file=sys.stderr,
        )
        return EXIT_LOSSES_DIFFER
    worst = max(step.relative_difference for step in steps)
    start, end, size = ends_of([step.flashmask_loss for step in steps])
    total = count(len(steps), "step")
    ends = "the first and the last"
    means = f"{ends} of {total}" if size == 1 else f"means of {ends} {size} of {total}"
    print(
        f"loss {start:.3f} to {end:.3f} ({means}){_learnt(name, last)}; "
        f"equal at every step within {LOSS_TOLERANCE:.0e} (worst {worst:.1e})"
    )
    if name == "dpo":
        print(f"loss at step 1: {steps[0].flashmask_loss:.6f} (ln 2 = {math.log(2):.6f})")
    if name in WATCHED:
        start, end, _ = ends_of([step.watched for step in steps if step.watched is not None])
        print(f"{WATCHED[name]} {_watched(name, start)} to {_watched(name, end)} ({means})")
    return 0
