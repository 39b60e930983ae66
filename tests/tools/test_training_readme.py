"""README's table of training steps: every number has a row of a CSV that rounds to it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from harness import readme
from harness.options import RESULTS
from support.training_door import door
from train_steps import rows, sizes, summary

TEXT = readme.README.read_text(encoding="utf-8")
SECTION = TEXT.partition("## Training steps\n")[2].partition("\n## ")[0]
GPU, CPU = (rows.read(RESULTS / f"training_{device}.csv") for device in ("gpu", "cpu"))
LAYOUTS = {"SFT": "sft", "LoRA": "lora", "DPO": "dpo", "RM": "rm"}
PROVIDERS = {"ours": "ours", "dense": "torch_sdpa", "Flex": "torch_flex"}
HEADER, *LINES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SECTION.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
KIB = 1024


def latest(path: Path) -> dict[tuple[str, int, str], dict[str, str]]:
    """Return the last right row of the stack in README by layout, length and attention."""
    with path.open(newline="", encoding="utf-8") as file:
        return {
            (row["layout"], int(row["seqlen"]), row["provider"]): row
            for row in csv.DictReader(file)
            if row["status"] == "ok" and row["blocks"] == "2" and row["heads"] == row["heads_k"]
        }


ON_GPU, ON_CPU = (latest(RESULTS / f"training_{device}.csv") for device in ("gpu", "cpu"))


def spans(title: str) -> list[int]:
    return [int(text) * KIB for text in re.findall(r"(\d+)K", title)]


def numbers(layout: str, title: str) -> list[str]:
    """Return what a cell of README should say, part by part, from the CSVs."""
    if title.startswith("CPU"):
        times = [
            float(ON_CPU[layout, spans(title)[0], name]["cpu_ms"])
            for name in ("paddle_dense", "ours")
        ]
        return [f"{times[0] / times[1]:.1f}x"]
    if title.startswith("tokens/s"):
        found = [ON_GPU[layout, at, "ours"]["tokens_per_s"] for at in spans(title)]
        return [f"{float(text):.0f}" for text in found]
    if title.startswith("over"):
        rival = "torch_sdpa" if "dense" in title else "torch_flex"
        return [
            f"{float(ON_GPU[layout, at, rival]['step_ms']) / float(ours['step_ms']):.2f}x"
            for at in spans(title)
            for ours in [ON_GPU[layout, at, "ours"]]
        ]
    if title.startswith("peak"):
        found = [ON_GPU[layout, spans(title)[0], name] for name in PROVIDERS.values()]
        return [f"{float(row['peak_gib']):.1f}" for row in found]
    assert title.startswith("longest run")
    longest = []
    for name in PROVIDERS.values():
        most = max(at for own, at, who in ON_GPU if (own, who) == (layout, name))
        full = [row for row in GPU if row["status"] == "does not fit"]
        is_known = any((row["layout"], row["provider"]) == (layout, name) for row in full)
        longest.append(f"{most // KIB}K" + ("" if is_known else "+"))
    return longest


@pytest.mark.parametrize(
    ("layout", "title", "cell"),
    [
        (line[0], title, cell)
        for line in LINES
        for title, cell in zip(HEADER[1:], line[1:], strict=True)
    ],
)
def test_every_number_has_a_row(layout, title, cell):
    assert cell.split(" / ") == numbers(LAYOUTS[layout], title)


def test_the_table_holds_every_layout_and_the_text_names_the_stack():
    assert [line[0] for line in LINES] == list(LAYOUTS)
    stack = sizes.LLAMA_2_7B
    assert f"{stack.blocks} blocks of Llama-2 7B's sizes" in SECTION
    assert {str(stack.blocks)} == {row["blocks"] for row in GPU}


def test_the_text_says_how_much_is_visible():
    shares = [100 * float(row["density"]) for row in GPU if int(row["seqlen"]) >= 32 * KIB]
    assert f"{min(shares):.0f} to {max(shares):.0f} % of the cells" in SECTION.replace("\n", " ")


def test_all_rows_were_right():
    assert {row["status"] for row in [*GPU, *CPU]} <= {"ok", "does not fit"}
    for row in [*GPU, *CPU]:
        if row["status"] == "ok":
            assert float(row["error"]) <= float(row["allowed"])
            assert float(row["loss_error"]) <= float(row["loss_allowed"])


def test_readme_is_up_to_date(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(TEXT, encoding="utf-8")
    assert not readme.put(copy, {summary.HEADER: summary.readme_table(GPU, CPU)})


def test_an_edited_number_is_noticed_and_mended(tmp_path):
    copies = 0
    for line in re.finditer(r"^\| (SFT|LoRA|DPO|RM) .*", TEXT, re.MULTILINE):
        for number in re.finditer(r"\d+", line[0]):
            place = line.start() + number.start()
            copy = tmp_path / "README.md"
            copy.write_text(f"{TEXT[:place]}9{TEXT[place:]}", encoding="utf-8")
            assert readme.put(copy, {summary.HEADER: summary.readme_table(GPU, CPU)})
            assert copy.read_text(encoding="utf-8") == TEXT
            copies += 1
    assert copies > 50


def test_a_missing_row_is_named():
    kept = [row for row in GPU if row["provider"] != "torch_flex"]
    with pytest.raises(ValueError, match="lacks: FlexAttention, sft, S=32768; measure it first"):
        summary.readme_table(kept, CPU)


def test_the_command_writes_table_and_drawing(tmp_path, monkeypatch, capsys):
    training = door()
    copy = tmp_path / "README.md"
    place = TEXT.index("| SFT ") + len("| SFT | ")
    copy.write_text(f"{TEXT[:place]}9{TEXT[place:]}", encoding="utf-8")
    monkeypatch.setattr(readme, "README", copy)
    monkeypatch.setattr(training, "DRAWINGS", tmp_path)
    for words in ("table written", "table is up to date"):
        assert training.main(["--readme"]) == 0
        assert words in capsys.readouterr().out
    assert (tmp_path / "training_by_length.svg").stat().st_size > 1000


def test_the_long_table_has_a_line_per_layout_and_length(capsys):
    assert door().main(["--table", "--device", "gpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len({(row["layout"], row["seqlen"]) for row in GPU})
