"""What lies on disk: this copy of the package, its library, other copies, Paddle's distributions.

Standard library alone; nothing is imported to find it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from paddle_flashmask.version import __version__

PACKAGE = "paddle_flashmask"
PADDLES = ("paddlepaddle", "paddlepaddle-gpu")
BUILD_INFO = "_build_info.json"
LIBRARIES = "_custom_ops*.so"


@dataclass(frozen=True)
class Build:
    """What `_build_info.json` says; None where it says nothing.

    Attributes:
        paddle: version of Paddle that the library was built against.
        project: version of this package that it was built from.
        with_cuda: whether it holds GPU kernels.
        architectures: nvcc's names of their code, such as sm_90a.
        compiler: first line of the compiler's own description.
    """

    paddle: str
    project: str | None = None
    with_cuda: bool | None = None
    architectures: tuple[str, ...] = ()
    compiler: str | None = None


@dataclass(frozen=True)
class Installation:
    """This copy of the package.

    Attributes:
        folder: of the package that runs.
        version: of the package that runs.
        is_source: whether it is the source tree.
        libraries: operator libraries in it.
        build: what is recorded of the library, or None.
        build_error: why nothing is recorded, or None.
        others: folders of other copies that this Python would find.
        paddles: distributions of Paddle that are installed, as "name version".
    """

    folder: Path
    version: str
    is_source: bool
    libraries: tuple[Path, ...]
    build: Build | None
    build_error: str | None
    others: tuple[Path, ...]
    paddles: tuple[str, ...]


def look() -> Installation:
    """Return what lies on disk."""
    folder = Path(__file__).resolve().parent.parent
    build, error = _read_build(folder / BUILD_INFO)
    return Installation(
        folder=folder,
        version=__version__,
        is_source=(folder.parent / "setup_ops.py").is_file(),
        libraries=tuple(sorted(folder.glob(LIBRARIES))),
        build=build,
        build_error=error,
        others=tuple(sorted({*_copies()} - {folder})),
        paddles=tuple(
            dict.fromkeys(
                f"{name} {found.version}"
                for name in PADDLES
                for found in metadata.distributions(name=name)
            )
        ),
    )


def _read_build(path: Path) -> tuple[Build | None, str | None]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Build(
            paddle=str(record["paddle"]),
            project=record.get("project"),
            with_cuda=record.get("with_cuda"),
            architectures=tuple(record.get("architectures", ())),
            compiler=record.get("compiler"),
        ), None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"{type(error).__name__}: {error}"


def _copies() -> Iterator[Path]:
    """Yield the folders of all copies that imports or pip know of."""
    folders = [Path(entry or ".") / PACKAGE for entry in sys.path]
    for found in metadata.distributions(name=PACKAGE):
        try:
            origin = json.loads(found.read_text("direct_url.json") or "{}")
            is_editable = origin.get("dir_info", {}).get("editable")
            place = Path(unquote(urlparse(origin["url"]).path)) if is_editable else None
        except (ValueError, KeyError, TypeError, AttributeError):  # as pip does not write it
            place = None
        folders.append(place / PACKAGE if place else Path(str(found.locate_file(PACKAGE))))
    yield from (folder.resolve() for folder in folders if (folder / "__init__.py").is_file())
