"""README's tables of a CPU: every number has a row of the CSV that rounds to it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import attention
import pytest
from harness import readme, results
from harness.options import RESULTS

TEXT = readme.README.read_text(encoding="utf-8")
SECTION = TEXT.partition("\nCPU (")[2].partition("\n## ")[0]
ROWS = results.read(RESULTS / "cpu.csv")
MASKS = {
    "causal": "causal",
    "8 causal documents": "causal_document:n=8",
    "8 documents": "document:n=8",
}
PROVIDERS = {"ours": "ours", "Paddle": "paddle_dense", "torch SDPA": "torch_sdpa"}


def table_lines(header: str) -> list[list[str]]:
    """Return the cells of the table whose header begins so, header first, without the rule."""
    lines = SECTION.partition(f"| {header}")[1:]
    found = "".join(lines).split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in found]
    return [cells[0], *cells[2:]]


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


def speed_cells() -> list[tuple[str, str, str, str]]:
    header, *lines = table_lines("S | mask")
    return [
        (line[0], MASKS[line[1]], title, cell)
        for line in lines
        for title, cell in zip(header[2:], line[2:], strict=True)
    ]


def memory_cells() -> list[tuple[str, str, str]]:
    header, *lines = table_lines("S | 1024")
    return [
        (seqlen, PROVIDERS[line[0].partition(",")[0]], cell)
        for line in lines
        for seqlen, cell in zip(header[1:], line[1:], strict=True)
        if cell != "-"
    ]


@pytest.mark.parametrize(("seqlen", "mask", "title", "cell"), speed_cells())
def test_speed_has_a_row(seqlen, mask, title, cell):
    same = {"seqlen": seqlen, "mask": mask}
    if title in ("float32", "bfloat16"):
        for direction, number in zip(("forward", "backward"), cell.split(" / "), strict=True):
            found = values(
                "gflops_per_core", **same, dtype=title, provider="ours", direction=direction
            )
            assert number in [f"{value:.3g}" for value in found]
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
    assert cell in [f"{value:.0f}" for value in found]


def test_tables_hold_what_they_should():
    assert len(speed_cells()) == 9 * 5
    assert len(memory_cells()) == 5 + 3 + 3
    assert len(re.findall(r"^\| [SP:-]", SECTION, re.MULTILINE)) <= 6  # no third table


def test_readme_is_up_to_date(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(TEXT, encoding="utf-8")
    assert not readme.write(copy, ROWS)


def edited() -> list[str]:
    """Return README once for each number of its tables, with that number changed."""
    copies = []
    start = TEXT.index(SECTION)
    for line in re.finditer(r"^\| (?!S \||-).*", SECTION, re.MULTILINE):
        for number in re.finditer(r"\d+", line[0]):
            place = start + line.start() + number.start()
            copies.append(f"{TEXT[:place]}9{TEXT[place:]}")
    return copies


def test_an_edited_number_is_noticed_and_mended(tmp_path):
    copies = edited()
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
        readme.tables(rows)


def test_a_missing_table_is_named(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match=r"README.md must have one table with the header \| S \|"):
        readme.write(copy, ROWS)


def test_the_command_says_whether_it_changed_something(tmp_path, monkeypatch, capsys):
    copy = tmp_path / "README.md"
    copy.write_text(edited()[0], encoding="utf-8")
    monkeypatch.setattr(readme, "README", copy)
    for words in ("tables written", "tables are up to date"):
        assert attention.main(["--readme"]) == 0
        assert words in capsys.readouterr().out
