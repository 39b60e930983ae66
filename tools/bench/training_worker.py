"""One attention behind a pipe: `training_worker.py NAME DEVICE`; started by `training.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worker import serve


def start(name: str, device: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what answers requests: PyTorch on a GPU, Paddle on the CPU."""
    if device == "gpu":
        from train_steps import torch_session

        return torch_session.Session(name).handle
    from train_steps import paddle_session

    return paddle_session.Session(name).handle


if __name__ == "__main__":
    serve(start)
