"""tools/gpu_tests.py on a folder of small tests: shares, the table, failures and dead processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import gpu_tests
import pytest

SCRIPT = Path(gpu_tests.__file__)
INI = "[pytest]\nmarkers =\n    gpu: x\n    alone: x\n"
MANY = """
import os, pytest
pytestmark = pytest.mark.gpu

@pytest.mark.parametrize("name", ["a b", "c[d]", "e::f", "g", "h"])
def test_name(name):
    with open("ran", "a") as file:
        print(name, os.getpid(), file=file)

@pytest.mark.alone
def test_large():
    with open("ran", "a") as file:
        print("large", os.getpid(), file=file)

def test_skipped():
    pytest.skip("needs more")
"""
FAILING = """
import pytest
pytestmark = pytest.mark.gpu

@pytest.fixture
def broken():
    yield
    raise RuntimeError("in the end")

def test_wrong():
    assert 1 == 2, "one is not two"

def test_broken(broken):
    pass

def test_right():
    pass
"""
DYING = """
import os, pytest
pytestmark = pytest.mark.gpu

@pytest.mark.parametrize("number", range(8))
def test_number(number):
    if number == 2:
        os._exit(7)
"""


def run(folder, sources, *arguments, jobs=2):
    tests = folder / "tests" / "gpu"
    tests.mkdir(parents=True, exist_ok=True)
    (folder / "pytest.ini").write_text(INI)
    for name, text in sources.items():
        (tests / f"test_{name}.py").write_text(text)
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=folder,
        env={**os.environ, "JOBS": str(jobs), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def counts(output, file):
    (line,) = [line for line in output.splitlines() if line.startswith(f"{file} ")]
    return {name: int(count) for count, name in re.findall(r"(\d+) ([a-z][a-z ]*[a-z])", line)}


def test_every_test_runs_once_and_those_alone_run_last_in_a_process_of_their_own(tmp_path):
    done = run(tmp_path, {"many": MANY})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes, FLASHMASK_TEST_SEED=" in done.stdout
    ran = [line.rpartition(" ")[::2] for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(name for name, _ in ran[:-1]) == ["a b", "c[d]", "e::f", "g", "h"]
    assert len({process for _, process in ran[:-1]}) == 2
    assert ran[-1][0] == "large"
    assert ran[-1][1] not in {process for _, process in ran[:-1]}
    expected = {"passed": 6, "failed": 0, "error": 0, "skipped": 1}
    assert counts(done.stdout, "tests/gpu/test_many.py") == counts(done.stdout, "all") == expected


def test_what_failed_is_shown_and_named_last(tmp_path):
    done = run(tmp_path, {"many": MANY, "failing": FAILING})
    assert done.returncode == 1
    assert "one is not two" in done.stdout
    assert done.stdout.splitlines()[-3] == "== 2 failed"
    assert set(done.stdout.splitlines()[-2:]) == {
        "tests/gpu/test_failing.py::test_wrong",
        "tests/gpu/test_failing.py::test_broken",
    }
    expected = {"passed": 1, "failed": 1, "error": 1, "skipped": 0}
    assert counts(done.stdout, "tests/gpu/test_failing.py") == expected


def test_a_process_that_dies_is_named_by_the_test_it_ran(tmp_path):
    done = run(tmp_path, {"dying": DYING})
    assert done.returncode == 1
    last = "tests/gpu/test_dying.py::test_number[2] (the process ended with 7)"
    assert done.stdout.splitlines()[-2:] == ["== 1 failed", last]
    expected = {"passed": 5, "failed": 0, "error": 0, "skipped": 0, "not run": 3}
    assert counts(done.stdout, "all") == expected


def test_arguments_choose_tests(tmp_path):
    sources = {"many": MANY, "failing": FAILING}
    for arguments in (["-k", "name and not wrong"], ["tests/gpu/test_many.py", "-k", "name"]):
        done = run(tmp_path, sources, *arguments)
        assert done.returncode == 0, done.stdout
        assert counts(done.stdout, "all")["passed"] == 5
    done = run(tmp_path, sources, "tests/gpu/test_failing.py::test_right", jobs=1)
    assert counts(done.stdout, "all") == {"passed": 1, "failed": 0, "error": 0, "skipped": 0}
    assert run(tmp_path, sources, "-k", "nothing").returncode == 5
    assert run(tmp_path, sources, "--no-such-option").returncode == 1


@pytest.mark.parametrize(
    "text", ["def broken(:", "import pytest\npytest.skip('no GPU', allow_module_level=True)"]
)
def test_a_file_that_cannot_be_read_fails_and_one_that_skips_itself_does_not(text, tmp_path):
    done = run(tmp_path, {"file": text})
    is_broken = "broken" in text
    assert done.returncode == is_broken
    found = counts(done.stdout, "tests/gpu/test_file.py")
    assert (found["error"], found["skipped"]) == (is_broken, not is_broken)


@pytest.mark.parametrize(("cores", "jobs"), [(1, 1), (2, 1), (8, 4), (16, 6), (128, 6)])
def test_cores_give_the_number_of_processes(cores, jobs):
    assert gpu_tests.default_jobs(cores) == jobs
