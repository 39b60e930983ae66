"""One provider behind a pipe: `worker.py NAME DEVICE`; started by `attention.py`, not by hand.

Requests are lines of JSON on standard input; answers go to what standard output was at the start,
since frameworks print. An error ends the process: its last words are on standard error.
"""

from __future__ import annotations

import json
import os
import sys

import providers
from harness.session import Session


def main() -> None:
    """Answer requests until the pipe is closed."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    name, device = sys.argv[1:]
    session = Session(providers.find(name, device))
    for line in sys.stdin:
        answers.write(json.dumps(session.handle(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
