import subprocess
import sys
from pathlib import Path

import pytest
import records
import train
from comparison import Step
from report import speed_line, tiles_line

TRAIN = Path(records.__file__).with_name("train.py")


def test_check_only_needs_no_installed_package():
    command = [sys.executable, "-S", "-E", str(TRAIN), "--check-only"]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "is a directory; name a JSON or JSONL file"),
        (lambda path: path.write_text("[]"), "no usable record"),
    ],
)
def test_wrong_files_give_one_line_and_code_2(tmp_path, capsys, make, text):
    path = tmp_path / "x.json"
    make(path)
    assert train.main([str(path)]) == 2
    assert capsys.readouterr().err == f"quickstart: {path}: {text}\n"


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--seq-len", "x"], ["--seed", "-1"]])
def test_wrong_numbers_leave_with_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        train.parse(arguments)
    assert caught.value.code == 2
    assert "must be a whole number in" in capsys.readouterr().err


def test_output_below_a_file_gives_one_line_and_code_2(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert train.main(["--output", str(tmp_path / "file" / "out")]) == 2
    assert capsys.readouterr().err.startswith("quickstart: --output ")


@pytest.mark.parametrize("stages", ["", "sft,ppo", "sft,", "SFT"])
def test_unknown_stages_leave_with_code_2(stages, capsys):
    with pytest.raises(SystemExit) as caught:
        train.parse(["--stages", stages])
    assert caught.value.code == 2
    assert f"must be some of sft,dpo,rm, by commas; got {stages!r}" in capsys.readouterr().err


def test_files_that_fit_no_wanted_stage_give_one_line_and_code_2(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text('[{"instruction": "a", "output": "b"}]')
    assert train.main(["--stages", "dpo", "--check-only", str(path)]) == 2
    assert capsys.readouterr().err == (
        "quickstart: no stage can run; dpo: skipped: no file has records with chosen and rejected, "
        "or ERNIEKit's src, response and sort\n"
    )


@pytest.mark.parametrize(
    ("flashmask", "dense", "is_equal"),
    [
        (2.0, 2.0, True),
        (2.00001, 2.0, True),
        (2.00003, 2.0, False),
        (float("nan"), 2.0, False),
        (float("nan"), float("nan"), False),
        (float("inf"), float("inf"), False),
    ],
)
def test_losses_are_compared_relatively_and_must_be_finite(flashmask, dense, is_equal):
    assert Step(1, 10, flashmask, dense, 1.0, 1.0).is_equal is is_equal


def test_speed_leaves_the_first_step_out():
    steps = [Step(1, 10, 1, 1, 9.0, 9.0), Step(2, 10, 1, 1, 1.0, 2.0), Step(3, 20, 1, 1, 1.0, 2.0)]
    assert "15 with flashmask_attention, 8 with the dense mask" in speed_line(steps)


def test_tiles_line_counts_visited_tiles():
    assert (
        tiles_line(6, 3, 1, "forward") == "tiles visited, forward: 4 of 10 (40.0%; 3 partly masked)"
    )


def test_pins_agree_with_those_of_the_tests():
    tests = (TRAIN.parents[1] / "requirements-test.txt").read_text().splitlines()
    assert "-r quickstart/requirements.txt" in tests
