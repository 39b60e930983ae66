import subprocess
import sys
from pathlib import Path

import pytest
import records
import train
from comparison import Step
from cores import MAX_THREADS, idle_cores
from records import Problem
from report import count, ends_of, memory_line, percent, speed_line, tiles_line, write_losses

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


def test_output_that_is_a_file_is_noticed_by_check_only(tmp_path, capsys):
    path = tmp_path / "file"
    path.touch()
    assert train.main(["--check-only", "--output", str(path)]) == 2
    assert train.main(["--check-only", "--output", str(path / "out")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"quickstart: --output {path}: is a file, not a folder",
        f"quickstart: --output {path}/out: {path} is a file, not a folder",
    ]


def test_skipped_records_are_counted_and_listed(tmp_path, capsys):
    train._report_problems([Problem("x.json", 3, "bad")], tmp_path)
    listing = tmp_path / "skipped.txt"
    assert listing.read_text() == "x.json:3: bad\n"
    assert capsys.readouterr().err == (
        f"skipped x.json:3: bad\n1 malformed record skipped, see {listing}\n"
    )


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
    assert tiles_line(6, 3, 1, "forward") == (
        "tiles visited, forward: 4 of 10 (40%; 3 partly masked), over all steps, layers and heads; "
        "a tile is 64 x 64 cells"
    )


def test_memory_line_names_layers_and_formula():
    assert "score matrices 8192 KiB (2 layers x 4 B Hq S S bytes)" in memory_line(1, 512, 4, 2)


def test_numbers_are_written_with_their_nouns_and_digits():
    assert [count(number, "row") for number in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert [percent(share) for share in (1, 0.5, 0.12345, 0.000123)] == [
        "100%",
        "50%",
        "12.3%",
        "0.0123%",
    ]


@pytest.mark.parametrize(
    ("values", "ends"), [([3.0], (3, 3, 1)), ([1, 2, 3], (1, 3, 1)), (range(8), (0.5, 6.5, 2))]
)
def test_ends_are_means_of_a_quarter(values, ends):
    assert ends_of(values) == ends


def test_table_names_what_the_stage_watches(tmp_path):
    steps = [Step(1, 10, 1, 1, 9.0, 9.0, 0.5)]
    write_losses(tmp_path / "rm.csv", steps, "pair accuracy")
    write_losses(tmp_path / "sft.csv", steps)
    head, first = (tmp_path / "rm.csv").read_text().splitlines()
    assert head.startswith("step,tokens,flashmask_loss,")
    assert head.endswith(",relative_difference,pair_accuracy")
    assert first.endswith(",0.50000000")
    assert (tmp_path / "sft.csv").read_text().splitlines()[0] == head.removesuffix(",pair_accuracy")


@pytest.mark.parametrize(("load", "most"), [("0.10 0 0", MAX_THREADS), ("9000.0 0 0", 1)])
def test_only_idle_cores_count(tmp_path, monkeypatch, load, most):
    path = tmp_path / "loadavg"
    path.write_text(load)
    monkeypatch.setattr("cores.LOAD", path)
    assert 1 <= idle_cores() <= most


def test_help_names_the_script_and_hides_what_is_its_own(capsys):
    with pytest.raises(SystemExit):
        train.parse(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: bash tools/quickstart.sh ")
    assert "--check-only" not in text
    for word in ("PYTHON=", "CXX=", "exit codes: 0", "project's own samples", "(default: 40)"):
        assert word in text


def test_pins_agree_with_those_of_the_tests():
    tests = (TRAIN.parents[1] / "requirements-test.txt").read_text().splitlines()
    assert "-r quickstart/requirements.txt" in tests
