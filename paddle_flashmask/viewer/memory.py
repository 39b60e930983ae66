"""Too much memory is an error that can be told, not the end of the process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

STATUS, MACHINE = Path("/proc/self/status"), Path("/proc/meminfo")
KIB = 1024


def bytes_that_fit() -> int | None:
    """Return what this process may hold without using more than the machine has left.

    None: this system does not say.
    """
    used, left = _entry(STATUS, "VmData"), _entry(MACHINE, "MemAvailable")
    return None if used is None or left is None else used + left


def _entry(path: Path, name: str) -> int | None:
    """Return bytes of a line such as `VmData:   12345 kB`."""
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * KIB
    return None


@contextlib.contextmanager
def within_the_machine() -> Iterator[None]:
    """Let an array that does not fit raise MemoryError, in this context.

    Linux grants more than there is, and kills the process that uses it.
    """
    most = bytes_that_fit()
    if most is None:
        yield
        return
    import resource  # which every system with /proc has

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([most, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
