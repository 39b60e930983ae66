"""Programs in processes of their own: for what needs a fresh state, or may crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import paddle_flashmask


def run_python(
    program: str, folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess:
    """Run a program in a new process that imports the package from where we have it.

    It is written to a file: Paddle reads the source of functions that it turns into graphs.
    """
    file = folder / "program.py"
    file.write_text(program)
    root = Path(paddle_flashmask.__file__).parents[1]
    return subprocess.run(
        [sys.executable, str(file), *arguments],
        env={**os.environ, "PYTHONPATH": str(root), **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
