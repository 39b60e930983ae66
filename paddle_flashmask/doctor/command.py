"""Check this installation: versions, library, kernels, GPU, a self-test, and what is wrong.

    python -m paddle_flashmask doctor

Exit code 0: nothing is wrong; 1: something is, one sentence each; 2: a bad command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from paddle_flashmask.doctor import children, installation, machine
from paddle_flashmask.doctor.diagnosis import Findings, diagnose
from paddle_flashmask.doctor.machine import capability_text
from paddle_flashmask.doctor.probes import ALLOWED


def main(arguments: list[str]) -> int:
    """Print what was found and what is wrong; return the exit code.

    Args:
        arguments: of the command line, without the command's own name.
    """
    parser = argparse.ArgumentParser(
        prog="python -m paddle_flashmask doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    found = examine()
    print(*describe(found), sep="\n")
    wrong = diagnose(found)
    if not wrong:
        print("\nnothing is wrong")
        return 0
    print(f"\n{len(wrong)} {'thing is' if len(wrong) == 1 else 'things are'} wrong:")
    for number, sentence in enumerate(wrong, 1):
        print(f"{number}. {sentence}")
    return 1


def examine() -> Findings:
    """Look at all there is; a probe that needs what already failed is not run."""
    here, host = installation.look(), machine.look()
    numpy, paddle = children.run("numpy"), children.run("paddle")
    has_cuda = bool(paddle.facts.get("with_cuda"))
    gpu = children.run("gpu") if has_cuda else None
    library = cpu = gpu_test = None
    if numpy.is_sound and paddle.is_sound and here.libraries:
        library = children.run("library")
        if library.is_sound:
            cpu = children.run("cpu")
            can_try = gpu is not None and bool(gpu.facts.get("count"))
            has_kernels = here.build is not None and here.build.with_cuda
            gpu_test = children.run("gpu_test") if can_try and has_kernels else None
    return Findings(here, host, numpy, paddle, gpu, library, cpu, gpu_test)


def describe(found: Findings) -> Iterator[str]:
    """Yield a line for each fact."""
    here, host, build = found.installation, found.machine, found.installation.build
    kind = " (source tree)" if here.is_source else ""
    yield f"paddle_flashmask  {here.version}, {here.folder}{kind}"
    yield f"Python            {host.python}, {host.system}"
    yield f"numpy             {found.numpy.facts.get('version', 'does not import')}"
    if found.paddle.is_sound:
        facts = found.paddle.facts
        cuda = f"CUDA {facts['cuda']}" if facts["with_cuda"] else "without CUDA"
        yield f"Paddle            {facts['version']}, {cuda}, {facts['folder']}"
    else:
        yield "Paddle            does not import"
    if found.library is not None and found.library.is_sound:
        yield f"library loaded    {', '.join(found.library.facts['files'])}"
    else:
        names = ", ".join(path.name for path in here.libraries)
        yield f"library           {names or 'none'}, not loaded"
    if build is not None:
        codes = f"for the CPU and {', '.join(build.architectures)}" if build.with_cuda else "CPU"
        by = f", by {build.compiler}" if build.compiler else ""
        yield f"  built           for Paddle {build.paddle}, {codes}{by}"
    if found.library is not None and found.library.is_sound:
        for line in found.library.facts["kernels"]:
            yield f"  kernel          {line}"
        yield f"  CPU kernel uses {found.library.facts['cpu_isa']}"
    for gpu in host.gpus:
        yield f"GPU               {gpu.name}, compute capability {capability_text(gpu.capability)}"
    if not host.gpus:
        yield "GPU               none (nvidia-smi names none)"
    yield f"to build with     {host.compiler or 'no C++ compiler'}, {host.nvcc or 'no nvcc'}"
    for device, outcome in (("CPU", found.cpu), ("GPU", found.gpu_test)):
        if outcome is None or not outcome.is_sound:
            yield f"self-test {device}     {'failed' if outcome else 'not run'}"
            continue
        told = [
            f"{dtype} {error:.1g} (allowed {ALLOWED[dtype]:g})"
            for dtype, (error, _) in outcome.facts.items()
        ]
        yield f"self-test {device}     largest error against dense attention: {', '.join(told)}"
