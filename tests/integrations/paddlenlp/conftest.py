"""Tests of PaddleNLP's trainer, by `-m paddlenlp` in an environment with the extra of that name."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import pytest

NAME = "paddlenlp"
FOLDER = Path(__file__).parent
SECONDS = 120  # a test takes a few; a data loader that never ends must not hold the others
IS_THERE = importlib.util.find_spec(NAME) is not None

collect_ignore_glob = [] if IS_THERE else ["test_*.py"]
if IS_THERE:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports
        importlib.import_module("paddlenlp.trainer")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if FOLDER in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.paddlenlp)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
        # It calls what Paddle 3.3 deprecates.
        item.add_marker(pytest.mark.filterwarnings("ignore"))
    if NAME not in config.option.markexpr:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


@pytest.fixture(autouse=True)
def clean_modules():
    """Give PaddleNLP its own functions back after each test."""
    yield
    from paddle_flashmask.integrations.paddlenlp.patches import uninstall_all

    uninstall_all()
