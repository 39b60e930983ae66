"""The drawing of a GPU's rates: one card, every shape and mask, the same file each time."""

import re

import attention
import pytest
from harness import gpu_drawing, results
from harness.gpu_tables import SHAPE
from harness.options import RESULTS

ROWS = results.read(RESULTS / "gpu.csv")


def drawn_text(folder, rows):
    files = gpu_drawing.draw_rates(folder, rows)
    assert [file.name for file in files] == ["tflops_by_mask.png", "tflops_by_mask.svg"]
    assert all(file.stat().st_size > 1000 for file in files)
    return files[1].read_text(encoding="utf-8")


def texts(svg):
    """Return the words in a drawing; matplotlib writes them beside their shapes."""
    return re.findall(r"<!-- (.*?) -->", svg)


def test_every_shape_and_mask_has_a_line_and_every_rival_a_name(tmp_path):
    words = texts(drawn_text(tmp_path, ROWS))
    shapes = [word for word in words if "heads of" in word]
    assert "32K x 4, 32:4 heads of 128, bfloat16" in shapes
    assert len(shapes) == len({tuple(row[name] for name in SHAPE) for row in ROWS})
    cells = {tuple(row[name] for name in (*SHAPE, "mask")) for row in ROWS}
    masks = {cell[-1] for cell in cells}
    assert sum(word in masks for word in words) == len(cells)
    assert {"ours", "FlexAttention", "cuDNN", "FlashAttention-2", "forward", "backward"} <= {*words}


def test_the_same_rows_give_the_same_file(tmp_path):
    assert drawn_text(tmp_path / "a", ROWS) == drawn_text(tmp_path / "b", ROWS)


def test_wrong_rows_and_other_cards_are_left_out(tmp_path):
    expected = drawn_text(tmp_path / "a", ROWS)
    others = [{**row, "device": "another card", "date": "2000-01-01"} for row in ROWS]
    wrong = [{**row, "status": "wrong", "dtype": "float16"} for row in ROWS]
    assert drawn_text(tmp_path / "b", [*wrong, *others, *ROWS]) == expected


def test_without_rows_it_says_so(tmp_path):
    with pytest.raises(ValueError, match="measure first"):
        gpu_drawing.draw_rates(tmp_path, [{**row, "status": "error"} for row in ROWS])


def test_the_command_draws_it_alone(tmp_path, capsys):
    assert attention.main(["--device", "gpu", "--plot", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert {file.stem for file in tmp_path.iterdir()} == {"tflops_by_mask"}
