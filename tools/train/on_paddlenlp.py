"""Fine-tune a small random model with PaddleNLP's Trainer: flash_mask on, off, and with a leak.

Run by `tools/train.sh paddlenlp sft|dpo|rm`. The same batches train three copies of one model: with
flash_mask (flashmask_attention), without it (PaddleNLP's own attention, dense masks), and with
flash_mask but the borders between samples taken out of the indices. The first two must have the
same losses, the third others. Then one step is measured at 4096 and 8192 positions, each in a
process of its own.

Exit code 0: losses are as they must be; 1: they are not; 2: an argument or an input file is wrong.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from samples import InputError, load

if TYPE_CHECKING:
    from inputs import Inputs

STAGES = ("sft", "dpo", "rm")
MODELS = ("llama", "mixtral")
ROOT = Path(__file__).resolve().parents[2]
EXIT_WRONG_INPUT = 2
MIN_SEQ_LEN = 16  # a shorter row holds little more than the chat template


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code of the whole run."""
    options = parse(arguments)
    try:
        inputs = load(options.files)
        _check_records(options.stage, inputs)
        if options.check_only:
            return 0
        warnings.filterwarnings("ignore")  # of what Paddle deprecates and PaddleNLP calls
        import paddlenlp_runs

        if options.measure is not None:
            return paddlenlp_runs.measure(options)
        return paddlenlp_runs.run(options, inputs)
    except InputError as error:
        print(f"train: {error}", file=sys.stderr)
        return EXIT_WRONG_INPUT


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line; argparse leaves with code 2 if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="bash tools/train.sh paddlenlp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stage", choices=STAGES, help="what is trained")
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="JSON or JSONL, as for tools/quickstart.sh (default: the project's own samples)",
    )

    def add(name: str, kind: Callable[[str], object], default: object, text: str) -> None:
        parser.add_argument(name, type=kind, default=default, help=f"{text} (default: %(default)s)")

    parser.add_argument("--model", choices=MODELS, default="llama", help="kind of the model")
    add("--steps", _int_from(1), 30, "optimizer steps")
    add("--seq-len", _int_from(MIN_SEQ_LEN), 512, "tokens per row")
    add("--batch-size", _int_from(1), 2, "rows per batch")
    add("--accumulate", _int_from(1), 1, "batches per optimizer step")
    add("--seed", _int_from(0), 0, "of weights and row order")
    add("--output", Path, ROOT / "train_output", "folder for the table and the trainer's files")
    parser.add_argument("--recompute", action="store_true", help="recompute in the backward")
    parser.add_argument(
        "--lengths",
        type=_int_from(MIN_SEQ_LEN),
        nargs="*",
        default=[4096, 8192],
        help="row lengths at which memory is measured (default: 4096 8192)",
    )
    # Of train.sh, before anything is installed; and of the processes that measure.
    parser.add_argument("--check-only", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", choices=("on", "off"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _int_from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least}; got {text!r}")
        return value

    return number


def _check_records(stage: str, inputs: Inputs) -> None:
    found = inputs.conversations if stage == "sft" else inputs.preferences
    if not found:
        kind = "conversation" if stage == "sft" else "preference (chosen and rejected)"
        raise InputError(f"{stage}: no file has a {kind}")


if __name__ == "__main__":
    sys.exit(main())
