"""The table of builds beside each other, on one build under two names and on calls made up."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from types import SimpleNamespace

import compare_builds
import pytest
from support.gpu import capi, torch

pytestmark = pytest.mark.gpu

SMALL = ["--seqlen", "512", "--heads", "2", "--runs", "1", "--masks", "causal", "sliding_window"]


def test_a_build_agrees_with_itself(tmp_path, capsys):
    library = os.environ.get("FLASHMASK_CAPI", str(capi.DEFAULT_LIBRARY))
    copies = [shutil.copy(library, tmp_path / name) for name in ("one.so", "two.so")]
    assert compare_builds.main([*map(str, copies), *SMALL, "--deterministic"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [
        [mask, build] for mask in ("causal", "sliding_window") for build in ("one", "two")
    ]
    assert all(float(rate) > 0 for row in rows for rate in row[2:])


def test_kernels_are_those_that_were_named(monkeypatch):
    named = []
    build = SimpleNamespace(use_kernels=named.append)
    monkeypatch.setattr(compare_builds, "load", lambda path: build)
    monkeypatch.setattr(compare_builds, "prepare", lambda *_: {})
    monkeypatch.setattr(compare_builds, "disagreements", lambda *_: [])
    monkeypatch.setattr(compare_builds, "measure", lambda *_: defaultdict(float))
    assert compare_builds.main(["one.so", *SMALL, "--kernels", "sm80"]) == 0
    assert named == ["sm80"]


@pytest.mark.parametrize(
    ("true", "wrong"),
    [
        (1.0, 1.05),
        (1.0, torch.nan),
        (1.0, -torch.inf),
        (-torch.inf, torch.inf),
        (-torch.inf, torch.nan),
        (torch.nan, -torch.inf),
        (torch.nan, 1.0),
    ],
)
def test_results_that_differ_are_told(true, wrong):
    right = torch.linspace(-1, 1, 64)
    right[63] = true
    other = right.clone()
    other[63] = wrong
    cell = compare_builds.parse(["one.so"]).cell
    calls = {
        ("one", compare_builds.FORWARD): lambda: (right, right),
        ("two", compare_builds.FORWARD): lambda: (right, other),
    }
    (line,) = compare_builds.disagreements(calls, cell, torch)
    assert line.startswith("two, forward: result 1 is")


def test_numbers_that_are_not_finite_may_be_the_same():
    odd = torch.tensor([1.0, -torch.inf, torch.inf, torch.nan])
    cell = compare_builds.parse(["one.so"]).cell
    calls = {(name, compare_builds.FORWARD): lambda: (odd, odd.clone()) for name in ("one", "two")}
    assert compare_builds.disagreements(calls, cell, torch) == []


def test_gradients_that_do_not_repeat_are_told():
    values = iter(torch.ones(8).cumsum(0) * 1e-6 + 1)
    cell = compare_builds.parse(["one.so"]).cell
    calls = {("one", compare_builds.DETERMINISTIC): lambda: (next(values),)}
    (line,) = compare_builds.disagreements(calls, cell, torch)
    assert line.endswith("other bits in another run")
