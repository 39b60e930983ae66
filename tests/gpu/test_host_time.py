"""The table of host times, with few calls; the figures themselves are for the benchmark."""

from __future__ import annotations

import host_time
import pytest
from support.gpu import capi

pytestmark = pytest.mark.gpu


def test_each_way_gets_a_row_with_two_times(capsys):
    assert host_time.main(["--calls", "2", "--loops", "1"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    names = [name for name in host_time.KERNELS if name in capi.info()]
    assert {row[0] for row in rows} <= set(names)
    assert len(rows) >= len(host_time.HEAD_DIMS) * 3
    assert all(float(time) > 0 for row in rows for time in row[3:])


def test_what_is_repeated_gives_what_the_call_gave():
    import torch

    call = host_time.calls(capi, torch, 64)["forward"]
    again = host_time.prepared(capi, torch, call)
    out = again.results[0]
    wanted = out.clone()
    out.fill_(torch.nan)
    again()
    assert torch.equal(out, wanted)
