"""Compile every CUDA kernel and report registers and spills; exit 1 for what must not be.

    python tools/check_kernels.py [--jobs N] [SOURCE ...]

Needs nvcc, but no GPU and no Paddle; without nvcc it says so and passes. What does not fit into
registers lies in local memory, and loops wait for it: no kernel may, but those in EXCEPTIONS. Nor
may ptxas say that it serialises products of warpgroups or ignores setmaxnreg.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import cuda_build

ROOT = Path(__file__).resolve().parent.parent
CODES = ("sm_80", "sm_90a")
KERNEL = re.compile(
    r"Compiling entry function '(?P<name>.*)' for '(?P<code>\w+)'\n"
    r"(?:(?!.*Compiling entry function).*\n)*?"
    r"\s*(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\n"
    r".*Used (?P<registers>\d+) registers"
)

# ptxas: C7504, C7508 and C7509 setmaxnreg is ignored; C7510 to C7519 products are serialised or
# lack a fence.
COMPLAINT = re.compile(r"^.*\(C75\d\d\).*$", re.MULTILINE)


@dataclass(frozen=True)
class Spills:
    """Bytes of a thread that a kernel may spill, for every dtype and form of mask."""

    stack: int
    stores: int
    loads: int


# Recorded 2026-11-30 with nvcc 13.0. At head dim 128 a thread's sums alone take 128 of its 255
# registers: the forward's 32 rows of output a warp, the backward's grad_key and grad_value of 128
# keys, and those of 64 keys at 256; at 64 steps of 128 rows take as many for scores. What spills
# are addresses, loaded again once a step; a backward with more of them was slower by 3 % at 64, and
# the next smaller tiles at 256, which spill nothing, by 18 % (PERFORMANCE.md). The sm90a forward
# leaves 32 registers to the warps that list and load, so that the others have 160: what those two
# spill is needed once a batch of tiles. Lower these when a kernel gets better.
EXCEPTIONS = {
    ("hdim128.cu", "ForwardKernel", "sm_80"): Spills(24, 24, 36),
    ("hdim128.cu", "ForwardKernel", "sm_90a"): Spills(24, 20, 28),
    ("hdim128.cu", "BackwardKernel", "sm_80"): Spills(80, 76, 152),
    ("hdim128.cu", "BackwardKernel", "sm_90a"): Spills(48, 48, 72),
    ("hdim64.cu", "BackwardKernel", "sm_80"): Spills(56, 52, 92),
    ("hdim64.cu", "BackwardKernel", "sm_90a"): Spills(8, 8, 8),
    ("hdim256.cu", "BackwardKernel", "sm_80"): Spills(16, 12, 16),
    ("hdim256.cu", "BackwardKernel", "sm_90a"): Spills(48, 48, 96),
    ("forward_hdim64.cu", "ForwardKernel", "sm_90a"): Spills(16, 20, 28),
    ("forward_hdim96.cu", "ForwardKernel", "sm_90a"): Spills(8, 16, 20),
    ("forward_hdim128.cu", "ForwardKernel", "sm_90a"): Spills(8, 16, 20),
}
NOTHING = Spills(0, 0, 0)


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of one kernel."""

    source: str
    name: str
    code: str
    registers: int
    spills: Spills

    def allowed(self) -> Spills:
        """Return what it may spill."""
        short = self.name.partition("<")[0].rpartition("::")[2]
        return EXCEPTIONS.get((Path(self.source).name, short, self.code), NOTHING)

    def is_allowed(self) -> bool:
        """Return whether it spills no more than it may."""
        mine, most = self.spills, self.allowed()
        return mine.stack <= most.stack and mine.stores <= most.stores and mine.loads <= most.loads


def kernels_of(source: str, report: str) -> Iterator[Kernel]:
    """Yield the kernels that a report of `ptxas -v`, demangled, speaks of."""
    for match in KERNEL.finditer(report):
        spills = Spills(*(int(match[name]) for name in ("stack", "stores", "loads")))
        name = match["name"].removeprefix("void ")
        name = name.replace("(anonymous namespace)::", "").replace("flashmask::", "")
        name = name.partition("(")[0].replace(" >", ">")
        yield Kernel(source, name, match["code"], int(match["registers"]), spills)


def compile_one(toolkit: cuda_build.Toolkit, source: str, code: str, target: str) -> str:
    """Return the demangled report of ptxas on one source for one architecture."""
    command = cuda_build.compile_command(toolkit, [code])
    command += ["-Xptxas", "-v", "-cubin", source, "-o", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"check_kernels: compiling {source} failed:\n{done.stdout}{done.stderr}")
    names = subprocess.run(
        ["c++filt"], input=done.stdout + done.stderr, capture_output=True, text=True, check=True
    )
    return names.stdout


def main() -> int:
    """Compile, print a line a kernel, judge."""
    parser = argparse.ArgumentParser(description="Check CUDA kernels for spills.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="sources at a time")
    parser.add_argument("sources", nargs="*", help="default: all .cu of custom_ops")
    options = parser.parse_args()
    toolkit = cuda_build.find_toolkit()
    if toolkit is None:
        print("check_kernels: nvcc was not found; no kernel is checked")
        return 0
    found = sorted(path.relative_to(ROOT) for path in (ROOT / "custom_ops").rglob("*.cu"))
    work = [(source, code) for source in options.sources or map(str, found) for code in CODES]
    with TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:

        def reported(item: tuple[str, str]) -> tuple[list[Kernel], list[str]]:
            source, code = item
            target = f"{folder}/{source.replace('/', '_')}.{code}"
            report = compile_one(toolkit, source, code, target)
            return list(kernels_of(source, report)), COMPLAINT.findall(report)

        reports = list(pool.map(reported, work))
    kernels = [kernel for found, _ in reports for kernel in found]
    complaints = [line for _, lines in reports for line in lines]
    bad = [kernel for kernel in kernels if not kernel.is_allowed()]
    for kernel in kernels:
        spills = kernel.spills
        verdict = "  SPILLS" if kernel in bad else ""
        print(
            f"{kernel.code:6} {kernel.registers:3} registers {spills.stack:4} stack "
            f"{spills.stores:4} stores {spills.loads:4} loads  {kernel.name}{verdict}"
        )
    print(*complaints, sep="\n", end="\n" if complaints else "")
    print(
        f"check_kernels: {toolkit}, {len(kernels)} kernels, {len(bad)} spill that must not, "
        f"{len(complaints)} complaints"
    )
    return 1 if bad or complaints or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
