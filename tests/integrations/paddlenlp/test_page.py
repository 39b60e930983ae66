"""The example of paddlenlp.md runs as it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.nlp_models import ids, make

import paddle_flashmask.integrations.paddlenlp as integration

PAGE = Path(integration.__file__).parents[1] / "paddlenlp.md"
MAX_LINES = 50  # of a screen


def test_example_trains(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    arguments = ["--output_dir", str(tmp_path), "--device", "cpu", "--max_steps", "1"]
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "own.py"), *arguments, "--flash_mask", "true"])
    names = {
        "model": make(max_position_embeddings=4096, num_hidden_layers=1),
        "samples": [(ids(length, length),) * 2 for length in (300, 500)],
    }
    exec(compile(block, PAGE.name, "exec"), names)
    assert names["trainer"].flash_mask
    names["trainer"].train()


def test_page_is_at_most_a_screen():
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
