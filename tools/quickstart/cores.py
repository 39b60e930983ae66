"""How many threads Paddle trains with, set without a word in the environment.

Paddle warns of any OMP_NUM_THREADS but 1 in the environment, so a number that we choose is given to
its OpenMP runtime after the import; the operator reads it from there. A number that the user has
set stands.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

__all__ = ["choose_threads", "import_quietly"]

MAX_THREADS = 8  # the model is too small for more
LOAD = Path("/proc/loadavg")


def import_quietly() -> None:
    """Keep Paddle's import from naming ccache, which only a build may want."""
    warnings.filterwarnings("ignore", message="No ccache found")


def choose_threads(is_set: bool) -> None:
    """Give Paddle as many threads as cores are idle, unless the user has set a number.

    Args:
        is_set: whether OMP_NUM_THREADS was there before Paddle was imported, which sets it.
    """
    import paddle

    if not is_set:
        paddle.base.core.set_num_threads(idle_cores())


def idle_cores() -> int:
    """Return the cores that nothing else keeps busy, within [1, MAX_THREADS].

    Paddle on a core that others use waits at every barrier: two threads on two busy cores took
    twice the time of one.
    """
    busy = int(float(LOAD.read_text().split()[0])) if LOAD.exists() else 0
    return min(MAX_THREADS, max(1, len(os.sched_getaffinity(0)) - busy))
