"""The three trainings of a stage with PaddleNLP side by side, and the memory of a long step."""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import paddle
from chat_tokens import ChatTokenizer
from inputs import Inputs
from paddlenlp_models import Run, make_model, train
from samples import InputError

from paddle_flashmask.integrations.paddlenlp import RowDataset, answer_log_probs
from paddle_flashmask.integrations.paddlenlp.inputs import INDEX_FIELD, model_inputs
from paddle_flashmask.packing import (
    IGNORE_INDEX,
    PackedPreference,
    PackedRows,
    pack_dpo,
    pack_rm,
    pack_sft,
)

__all__ = ["measure", "run"]

LOSS_TOLERANCE = 1e-5  # relative; rounding of float32 sums stays below, an error of the mask above
LEAK = 10 * LOSS_TOLERANCE  # by how much a broken mask must differ at least once
EXIT_LOSSES_DIFFER = 1
MIB = 2**20
# The long step: one layer, so that the dense one fits beside other work; a narrow feed-forward and
# few tokens in the vocabulary, so that what is measured is attention.
LONG_SIZES = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 128,
}
LONG_VOCAB = 128
LONG_SAMPLE = 1000  # tokens
WARM_LENGTH = 256


class _Leaking(PackedRows[Any]):
    """Packed rows whose indices hide nothing but the future: what a forgotten mask does."""

    def __init__(self, packed: PackedRows[Any]) -> None:
        object.__setattr__(self, "_packed", packed)
        object.__setattr__(self, "seq_len", packed.seq_len)

    def __len__(self) -> int:
        return len(self._packed)

    def build(self, rows: Any) -> dict[str, Any]:
        batch = self._packed.build(rows)
        return {**batch, INDEX_FIELD: np.full_like(batch[INDEX_FIELD], self.seq_len)}

    def count_sample(self, place: Any) -> tuple[int, int]:
        return self._packed.count_sample(place)


def run(options: argparse.Namespace, inputs: Inputs) -> int:
    """Train a stage three times, print and write the losses, measure memory; return the code.

    Raises:
        InputError: nothing can be trained at this row length.
    """
    packed, vocab_size = _pack(options, inputs)
    statistics = packed.statistics
    print(
        f"{options.stage} with PaddleNLP ({options.model}, {len(packed)} rows of {packed.seq_len}, "
        f"{statistics.padding_fraction:.1%} padding, {statistics.density:.1%} of cells visible)"
    )
    trained = {
        name: train(options, make_model(options, vocab_size), RowDataset(rows), flash=flash)
        for name, rows, flash in (
            ("flash_mask", packed, True),
            ("dense", packed, False),
            ("leaking", _Leaking(packed), True),
        )
    }
    differences = _print_losses(options, trained)
    _write(options, trained)
    tokens = options.batch_size * options.accumulate * statistics.tokens / len(packed)
    for name in ("flash_mask", "dense"):
        print(f"{name}: {tokens / median(trained[name].seconds):.0f} tokens/s (median of steps)")
    code = _verdict(differences, trained)
    return max(code, _measure_lengths(options))


def measure(options: argparse.Namespace) -> int:
    """Print the bytes by which one long step raised this process's peak; see `_measure_lengths`."""
    length, flash = options.lengths[0], options.measure == "on"
    options.seq_len, options.steps, options.batch_size = WARM_LENGTH, 1, 1
    model = make_model(options, LONG_VOCAB, **LONG_SIZES, max_position_embeddings=length)
    for size in (WARM_LENGTH, length):
        rows = RowDataset(_long_rows(options.stage, size))
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak
        held = _status_bytes("VmRSS")
        done = train(options, model, rows, flash=flash)
    print(_status_bytes("VmHWM") - held, done.seconds[0])
    return 0


def _pack(options: argparse.Namespace, inputs: Inputs) -> tuple[PackedRows[Any], int]:
    answered = [said for preference in inputs.preferences for said in preference.conversations()]
    tokenizer = ChatTokenizer(inputs.conversations + answered)
    settings = {
        "seq_len": options.seq_len,
        "pad_token_id": tokenizer.special_ids["pad"],
        "overlong": "truncate",
    }
    if options.stage == "sft":
        samples = [tokenizer.sample(conversation) for conversation in inputs.conversations]
        kept = [s for s in samples if any(i != IGNORE_INDEX for i in s.labels[1 : options.seq_len])]
        packed: PackedRows[Any] = pack_sft(kept, **settings)
    else:
        groups = [tokenizer.preference_sample(preference) for preference in inputs.preferences]
        packed = (pack_dpo if options.stage == "dpo" else pack_rm)(groups, **settings)
    if len(packed) == 0:
        raise InputError(f"{options.stage}: no answer starts within {options.seq_len} tokens")
    if isinstance(packed, PackedPreference) and options.stage == "dpo":
        packed = _with_reference(options, packed, tokenizer.vocab_size)
    return packed, tokenizer.vocab_size


def _with_reference(
    options: argparse.Namespace, packed: PackedPreference, vocab_size: int
) -> PackedPreference:
    """Return groups with the log-probabilities of the model before training, with dense masks."""
    model = make_model(options, vocab_size)
    model.eval()

    @paddle.no_grad()
    def reference(batch: dict[str, Any]) -> Any:
        tensors = {name: paddle.to_tensor(values) for name, values in batch.items()}
        tensors = model_inputs(tensors, flash_mask=False)
        fields = ("input_ids", "position_ids", "attention_mask")
        outputs = model(**{name: tensors[name] for name in fields}, return_dict=True)
        return answer_log_probs(outputs.logits, tensors).numpy()

    return packed.with_reference(reference, batch_size=options.batch_size, dtype="float64")


def _relative(one: float, other: float) -> float:
    return abs(one - other) / abs(other)


def _print_losses(options: argparse.Namespace, trained: dict[str, Run]) -> list[float]:
    print(f"{'step':>4} {'flash_mask':>11} {'dense':>11} {'relative':>9} {'leaking':>11}")
    differences = []
    rows = zip(*(trained[name].losses for name in ("flash_mask", "dense", "leaking")), strict=True)
    for step, (ours, dense, leaking) in enumerate(rows, start=1):
        differences.append(_relative(ours, dense))
        print(f"{step:>4} {ours:>11.7f} {dense:>11.7f} {differences[-1]:>9.1e} {leaking:>11.7f}")
    return differences


def _write(options: argparse.Namespace, trained: dict[str, Run]) -> None:
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"paddlenlp_{options.model}_{options.stage}_losses.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["step", *trained])
        columns = zip(*(one.losses for one in trained.values()), strict=True)
        table.writerows([step, *values] for step, values in enumerate(columns, start=1))
    print(f"written to {path}")


def _verdict(differences: list[float], trained: dict[str, Run]) -> int:
    worst = max(differences)
    leak = max(map(_relative, trained["leaking"].losses, trained["dense"].losses))
    is_equal, is_seen = worst <= LOSS_TOLERANCE, leak > LEAK
    print(
        f"flash_mask and dense {'equal' if is_equal else 'DIFFER'} over {len(differences)} steps: "
        f"worst {worst:.1e} relative, allowed {LOSS_TOLERANCE:.0e}"
    )
    print(
        f"without the borders of samples losses {'differ' if is_seen else 'DO NOT DIFFER'} by up "
        f"to {leak:.1e} relative"
    )
    return 0 if is_equal and is_seen else EXIT_LOSSES_DIFFER


def _measure_lengths(options: argparse.Namespace) -> int:
    """Print peak growth and time of one step at each length; 1 if ours holds a dense matrix."""
    if not options.lengths:
        return 0
    print("one step of one row, 2 heads, 1 layer, float32; growth of the peak, and seconds")
    print(f"{'S':>6} {'flash_mask':>15} {'dense':>16} {'one S x S matrix':>17}")
    code = 0
    for length in options.lengths:
        peaks = {}
        for flag in ("on", "off"):
            command = [sys.executable, str(Path(__file__).with_name("on_paddlenlp.py"))]
            command += [options.stage, "--measure", flag, "--lengths", str(length)]
            command += ["--model", options.model]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            peaks[flag] = [float(text) for text in done.stdout.split()[-2:]]
        shown = (f"{peak / MIB:.0f} MiB {seconds:.2f} s" for peak, seconds in peaks.values())
        matrix = np.float32().nbytes * length**2
        print("{:>6} {:>15} {:>16} {:>13.0f} MiB".format(length, *shown, matrix / MIB))
        if peaks["on"][0] >= matrix:
            print(f"flash_mask took as much as a dense matrix at S={length}", file=sys.stderr)
            code = EXIT_LOSSES_DIFFER
    return code


def _long_rows(stage: str, length: int) -> PackedRows[Any]:
    """Return one row full of samples of LONG_SAMPLE tokens."""
    random = np.random.default_rng(0)
    sizes = [LONG_SAMPLE] * (length // LONG_SAMPLE) + [length % LONG_SAMPLE] * bool(
        length % LONG_SAMPLE
    )
    ids = [random.integers(0, LONG_VOCAB, size) for size in sizes]
    if stage == "sft":
        return pack_sft([(tokens, tokens) for tokens in ids], seq_len=length)
    groups = [(tokens[:-2], [tokens[-2:-1], tokens[-1:]]) for tokens in ids]
    if stage == "rm":
        return pack_rm(groups, seq_len=length)
    packed = pack_dpo(groups, seq_len=length)
    return packed.with_reference(lambda batch: np.zeros(len(batch["answer_rows"])))


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name} line")
