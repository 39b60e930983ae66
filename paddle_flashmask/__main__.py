"""The commands of the package: `python -m paddle_flashmask mask` and `... doctor`."""

from __future__ import annotations

import sys

USAGE = """usage: python -m paddle_flashmask COMMAND [--help]

mask    draw a mask, count what it costs, explain a cell
doctor  check this installation and say what is wrong
"""
BAD_USAGE = 2


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names; return the exit code.

    Args:
        arguments: of the command line.
    """
    command, rest = arguments[:1], arguments[1:]
    if command == ["doctor"]:
        from paddle_flashmask.doctor.command import main as run_doctor

        return run_doctor(rest)
    if command == ["mask"]:
        from paddle_flashmask.viewer.command import main as run_viewer

        return run_viewer(rest)
    is_help = command in (["-h"], ["--help"])
    print(USAGE, end="", file=sys.stdout if is_help else sys.stderr)
    return 0 if is_help else BAD_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
