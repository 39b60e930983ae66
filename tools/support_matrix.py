"""Write README's table of devices, dtypes and head dims from the kernels' own registrations.

    python tools/support_matrix.py [--check]

Registrations are read where they stand in the sources (`KernelRegistration` under
custom_ops/kernels), so that no GPU, no nvcc and no build is needed; tests/gpu compares them with
what a built library says. With --check nothing is written, and the exit status says whether README
has the table.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
KERNELS = ROOT / "custom_ops" / "kernels"
REGISTRATION = re.compile(r"KernelRegistration \w+\(\s*\{(?P<fields>.*?)\}\s*\);", re.DOTALL)
CONSTANT = re.compile(r"constexpr (?:int|int32_t|int64_t) (?P<name>k\w+) = (?P<value>\d+);")
COMPILED = re.compile(r", compiled for [\w+]+")
NEWEST = "kNewestCapability"
NONE = "nullptr"
DTYPES = {
    "DataType::kFloat32": "float32",
    "DataType::kFloat16": "float16",
    "DataType::kBFloat16": "bfloat16",
}
FIELDS = (
    "name",
    "device",
    "least_capability",
    "most_capability",
    "dtypes",
    "multiple",
    "most_head_dim",
    "forward",
    "backward",
    "forward_workspace",
    "backward_workspace",
    "goes_first",
    "code",
)
LEAST_FIELDS = len(FIELDS) - 2  # the last two may be left out

# Where they have run: what no source can tell.
RUN_ON = {
    "cpu": "x86-64, in every CI run; never on aarch64",
    "sm80": "one H200, as sm_90a code; never on an A100 or any GPU of its own",
    "sm90a": "one H200",
}
NEVER = "never"
HEADER = (
    "device",
    "kernels",
    "dtypes",
    "`head_dim` up to",
    "forward",
    "backward",
    "same bits in every run",
    "few rows",
    "run on",
)


@dataclass(frozen=True)
class Kernel:
    """A registration, as core/kernel_registry.h has it."""

    name: str
    device: str
    least_capability: int
    most_capability: int | None  # None: all newer ones
    dtypes: tuple[str, ...]
    multiple: int
    most_head_dim: int
    has_forward: bool
    has_backward: bool
    splits_keys: bool

    def describe(self) -> str:
        """Return DescribeKernels' line (core/kernel_registry.cc), but for what was compiled."""
        where = ""
        if self.device == "Device::kCuda":
            newer = " or newer" if self.most_capability is None else ""
            where = f" (compute capability {capability_text(self.least_capability)}{newer})"
        text = f"{self.name}{where}: {' '.join(self.dtypes)}, head_dim a multiple of "
        text += f"{self.multiple} up to {self.most_head_dim}"
        if not self.has_backward:
            text += ", forward"
        if not self.has_forward:
            text += ", backward"
        if self.splits_keys:
            text += ", keys split for few rows"
        return text


def described_lines(text: str) -> list[str]:
    """Return the lines of a library's description, without what the build compiled."""
    return COMPILED.sub("", text).splitlines()


def capability_text(capability: int) -> str:
    """Return 8.0 for 80."""
    return f"{capability // 10}.{capability % 10}"


def split_fields(text: str) -> list[str]:
    """Split an initialiser at the commas that are in no bracket."""
    fields, depth = [""], 0
    for letter in text:
        depth += (letter in "{(<[") - (letter in "})>]")
        if letter == "," and depth == 0:
            fields.append("")
        else:
            fields[-1] += letter
    return [field.strip() for field in fields]


def constants_of(source: Path) -> dict[str, str]:
    """Return the whole numbers that a source, or a header beside or above it, names."""
    found: dict[str, str] = {}
    for folder in (source.parent.parent, source.parent):
        for header in sorted(folder.glob("*.h")):
            found.update(CONSTANT.findall(header.read_text(encoding="utf-8")))
    found.update(CONSTANT.findall(source.read_text(encoding="utf-8")))
    return found


def kernel_of(fields: Sequence[str], constants: dict[str, str], source: Path) -> Kernel:
    """Return what an initialiser says; a ValueError if it is written in another way."""
    if not LEAST_FIELDS <= len(fields) <= len(FIELDS):
        raise ValueError(f"{source}: a registration has {len(fields)} fields, not {len(FIELDS)}")
    given = dict(zip(FIELDS, fields, strict=False))

    def number(name: str) -> int:
        return int(constants.get(given[name], given[name]))

    return Kernel(
        name=given["name"].strip('"'),
        device=given["device"],
        least_capability=number("least_capability"),
        most_capability=None if given["most_capability"] == NEWEST else number("most_capability"),
        dtypes=tuple(DTYPES[name] for name in split_fields(given["dtypes"].strip("{}"))),
        multiple=number("multiple"),
        most_head_dim=number("most_head_dim"),
        has_forward=given["forward"] != NONE,
        has_backward=given["backward"] != NONE,
        splits_keys=given.get("goes_first", NONE) != NONE,
    )


def registered_kernels() -> list[Kernel]:
    """Return the kernels of all sources, in the order of DescribeKernels."""
    kernels = []
    for source in sorted([*KERNELS.rglob("*.cu"), *KERNELS.rglob("*.cc")]):
        for match in REGISTRATION.finditer(source.read_text(encoding="utf-8")):
            fields = split_fields(match["fields"])
            kernels.append(kernel_of(fields, constants_of(source), source.relative_to(ROOT)))
    return sorted(
        kernels,
        key=lambda one: (
            one.device == "Device::kCuda",
            one.least_capability,
            one.most_head_dim,
            not one.has_forward,
        ),
    )


def head_dims(kernels: Sequence[Kernel]) -> str:
    """Return the head dims that have tiles of their own, or a dash."""
    sizes = sorted({kernel.most_head_dim for kernel in kernels})
    return ", ".join(map(str, sizes)) or "-"


def pass_text(kernels: Sequence[Kernel], all_dims: str) -> str:
    """Return whether a pass is there: yes, no, or up to which head dim."""
    if not kernels:
        return "no"
    most = max(kernel.most_head_dim for kernel in kernels)
    return "yes" if head_dims(kernels) == all_dims else f"up to {most}"


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each name of kernels."""
    kernels = registered_kernels()
    for name in dict.fromkeys(kernel.name for kernel in kernels):
        mine = [kernel for kernel in kernels if kernel.name == name]
        first = mine[0]
        is_gpu = first.device == "Device::kCuda"
        newer = " and newer" if first.most_capability is None else ""
        device = f"GPU {capability_text(first.least_capability)}{newer}" if is_gpu else "CPU"
        dims = head_dims(mine)
        has_backward = any(kernel.has_backward for kernel in mine)
        wanted = "forward; backward on request" if has_backward else "forward"
        yield (
            device,
            f"`{name}`",
            ", ".join(dict.fromkeys(dtype for kernel in mine for dtype in kernel.dtypes)),
            dims,
            pass_text([kernel for kernel in mine if kernel.has_forward], dims),
            pass_text([kernel for kernel in mine if kernel.has_backward], dims),
            wanted if is_gpu else "always",
            "keys split" if all(kernel.splits_keys for kernel in mine) else "-",
            RUN_ON.get(name, NEVER),
        )


def table() -> str:
    """Return the table in Markdown."""
    lines = [HEADER, ("---",) * len(HEADER), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_table(text: str) -> str:
    """Return README's text with the table as it should be: it begins with our header line."""
    lines = text.split("\n")
    header = table().split("\n")[0]
    starts = [number for number, line in enumerate(lines) if line.startswith("| device | kernels")]
    if len(starts) != 1:
        raise ValueError(f"README must have one table that begins like: {header}")
    end = starts[0]
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return "\n".join([*lines[: starts[0]], *table().split("\n"), *lines[end:]])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description="README's table of what the kernels serve.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it is old")
    options = parser.parse_args(arguments)
    text = README.read_text(encoding="utf-8")
    right = with_table(text)
    if options.check:
        if text != right:
            print("support_matrix: README's table is old: run python tools/support_matrix.py")
        return int(text != right)
    README.write_text(right, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
