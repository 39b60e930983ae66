"""Which GPUs run compiled code, by its names in nvcc; as in `core/kernel_registry.cc`."""

from __future__ import annotations

import re

__all__ = ["runs_on"]

CODE = re.compile(r"(sm|compute)_(\d+)(a?)")


def runs_on(code: str, capability: int) -> bool:
    """Tell whether code runs on a GPU.

    Args:
        code: nvcc's name: sm_80 runs on 8.x from 8.0 on, sm_90a on 9.0 alone, compute_90 (PTX) on
            9.0 and all that is newer.
        capability: 90 for 9.0.
    """
    match = CODE.fullmatch(code)
    if match is None:
        return False
    number = int(match[2])
    if match[3]:
        return number == capability
    is_same_family = match[1] == "compute" or number // 10 == capability // 10
    return is_same_family and number <= capability
