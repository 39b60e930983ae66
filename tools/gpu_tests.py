"""The GPU tests in several processes, with one table of what they gave; see tools/gpu_test.sh.

    JOBS=6 python tools/gpu_tests.py [arguments for pytest]

Every process collects all tests and runs its share of them; those marked `alone` come last, in a
process of their own, since they take most of the GPU's memory. Logs are in build/gpu_tests, or in
$FLASHMASK_TEST_LOGS. Exit code 1: a test failed, or a process died.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

FAILED = 1
OUTCOMES = ("passed", "failed", "error", "skipped", "not run")
BAD = ("failed", "error")
OPTIONS = ("-m", "gpu", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore")
FOLDER = "tests/gpu"
LOGS, LOGS_VARIABLE = Path("build/gpu_tests"), "FLASHMASK_TEST_LOGS"
SEED_VARIABLE, SEED_LIMIT = "FLASHMASK_TEST_SEED", 2**31  # of tests/conftest.py
ALONE = "alone"  # the share, and the marker
MOST_JOBS, CORES_PER_JOB = 6, 2
THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(CORES_PER_JOB))
SHARE = "--share"  # NUMBER/COUNT or alone, then the report's path: this process is one of several


class Share:
    """A plugin of pytest that keeps some of the tests, and reports in lines of JSON as they run.

    Args:
        share: "NUMBER/COUNT" of the tests that are not marked alone, or "alone".
        path: of the report.
    """

    def __init__(self, share: str, path: Path) -> None:
        self._share = share
        self._file = path.open("w", encoding="utf-8")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        alone = [item for item in items if item.get_closest_marker(ALONE) is not None]
        mine = alone
        if self._share != ALONE:
            number, count = map(int, self._share.split("/"))
            mine = [item for item in items if item not in alone][number::count]
        config.hook.pytest_deselected(items=[item for item in items if item not in mine])
        items[:] = mine
        self.write(collected=[item.nodeid for item in mine])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            outcome = "skipped" if report.skipped else "error"
            self.write(test=report.nodeid, outcome=outcome, seconds=0.0)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(started=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome
        if report.when != "call" and not report.skipped:
            outcome = "error" if report.failed else "not run"  # yet, or no longer
        self.write(test=report.nodeid, outcome=outcome, seconds=report.duration)

    def write(self, **line: object) -> None:
        """Add a line that is on disk even if the process dies of the next test."""
        print(json.dumps(line), file=self._file, flush=True)


@dataclass
class Found:
    """What the tests gave, over all processes."""

    outcomes: dict[str, str] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    died: list[str] = field(default_factory=list)

    def add(self, report: Path, code: int) -> None:
        """Read the report of a process that ended with a code."""
        started = ""
        lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
        ended = False
        for line in map(json.loads, lines):
            ended = ended or "code" in line
            started = line.get("started", started)
            for test in line.get("collected", ()):
                self.outcomes.setdefault(test, "not run")
            if "test" in line:
                self._add_outcome(line["test"], line["outcome"])
                self.seconds[line["test"]] += line["seconds"]
        if not ended:
            self.died.append(f"{started or report.stem} (the process ended with {code})")

    def _add_outcome(self, test: str, outcome: str) -> None:
        # Setup and teardown count if they fail only.
        if outcome != "not run":
            self.outcomes[test] = outcome

    def bad(self) -> list[str]:
        """Return the tests that failed, and those that a process died of."""
        return [test for test, outcome in self.outcomes.items() if outcome in BAD] + self.died

    def table(self) -> str:
        """Return a line for each file: how many tests had each outcome, and their seconds."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        seconds: Counter[str] = Counter()
        for test, outcome in self.outcomes.items():
            file = test.partition("::")[0]
            counts[file][outcome] += 1
            seconds[file] += self.seconds[test]
        counts["all"] = sum(counts.values(), Counter())
        seconds["all"] = seconds.total()
        shown = [name for name in OUTCOMES if name != "not run" or counts["all"][name]]
        width = max(map(len, counts))
        return "\n".join(
            f"{file:{width}}  "
            + "  ".join(f"{found[outcome]:5d} {outcome}" for outcome in shown)
            + f"  {seconds[file]:7.1f} s"
            for file, found in sorted(counts.items(), key=lambda pair: (pair[0] == "all", pair[0]))
        )


def main(arguments: Sequence[str]) -> int:
    """Run the tests, print the table, return the exit code."""
    if SHARE in arguments:
        place = list(arguments).index(SHARE)
        share, report = arguments[place + 1 : place + 3]
        return run_share(share, Path(report), [*arguments[:place], *arguments[place + 3 :]])
    jobs = int(os.environ.get("JOBS") or default_jobs(os.cpu_count() or 1))
    os.environ.setdefault(SEED_VARIABLE, str(secrets.randbelow(SEED_LIMIT)))
    print(f"{jobs} processes, {SEED_VARIABLE}={os.environ[SEED_VARIABLE]}", flush=True)
    logs = Path(os.environ.get(LOGS_VARIABLE) or LOGS)
    logs.mkdir(parents=True, exist_ok=True)
    found, codes = Found(), []
    for shares in ([f"{number}/{jobs}" for number in range(jobs)], [ALONE]):
        for share, code in run_at_once(shares, logs, arguments):
            codes.append(code)
            log, report = paths(logs, share)
            found.add(report, code)
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                print(f"== {log}", log.read_text(encoding="utf-8"), sep="\n", flush=True)
    return report_all(found, codes)


def default_jobs(cores: int) -> int:
    """Return how many processes a machine with so many cores runs."""
    return max(1, min(MOST_JOBS, cores // CORES_PER_JOB))


def paths(logs: Path, share: str) -> tuple[Path, Path]:
    """Return where a process's output and its report go."""
    stem = f"share_{share.partition('/')[0]}"
    return logs / f"{stem}.log", logs / f"{stem}.jsonl"


def run_at_once(
    shares: Sequence[str], logs: Path, arguments: Sequence[str]
) -> Iterator[tuple[str, int]]:
    """Run processes beside each other; yield each with its exit code as it ends."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as files:
        try:
            for share in shares:
                log, report = paths(logs, share)
                report.unlink(missing_ok=True)
                running[share] = subprocess.Popen(
                    [sys.executable, __file__, *arguments, SHARE, share, str(report)],
                    stdout=files.enter_context(log.open("wb")),
                    stderr=subprocess.STDOUT,
                    env={**THREADS, **os.environ},
                )
            while running:
                ended = [share for share, process in running.items() if process.poll() is not None]
                for share in ended:
                    yield share, running.pop(share).returncode
                time.sleep(0 if ended else 0.1)
        finally:
            for process in running.values():
                process.kill()


def run_share(share: str, report: Path, arguments: Sequence[str]) -> int:
    """Run the share of one process."""
    sys.path.insert(0, str(Path.cwd()))  # as python -m pytest does
    plugin = Share(share, report)
    # A folder or test that is named takes the place of all.
    named = [one for one in arguments if one and Path(one.partition("::")[0]).exists()]
    code = pytest.main([*([] if named else [FOLDER]), *OPTIONS, *arguments], plugins=[plugin])
    plugin.write(code=int(code))
    return int(code)


def report_all(found: Found, codes: Sequence[int]) -> int:
    """Print the table and what failed; return the exit code."""
    print("== GPU tests", found.table(), sep="\n", flush=True)
    bad = found.bad()
    if bad:
        print(f"== {len(bad)} failed", *bad, sep="\n", flush=True)
        return FAILED
    if set(codes) == {int(pytest.ExitCode.NO_TESTS_COLLECTED)} and not found.outcomes:
        return int(pytest.ExitCode.NO_TESTS_COLLECTED)
    fine = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return 0 if all(code in fine for code in codes) else FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
