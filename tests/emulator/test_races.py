"""No two threads of an emulated kernel touch the same memory with nothing to order them.

The only report allowed is of a product whose result nobody uses: in the first step of a key block
the sm90a backward multiplies what is left of dS of another step (backward_consumer.cuh).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FOLDER = Path(__file__).resolve().parents[2] / "build" / "races"
SCRIPT = Path(__file__).with_name("races.py")
REPORT = "WARNING: ThreadSanitizer"
OPTIONS = "report_signal_unsafe=0 history_size=4 exitcode=0"
UNUSED = ("true, true>(flashmask::ptx::Operands)", "StMatrixX4")  # who reads, who wrote
WAYS = ("forward", "backward")
CASES = [
    *(
        ("sm90a", head_dim, order)
        for head_dim in (64, 96, 128)
        for order in ("any", "deterministic")
    ),
    ("sm90a", 192, "any"),
    ("sm80", 64, "any"),
    ("sm80", 64, "deterministic"),
]


@pytest.fixture(scope="module")
def library(builder):
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(runtime).is_file() or shutil.which("setarch") is None:
        pytest.skip("needs libtsan and setarch")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    names = [f"sm90a/instantiations/{way}_hdim{d}" for d in (64, 96, 128, 192) for way in WAYS]
    sources = [f"kernels/{name}.cu" for name in [*names, "sm80/instantiations/hdim64"]]
    builder.build(FOLDER / "races.so", sources, races=True)
    return FOLDER / "races.so", runtime


@pytest.mark.parametrize(("kernels", "head_dim", "order"), CASES)
def test_no_access_is_unordered(kernels, head_dim, order, library):
    path, runtime = library
    # Without address randomisation, which this runtime does not bear.
    command = ["setarch", "-R", sys.executable, SCRIPT, path, kernels, str(head_dim), order]
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "TSAN_OPTIONS": OPTIONS,
        "FLASHMASK_EMULATED_MULTIPROCESSORS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "right", done.stderr[-2000:]
    reports = done.stderr.split(REPORT)[1:]
    unknown = [report for report in reports if not all(word in report for word in UNUSED)]
    assert not unknown, unknown[0][:3000]
