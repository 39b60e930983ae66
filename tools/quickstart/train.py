"""Train a small model by SFT, DPO and reward modelling on packed data, with flashmask_attention.

Each stage trains the same model a second time with a dense mask; the losses must be equal.

Run by `tools/quickstart.sh`, or by hand: python tools/quickstart/train.py [FILE ...].
Exit code 0: all losses equal; 1: they differ; 2: an argument or an input file is wrong.

Paddle and the tokenizer are imported only once the input has been read, so that a wrong file name
is answered at once, even before anything is installed (`--check-only`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from inputs import STAGES, load_inputs, plan_stages
from records import InputError, Problem

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).resolve().parent / "samples"
PROBLEMS_SHOWN = 20  # skipped records named on the screen; skipped.txt names all
EXIT_WRONG_INPUT = 2
MIN_SEQ_LEN = 16  # a shorter row holds little more than the chat template
MAX_SIZE = 2**31 - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code of the whole run."""
    options = parse(arguments)
    try:
        inputs = load_inputs(options.files or _own_samples())
        stages, lines = plan_stages(options.stages, inputs)
        if options.check_only:
            return 0
        output = _made_folder(options.output)
        _report_problems(inputs.problems, output)
        print("\n".join(lines))
        from training import run

        return run(stages, inputs, options, output)
    except InputError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return EXIT_WRONG_INPUT


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line; argparse leaves with code 2 if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="quickstart",
        description="Train a small model on packed data by SFT, then DPO and reward modelling, "
        "with flashmask_attention and, beside it, the same model with a dense mask; their losses "
        "must be equal.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="JSON or JSONL: alpaca, messages, conversations or ERNIEKit records for SFT; the "
        "same with chosen and rejected, or src, response and sort, for DPO and RM; without one the "
        "project's own samples are used",
    )
    parser.add_argument(
        "--stages", type=_stages, default=",".join(STAGES), help="which to run, by commas"
    )
    parser.add_argument("--steps", type=_int_from(1), default=40, help="AdamW steps of a stage")
    parser.add_argument(
        "--seq-len", type=_int_from(MIN_SEQ_LEN), default=512, help="tokens per row"
    )
    parser.add_argument("--batch-size", type=_int_from(1), default=2, help="rows per batch")
    parser.add_argument("--seed", type=_int_from(0), default=0, help="of weights and row order")
    parser.add_argument(
        "--output", default=str(ROOT / "quickstart_output"), help="folder for results"
    )
    parser.add_argument("--check-only", action="store_true", help="check arguments and files, stop")
    return parser.parse_args(arguments)


def _int_from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= MAX_SIZE:
            raise argparse.ArgumentTypeError(
                f"must be a whole number in [{least}, {MAX_SIZE}]; got {text!r}"
            )
        return value

    return number


def _stages(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(STAGES):
        raise argparse.ArgumentTypeError(
            f"must be some of {','.join(STAGES)}, by commas; got {text!r}"
        )
    return names


def _own_samples() -> list[str]:
    return [str(path) for path in sorted(SAMPLES.iterdir()) if path.suffix in (".json", ".jsonl")]


def _made_folder(name: str) -> Path:
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {name}: cannot be made: {error.strerror}") from None
    return folder


def _report_problems(problems: list[Problem], output: Path) -> None:
    listing = output / "skipped.txt"
    listing.write_text("".join(f"{problem}\n" for problem in problems), encoding="utf-8")
    for problem in problems[:PROBLEMS_SHOWN]:
        print(f"skipped {problem}", file=sys.stderr)
    if len(problems) > PROBLEMS_SHOWN:
        rest = len(problems) - PROBLEMS_SHOWN
        print(f"skipped {rest} more, see {listing}", file=sys.stderr)
    if problems:
        print(f"{len(problems)} malformed records skipped", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
