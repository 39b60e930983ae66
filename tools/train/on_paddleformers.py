"""Fine-tune a small random Llama with PaddleFormers' own command, ours against its eager attention.

    bash tools/train.sh paddleformers sft|lora|dpo [--steps N] [--seq-len N] [--batch-size N]
                                                   [--seed N] [--output DIR] [FILE ...]

`dpo` trains three times: SimPO, DPO without a reference, and LoRA with the base as reference. Each
training is a YAML file for `paddleformers-cli train`, kept in the output folder; ours has the two
lines that switch paddle_flashmask on, the other asks for eager attention and dense masks. Exit
codes: 0 all losses equal, 1 they differ, 2 a wrong argument or file. DPO sums log-probabilities in
float32: answers of many hundred tokens differ by more than the tolerance from rounding alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loss_table import LOSS_TOLERANCE, is_equal, print_table, relative_difference, write_table
from samples import (
    InputError,
    conversation_records,
    import_quietly,
    load,
    preference_records,
    write_jsonl,
)
from tiny_model import save_model

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
REGISTER = ROOT / "paddle_flashmask" / "integrations" / "paddleformers" / "register.py"
FULL, ADAPTER = {"fine_tuning": "Full"}, {"fine_tuning": "LoRA", "lora_rank": 4}
STAGES = {
    "sft": {"sft": {"stage": "SFT", **FULL}},
    "lora": {"lora": {"stage": "SFT", **ADAPTER}},
    "dpo": {
        "simpo": {"stage": "DPO", "loss_type": "simpo", **FULL},
        "dpo_free": {"stage": "DPO", "loss_type": "sigmoid", "reference_free": True, **FULL},
        "dpo_lora": {"stage": "DPO", "loss_type": "sigmoid", **ADAPTER},
    },
}
CONTESTANTS: dict[str, dict[str, Any]] = {
    "flashmask": {
        "custom_register_path": str(REGISTER),
        "_attn_implementation": "paddle_flashmask",
    },
    "eager": {"_attn_implementation": "eager", "use_attn_mask_startend_row_indices": False},
}
# The step is written into the environment while other threads read it; a variable that is there
# already does not move the others, which crashed one run in some forty.
VARIABLES = {"CUDA_VISIBLE_DEVICES": "", "TRAINER_GLOBAL_STEP": "0"}
LEARNING_RATES = {"SFT": 1e-3, "DPO": 1e-4}  # with more the sums of DPO saturate within 30 steps
EXIT_LOSSES_DIFFER, EXIT_WRONG_INPUT = 1, 2
SECONDS = 600  # a sample that PaddleFormers cannot read it would try again for ever
LOGGED_LOSS = re.compile(r"- loss: ([-+.\de]+),")
LOGGED_EVALUATION = re.compile(r"- eval_loss: ([-+.\de]+),")
EVAL_RECORDS = 5  # do not divide into batches of 2


class Losses(NamedTuple):
    """Losses of one training: of each step, and of the evaluation at the end, if there is one."""

    steps: list[float]
    evaluation: list[float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    options = _parse(arguments)
    try:
        inputs = load(options.files)
        records = (
            preference_records(inputs.preferences)
            if options.stage == "dpo"
            else conversation_records(inputs.conversations)
        )
        if len(records) <= EVAL_RECORDS:
            raise InputError(
                f"{options.stage}: more than {EVAL_RECORDS} records are needed; got {len(records)}"
            )
    except InputError as error:
        print(f"train: {error}", file=sys.stderr)
        return EXIT_WRONG_INPUT
    if options.check_only:
        return 0
    folder = Path(options.output).absolute() / "paddleformers" / options.stage
    folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(folder / "train.jsonl", records[:-EVAL_RECORDS])
    write_jsonl(folder / "eval.jsonl", records[-EVAL_RECORDS:])
    import_quietly()
    texts = [json.dumps(record, ensure_ascii=False) for record in records]
    save_model(folder / "model", texts, max_seq_len=options.seq_len, seed=options.seed)
    codes = [_compare(name, own, folder, options) for name, own in STAGES[options.stage].items()]
    return max(codes)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bash tools/train.sh paddleformers")
    parser.add_argument("stage", choices=sorted(STAGES))
    parser.add_argument("files", metavar="FILE", nargs="*", help="JSON or JSONL (default: our own)")
    for name, default, text in (
        ("--steps", 30, "AdamW steps"),
        ("--seq-len", 512, "tokens per packed row"),
        ("--batch-size", 2, "rows per batch"),
        ("--seed", 42, "of weights and row order"),
    ):
        parser.add_argument(name, type=int, default=default, help=f"{text} (default: {default})")
    parser.add_argument("--output", default=str(ROOT / "train_output"), help="folder for results")
    # Of train.sh: arguments and files, before anything is installed.
    parser.add_argument("--check-only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _compare(name: str, own: dict[str, Any], folder: Path, options: argparse.Namespace) -> int:
    losses = {}
    for contestant, attention in CONTESTANTS.items():
        config = _config(own | attention, folder, folder / f"{name}_{contestant}", options)
        losses[contestant] = _train(config, folder / f"{name}_{contestant}")
    ours, theirs = losses["flashmask"], losses["eager"]
    print_table(name, ours.steps, theirs.steps, "eager")
    write_table(folder / f"{name}_losses.csv", ours.steps, theirs.steps, "eager")
    for pair in zip(ours.evaluation, theirs.evaluation, strict=False):
        print(f"eval   {pair[0]:<15.8f}  {pair[1]:<15.8f}  {relative_difference(*pair):.1e}")
    ours_all, theirs_all = ours.steps + ours.evaluation, theirs.steps + theirs.evaluation
    if not is_equal(ours_all, theirs_all) or len(ours.steps) != options.steps:
        print(
            f"train: the losses of {name} differ by more than {LOSS_TOLERANCE:.0e}, or are not "
            f"{options.steps} on both sides: {len(ours.steps)} and {len(theirs.steps)}",
            file=sys.stderr,
        )
        return EXIT_LOSSES_DIFFER
    worst = max(relative_difference(*pair) for pair in zip(ours_all, theirs_all, strict=True))
    print(f"equal at every step within {LOSS_TOLERANCE:.0e} (worst {worst:.1e})")
    return 0


def _config(
    own: dict[str, Any], folder: Path, output: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the settings of one training, as in a YAML file of PaddleFormers."""
    kind = "erniekit" if own["stage"] == "DPO" else "messages"
    # PaddleFormers 1.2.0 evaluates neither an adapter (GPTModel is not defined) nor DPO (no group).
    evaluates = own["stage"] == "SFT" and own["fine_tuning"] == "Full"
    return own | {
        "model_name_or_path": str(folder / "model"),
        "train_dataset_path": str(folder / "train.jsonl"),
        "train_dataset_type": kind,
        "train_dataset_prob": "1.0",
        "eval_dataset_path": str(folder / "eval.jsonl"),
        "eval_dataset_type": kind,
        "eval_dataset_prob": "1.0",
        "template_backend": "jinja",
        "packing": True,
        "max_seq_len": options.seq_len,
        "do_train": True,
        "do_eval": evaluates,
        "per_device_train_batch_size": options.batch_size,
        "per_device_eval_batch_size": options.batch_size,
        "gradient_accumulation_steps": 1,
        "max_steps": options.steps,
        "logging_steps": 1,
        "save_strategy": "no",
        "evaluation_strategy": "steps" if evaluates else "no",
        "eval_steps": options.steps,
        "learning_rate": LEARNING_RATES[own["stage"]],
        "warmup_steps": 5,
        "seed": options.seed,
        "device": "cpu",
        "bf16": False,
        "fp16_opt_level": "O0",
        "amp_master_grad": False,
        "dataloader_num_workers": 0,
        "output_dir": str(output),
        "overwrite_output_dir": True,
    }


def _train(config: dict[str, Any], output: Path) -> Losses:
    """Run PaddleFormers' command on a YAML file and return its losses.

    Raises:
        SystemExit: it failed; its last lines are shown.
    """
    import yaml

    output.mkdir(parents=True, exist_ok=True)
    file, log = output / "train.yaml", output / "train.log"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    print(f"train: {output.name}", flush=True)
    command = [sys.executable, "-m", "paddleformers.cli.launcher", "train", str(file)]
    with log.open("w", encoding="utf-8") as stream:
        try:
            done = subprocess.run(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **VARIABLES},
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SystemExit(f"train: {output.name} took over {SECONDS} s, see {log}") from None
    if done.returncode != 0:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-15:])
        raise SystemExit(f"{tail}\ntrain: {output.name} failed, see {log}")
    text = log.read_text(encoding="utf-8")
    return Losses(
        [float(found) for found in LOGGED_LOSS.findall(text)],
        [float(found) for found in LOGGED_EVALUATION.findall(text)],
    )


if __name__ == "__main__":
    sys.exit(main())
