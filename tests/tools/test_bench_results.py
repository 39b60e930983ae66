"""Rows, the CSV, the table and the drawings."""

import csv
from dataclasses import replace

import pytest
from harness import drawings, masks, results, tables
from harness.cells import BACKWARD, FORWARD
from harness.check import Verdict
from harness.meters import Timing
from support.fake_provider import cell

ORIGIN = results.Source("2026-01-01T00:00:00+00:00", "abc", "a processor", "a command")
COLUMNS = [
    "date",
    "commit",
    "device",
    "threads",
    "versions",
    "batch",
    "num_heads",
    "num_heads_k",
    "seqlen",
    "head_dim",
    "dtype",
    "mask",
    "density",
    "live_density",
    "provider",
    "direction",
    "status",
    "reason",
    "runs",
    "wall_ms",
    "wall_ms_p20",
    "wall_ms_p80",
    "cpu_ms",
    "cpu_ms_p20",
    "cpu_ms_p80",
    "tflops_visible",
    "tflops_live",
    "gflops_per_core",
    "peak_mib",
    "mask_ms",
    "checked",
    "error",
    "allowed",
    "command",
]


def row(provider="ours", direction=FORWARD, seconds=0.001, **changes):
    shape = cell(**changes)
    mask = masks.build(shape.mask, shape.seqlen)
    timings = [Timing(seconds, 2 * seconds)] * 3
    columns = results.figures(shape, mask, direction, timings)
    columns |= results.verdict_columns(Verdict("out", 0.5, 1.0))
    columns |= {"versions": "fake 1", "peak_mib": 1.5, "mask_ms": 0.1}
    return results.row(ORIGIN, shape, mask, provider, direction, **columns)


def full_set(**changes):
    return [
        row(provider, direction, seconds, **changes)
        for provider, seconds in (("ours", 0.001), ("torch_sdpa", 0.004))
        for direction in (FORWARD, BACKWARD)
    ]


def as_read(rows, tmp_path):
    path = tmp_path / "new" / "rows.csv"
    results.append(path, rows)
    return results.read(path)


def test_figures_are_medians_spreads_and_rates():
    shape = cell(mask="full", seqlen=100, batch=1, num_heads=1, num_heads_k=1, head_dim=10)
    mask = masks.build("full", 100)
    timings = [Timing(seconds, 2 * seconds) for seconds in (0.004, 0.001, 0.002, 0.003, 0.005)]
    found = results.figures(shape, mask, FORWARD, timings)
    assert found["runs"] == 5
    assert (found["wall_ms"], found["wall_ms_p20"], found["wall_ms_p80"]) == (3.0, 1.8, 4.2)
    assert found["tflops_visible"] == pytest.approx(4 * 10 * 100 * 100 / 0.003 / 1e12, rel=1e-4)
    assert found["tflops_live"] == pytest.approx(4 * 10 * 128 * 128 / 0.003 / 1e12, rel=1e-4)
    assert found["gflops_per_core"] == pytest.approx(4 * 10 * 100 * 100 / 0.006 / 1e9, rel=1e-4)


def test_a_gpu_has_no_cpu_time():
    shape = cell()
    mask = masks.build(shape.mask, shape.seqlen)
    found = results.figures(shape, mask, BACKWARD, [Timing(0.001, float("nan"))])
    assert not {"cpu_ms", "gflops_per_core"} & set(found)


def test_csv_has_these_columns_and_is_appended_to(tmp_path):
    path = tmp_path / "rows.csv"
    results.append(path, [row()])
    results.append(path, [row("torch_sdpa")])
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert lines[0] == COLUMNS
    assert len(lines) == 3
    assert "" not in {lines[1][COLUMNS.index(name)] for name in ("date", "commit", "command")}


def test_csv_with_other_columns_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("date,speed\n")
    with pytest.raises(ValueError, match="has other columns"):
        results.append(path, [row()])


def test_of_rows_measured_again_the_last_counts(tmp_path):
    rows = as_read([row(seconds=0.001), row(seconds=0.002)], tmp_path)
    assert [found["wall_ms"] for found in rows] == ["2.0"]


def test_a_rival_is_of_the_run_of_ours(tmp_path):
    apart = [replace(row("torch_sdpa", seconds=0.003), date="2026-01-02T00:00:00+00:00")]
    rows = as_read([*full_set(), *apart], tmp_path)
    assert [found["wall_ms"] for found in rows] == ["1.0", "1.0", "4.0", "4.0"]
    alone = [row("ours", seconds=0.001), *apart]
    rows = as_read(alone, tmp_path / "alone")
    assert [found["wall_ms"] for found in rows] == ["1.0", "3.0"]


def test_table_compares_cpu_times(tmp_path):
    text = tables.markdown(as_read(full_set(), tmp_path))
    assert "| S | mask | density | ms | GFLOP/s per core | torch_sdpa |" in text
    assert "| 300 | causal_document:n=3 |" in text
    assert text.startswith("a processor, 1 thread, float32, B=2, H=4:2, D=8; CPU time")
    assert "| 2 / 2 |" in text
    assert text.endswith("| 4.0x / 4.0x |")


def test_table_shows_what_is_missing_wrong_or_impossible(tmp_path):
    ours, ours_backward, rival, rival_backward = full_set()
    wrong = replace(rival, status="wrong")
    blank = replace(rival_backward, status="n/a", cpu_ms="", wall_ms="")
    text = tables.markdown(as_read([ours, ours_backward, wrong, rival_backward], tmp_path))
    assert text.endswith("| **wrong** / **wrong** |")
    bad = replace(ours, status="wrong")
    text = tables.markdown(as_read([bad, ours_backward, rival, rival_backward], tmp_path))
    assert "| **wrong** / 2 |" in text
    text = tables.markdown(as_read([ours, ours_backward, rival, blank], tmp_path))
    assert text.endswith("| 4.0x / n/a |")
    text = tables.markdown(as_read([ours, rival], tmp_path / "forward"))
    assert "| 2 / - |" in text
    assert text.endswith("| 4.0x / - |")


def test_a_table_for_every_shape(tmp_path):
    text = tables.markdown(as_read([*full_set(), *full_set(head_dim=16)], tmp_path))
    assert text.count("| S |") == 2
    assert text.count("\n\n") == 3


def test_drawings_are_written(tmp_path):
    rows = [one for mask in ("causal", "document:n=3") for one in full_set(mask=mask)]
    rows += [one for seqlen in (64, 128) for one in full_set(seqlen=seqlen)]
    rows = as_read(rows, tmp_path)
    for draw in (drawings.draw_density, drawings.draw_memory):
        files = draw(tmp_path / "drawings", rows)
        assert {file.suffix for file in files} == {".png", ".svg"}
        assert all(file.stat().st_size > 1000 for file in files)


def test_drawing_without_rows_says_so(tmp_path):
    with pytest.raises(ValueError, match="measure first"):
        drawings.draw_density(tmp_path, [])
