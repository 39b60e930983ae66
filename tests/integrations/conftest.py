"""Tests of an integration are collected where its trainer is installed, and nowhere else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FOLDERS = [path for path in Path(__file__).parent.iterdir() if (path / "conftest.py").exists()]
collect_ignore = [path.name for path in FOLDERS if importlib.util.find_spec(path.name) is None]
