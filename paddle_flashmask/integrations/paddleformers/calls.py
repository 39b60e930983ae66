"""What reaches the layers in one call of a model: kept while it runs, and compared afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["Calls", "once_per_call", "record", "running", "watch"]

Value = TypeVar("Value")


@dataclass
class Calls:
    """The attention calls of one call of a model.

    Attributes:
        masked: ids of the layers that got a mask.
        unmasked: number of keys by id of a layer that got none.
        made: what was made of an object, by its id and variant; the object is kept, so that the
            id stays its.
    """

    masked: set[int] = field(default_factory=set)
    unmasked: dict[int, int] = field(default_factory=dict)
    made: dict[tuple[int | bool | None, ...], tuple[object, object]] = field(default_factory=dict)


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


def once_per_call(source: object, make: Callable[[], Value], *variant: int | bool | None) -> Value:
    """Return what `make` makes of an object that all layers of a model get, made once.

    Args:
        source: the object.
        make: makes it.
        variant: what else the result depends on.
    """
    if _local.calls is None:
        return make()
    made, key = _local.calls.made, (id(source), *variant)
    if key not in made:
        made[key] = (source, make())
    return made[key][1]  # type: ignore[return-value]
