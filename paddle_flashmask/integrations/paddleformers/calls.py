"""What reaches the layers in one call of a model: kept while it runs, and compared afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Calls", "record", "running", "watch"]


@dataclass
class Calls:
    """The attention calls of one call of a model.

    Attributes:
        masked: ids of the layers that got a mask.
        unmasked: number of keys by id of a layer that got none.
    """

    masked: set[int] = field(default_factory=set)
    unmasked: dict[int, int] = field(default_factory=dict)


class _Local(threading.local):
    calls: Calls | None = None


_local = _Local()


def running() -> bool:
    """Return whether a model is being watched."""
    return _local.calls is not None


@contextmanager
def watch() -> Iterator[Calls]:
    """Keep what `record` is told until the end; what is recomputed later is not told anybody."""
    _local.calls = calls = Calls()
    try:
        yield calls
    finally:
        _local.calls = None


def record(module: object, seqlen_k: int, *, has_mask: bool) -> None:
    """Note a call of attention by a layer."""
    if _local.calls is None:
        return
    if has_mask:
        _local.calls.masked.add(id(module))
    else:
        _local.calls.unmasked[id(module)] = seqlen_k
