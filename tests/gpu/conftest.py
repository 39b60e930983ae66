"""A short table at the end: what ran, by file."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

FOLDER = "tests/gpu/"
OUTCOMES = ("passed", "failed", "error", "skipped")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    for outcome in OUTCOMES:
        for report in terminalreporter.stats.get(outcome, []):
            file = report.nodeid.split("::")[0]
            if not file.startswith(FOLDER):
                continue
            counts[file][outcome] += 1
            seconds[file] += getattr(report, "duration", 0.0)
    if not any(found["passed"] or found["failed"] or found["error"] for found in counts.values()):
        return
    terminalreporter.section("GPU tests")
    width = max(map(len, counts), default=0)
    for file, found in sorted(counts.items()):
        numbers = "  ".join(f"{found[outcome]:5d} {outcome}" for outcome in OUTCOMES)
        terminalreporter.write_line(f"{file:{width}}  {numbers}  {seconds[file]:6.1f} s")
