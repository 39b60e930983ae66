"""README.md: its Python blocks run, its paths exist, it stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 200


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def paths_in(text: str) -> set[str]:
    linked = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    coded = re.findall(r"`((?:paddle_flashmask|custom_ops|tests|tools)/[\w./-]*)`", text)
    run = re.findall(r"\b((?:tools|tests)/[\w/-]+\.(?:sh|py))\b", text)
    return {*linked, *coded, *run}


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_block_runs(number: int) -> None:
    exec(compile(blocks("python")[number], f"README.md block {number}", "exec"), {})


def test_there_are_python_blocks_and_paths() -> None:
    assert len(blocks("python")) >= 2
    assert {"tools/quickstart.sh", "tools/test.sh"} <= paths_in(TEXT)


@pytest.mark.parametrize("path", sorted(paths_in(TEXT)))
def test_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_is_at_most_200_lines() -> None:
    assert len(TEXT.splitlines()) <= MAX_LINES
