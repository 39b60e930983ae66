"""The drawing tool as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.recipe_modules import recipe_module, recipe_names

ROOT = Path(__file__).parents[2]


def draw(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "tools/draw_mask.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_given_arguments_are_drawn():
    done = draw("sft", "lengths=[2, 1]", "seq_len=4")
    assert done.stderr == ""
    assert done.stdout == (
        "sft(lengths=[2, 1], seq_len=4)\n"
        "causal=True, width 1\n"
        "# . . .\n"
        "# # . .\n"
        ". . # .\n"
        ". . . .\n"
        "\n"
    )


def test_heads_are_drawn_one_below_the_other():
    done = draw("random_eviction", "seq_len=2", "eviction_rows=[[1, 2], [2, 2]]")
    assert done.stdout.endswith("# .\n. #\n\n# .\n# #\n\n")


def test_a_clone_draws_without_an_installed_package(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "draw_mask.py"), "causal", "seq_len=1"],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n#\n\n")


@pytest.mark.parametrize("name", recipe_names())
def test_examples_are_drawn_under_their_names(name):
    done = draw(name)
    assert done.returncode == 0, done.stderr
    titles = [line.partition("  # ")[2] for line in done.stdout.splitlines() if "  # " in line]
    assert titles == list(recipe_module(name).EXAMPLES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["sft", "lengths=[3]", "seq_len=2"],
            "seq_len must be at least the sum of lengths, 3; got 2",
        ),
        (["sft", "lengths"], "argument name=value: must be name=value; got 'lengths'"),
        (["sft", "lengths=[3"], "value of lengths must be a Python literal; got '[3'"),
        (["sft", "length=[3]"], "got an unexpected keyword argument 'length'"),
        (["causal", "seq_len=101"], "seq_len must be at most 100 to be drawn; got 101"),
        (["swa"], "invalid choice: 'swa'"),
        ([], "error: the following arguments are required: recipe\n"),
    ],
)
def test_bad_command_line_is_refused_in_one_sentence(arguments, message):
    done = draw(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
