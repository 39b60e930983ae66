"""Cells run with fake providers: turns, states, errors, the command line and its exit codes."""

from functools import partial

import attention
import providers
import pytest
from harness import driver, options, results, workers
from harness.cells import BACKWARD, FORWARD
from harness.session import Session
from harness.workers import Worker, WorkerError
from support.fake_provider import FakeProvider, cell

ORIGIN = results.Source("2026-01-01T00:00:00+00:00", "abc", "a processor", "a command")


class InProcess:
    """A worker without a process, that records what it is asked."""

    def __init__(self, provider_class, log):
        self.session, self.log, self.name = Session(provider_class), log, provider_class.__name__

    def ask(self, **request):
        self.log.append((self.name, request["do"], request.get("direction")))
        return self.session.handle(request)

    def close(self):
        self.log.append((self.name, "close", None))


@pytest.fixture
def fakes(monkeypatch):
    """Two providers under the names of real ones; the second has no backward."""

    class First(FakeProvider):
        pass

    class Second(FakeProvider):
        @classmethod
        def impossible(cls, cell, mask, direction):
            return "no backward here" if direction == BACKWARD else None

    found = {"ours": First, "torch_sdpa": Second}
    monkeypatch.setattr(providers, "find", lambda name, device: found[name])
    return found


def run(fakes, log, **changes):
    shape = cell(providers=("ours", "torch_sdpa"), seqlen=65, **changes)
    return driver.run_cell(
        shape, lambda name, _: InProcess(fakes[name], log), driver.Effort(4, 60.0), ORIGIN
    )


def test_providers_take_turns_after_the_check_and_are_closed(fakes):
    log = []
    rows = run(fakes, log)
    timed = [name for name, action, direction in log if (action, direction) == ("time", FORWARD)]
    assert timed == ["First", "Second"] * 4
    actions = [action for _, action, _ in log]
    assert actions.index("time") > max(i for i, a in enumerate(actions) if a == "sample")
    assert actions[-2:] == ["close", "close"]
    assert [(row.provider, row.direction, row.status) for row in rows] == [
        ("ours", FORWARD, "ok"),
        ("torch_sdpa", FORWARD, "ok"),
        ("ours", BACKWARD, "ok"),
        ("torch_sdpa", BACKWARD, "n/a"),
    ]
    assert rows[3].reason == "no backward here"
    assert rows[0].runs == 4


def test_a_slow_provider_sits_turns_out_evenly():
    log = []

    class Asked:
        def __init__(self, name):
            self.name = name

        def ask(self, **request):
            log.append(self.name)
            return {"timings": [[1.0, 1.0]]}

    quick, slow = (
        driver.Contestant(name, Asked(name), (FORWARD,), {FORWARD: seconds})
        for name, seconds in (("quick", 1.0), ("slow", 100.0))
    )
    driver._time_in_turns([quick, slow], FORWARD, driver.Effort(7, 10.0))
    assert "".join(name[0] for name in log) == "qqqsqqsqqs"
    assert len(slow.timings[FORWARD]) == driver.LEAST_TURNS["cpu"]


def test_on_a_gpu_the_order_changes_and_calls_before_a_turn_are_not_timed():
    log = []

    class Asked:
        def __init__(self, name):
            self.name = name

        def ask(self, *, untimed, count, **_):
            log.append(self.name)
            assert (untimed, count) == (2, 3)
            return {"timings": [[0.01, 0.01]] * count}

    three = [driver.Contestant(n, Asked(n), (FORWARD,), {FORWARD: 0.01}) for n in "abc"]
    driver._time_in_turns(three, FORWARD, driver.Effort(20, 10.0), "gpu")
    turns = ["".join(log[i : i + 3]) for i in range(0, len(log), 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 3
    assert [len(one.timings[FORWARD]) for one in three] == [60] * 3


def test_a_pause_comes_before_each_turn(fakes, monkeypatch):
    log = []
    monkeypatch.setattr(driver.time, "sleep", lambda seconds: log.append(("pause", seconds)))
    shape = cell(providers=("ours",), seqlen=65, directions=(FORWARD,))
    effort = driver.Effort(3, 60.0, pause=0.5)
    driver.run_cell(shape, lambda name, _: InProcess(fakes[name], log), effort, ORIGIN)
    assert log[-7:] == [("pause", 0.5), ("First", "time", FORWARD)] * 3 + [("First", "close", None)]


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_pause_is_a_time(seconds, capsys):
    with pytest.raises(SystemExit):
        options.parse(["--pause", seconds], "")
    assert f"--pause must be at least 0 and finite; got {seconds}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "count"), [(1.0, 1), (0.0201, 1), (0.01, 2), (1e-6, 50), (0.0, 50)]
)
def test_short_calls_are_run_in_a_row(seconds, count):
    assert driver.calls_in_a_row(seconds) == count


def test_a_wrong_provider_is_marked_and_only_ours_fails_the_run(fakes):
    fakes["torch_sdpa"].wrong = "out"
    rows = run(fakes, [])
    assert [row.status for row in rows] == ["ok", "wrong", "ok", "n/a"]
    assert attention.exit_code(rows) == 0
    fakes["torch_sdpa"].wrong = ""
    fakes["ours"].wrong = "grad_key"
    rows = run(fakes, [])
    assert [row.status for row in rows] == ["ok", "ok", "wrong", "n/a"]
    assert attention.exit_code(rows) == attention.FAILED


def test_a_provider_that_fails_is_an_error_and_the_others_go_on(fakes):
    class Failing(InProcess):
        def ask(self, **request):
            if request["do"] == "time":
                raise WorkerError("out of memory (exit code -9)")
            return super().ask(**request)

    shape = cell(providers=("ours", "torch_sdpa"), seqlen=65)
    kinds = {"ours": InProcess, "torch_sdpa": Failing}
    rows = driver.run_cell(
        shape, lambda name, _: kinds[name](fakes[name], []), driver.Effort(3, 1.0), ORIGIN
    )
    assert [row.status for row in rows] == ["ok", "error", "ok", "n/a"]
    assert "out of memory" in attention.line(rows[1])
    assert "--exclude torch_sdpa" in attention.line(rows[1])
    assert attention.exit_code(rows) == attention.FAILED


def test_a_provider_with_other_inputs_is_refused(fakes):
    class Other(FakeProvider):
        def make_inputs(self):
            super().make_inputs()
            self.tensors["value"] = self.tensors["value"] + 1

    fakes["torch_sdpa"] = Other
    rows = run(fakes, [])
    assert [row.status for row in rows] == ["ok", "error", "ok", "error"]
    assert rows[1].reason == "value is not that of the other providers"


def test_a_provider_may_have_a_backward_alone(fakes):
    class BackwardOnly(FakeProvider):
        @classmethod
        def impossible(cls, cell, mask, direction):
            return "its forward is that of another" if direction == FORWARD else None

        def forward(self):
            raise AssertionError

    fakes["torch_sdpa"] = BackwardOnly
    rows = run(fakes, [])
    assert [row.status for row in rows] == ["ok", "n/a", "ok", "ok"]


def test_a_backward_that_fails_leaves_the_forward(fakes):
    class ForwardOnly(FakeProvider):
        def backward(self):
            raise RuntimeError("no kernel for head_dim 256; there is:\nanother")

    fakes["ours"] = ForwardOnly
    rows = run(fakes, [])
    assert [row.status for row in rows] == ["ok", "ok", "error", "n/a"]
    assert rows[2].reason == "no kernel for head_dim 256; there is:"


@pytest.mark.parametrize(
    ("seconds", "plan"),
    [(0.001, (7, 20)), (0.03, (7, 3)), (0.1, (3, 3)), (0.3, (3, 1)), (2.0, (2, 1))],
)
def test_a_gpu_runs_short_calls_often_and_long_ones_twice(seconds, plan):
    assert driver.plan(seconds, driver.Effort(7, 1.0), "gpu") == plan


def test_our_operator_runs_in_a_process_of_its_own():
    shape = cell(seqlen=130)
    origin = results.source("a command")
    start = partial(attention.start_worker, workers.KeptWorkers())
    rows = driver.run_cell(shape, start, driver.Effort(3, 1.0), origin)
    assert [row.status for row in rows] == ["ok", "ok"]
    assert "paddle_flashmask" in rows[0].versions
    assert rows[1].peak_mib >= 0
    assert rows[1].cpu_ms > 0


def test_a_process_that_dies_says_its_last_words():
    worker = Worker("no_such_provider", device="cpu", threads=1)
    with pytest.raises(WorkerError, match=r"KeyError: 'no_such_provider' \(exit code 1\)"):
        worker.ask(do="prepare", cell={})
    worker.close()


def test_a_process_that_does_not_answer_is_killed(tmp_path):
    script = tmp_path / "silent.py"
    script.write_text("import time\ntime.sleep(600)\n")
    worker = Worker("any", device="gpu", threads=0, script=script, limit=0.2)
    with pytest.raises(WorkerError, match=r"exit code -9"):
        worker.ask(do="prepare")
    worker.close()


def test_what_is_not_installed_is_named_with_its_remedy(fakes, capsys, tmp_path):
    fakes["torch_sdpa"].modules = ("no_such_module.part",)
    fakes["torch_sdpa"].install = "pip install it"
    arguments = ["--providers", "ours", "torch_sdpa", "--seqlens", "64"]
    assert attention.main([*arguments, "--csv", str(tmp_path / "x.csv")]) == 2
    message = capsys.readouterr().err
    assert "torch_sdpa needs no_such_module.part: pip install it" in message
    assert "--exclude torch_sdpa" in message
    assert not (tmp_path / "x.csv").exists()


def test_what_can_do_nothing_here_need_not_be_installed(fakes):
    class Impossible(FakeProvider):
        modules = ("no_such_module",)

        @classmethod
        def impossible(cls, cell, mask, direction):
            return "never"

    fakes["torch_sdpa"] = Impossible
    assert attention.report_missing([cell(providers=("ours", "torch_sdpa"))]) == []


def test_every_provider_can_be_named_without_its_framework():
    for device, names in providers.ON_DEVICE.items():
        for name in [*names, *providers.OPTIONAL[device]]:
            assert issubclass(providers.find(name, device), providers.Provider)


def test_shapes_from_the_command_line_replace_the_default_cells():
    arguments = ["--seqlens", "64", "128", "--masks", "causal", "full", "--threads", "2"]
    arguments += ["--heads", "6", "--heads-k", "2", "--pass", "forward", "--exclude", "torch_flex"]
    cells = options.cells(options.parse(arguments, ""))
    assert [(c.seqlen, c.mask) for c in cells] == [
        (64, "causal"),
        (64, "full"),
        (128, "causal"),
        (128, "full"),
    ]
    assert {(c.num_heads, c.num_heads_k, c.threads, c.directions) for c in cells} == {
        (6, 2, 2, (FORWARD,))
    }
    assert all("torch_flex" not in c.providers and "ours" in c.providers for c in cells)


@pytest.mark.parametrize("arguments", [["--providers", "x"], ["--heads-k", "3"], ["--batch", "0"]])
def test_wrong_options_leave_with_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        options.parse(arguments, "")
    assert caught.value.code == 2
    assert "must be" in capsys.readouterr().err


def test_rows_of_who_cannot_run_name_the_device_of_who_can(fakes, monkeypatch):
    monkeypatch.setattr(fakes["ours"], "device_name", lambda self: "a GPU")
    monkeypatch.setattr(fakes["torch_sdpa"], "device_name", lambda self: "a GPU")
    rows = run(fakes, [])
    assert [row.status for row in rows] == ["ok", "ok", "ok", "n/a"]
    assert {row.device for row in rows} == {"a GPU"}


def test_rows_of_who_dies_name_the_device_too(fakes, monkeypatch):
    class Dying(InProcess):
        def ask(self, **request):
            raise WorkerError("killed (exit code -9)")

    monkeypatch.setattr(fakes["torch_sdpa"], "device_name", lambda self: "a GPU")
    kinds = {"ours": Dying, "torch_sdpa": InProcess}
    shape = cell(providers=("ours", "torch_sdpa"), seqlen=65)
    rows = driver.run_cell(
        shape, lambda name, _: kinds[name](fakes[name], []), driver.Effort(3, 1.0), ORIGIN
    )
    assert {row.device for row in rows} == {"a GPU"}


def test_the_recorded_command_names_no_place():
    given = ["--csv", "/tmp/x", "--masks", "full", "--commit=abc", "--batch", "2"]
    assert attention.measured(given) == ["--masks", "full", "--batch", "2"]


class Mortal:
    """A worker that dies of the request "die", and counts how many were started and closed."""

    started = closed = 0

    def __init__(self, name, *, device, threads, limit):
        type(self).started += 1
        self.asked = []

    def ask(self, **request):
        self.asked.append(request["do"])
        if request["do"] == "die":
            raise WorkerError("killed (exit code -9)")
        return {}

    def close(self):
        type(self).closed += 1


def test_workers_of_a_gpu_stay_until_they_die(monkeypatch):
    monkeypatch.setattr(workers, "Worker", Mortal)
    kept = workers.KeptWorkers()
    first = kept.borrow("ours", device="gpu")
    first.close()
    second = kept.borrow("ours", device="gpu")
    assert Mortal.started == 1
    with pytest.raises(WorkerError):
        second.ask(do="die")
    second.close()
    assert Mortal.closed == 1
    third = kept.borrow("ours", device="gpu")
    third.close()
    assert Mortal.started == 2
    assert third._worker.asked == ["drop"]
    kept.close()
    assert Mortal.closed == 2


def test_a_worker_of_a_gpu_may_die_while_it_forgets_a_cell(monkeypatch):
    class DiesOfDrop(Mortal):
        started = closed = 0

        def ask(self, **request):
            return super().ask(do="die")

    monkeypatch.setattr(workers, "Worker", DiesOfDrop)
    kept = workers.KeptWorkers()
    kept.borrow("ours", device="gpu").close()
    assert DiesOfDrop.closed == 1
    kept.borrow("ours", device="gpu")
    assert DiesOfDrop.started == 2


def test_a_worker_that_died_is_closed_though_it_left_a_request_unread():
    worker = Worker("ours", device="cpu", threads=1)
    worker.kill()
    worker._process.wait()
    worker._process.stdin.write("{}\n")
    worker.close()
