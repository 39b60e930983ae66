"""Which kernel of the operator serves a device, a dtype and a head_dim, without running it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

import paddle

from paddle_flashmask import _ops
from paddle_flashmask._gpu_code import runs_on

__all__ = ["Kernel", "backend_of", "registered_kernels"]

# A line of the library's own description, e.g.
# "sm80 (compute capability 8.0 or newer, compiled for sm_80+sm_90a): float16 bfloat16, head_dim a
# multiple of 8 up to 64, keys split for few rows", or "sm90a (compute capability 9.0): bfloat16,
# head_dim a multiple of 8 up to 64, forward".
KERNEL_LINE = re.compile(
    r"(?P<name>\w+)(?: \(compute capability (?P<major>\d+)\.(?P<minor>\d)(?P<newer> or newer)?"
    r"(?:, compiled for (?P<code>[\w+]+))?\))?:"
    r"(?P<dtypes>[ \w]+), head_dim a multiple of (?P<multiple>\d+) up to (?P<most>\d+)"
    r"(?:, (?P<only>forward|backward))?(?P<splits_keys>, keys split for few rows)?"
)
PASSES = ("forward", "backward")
ANY_CAPABILITY = (sys.maxsize, 0)
CPU = "cpu"
AUTO = "auto"


@dataclass(frozen=True)
class Kernel:
    """One kernel of the library.

    Attributes:
        name: cpu, sm80, ...
        capability: least compute capability (major, minor) of the GPU; (0, 0) on the CPU.
        max_capability: the newest that it runs on.
        dtypes: what it takes.
        head_dim_multiple: head_dim must be a multiple of it.
        max_head_dim: and at most this.
        passes: forward, backward or both.
        splits_keys: whether it goes before newer kernels in forward calls with few rows.
        code: what it was compiled for, by nvcc's names; empty: all that it names.
    """

    name: str
    capability: tuple[int, int]
    max_capability: tuple[int, int]
    dtypes: tuple[str, ...]
    head_dim_multiple: int
    max_head_dim: int
    passes: tuple[str, ...]
    splits_keys: bool = False
    code: tuple[str, ...] = ()

    def serves(
        self, capability: tuple[int, int], dtype: str, head_dim: int, *, only: str = AUTO
    ) -> bool:
        """Return whether it runs such a call; capability is (0, 0) for the CPU.

        `only` names the GPU kernels that may be used, see `_ops.set_gpu_kernels`.
        """
        is_allowed = self.name in (CPU, only) or only == AUTO
        is_device = (self.name == CPU) == (capability == (0, 0))
        is_size = 0 < head_dim <= self.max_head_dim and head_dim % self.head_dim_multiple == 0
        is_served = self.capability <= capability <= self.max_capability
        runs_there = is_served and self._has_code_for(capability)
        return is_device and runs_there and is_allowed and dtype in self.dtypes and is_size

    def _has_code_for(self, capability: tuple[int, int]) -> bool:
        number = 10 * capability[0] + capability[1]
        return not self.code or any(runs_on(code, number) for code in self.code)


def registered_kernels() -> list[Kernel]:
    """Return the kernels that the library was built with."""
    kernels = []
    for line in _ops.kernels().splitlines():
        match = KERNEL_LINE.fullmatch(line)
        assert match is not None, f"the library describes a kernel in other words: {line}"
        least = int(match["major"] or 0), int(match["minor"] or 0)
        is_bounded = match["major"] is not None and match["newer"] is None
        kernels.append(
            Kernel(
                name=match["name"],
                capability=least,
                max_capability=least if is_bounded else ANY_CAPABILITY,
                dtypes=tuple(match["dtypes"].split()),
                head_dim_multiple=int(match["multiple"]),
                max_head_dim=int(match["most"]),
                passes=PASSES if match["only"] is None else (match["only"],),
                splits_keys=match["splits_keys"] is not None,
                code=tuple(match["code"].split("+")) if match["code"] else (),
            )
        )
    return kernels


def backend_of(tensor: paddle.Tensor, head_dim: int, dtype: str | None = None) -> str:
    """Return "CPU", or "CUDA sm80" and the like: what would serve attention beside `tensor`.

    Where another kernel serves the backward, it is named too: "CUDA sm90a, backward sm80". Forward
    calls with few rows, as in decoding, may be served by an older kernel that splits keys.

    Args:
        tensor: a weight of the layer: its place and dtype count.
        head_dim: width of a head.
        dtype: of the call, if auto_cast makes it another than that of the weight.

    Raises:
        NotImplementedError: no kernel serves it; the message says which there are.
    """
    dtype = dtype or str(tensor.dtype).rsplit(".", maxsplit=1)[-1]
    capability = _capability(tensor.place)
    kernels = registered_kernels()
    only = _ops.gpu_kernels()
    serving = [one for one in kernels if one.serves(capability, dtype, head_dim, only=only)]
    by_pass = [[kernel for kernel in serving if name in kernel.passes] for name in PASSES]
    if all(by_pass):
        forward, backward = (max(some, key=lambda one: one.capability).name for some in by_pass)
        if forward == CPU:
            return "CPU"
        return f"CUDA {forward}" + ("" if forward == backward else f", backward {backward}")
    where = "the CPU" if capability == (0, 0) else "compute capability {}.{}".format(*capability)
    there_is = "; ".join(_ops.kernels().splitlines())
    allowed = "" if only == AUTO else f" (of the GPU kernels only {only} is allowed)"
    raise NotImplementedError(
        f"no kernel for {where}, dtype {dtype} and head_dim {head_dim}{allowed}; "
        f"there is: {there_is}"
    )


def _capability(place: paddle.base.libpaddle.Place) -> tuple[int, int]:
    if not place.is_gpu_place():
        return 0, 0
    major, minor = paddle.device.cuda.get_device_capability(place.gpu_device_id())
    return int(major), int(minor)
