"""Cells of the training benchmark run with fake workers: order, states, deadline, the CSV."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
from harness import results
from harness.workers import WorkerError
from support.training_door import door
from train_steps import cells, rows
from train_steps.cells import KIB, TrainCell
from train_steps.driver import Run
from train_steps.sizes import SMALL

ORIGIN = results.Source("2026-01-01T00:00:00+00:00", "abc", "a processor", "a command")
CHECK = {
    "is_right": True,
    "checked": "blocks.0.query.weight",
    "error": 0.01,
    "allowed": 0.02,
    "loss_error": 0.0,
    "loss_allowed": 0.01,
    "checked_seqlen": 512,
}
STEPS = {
    "status": "ok",
    "seconds": [1.0, 3.0],
    "cpu_seconds": [2.0, 4.0],
    "warm_ups": 1,
    "loss": 0.5,
    "peak_bytes": 2**30,
    "versions": "fake 1",
}


class Fake:
    """A worker whose answers depend on the length asked for."""

    def __init__(self, log, answers=None, check=CHECK):
        self.log, self.answers, self.check = log, answers or {}, check

    def ask(self, **request):
        self.log.append((request["do"], request.get("layout"), request.get("seqlen")))
        if request["do"] == "compile":
            return {"seconds": 0.0}
        if request["do"] == "check":
            return self.check
        answer = self.answers.get(request["seqlen"], STEPS)
        if answer is None:
            raise WorkerError("its last words (exit code 1)")
        return answer

    def kill(self):
        self.log.append(("kill", None, None))

    def close(self):
        self.log.append(("close", None, None))


def run(worker, wanted, *, device="gpu", seconds=60.0):
    fields = {"sizes": SMALL, "threads": 0, "turns": 2, "origin": ORIGIN}

    def start(name, variables=None):
        worker.log.append(("start", name, variables))
        return worker

    found = Run(start, device=device, seconds=seconds, **fields)
    lines = list(found.prepare(wanted))
    measured = list(found.rows(wanted))
    found.close()
    return lines, measured


def some(*seqlens, layout="sft", provider="ours"):
    return [TrainCell(layout, seqlen, provider) for seqlen in seqlens]


def test_everything_is_checked_before_anything_is_timed():
    log = []
    lines, found = run(Fake(log), some(1024) + some(1024, layout="rm"))
    assert [action for action, *_ in log] == [
        "start",
        "compile",
        "check",
        "check",
        "measure",
        "measure",
        "close",
    ]
    assert "sft right: blocks.0.query.weight 0.01 <= 0.02" in lines[0]
    assert [row.status for row in found] == ["ok", "ok"]


def test_what_compiles_does_so_for_every_length_in_a_process_of_its_own_before():
    log = []
    lines, found = run(Fake(log), some(1024, 2048, provider="torch_flex"))
    first = log[: [action for action, *_ in log].index("check")]
    assert [action for action, *_ in first].count("compile") == 3
    assert [action for action, *_ in first].count("close") == 2
    # Each with one compiler: by itself each would start as many as there are cores.
    variables = [given for action, _, given in first if action == "start"]
    assert variables == [{"TORCHINDUCTOR_COMPILE_THREADS": "1"}] * 2 + [None]
    assert lines[0].startswith("compiled 2 lengths in ")
    assert [row.status for row in found] == ["ok", "ok"]


def test_a_length_that_does_not_compile_is_told_and_the_rest_goes_on():
    class Failing(Fake):
        def ask(self, **request):
            if request["do"] == "compile" and request["seqlens"] == [2048]:
                raise WorkerError("no memory (exit code 1)")
            return super().ask(**request)

    lines, found = run(Failing([]), some(1024, 2048, provider="torch_flex"))
    assert lines[1] == "torch_flex at S=2048 was not compiled: no memory (exit code 1)"
    assert [row.status for row in found] == ["ok", "ok"]


def test_a_row_has_rates_of_all_steps_and_of_single_ones():
    (row,) = run(Fake([]), some(1024))[1]
    assert (row.steps, row.step_ms, row.cpu_ms) == (2, 2000.0, 3000.0)
    assert (row.tokens_per_s, row.tokens_per_s_least, row.tokens_per_s_most) == (512, 341.33, 1024)
    assert (row.peak_gib, row.loss, row.documents) == (1.0, 0.5, "4 2 4")
    assert (row.error, row.allowed, row.checked_seqlen) == (0.01, 0.02, 512)
    assert 0 < row.density < 0.5


def test_what_was_wrong_or_not_checked_is_no_figure():
    for check in (CHECK | {"is_right": False}, {"status": "error", "reason": "it died"}):
        (row,) = run(Fake([], check=check), some(1024))[1]
        assert row.status == "wrong"


def test_longer_rows_than_one_that_did_not_fit_are_left_out():
    full = {"status": "does not fit", "reason": "out of memory"}
    found = run(Fake([], {2048: full}), some(1024, 2048, 4096) + some(4096, layout="rm"))[1]
    assert [(row.layout, row.seqlen, row.status) for row in found] == [
        ("sft", 1024, "ok"),
        ("sft", 2048, "does not fit"),
        ("rm", 4096, "ok"),
    ]
    assert found[1].tokens_per_s == ""


def test_a_process_that_died_is_an_error_and_started_again():
    log = []
    found = run(Fake(log, {1024: None}), some(1024, 2048))[1]
    assert [(row.status, row.reason) for row in found] == [
        ("error", "its last words (exit code 1)"),
        ("ok", ""),
    ]
    assert [action for action, *_ in log].count("close") == 2


def test_nothing_is_measured_when_the_time_is_up():
    assert run(Fake([]), some(1024), seconds=0.0)[1] == []
    assert run(Fake([], {1024: None}), some(1024), seconds=0.0)[1] == []


def test_on_the_cpu_every_cell_has_a_process_of_its_own():
    log = []
    run(Fake(log), some(1024, 2048), device="cpu")
    assert [action for action, *_ in log].count("close") == 2


def test_the_longest_of_a_gpu_come_first_and_rivals_of_the_cpu_are_beside_each_other():
    order = cells.cells("gpu")
    assert order[0] == TrainCell("sft", 128 * KIB, "ours")
    assert len(order) == len(set(order)) == 4 * 5 * 3
    assert [cell.provider for cell in cells.cells("cpu")][:2] == ["ours", "paddle_dense"]
    assert cells.cells("gpu", ["rm"], [256 * KIB], ["ours"]) == [TrainCell("rm", 256 * KIB, "ours")]


def test_the_csv_is_appended_to_and_the_last_row_counts(tmp_path):
    path = tmp_path / "rows.csv"
    (row,) = run(Fake([]), some(1024))[1]
    rows.append(path, [row])
    rows.append(path, [replace(row, loss=0.25)])
    assert [one["loss"] for one in rows.read(path)] == ["0.25"]
    with path.open(newline="", encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--providers", "torch_flex"], "provider must be one of ours, paddle_dense"),
        (["--turns", "0"], "--turns must be at least 1; got 0"),
        (["--heads-k", "3"], "--heads-k must divide the query heads; got 3"),
    ],
)
def test_wrong_arguments_are_named(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        door().main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_the_door_writes_rows_and_its_exit_code_says_if_ours_was_wrong(tmp_path, monkeypatch):
    training = door()
    path = tmp_path / "rows.csv"
    arguments = ["--layouts", "sft", "--seqlens", "1024", "--csv", str(path)]
    for check, code in ((CHECK, 0), (CHECK | {"is_right": False}, 1)):
        fake = Fake([], check=check)
        monkeypatch.setattr(training, "Worker", lambda *given, fake=fake, **named: fake)
        assert training.main(arguments) == code
    found = rows.read(path)
    assert {row["provider"] for row in found} == {"ours", "paddle_dense"}
    assert all(row["command"].endswith("--layouts sft --seqlens 1024") for row in found)


def test_cells_are_listed(capsys):
    assert door().main(["--list", "--layouts", "rm", "--seqlens", "1024"]) == 0
    assert capsys.readouterr().out == "rm S=1024 ours\nrm S=1024 paddle_dense\n"
