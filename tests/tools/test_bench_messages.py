"""What the benchmark says, in a line, where it cannot do what it is asked for."""

import importlib.util
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import attention
import host_time
import pytest
from harness import results

MEMORY = Path(attention.__file__).with_name("memory.py")


def message(arguments, capsys):
    assert attention.main(arguments) == 2
    text = capsys.readouterr().err
    assert text.startswith("attention.py: ERROR: ")
    assert text.count("\n") == 1
    return text


def test_a_missing_table_is_named(tmp_path, capsys):
    path = tmp_path / "none.csv"
    for wanted in (["--table"], ["--plot", str(tmp_path)]):
        assert f"{path}: no such file" in message([*wanted, "--csv", str(path)], capsys)


def test_another_table_is_refused(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    assert "has other columns" in message(["--table", "--csv", str(path)], capsys)


def test_drawing_without_matplotlib_says_how_to_install_it(tmp_path, capsys, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_text(",".join(field.name for field in fields(results.Row)) + "\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text = message(["--plot", str(tmp_path), "--csv", str(path)], capsys)
    assert "pip install matplotlib" in text


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("foo", "mask must be one of causal, "),
        ("document:n", "must be name=value; got 'n'"),
        ("document:n=[", "--masks document:n=[, S=64: "),
    ],
)
def test_wrong_masks_are_named(mask, words, capsys):
    assert words in message(["--masks", mask, "--seqlens", "64"], capsys)


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ((), "paddle is not installed: pip install paddlepaddle"),
        (("paddle",), "paddle_flashmask is not installed: pip install --no-build-isolation ."),
    ],
)
def test_memory_says_what_to_install(tmp_path, installed, words):
    for name in installed:
        (tmp_path / f"{name}.py").touch()
    done = subprocess.run(
        [sys.executable, "-S", str(MEMORY)],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("missing", "words"),
    [("torch", "PyTorch: pip install torch"), (None, "a GPU that PyTorch finds")],
)
def test_host_time_says_what_it_lacks(missing, words, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if missing else object())
    stand_in = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    for name in ("torch", "capi"):
        monkeypatch.setitem(sys.modules, name, stand_in)
    assert host_time.main([]) == 2
    text = capsys.readouterr().err
    assert text == f"host_time.py: ERROR: it needs {words}\n"
