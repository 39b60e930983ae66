"""README's table and line of a CPU: every number has a row of the CSV that rounds to it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import attention
import pytest
from harness import readme, results
from harness.options import RESULTS
from support.readme_tables import edited, table_lines

TEXT = readme.README.read_text(encoding="utf-8")
SECTION = TEXT.partition("\nCPU (")[2].partition("\n## ")[0]
ROWS = results.read(RESULTS / "cpu.csv")
MASKS = {
    "causal": "causal",
    "8 causal documents": "causal_document:n=8",
    "8 documents": "document:n=8",
}
PROVIDERS = {"ours": "ours", "Paddle": "paddle_dense", "torch": "torch_sdpa"}
(MEMORY,) = re.findall(r"^Peak memory beyond the inputs, .*", SECTION, re.MULTILINE)
KIB = 1024
NUMBERED = r"^(?:\| (?!---)|Peak memory).*"  # lines


def all_rows() -> list[dict[str, str]]:
    """Return the rows of every CSV of attention.py."""
    found = []
    for path in sorted(Path(RESULTS).glob("[cg]pu*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            found += list(csv.DictReader(file))
    return found


CSV = [
    row
    for row in all_rows()
    if (row["device"], row["threads"], row["num_heads"], row["head_dim"], row["status"])
    == ("AMD EPYC", "2", "8", "64", "ok")
]


def values(column: str, **wanted: str) -> list[float]:
    """Return a column of all rows with these values, whenever they were measured."""
    return [
        float(row[column])
        for row in CSV
        if row[column] and all(row[name] == text for name, text in wanted.items())
    ]


def spans(text: str) -> list[str]:
    """Return the lengths of "S of 1K / 4K" as they are in the CSV."""
    found = re.search(r"S of (\d+K(?: / \d+K)*)", text)[1]
    return [f"{int(length.removesuffix('K')) * KIB}" for length in found.split(" / ")]


def speed_cells() -> list[tuple[str, str, str, str]]:
    header, *lines = table_lines(SECTION, "mask, S of")
    return [
        (seqlen, MASKS[line[0]], title, part)
        for line in lines
        for title, cell in zip(header[1:], line[1:], strict=True)
        for seqlen, part in zip(spans(header[0]), cell.split(" / "), strict=True)
    ]


def memory_cells() -> list[tuple[str, str, str]]:
    found = re.findall(r"(\w+)[^:;/]*? ((?:\d+|-)(?: / (?:\d+|-))+)", MEMORY.partition(": ")[2])
    return [
        (seqlen, PROVIDERS[provider], part)
        for provider, numbers in found
        for seqlen, part in zip(spans(MEMORY), numbers.split(" / "), strict=True)
    ]


@pytest.mark.parametrize(("seqlen", "mask", "title", "cell"), speed_cells())
def test_speed_has_a_row(seqlen, mask, title, cell):
    same = {"seqlen": seqlen, "mask": mask}
    if title.startswith(("float32, ", "bfloat16, ")):
        dtype, direction = title.split(", ")
        found = values("gflops_per_core", **same, dtype=dtype, provider="ours", direction=direction)
        assert cell in [f"{value:.3g}" for value in found]
        return
    rival = {"Paddle": "paddle_dense", "torch": "torch_sdpa"}[re.match(r"\w+", title)[0]]
    directions = ("forward", "backward")
    if "Flex" in title:
        rival, directions = "torch_flex", ("forward",)
    latest = {
        name: sum(
            values("cpu_ms", **same, dtype="float32", provider=name, direction=direction)[-1]
            for direction in directions
        )
        for name in (rival, "ours")
    }
    assert cell == f"{latest[rival] / latest['ours']:.1f}x"


@pytest.mark.parametrize(("seqlen", "provider", "cell"), memory_cells())
def test_memory_has_a_row(seqlen, provider, cell):
    same = {"seqlen": seqlen, "mask": "causal_document:n=8", "dtype": "float32"}
    found = values("peak_mib", **same, provider=provider, direction="backward")
    assert cell in ([f"{value:.0f}" for value in found] or ["-"])


def test_they_hold_what_they_should():
    assert len(speed_cells()) == len(set(speed_cells())) == 9 * 7
    assert len(memory_cells()) == len(set(memory_cells())) == 5 * 3
    assert [cell for _, _, cell in memory_cells()].count("-") == 2 + 2
    assert f", float32, {readme.MASK_WORDS[readme.MEMORY_MASK]}, " in MEMORY
    assert len(re.findall(r"^\| ---", SECTION, re.MULTILINE)) == 1


def test_readme_is_up_to_date(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(TEXT, encoding="utf-8")
    assert not readme.write(copy, ROWS)


def test_an_edited_number_is_noticed_and_mended(tmp_path):
    copies = edited(TEXT, SECTION, NUMBERED)
    assert len(copies) > 100
    for text in copies:
        copy = tmp_path / "README.md"
        copy.write_text(text, encoding="utf-8")
        assert readme.write(copy, ROWS)
        assert copy.read_text(encoding="utf-8") == TEXT


def test_a_missing_row_is_named():
    rows = [row for row in ROWS if row["provider"] != "torch_flex"]
    with pytest.raises(
        ValueError, match="lacks: torch_flex, forward, causal, S=1024, float32; mea"
    ):
        readme.texts(rows)


@pytest.mark.parametrize("start", ["| mask, S of ", "Peak memory beyond the inputs"])
@pytest.mark.parametrize("copies", [0, 2])
def test_a_missing_or_doubled_text_is_named(tmp_path, start, copies):
    copy = tmp_path / "README.md"
    line = next(line for line in TEXT.splitlines(keepends=True) if line.startswith(start))
    text = TEXT.replace(line, copies * line)
    copy.write_text(text, encoding="utf-8")
    words = re.escape(f"README.md must have one line that begins with {start}")
    with pytest.raises(ValueError, match=words):
        readme.write(copy, ROWS)
    assert copy.read_text(encoding="utf-8") == text


def test_the_command_says_whether_it_changed_something(tmp_path, monkeypatch, capsys):
    copy = tmp_path / "README.md"
    copy.write_text(edited(TEXT, SECTION, NUMBERED)[0], encoding="utf-8")
    monkeypatch.setattr(readme, "README", copy)
    for words in ("tables written", "tables are up to date"):
        assert attention.main(["--readme"]) == 0
        assert words in capsys.readouterr().out
