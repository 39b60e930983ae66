"""Tables of a GPU's rows: both directions together, live tiles, ratios beside the targets."""

import pytest
from harness import gpu_tables, masks, results
from harness.cells import BACKWARD, FORWARD
from harness.check import Verdict
from harness.meters import Timing
from support.fake_provider import cell

ORIGIN = results.Source("2026-01-01T00:00:00+00:00", "abc", "a GPU", "a command")
SHAPE = {
    "seqlen": 32768,
    "batch": 1,
    "num_heads": 32,
    "num_heads_k": 32,
    "head_dim": 128,
    "dtype": "bfloat16",
    "threads": 0,
}


def row(provider, direction, seconds, **changes):
    shape = cell(**{**SHAPE, "device": "gpu", "mask": "causal", **changes})
    mask = masks.build(shape.mask, shape.seqlen)
    columns = {"status": results.NOT_APPLICABLE}
    if seconds is not None:
        columns = results.figures(shape, mask, direction, [Timing(seconds, float("nan"))] * 3)
        columns |= results.verdict_columns(Verdict("out", 0.5, 1.0))
    return results.row(ORIGIN, shape, mask, provider, direction, **columns)


def pair(provider, forward, backward, **changes):
    return [
        row(provider, FORWARD, forward, **changes),
        row(provider, BACKWARD, backward, **changes),
    ]


def tables_of(rows, tmp_path):
    path = tmp_path / "rows.csv"
    results.append(path, rows)
    text = gpu_tables.markdown(results.read(path))
    return [part.splitlines() for part in text.split("\n\n")]


def cells_of(table, first):
    (line,) = [line for line in table if line.startswith(f"| {first} |")]
    return [part.strip() for part in line.strip("|").split("|")][1:]


def test_our_times_are_added_and_the_rate_of_both_is_that_of_all_operations(tmp_path):
    rows = [*pair("ours", 0.01, 0.04), *pair("ours_deterministic", None, 0.05)]
    caption, ours, rates = tables_of(rows, tmp_path)
    assert caption == ["### a GPU, bfloat16, 32768 x 1, 32 heads, head_dim 128"]
    density, times, visible, live, deterministic = cells_of(ours, "causal")
    forward = 4 * 32 * 128 * 32768 * 32769 / 2 / 1e12
    tiles = 4 * 32 * 128 * 128**2 * 256 * 257 / 2 / 1e12
    assert (density, times, deterministic) == ("0.500", "10 / 40 / 50", "1.25")
    expected = [f"{forward * share / 0.01:.0f}" for share in (1, 2.5 / 4, 3.5 / 5)]
    assert visible == " / ".join(expected)
    assert live.split(" / ")[0] == f"{tiles / 0.01:.0f}"
    assert cells_of(rates, "causal")[1] == f"- / {forward * 2.5 / 0.05:.0f} / -"


def test_ratios_stand_beside_targets_and_are_bold_below_them(tmp_path):
    rows = [*pair("ours", 0.01, 0.04), *pair("torch_flex", 0.02, 0.04)]
    rows += [*pair("torch_cudnn", 0.01, 0.02)]
    rows += pair("ours", 0.01, 0.01, mask="full") + pair("torch_flex", 0.005, 0.04, mask="full")
    table = tables_of(rows, tmp_path)[3]
    assert "torch_cudnn, f / b" in table[0]
    causal = ["2.00", "1.31", "1.55", "**1.00**", "1.48", "1.52", "1.20", "2.00 / 2.00"]
    assert cells_of(table, "causal") == causal
    full = ["**0.50**", "1.11", "1.43", "4.00", "1.47", "1.53", "2.25", "-"]
    assert cells_of(table, "full") == full
    # Two masks have no target for their mean.
    mean = ["1.00", "-", "-", "2.00", "-", "-", "1.64", "-"]
    assert cells_of(table, "geometric mean") == mean


def test_the_mean_of_all_masks_has_a_target(tmp_path):
    rows = []
    for mask in masks.PRESETS:
        rows += pair("ours", 0.01, 0.02, mask=mask) + pair("torch_flex", 0.02, 0.04, mask=mask)
    table = tables_of(rows, tmp_path)[3]
    mean = ["2.00", "1.35", "1.60", "2.00", "1.45", "1.65", "2.00"]
    assert cells_of(table, "geometric mean") == mean


def test_grouped_queries_are_compared_with_as_many_key_heads(tmp_path):
    rows = pair("ours", 0.01, 0.02) + pair("ours", 0.008, 0.02, num_heads_k=4)
    grouped = tables_of(rows, tmp_path)[1]
    assert "with all key heads" in grouped[0]
    assert cells_of(grouped, "causal")[-1] == "1.25 / 1.00"


@pytest.mark.parametrize("status", ["wrong", "error"])
def test_what_went_wrong_is_bold_and_has_no_ratio(status, tmp_path):
    rows = pair("ours", 0.01, 0.02) + pair("torch_flex", 0.02, 0.04)
    rows[0] = row("ours", FORWARD, None)
    rows[0] = type(rows[0])(**{**vars(rows[0]), "status": status})
    _, ours, _, ratios = tables_of(rows, tmp_path)
    assert cells_of(ours, "causal")[1] == f"**{status}** / 20 / -"
    assert cells_of(ratios, "causal")[0] == "-"
