"""README's tables and text of a GPU: every number comes from rows of gpu.csv."""

from __future__ import annotations

import csv
import re
from statistics import median

import attention
import pytest
from harness import gpu_drawing, gpu_readme, readme, results
from harness.gpu_readme import GROUPS
from harness.options import RESULTS
from harness.suite import GPU_GROUPS
from support.readme_tables import edited, table_lines

TEXT = readme.README.read_text(encoding="utf-8")
SECTION = TEXT.partition("## Speed and memory\n")[2].partition("\nCPU (")[0]
ROWS = results.read(RESULTS / "gpu.csv")
WAYS = ("forward", "backward")
RIVALS = {
    "FlexAttention": "torch_flex",
    "FlexAttention with FA4": "torch_flex_flash",
    "cuDNN": "torch_cudnn",
    "FA2": "torch_flash",
}
KIB = 1024
NUMBERED = r"^\| (?!mask|---).*"  # lines


def shape_of(words: str) -> tuple[int, ...]:
    """Return seqlen, batch, num_heads, num_heads_k and head_dim of a shape in words."""
    found = re.search(r"(\d+)K x (\d+), (\d+)(?::(\d+))? heads of (\d+)(?: \(\d+\))?$", words)
    kib, batch, heads, heads_k, head_dim = found.groups()
    return int(kib) * KIB, int(batch), int(heads), int(heads_k or heads), int(head_dim)


def shape_in(row: dict[str, str]) -> tuple[int, ...]:
    """Return the same numbers of a row."""
    names = ("seqlen", "batch", "num_heads", "num_heads_k", "head_dim")
    return tuple(int(row[name]) for name in names)


def latest() -> dict[tuple[object, ...], dict[str, str]]:
    """Return the last right row of each shape, mask, provider and direction in bfloat16.

    Of a rival that took turns with ours, the row of the last time that it did.
    """
    found: dict[tuple[object, ...], dict[str, str]] = {}
    with (RESULTS / "gpu.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    runs = {row["date"] for row in rows if row["provider"] == "ours"}
    for in_turns in (False, True):
        for row in rows:
            place = (row["device"], row["dtype"], row["status"])
            right = place == ("NVIDIA H200", "bfloat16", "ok")
            if right and (row["date"] in runs or not in_turns):
                found[shape_in(row), row["mask"], row["provider"], row["direction"]] = row
    return found


LATEST = latest()
HEADER, *LINES = table_lines(SECTION, "mask, ")
(_, *TITLES), *SHAPES = zip(*table_lines(SECTION, "shape (masks) "), strict=True)  # a column each
WHOLE = shape_of(HEADER[0])
SHOWN = {shape_of(words) for words, *_ in SHAPES}
CELLS = [
    (line[0], title, cell)
    for line in LINES
    for title, cell in zip(HEADER[1:], line[1:], strict=True)
]


def ratio(shape: tuple[int, ...], mask: str, rival: str, way: str) -> float:
    times = [float(LATEST[shape, mask, name, way]["wall_ms"]) for name in (rival, "ours")]
    return times[0] / times[1]


def masks_of(shape: tuple[int, ...]) -> list[str]:
    return [mask for own, mask, name, way in LATEST if (own, name, way) == (shape, "ours", WAYS[0])]


@pytest.mark.parametrize(("mask", "title", "cell"), CELLS)
def test_a_mask_has_rows(mask, title, cell):
    if title.startswith("ours"):
        found = [LATEST[WHOLE, mask, "ours", way]["tflops_visible"] for way in WAYS]
        assert cell == " / ".join(f"{float(text):.0f}" for text in found)
        return
    rival = RIVALS[title.removeprefix("over ")]
    if cell == "-":
        assert not any((WHOLE, mask, rival, way) in LATEST for way in WAYS)
    else:
        assert cell == " / ".join(f"{ratio(WHOLE, mask, rival, way):.2f}x" for way in WAYS)


@pytest.mark.parametrize(("words", "cells"), [(words, cells) for words, *cells in SHAPES])
def test_a_shape_has_rows(words, cells):
    shape, masks = shape_of(words), masks_of(shape_of(words))
    rates = [
        median(float(LATEST[shape, mask, "ours", way]["tflops_visible"]) for mask in masks)
        for way in WAYS
    ]
    expected = {"ours, TFLOP/s": " / ".join(f"{rate:.0f}" for rate in rates)}
    for way in WAYS:
        found = sorted(ratio(shape, mask, "torch_flex", way) for mask in masks)
        text = f"{median(found):.2f}x ({found[0]:.2f} to {found[-1]:.2f})"
        expected[f"over FlexAttention, {way}"] = text
    assert dict(zip(TITLES, cells, strict=True)) == expected
    assert words.endswith(f" ({len(masks)})")


def test_tables_hold_what_they_should():
    assert len(LINES) == 12
    assert {line[0] for line in LINES if line[-2:] != ["-", "-"]} == {"full", "causal"}
    cells = [GPU_GROUPS[name][0] for name in GROUPS]
    shapes = {(c.seqlen, c.batch, c.num_heads, c.num_heads_k, c.head_dim) for c in cells}
    assert shapes == SHOWN
    assert len(re.findall(r"^\| ---", SECTION, re.MULTILINE)) == 2


def shown() -> list[dict[str, str]]:
    """Return the rows that README's numbers come from."""
    return [
        row
        for (shape, _, name, _), row in LATEST.items()
        if shape in SHOWN
        if name in ("ours", "torch_flex") or (shape == WHOLE and name in RIVALS.values())
    ]


def test_rivals_took_turns_with_ours():
    for row in shown():
        ours = LATEST[shape_in(row), row["mask"], "ours", row["direction"]]
        assert row["date"] == ours["date"]


def test_rows_of_other_runs_are_refused():
    apart = {"date": "2026-01-01T00:00:00+00:00"}
    rows = [{**row, **apart} if row["provider"] == "torch_flash" else row for row in ROWS]
    with pytest.raises(ValueError, match="rows of one run: torch_flash and ours, forward, full"):
        gpu_readme.tables(rows)


def test_the_text_names_card_driver_and_torch():
    found = {tuple(row["versions"].split(", ")[-2:]) for row in shown()}
    ((torch, driver),) = found
    assert SECTION.strip().startswith(f"GPU (NVIDIA H200, {driver}, {torch}), bfloat16")


def test_the_text_says_how_many_runs_and_how_far_apart():
    runs = [int(row["runs"]) for row in shown()]
    assert f"Medians of {min(runs)} to {max(runs)} runs" in SECTION
    few = {int(row["runs"]) for row in shown() if row["provider"] == "torch_cudnn"}
    assert f"cuDNN's below of {' or '.join(map(str, sorted(few)))};" in SECTION
    spread = max(
        (float(row["wall_ms_p80"]) - float(row["wall_ms_p20"])) / float(row["wall_ms"])
        for row in shown()
    )
    assert f"up to {100 * spread:.0f} % apart" in SECTION


def test_the_text_names_where_a_rival_ran_far_below_its_usual_rate():
    named = re.findall(
        r"The ([\d.]+) is no merit of ours: at (.*?) FlexAttention's (\w+) of `(\w+)` "
        r"ran at (\d+) TFLOP/s",
        SECTION,
    )
    slow = []
    for shape, way in {(shape, way) for shape, _, _, way in LATEST if shape in SHOWN}:
        rows = [LATEST[shape, mask, "torch_flex", way] for mask in masks_of(shape)]
        usual = median(float(row["tflops_live"]) for row in rows)
        for row in rows:
            if float(row["tflops_live"]) < usual / 2:
                times = f"{ratio(shape, row['mask'], 'torch_flex', way):.2f}"
                heads = f"{row['num_heads']} heads of {row['head_dim']}"
                rate = f"{float(row['tflops_visible']):.0f}"
                slow.append((times, heads, way, row["mask"], rate))
    assert sorted(named) == sorted(slow)


def test_readme_is_up_to_date(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(TEXT, encoding="utf-8")
    assert not gpu_readme.write(copy, ROWS)


def test_an_edited_number_is_noticed_and_mended(tmp_path):
    copies = edited(TEXT, SECTION, NUMBERED)
    assert len(copies) > 100
    for text in copies:
        copy = tmp_path / "README.md"
        copy.write_text(text, encoding="utf-8")
        assert gpu_readme.write(copy, ROWS)
        assert copy.read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize("fields", [{"provider": "torch_cudnn"}, {"seqlen": "131072"}])
def test_a_missing_row_is_named(fields):
    rows = [row for row in ROWS if any(row[name] != text for name, text in fields.items())]
    assert rows != ROWS
    wanted = {
        "torch_cudnn": "torch_cudnn, forward, full, 32K x 4, 32 heads of 128",
        "131072": "ours, forward, causal, 128K x 1, 32 heads of 128",
    }
    (value,) = fields.values()
    with pytest.raises(ValueError, match=f"lacks: {wanted[value]}; measure it first"):
        gpu_readme.tables(rows)


def test_each_row_that_is_shown_is_needed():
    for row in shown():
        rows = [one for one in ROWS if one != row]
        assert len(rows) == len(ROWS) - 1
        with pytest.raises(ValueError, match="README needs a row that the CSV lacks"):
            gpu_readme.tables(rows)


@pytest.mark.parametrize("status", ["wrong", "error"])
def test_a_row_that_went_wrong_is_not_shown(status):
    rows = [{**row, "status": status} if row["provider"] == "torch_flex" else row for row in ROWS]
    with pytest.raises(ValueError, match="lacks: torch_flex, forward, full"):
        gpu_readme.tables(rows)


def test_rows_of_another_card_change_nothing():
    others = [{**row, "device": "another card", "wall_ms": "1"} for row in ROWS]
    assert gpu_readme.tables([*ROWS, *others]) == gpu_readme.tables(ROWS)


def test_the_command_says_whether_it_changed_something(tmp_path, monkeypatch, capsys):
    copy = tmp_path / "README.md"
    copy.write_text(edited(TEXT, SECTION, NUMBERED)[0], encoding="utf-8")
    monkeypatch.setattr(readme, "README", copy)
    for words in ("tables written", "tables are up to date"):
        assert attention.main(["--device", "gpu", "--readme"]) == 0
        assert words in capsys.readouterr().out
    assert copy.read_text(encoding="utf-8") == TEXT


def test_the_drawing_is_of_the_newest_rows():
    drawn = (RESULTS / f"{gpu_drawing.NAME}.svg").read_text(encoding="utf-8")
    newest = max(row["date"] for row in ROWS if row["provider"] in gpu_drawing.DRAWN)
    assert f"rows up to {newest}" in drawn
    assert f"({(RESULTS / gpu_drawing.NAME).relative_to(readme.README.parent)}.svg)" in SECTION
