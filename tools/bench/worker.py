"""One provider behind a pipe: `worker.py NAME DEVICE`; started by `attention.py`, not by hand.

Requests are lines of JSON on standard input; answers go to what standard output was at the start,
since frameworks print. An error ends the process: its last words are on standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import providers
from harness.session import Session


def main() -> None:
    """Answer what is asked of a provider."""

    def start(name: str, device: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return Session(providers.find(name, device)).handle

    serve(start)


def serve(start: Callable[[str, str], Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Answer requests until the pipe is closed.

    Args:
        start: from name and device to what answers a request.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    name, device = sys.argv[1:]
    handle = start(name, device)
    for line in sys.stdin:
        answers.write(json.dumps(handle(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
