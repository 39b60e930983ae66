"""No two threads of an emulated kernel touch the same memory with nothing to order them."""

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
CONSUMER = Path(__file__).parents[2] / "custom_ops/kernels/sm90a/backward_consumer.cuh"
# That both groups have read what dS is stored over.
HAND_OVER = """    ptx::MbarrierWait(ptx::SharedAddress(&shared_->grad_scores_empty[slot_.stage]),
                      slot_.parity ^ 1);
"""
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
def runtime():
    """Return the path of ThreadSanitizer's library."""
    path = subprocess.run(
        ["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(path).is_file() or shutil.which("setarch") is None:
        pytest.skip("needs libtsan and setarch")
    return path


@pytest.fixture(scope="module")
def library(builder, runtime):
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    names = [f"sm90a/instantiations/{way}_hdim{d}" for d in (64, 96, 128, 192) for way in WAYS]
    build(builder, FOLDER / "races.so", [*names, "sm80/instantiations/hdim64"])
    return FOLDER / "races.so"


def build(builder, output, names):
    builder.build(output, [f"kernels/{name}.cu" for name in names], races=True)


def run(path, runtime, seed, *call):
    """Return what races.py printed, and what ThreadSanitizer reported of its call."""
    # Without address randomisation, which this runtime does not bear.
    command = ["setarch", "-R", sys.executable, SCRIPT, path, *call]
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "TSAN_OPTIONS": OPTIONS,
        "FLASHMASK_EMULATED_MULTIPROCESSORS": "1",
        "FLASHMASK_EMULATOR_SEED": str(seed),
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip(), done.stderr.split(REPORT)


@pytest.mark.parametrize(("kernels", "head_dim", "order"), CASES)
def test_no_access_is_unordered(kernels, head_dim, order, library, runtime, order_seed):
    printed, (errors, *reports) = run(library, runtime, order_seed, kernels, str(head_dim), order)
    assert printed == "right", errors[-2000:]
    assert not reports, reports[0][:3000]


def test_a_wait_that_is_missing_is_reported(builder, runtime, monkeypatch, tmp_path):
    assert HAND_OVER in CONSUMER.read_text(encoding="utf-8")
    translate = builder.translate
    monkeypatch.setattr(builder, "translate", lambda text: translate(text.replace(HAND_OVER, "")))
    names = [f"sm90a/instantiations/{way}_hdim64" for way in WAYS]
    build(builder, tmp_path / "races.so", names)
    _, (_, *reports) = run(tmp_path / "races.so", runtime, 0, "sm90a", "64", "any")
    assert any("StMatrixX4" in report and "MultiplyTogether" in report for report in reports)
