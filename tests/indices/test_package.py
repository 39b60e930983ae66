"""The package serves data workers: numpy alone, and every public name at its top."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import paddle_flashmask
from paddle_flashmask import indices

ROOT = Path(paddle_flashmask.__file__).parents[1]


def test_import_and_use_need_numpy_alone():
    code = (
        "import sys\n"
        "sys.modules['paddle'] = None\n"
        "from paddle_flashmask import indices\n"
        "mask = indices.from_cu_seqlens([0, 2, 3])\n"
        "indices.inspect(mask.startend_row_indices, causal=True, seqlen_q=3)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_name_that_the_docstring_lists_is_public():
    words = {word.strip("`,;.:") for word in indices.__doc__.split() if word.startswith("`")}
    listed = {word for word in words if word.isidentifier()} - {"startend_row_indices", "causal"}
    assert listed <= set(indices.__all__)
    assert len(listed) > 15


def test_public_names_exist_and_have_docstrings():
    for name in indices.__all__:
        value = getattr(indices, name)
        assert isinstance(value, (int, tuple)) or value.__doc__, name
