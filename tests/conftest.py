"""Seeds that can be repeated; skips for hardware that is missing; the switch for wide sweeps."""

from __future__ import annotations

import importlib.util
import os
import secrets
import zlib

import hypothesis
import numpy as np
import pytest

# Modules of the tests, without tests; some import a trainer that is in no other environment.
collect_ignore = ["support"]
SEED_VARIABLE = "FLASHMASK_TEST_SEED"
SEED_LIMIT = 2**31

hypothesis.settings.register_profile(
    "flashmask", deadline=None, database=None, print_blob=True, max_examples=60
)
hypothesis.settings.load_profile("flashmask")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="base of all seeds; default: fresh")
    parser.addoption("--slow", action="store_true", help="run the wide sweeps as well")


def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("--seed")
    if seed is None:
        seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(SEED_LIMIT))
    config.flashmask_seed = seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.flashmask_seed} (repeat with --seed or {SEED_VARIABLE})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    capability = None
    for item in items:
        for_hopper = item.get_closest_marker("sm90a")  # keywords would hold ids of cases too
        if for_hopper is None and item.get_closest_marker("gpu") is None:
            continue
        capability = _gpu_capability() if capability is None else capability
        if capability == (0, 0):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        elif for_hopper is not None and capability != (9, 0):
            item.add_marker(pytest.mark.skip(reason="needs a GPU of compute capability 9.0"))


def _gpu_capability() -> tuple[int, int]:
    """Capability of the first GPU, (0, 0) without one. Imports torch or Paddle only when asked."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_capability(0)
    if importlib.util.find_spec("paddle") is None:
        return 0, 0
    import paddle

    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        return 0, 0
    return paddle.device.cuda.get_device_capability(0)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of this test alone, from the base seed and the name of the test."""
    base = request.config.flashmask_seed
    own = zlib.crc32(f"{base} {request.node.name}".encode()) % SEED_LIMIT
    print(f"seed {own} from base {base}: repeat with --seed {base} or {SEED_VARIABLE}={base}")
    return own


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
