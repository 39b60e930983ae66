"""Peak memory of one forward and backward by length: the operator on the CPU, the kernels on a GPU.

    python tools/bench/memory.py [--lengths 8192 16384 32768] [--dtype float32]
    python tools/bench/memory.py --device gpu --lengths 8192 32768 131072 --dtype bfloat16

Each length runs in a process of its own. Printed is the growth of the peak over the call, beside
the memory of the tensors the caller holds (q, k, v, out, its gradient and theirs) and that of one
dense score matrix of all heads. The peak is the process's resident memory (Linux: VmHWM) on the
CPU, and on a GPU what PyTorch allocated for a call of the C interface (tools/capi.py). Mask: causal
documents of about 1000 tokens.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

MIB = 2**20
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TENSORS = 8  # q, k, v, out and the gradient of each
DOCUMENT = 1000


def peak_resident() -> int:
    """Return the peak resident memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM line")


def measure(length: int, heads: int, head_dim: int, dtype: str) -> int:
    """Return the growth of the peak in bytes over one forward and backward."""
    import paddle

    from paddle_flashmask import flashmask_attention, recipes

    lengths = [DOCUMENT] * (length // DOCUMENT)
    mask = recipes.causal_document(lengths, length)
    warm = paddle.ones([1, 1, 1, head_dim], dtype)
    warm.stop_gradient = False
    flashmask_attention(warm, warm, warm, causal=True).sum().backward()
    before = peak_resident()
    shape = [1, length, heads, head_dim]
    q, k, v = (paddle.randn(shape).astype(dtype) for _ in range(3))
    for tensor in (q, k, v):
        tensor.stop_gradient = False
    out = flashmask_attention(q, k, v, *mask)
    paddle.grad([out], [q, k, v], [paddle.ones_like(out)])
    return peak_resident() - before


def measure_gpu(length: int, heads: int, head_dim: int, dtype: str) -> int:
    """Return the same of the kernels on a GPU."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    import capi
    import torch

    from paddle_flashmask import recipes

    rows, causal = recipes.causal_document([DOCUMENT] * (length // DOCUMENT), length)
    shape = (1, length, heads, head_dim)
    torch.cuda.reset_peak_memory_stats()
    q, k, v = (torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)) for _ in range(3))
    indices = torch.from_numpy(rows).cuda()
    out, lse = capi.forward(q, k, v, indices, causal)
    capi.backward(torch.ones_like(out), q, k, v, out, lse, indices, causal)
    return int(torch.cuda.max_memory_allocated())


def main() -> None:
    """Measure every length in a fresh process and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 16384, 32768])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=sorted(BYTES), default="float32")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run = measure if options.device == "cpu" else measure_gpu
        print(run(options.lengths[0], options.heads, options.head_dim, options.dtype))
        return
    framework = ("paddle", "pip install paddlepaddle")
    if options.device == "gpu":
        framework = ("torch", "pip install torch")
    for name, install in (
        framework,
        ("paddle_flashmask", "pip install --no-build-isolation . in the repository"),
    ):
        if importlib.util.find_spec(name) is None:
            parser.error(f"{name} is not installed: {install}")
    print(f"{'S':>8} {'peak MiB':>10} {'tensors MiB':>12} {'dense scores MiB':>17}")
    for length in options.lengths:
        command = [sys.executable, __file__, "--one", "--lengths", str(length)]
        command += ["--heads", str(options.heads), "--head-dim", str(options.head_dim)]
        command += ["--dtype", options.dtype, "--device", options.device]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        size = BYTES[options.dtype]
        tensors = TENSORS * length * options.heads * options.head_dim * size
        scores = options.heads * length * length * size
        peak = int(done.stdout.split()[-1])
        print(f"{length:>8} {peak / MIB:>10.1f} {tensors / MIB:>12.1f} {scores / MIB:>17.0f}")


if __name__ == "__main__":
    main()
