"""Running a probe in a process of its own, and reading its last words if it fails."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from paddle_flashmask.doctor.probes import MARK

SECONDS = 180  # the first import of Paddle from a slow disk
EXCEPTION = re.compile(r"^(\w+\.)*(\w*(Error|Exception|Exit|Interrupt))\b:? ?")
LONGEST = 600  # characters of a failure that are shown


@dataclass(frozen=True)
class Outcome:
    """What a probe found, or how it failed.

    Attributes:
        facts: what it found; empty if it failed.
        failure: why there are no facts, in a line; None if there are.
        kind: of the failure: an exception's name, "crash" or "timeout".
    """

    facts: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    kind: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether it found what it looked for."""
        return self.failure is None


def run(name: str) -> Outcome:
    """Return the outcome of a probe.

    Args:
        name: of the probe, a key of `probes.PROBES`.
    """
    # So that a child imports from where its parent did.
    options = ["-I"] * sys.flags.isolated + ["-P"] * getattr(sys.flags, "safe_path", False)
    module = ["-W", "ignore", "-m", "paddle_flashmask.doctor.probes", name]
    command = [sys.executable, *options, *module]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(failure=f"it did not end within {SECONDS} s", kind="timeout")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK) and done.returncode == 0:
            return Outcome(facts=json.loads(line.removeprefix(MARK)))
    kind, words = _last_words(done.stderr)
    if done.returncode < 0:
        number = -done.returncode
        known = {one.value: one.name for one in signal.Signals}
        told = f"; its last words: {words}" if words else ""
        return Outcome(
            failure=f"the process died of {known.get(number, number)}{told}", kind="crash"
        )
    return Outcome(failure=words or f"exit code {done.returncode}", kind=kind or "crash")


def _last_words(stderr: str) -> tuple[str, str]:
    """Return name and words of the exception that ended a process, or its last line."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    for number in range(len(lines) - 1, -1, -1):
        match = EXCEPTION.match(lines[number])
        if match is not None:
            told = " ".join(part.strip() for part in lines[number:])
            return match[2], told[match.end() :][:LONGEST] or match[2]
    return "", lines[-1][:LONGEST] if lines else ""
