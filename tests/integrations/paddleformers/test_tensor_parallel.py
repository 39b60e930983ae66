"""Mask heads of a tensor parallel layer: two processes of a CPU group, each with half of the heads.

Whole models cannot run so: Paddle's parallel linear layers ask the CPU group for an operation that
it does not have (all_reduce_on_calc_stream, Paddle 3.3.1).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.tolerance import assert_array_close

from paddle_flashmask import indices

ROOT = Path(__file__).resolve().parents[3]
RANKS = 2
PROGRAM = """\
import sys
import types

import numpy as np
import paddle
from paddle.distributed import fleet

from paddle_flashmask.integrations.paddleformers import attention_forward

paddle.set_device("cpu")
strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "pp_degree": 1, "sharding_degree": 1}
fleet.init(is_collective=True, strategy=strategy)
rank = fleet.get_hybrid_communicate_group().get_model_parallel_rank()
given = np.load(sys.argv[1])
config = types.SimpleNamespace(tensor_model_parallel_size=2, num_attention_heads=4)
layer = types.SimpleNamespace(config=config, training=False)


def own(tensor):
    half = tensor.shape[1] // 2
    return paddle.to_tensor(tensor[:, rank * half : (rank + 1) * half])


outs = {}
for name in given.files:
    if not name.startswith("mask"):
        continue
    out, _ = attention_forward(
        layer,
        own(given["query"]),
        own(given["key"]),
        own(given["value"]),
        attn_mask_startend_row_indices=paddle.to_tensor(given[name]),
    )
    outs[name] = out.numpy()
try:
    attention_forward(
        layer,
        *(own(given[name]) for name in ("query", "key", "value")),
        attn_mask_startend_row_indices=paddle.to_tensor(given["mask4"][:, :3]),
    )
except ValueError as error:
    assert "must have 1, 2 (key heads) or 4 (query heads) mask heads" in str(error), error
else:
    raise AssertionError("3 mask heads were taken")
np.savez(f"{sys.argv[2]}/out{rank}.npz", **outs)
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run_on_both(folder):
    program = folder / "program.py"
    program.write_text(PROGRAM)
    ends = [f"127.0.0.1:{port}" for port in free_ports(RANKS)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(program), str(folder / "given.npz"), str(folder)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "PADDLE_TRAINER_ID": str(rank),
                "PADDLE_TRAINERS_NUM": str(RANKS),
                "PADDLE_CURRENT_ENDPOINT": ends[rank],
                "PADDLE_TRAINER_ENDPOINTS": ",".join(ends),
                "PADDLE_DISTRI_BACKEND": "gloo",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    for process in processes:
        printed, _ = process.communicate()
        assert process.returncode == 0, printed


@pytest.mark.timeout(120)
def test_each_rank_takes_the_mask_heads_of_its_own_query_heads(rng, tmp_path):
    query = rng.standard_normal((2, 4, 12, 16)).astype(np.float32)
    key, value = rng.standard_normal((2, 2, 2, 12, 16)).astype(np.float32)
    masks = {
        f"mask{heads}": rng.integers(0, 13, (2, heads, 12, 1), np.int32) for heads in (1, 2, 4)
    }
    np.savez(tmp_path / "given.npz", query=query, key=key, value=value, **masks)
    run_on_both(tmp_path)
    halves = [np.load(tmp_path / f"out{rank}.npz") for rank in range(RANKS)]
    for name, mask in masks.items():
        ours = np.concatenate([half[name] for half in halves], axis=-1)
        assert_array_close("out", ours, dense(query, key, value, mask), None, "float32")


def dense(query, key, value, mask):
    """Attention of the whole layer by its formula."""
    visible = indices.to_dense(mask, causal=True, seqlen_q=query.shape[2])
    visible = np.repeat(visible, query.shape[1] // mask.shape[1], axis=1)
    key, value = (np.repeat(one, query.shape[1] // one.shape[1], axis=1) for one in (key, value))
    scores = query @ key.swapaxes(2, 3) / np.sqrt(query.shape[3])
    weights = np.where(visible, np.exp(scores), 0.0)
    sums = weights.sum(axis=-1, keepdims=True)
    out = weights / np.where(sums > 0, sums, 1.0) @ value
    return out.transpose(0, 2, 1, 3).reshape(*query.shape[:1], query.shape[2], -1)
