"""Recipes serve data workers: no Paddle, and names that mean the builders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.recipe_modules import recipe_names

import paddle_flashmask

ROOT = Path(paddle_flashmask.__file__).parents[1]


def run_python(code: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_import_and_use_do_not_load_paddle():
    run_python(
        "import sys, paddle_flashmask.recipes as recipes\n"
        "recipes.sft([3, 2])\n"
        "loaded = [name for name in sys.modules if name.split('.')[0] == 'paddle']\n"
        "assert not loaded, loaded\n"
    )


def test_no_recipe_needs_more_than_numpy():
    run_python(
        "import sys\n"
        "sys.modules['paddle'] = sys.modules['paddlenlp'] = None\n"
        "import paddle_flashmask.recipes\n"
    )


@pytest.mark.parametrize("name", recipe_names())
def test_name_is_the_builder_after_its_module_was_imported_first(name):
    run_python(
        "import importlib, types\n"
        f"module = importlib.import_module('paddle_flashmask.recipes.{name}')\n"
        f"import paddle_flashmask.recipes.{name}\n"
        f"from paddle_flashmask.recipes import {name} as builder\n"
        "assert isinstance(module, types.ModuleType)\n"
        f"assert builder is module.{name}\n"
        f"assert paddle_flashmask.recipes.{name} is builder\n"
    )
