"""What all tests of the GPU kernels vary."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

SHARING_VARIABLE = "FLASHMASK_TEST_SHARING"


@pytest.fixture(autouse=True)
def _division_of_work(seed: int) -> Iterator[None]:
    """Let small calls share key blocks among work items, as is usual, or not, as large ones.

    The variable says which, "on" or "off"; without it the seed does. It also says whether heads are
    worked on together, as is usual, or one after the other, as those of long sequences.
    """
    capi = sys.modules.get("capi")
    choice = os.environ.get(SHARING_VARIABLE) or ("on" if seed % 2 else "off")
    assert choice in ("on", "off"), f"{SHARING_VARIABLE} must be on or off, got {choice}"
    if capi is None:
        yield
        return
    together = seed // 2 % 2 == 1
    print(f"sharing of key blocks: {choice}; heads together: {'yes' if together else 'no'}")
    capi.want_backward_items(None if choice == "on" else 0)
    capi.limit_section_bytes(None if together else 0)
    yield
    capi.want_backward_items(None)
    capi.limit_section_bytes(None)


@pytest.fixture
def short_calls() -> None:
    """Divide work as short calls do, whose sums of key gradients have a fixed order."""
    sys.modules["capi"].limit_section_bytes(None)
