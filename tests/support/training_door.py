"""The script tools/bench/training.py, whose name a module of the quickstart has too."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

PATH = Path(__file__).resolve().parents[2] / "tools" / "bench" / "training.py"


@cache
def door() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("training_door_script", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
