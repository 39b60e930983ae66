"""Train a small model by SFT, DPO and reward modelling on packed data, with flashmask_attention.

Each stage trains the same model a second time with a dense mask; the losses must be equal.

Run by `tools/quickstart.sh`, or by hand: python tools/quickstart/train.py [FILE ...].
Exit code 0: all losses equal; 1: they differ; 2: an argument or an input file is wrong.

Paddle and the tokenizer are imported only once the input has been read, so that a wrong file name
is answered at once, even before anything is installed (`--check-only`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cores import choose_threads, import_quietly
from inputs import RESULTS, STAGES, load_inputs, plan_stages
from records import InputError, Problem

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).resolve().parent / "samples"
PROBLEMS_SHOWN = 20  # skipped records named on the screen; skipped.txt names all
EXIT_WRONG_INPUT = 2
MIN_SEQ_LEN = 16  # a shorter row holds little more than the chat template
MAX_SIZE = 2**31 - 1
SKIPPED = "skipped.txt"
EPILOG = """\
environment:
  PYTHON=PATH  the Python 3.10, 3.11 or 3.12 that .venv is made with
  CXX=NAME     the C++ compiler

exit codes: 0 all losses equal, 1 they differ, 2 a wrong argument or file, 3 something to install
first
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code of the whole run."""
    options = parse(arguments)
    try:
        inputs = load_inputs(options.files or _own_samples())
        stages, lines = plan_stages(options.stages, inputs)
        _check_output(options.output)
        if options.check_only:
            return 0
        output = _made_folder(options.output)
        _remove_old_results(output)
        _report_problems(inputs.problems, output)
        print("\n".join(lines))
        has_threads = "OMP_NUM_THREADS" in os.environ
        import_quietly()
        from training import run

        choose_threads(has_threads)
        return run(stages, inputs, options, output)
    except InputError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return EXIT_WRONG_INPUT


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line; argparse leaves with code 2 if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="bash tools/quickstart.sh",
        description="Train a small model on packed data by SFT, then DPO and reward modelling,\n"
        "with flashmask_attention and, beside it, the same model with a dense mask;\n"
        "their losses must be equal.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="JSON or JSONL: alpaca, messages, conversations or ERNIEKit records for SFT; the "
        "same with chosen and rejected, or src, response and sort, for DPO and RM "
        "(default: the project's own samples)",
    )

    def add(name: str, kind: Callable[[str], object], default: object, text: str) -> None:
        parser.add_argument(name, type=kind, default=default, help=f"{text} (default: %(default)s)")

    add("--stages", _stages, ",".join(STAGES), "which to run, by commas")
    add("--steps", _int_from(1), 40, "AdamW steps of a stage")
    add("--seq-len", _int_from(MIN_SEQ_LEN), 512, "tokens per row")
    add("--batch-size", _int_from(1), 2, "rows per batch")
    add("--seed", _int_from(0), 0, "of weights and row order")
    add("--output", str, str(ROOT / "quickstart_output"), "folder for results")
    # Of quickstart.sh: arguments and files, before anything is installed.
    parser.add_argument("--check-only", action="store_true", help=argparse.SUPPRESS)
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


def _check_output(name: str) -> None:
    path = Path(name).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        where = "is" if path == Path(name).absolute() else f"{path} is"
        raise InputError(f"--output {name}: {where} a file, not a folder")
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"--output {name}: {path} cannot be written to")


def _remove_old_results(folder: Path) -> None:
    """Remove what an earlier run left, so that no stage is taken for one of this run."""
    for name in (SKIPPED, *(f"{stage}_{result}" for stage in STAGES for result in RESULTS)):
        (folder / name).unlink(missing_ok=True)


def _made_folder(name: str) -> Path:
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {name}: cannot be made: {error.strerror}") from None
    return folder


def _report_problems(problems: list[Problem], output: Path) -> None:
    if not problems:
        return
    listing = output / SKIPPED
    listing.write_text("".join(f"{problem}\n" for problem in problems), encoding="utf-8")
    for problem in problems[:PROBLEMS_SHOWN]:
        print(f"skipped {problem}", file=sys.stderr)
    if len(problems) > PROBLEMS_SHOWN:
        rest = len(problems) - PROBLEMS_SHOWN
        print(f"skipped {rest} more", file=sys.stderr)
    noun = "record" if len(problems) == 1 else "records"
    print(f"{len(problems)} malformed {noun} skipped, see {listing}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
