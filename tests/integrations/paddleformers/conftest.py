"""Every test here has the marker, a timeout, and PaddleFormers as it is without us afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddle_flashmask.integrations import paddleformers

FOLDER = Path(__file__).parent
SECONDS = 240  # a sample that PaddleFormers cannot read it tries again for ever


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.paddleformers)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(autouse=True)
def _registered():
    paddleformers.register()
    yield
    paddleformers.unregister()
