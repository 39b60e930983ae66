"""What is wrong, one plain sentence each, from what was found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from paddle_flashmask._gpu_code import runs_on
from paddle_flashmask.doctor.children import Outcome
from paddle_flashmask.doctor.installation import Installation
from paddle_flashmask.doctor.machine import Gpu, Machine, capability_text
from paddle_flashmask.doctor.probes import ALLOWED

OLDEST_PADDLE = (2, 6)
DEVELOPMENT = "0.0.0"  # what a build of Paddle from its main branch calls itself
OLDEST_CAPABILITY = 80
HOPPER_CAPABILITY, HOPPER = 90, "90a"  # its kernels use instructions of that suffix alone
BUILD = "pip install --no-build-isolation --force-reinstall --no-deps . (in a clone)"
BUILD_IN_PLACE = "pip install --no-build-isolation --no-deps -e ."
MISSING_SYMBOL = "undefined symbol"  # the dynamic linker's words
LINKER_FAILURE = "(error code is "  # Paddle's words before those of the dynamic linker
LINKER_WORDS = re.compile(r".*\(error code is ([^)]*)\).*", re.DOTALL)  # without Paddle's advice


@dataclass(frozen=True)
class Findings:
    """All that was found.

    Attributes:
        installation: what lies on disk.
        machine: compilers and GPUs.
        numpy: outcome of the probe of that name, and so on for the others.
        paddle: version, folder, CUDA.
        gpu: GPUs that Paddle sees; None if it was not run, as below.
        library: files, kernels, instruction set.
        cpu: errors of the self-test.
        gpu_test: errors of the self-test on a GPU.
    """

    installation: Installation
    machine: Machine
    numpy: Outcome
    paddle: Outcome
    gpu: Outcome | None
    library: Outcome | None
    cpu: Outcome | None
    gpu_test: Outcome | None


def diagnose(found: Findings) -> list[str]:
    """Return a sentence for each thing that is wrong; none if all is well."""
    of_library = [*_library_files(found)]
    sentences = [*_copies(found), *_frameworks(found), *of_library]
    if not of_library and found.library is not None and not found.library.is_sound:
        why = str(found.library.failure)
        remedy = ""
        if MISSING_SYMBOL in why:
            remedy = f"; it was built from other sources: build again with {BUILD}"
        elif found.library.kind == "crash" or LINKER_FAILURE in why:
            why = LINKER_WORDS.sub(r"\1", why)
            remedy = f"; the file may be damaged: build again with {BUILD}"
        of_library = [f"the operator library does not load: {why}{remedy}"]
        sentences += of_library
    sentences += _gpus(found)
    if of_library and found.machine.compiler is None:
        sentences.append(
            f"there is no C++ compiler {found.machine.compiler_name!r} to build the library with: "
            "install g++, or set CXX"
        )
    for device, outcome in (("CPU", found.cpu), ("GPU", found.gpu_test)):
        sentences += _self_test(device, outcome)
    return sentences


def _copies(found: Findings) -> Iterator[str]:
    here = found.installation
    for other in here.others:
        yield (
            f"there are two installations: {here.folder} is used and hides {other}, and a process "
            "that loads both libraries dies; remove one (pip uninstall paddle_flashmask), or run "
            "from another folder than the clone"
        )
    if len(here.paddles) > 1:
        yield (
            f"Paddle is installed twice, {' and '.join(here.paddles)}, one over the other: "
            "uninstall both, then install one"
        )


def _frameworks(found: Findings) -> Iterator[str]:
    if not found.numpy.is_sound:
        is_missing = found.numpy.kind == "ModuleNotFoundError"
        advice = "pip install numpy" if is_missing else "install numpy again"
        yield f"numpy does not import: {found.numpy.failure}; {advice}"
    paddle = found.paddle
    if not found.numpy.is_sound and paddle.failure == found.numpy.failure:
        return
    if paddle.kind == "ModuleNotFoundError" and "'paddle'" in str(paddle.failure):
        yield (
            "Paddle is not installed for this Python: pip install paddlepaddle, or a "
            "paddlepaddle-gpu for a GPU; then build the library"
        )
    elif paddle.kind in ("crash", "timeout"):
        yield f"importing Paddle ends its process: {paddle.failure}; install Paddle again"
    elif not paddle.is_sound:
        yield f"Paddle does not import: {paddle.kind}: {paddle.failure}"
    else:
        version = str(paddle.facts["version"])
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if not version.startswith(DEVELOPMENT) and numbers < OLDEST_PADDLE:
            yield (
                f"Paddle {version} is too old: paddle_flashmask needs "
                f"{'.'.join(map(str, OLDEST_PADDLE))} or newer"
            )


def _library_files(found: Findings) -> Iterator[str]:
    here = found.installation
    if not here.libraries:
        where = f"there is no operator library in {here.folder}"
        yield (
            f"{where}, the source tree, where nothing was built: run from another folder if the "
            f"package is installed, else build in place with {BUILD_IN_PLACE}"
            if here.is_source
            else f"{where}: build it with {BUILD}"
        )
        return
    if len(here.libraries) > 1:
        names = ", ".join(path.name for path in here.libraries)
        where = f"there is more than one operator library in {here.folder}"
        yield f"{where}: {names}; delete them and build again"
    build = here.build
    if build is None:
        yield (
            f"it is not recorded what the operator library was built for ({here.build_error}): "
            f"build again with {BUILD}"
        )
        return
    version = found.paddle.facts.get("version")
    if version is not None and build.paddle != version:
        yield (
            f"the operator library was built for Paddle {build.paddle}, but this is Paddle "
            f"{version}: build again with {BUILD}"
        )
    if build.project not in (None, here.version):
        yield (
            f"the operator library is of paddle_flashmask {build.project}, but this is "
            f"{here.version}: build again with {BUILD}"
        )


def _gpus(found: Findings) -> Iterator[str]:
    gpus, build, paddle = found.machine.gpus, found.installation.build, found.paddle
    if not paddle.is_sound:
        return
    if not paddle.facts["with_cuda"]:
        if gpus:
            yield (
                f"this machine has a GPU ({gpus[0].name}), but Paddle {paddle.facts['version']} "
                "was built without CUDA, so attention runs on the CPU: install paddlepaddle-gpu, "
                "then build the library again"
            )
        return
    if build is not None and build.with_cuda is False:
        yield "Paddle has CUDA, but the operator library was built without: " + (
            f"build again with FLASHMASK_CUDA=1 {BUILD}"
            if found.machine.nvcc
            else "no CUDA toolkit was found (CUDA_HOME, nvcc on PATH, /usr/local/cuda); install "
            f"one, then {BUILD}"
        )
        return
    if found.gpu is not None and gpus and (not found.gpu.is_sound or not found.gpu.facts["count"]):
        why = f": {found.gpu.failure}" if found.gpu.failure else ""
        yield (
            f"the driver has a GPU ({gpus[0].name}), but Paddle sees none{why}; look at "
            "CUDA_VISIBLE_DEVICES, and whether the driver is new enough for CUDA "
            f"{paddle.facts['cuda']}"
        )
    if build is not None and build.with_cuda:
        yield from _architectures(list(dict.fromkeys(gpus)), build.architectures)


def _architectures(gpus: list[Gpu], built: tuple[str, ...]) -> Iterator[str]:
    """Yield what is wrong with GPUs on which no code runs that was built."""
    missing: dict[str, str] = {}  # what is told of a GPU, and the code it wants
    slow = []  # Hopper without its own kernels
    for gpu in gpus:
        told = f"{gpu.name} (compute capability {capability_text(gpu.capability)})"
        if gpu.capability < OLDEST_CAPABILITY:
            oldest = capability_text(OLDEST_CAPABILITY)
            yield f"{told} is too old: the kernels need {oldest} or newer"
        elif not any(runs_on(code, gpu.capability) for code in built):
            name = HOPPER if gpu.capability == HOPPER_CAPABILITY else str(gpu.capability)
            missing[told] = name
        elif gpu.capability == HOPPER_CAPABILITY and f"sm_{HOPPER}" not in built:
            slow.append(told)
    names = dict.fromkeys([*(code.removeprefix("sm_") for code in built), *missing.values()])
    if slow:
        names[HOPPER] = None
    if HOPPER in names:
        names.pop(str(HOPPER_CAPABILITY), None)  # the build takes one of the two
    remedy = f'build again with FLASHMASK_ARCHS="{" ".join(names)}" {BUILD}'
    only = f"only {', '.join(built) or 'nothing'}"
    if missing:
        yield f"nothing was built for {', '.join(missing)}, {only}: {remedy}"
    if slow:
        yield f"the sm90a kernels, faster on {', '.join(slow)}, were not built, {only}: {remedy}"


def _self_test(device: str, outcome: Outcome | None) -> Iterator[str]:
    if outcome is None:
        return
    if not outcome.is_sound:
        yield f"the self-test on the {device} failed: {outcome.kind}: {outcome.failure}"
    for dtype, (error, name) in outcome.facts.items():
        if not error <= ALLOWED[dtype]:
            yield (
                f"the self-test on the {device} is wrong in {dtype}: {name} is off dense attention "
                f"by {error:.2g} of its largest value, where {ALLOWED[dtype]:g} is allowed"
            )
