"""The library registers what the sources say, of which README's table is made."""

from __future__ import annotations

import pytest
import support_matrix
from support.gpu import capi

pytestmark = pytest.mark.gpu


def test_the_library_describes_its_kernels_as_the_sources_do():
    ours = [kernel.describe() for kernel in support_matrix.registered_kernels()]
    # A library need not have been built for every architecture.
    theirs = support_matrix.described_lines(capi.info())
    assert theirs == [line for line in ours if line in theirs]
    assert {line for line in ours if line.startswith("sm80 ")} <= set(theirs)
