"""The library with emulated kernels, built once for the sources as they are."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
from pathlib import Path

import cuda_build
import pytest
from support.emulated import Door

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / "build" / "emulated"  # in the checkout, ignored by git
BUILDER = HERE / "build.py"
SEED_VARIABLE = "FLASHMASK_EMULATOR_SEED"


def digest() -> str:
    """Return what tells these sources, and how they are built, from others."""
    found = hashlib.sha256()
    for path in sorted([BUILDER, *(ROOT / "custom_ops").rglob("*"), *HERE.rglob("*")]):
        if path == BUILDER or path.suffix in (".cc", ".cu", ".cuh", ".h"):
            found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


@pytest.fixture(scope="session")
def builder():
    """Return build.py as a module."""
    spec = importlib.util.spec_from_file_location("emulator_build", BUILDER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def order_seed(seed):
    """Return what the order of events is drawn from: the variable, or the seed of the test."""
    found = int(os.environ.get(SEED_VARIABLE) or seed)
    print(f"the order of events is drawn from {SEED_VARIABLE}={found}")
    return found


@pytest.fixture
def door(emulated, order_seed):
    """Return the library of all kernels, at the beginning of an order of events.

    Small calls share key blocks among work items, as is usual, or do not, as large ones, and take
    several heads together, as is usual, or one, as of long sequences: it depends on the seed.
    """
    door = Door(emulated)
    door.draw_from(order_seed)
    door.want_backward_items(-1 if order_seed % 2 else 0)
    door.limit_section_bytes(None if order_seed // 2 % 2 else 0)
    yield door
    door.want_backward_items(-1)
    door.limit_section_bytes(None)


@pytest.fixture(scope="session")
def emulated(builder):
    if platform.machine() != "x86_64" or shutil.which("g++") is None:
        pytest.skip("the emulator is written for x86-64 and g++")
    if cuda_build.find_toolkit() is None:
        pytest.skip("the headers of CUDA were not found")
    library = FOLDER / f"{digest()}.so"
    if not library.is_file():
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        builder.build(library, [])
    return str(library)
