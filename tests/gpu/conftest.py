"""What all tests of the GPU kernels vary."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

SHARING_VARIABLE = "FLASHMASK_TEST_SHARING"


@pytest.fixture(autouse=True)
def _sharing_of_key_blocks(seed: int) -> Iterator[None]:
    """Let small calls share key blocks among work items, as is usual, or not, as large ones.

    The variable says which, "on" or "off"; without it the seed does.
    """
    capi = sys.modules.get("capi")
    choice = os.environ.get(SHARING_VARIABLE) or ("on" if seed % 2 else "off")
    assert choice in ("on", "off"), f"{SHARING_VARIABLE} must be on or off, got {choice}"
    if capi is None or choice == "on":
        yield
        return
    print("key blocks are not shared")
    capi.want_backward_items(0)
    yield
    capi.want_backward_items(None)
