"""Calls of a library built with --races, for test_races.py: library, kernels, head_dim, order.

Reports of ThreadSanitizer go to the standard error, "right" to the output if the results are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "tools"), str(TESTS.parent)]

from support.cases import AttentionCase, spans_of_rows  # noqa: E402
from support.emulated import Door  # noqa: E402
from support.inputs import assert_right, random_inputs  # noqa: E402


def main(library: str, kernels: str, head_dim: str, order: str) -> None:
    """Run small calls, and compare them: all tiles partial, and of every kind."""
    rng = np.random.default_rng(int(os.environ.get("FLASHMASK_EMULATOR_SEED", "0")))
    case = AttentionCase(
        "four",
        batch=1,
        seqlen_q=200,
        seqlen_k=300,
        num_heads=2,
        num_heads_k=1,
        head_dim=int(head_dim),
        dtype="bfloat16",
    )
    spans = spans_of_rows(rng, case.seqlen_q, case.seqlen_k, step=64)
    door = Door(library)
    for mask in (case.make_mask(rng), spans):
        inputs = random_inputs(case, rng)
        with door.only_kernels(kernels):
            found = door.run(inputs, mask, dtype=case.dtype, deterministic=order == "deterministic")
        assert_right(found, inputs, mask, case.dtype)
    print("right")


if __name__ == "__main__":
    main(*sys.argv[1:])
