"""Which kernel the registry finds: the C++ of `core`, compiled with kernels that are only names."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from paddle_flashmask._gpu_code import runs_on

ROOT = Path(__file__).resolve().parents[2]
# A library whose newer architecture has fewer head dims, in an order that must not matter.
PROGRAM = r"""
#include "core/kernel_registry.h"

#include <cstdlib>
#include <iostream>
#include <string>

namespace flashmask {
namespace {

Status Forward(const ForwardParams&) { return Status::Ok(); }
Status Backward(const BackwardParams&) { return Status::Ok(); }
bool HasFewRows(const AttentionSizes& sizes) { return sizes.seqlen_q <= 64; }

const char* const kCode = std::getenv("CODE");

Kernel Sm80(int64_t head_dim) {
  return {"sm80", Device::kCuda, 80, kNewestCapability,
          {DataType::kFloat16, DataType::kBFloat16}, 8, head_dim, Forward, Backward,
          nullptr, nullptr, HasFewRows, kCode};
}

Kernel Sm90a(int64_t head_dim, bool is_forward) {
  return {"sm90a", Device::kCuda, 90, 90, {DataType::kFloat16, DataType::kBFloat16}, 8, head_dim,
          is_forward ? Forward : nullptr, is_forward ? nullptr : Backward, nullptr, nullptr};
}

const KernelRegistration kRegistrations[] = {
    KernelRegistration(Sm80(256)), KernelRegistration(Sm90a(128, true)),
    KernelRegistration(Sm80(64)),  KernelRegistration(Sm90a(64, false)),
    KernelRegistration(Sm80(192)), KernelRegistration(Sm90a(64, true)),
    KernelRegistration(Sm80(96)),  KernelRegistration(Sm90a(128, false)),
    KernelRegistration(Sm80(128))};

}  // namespace
}  // namespace flashmask

// Arguments: kernels, then capability, pass, seqlen_q, head_dim of each question.
int main(int argc, char** argv) {
  using namespace flashmask;
  if (!RestrictGpuKernels(argv[1]).ok()) return 1;
  for (int i = 2; i + 3 < argc; i += 4) {
    Target target{Device::kCuda, std::atoi(argv[i])};
    const Pass pass = std::string(argv[i + 1]) == "forward" ? Pass::kForward : Pass::kBackward;
    AttentionSizes sizes;
    sizes.seqlen_q = std::atoi(argv[i + 2]);
    sizes.head_dim = std::atoi(argv[i + 3]);
    const Kernel* found = nullptr;
    const Status status = FindKernel(target, pass, DataType::kBFloat16, sizes, &found);
    std::cout << (status.ok() ? found->name + std::string(" ") +
                                    std::to_string(found->max_head_dim) : "none") << '\n';
    if (!status.ok()) std::cerr << status.message() << '\n';
  }
  return 0;
}
"""
LONG, FEW = 4096, 1
QUESTIONS = {
    (80, "forward", LONG, 64): "sm80 64",
    (80, "forward", LONG, 72): "sm80 96",
    (80, "backward", LONG, 104): "sm80 128",
    (89, "backward", LONG, 136): "sm80 192",
    (86, "forward", LONG, 256): "sm80 256",
    (90, "forward", LONG, 64): "sm90a 64",
    (90, "forward", LONG, 96): "sm90a 128",
    (90, "forward", LONG, 136): "sm80 192",
    (90, "forward", LONG, 192): "sm80 192",
    (90, "forward", LONG, 256): "sm80 256",
    (90, "backward", LONG, 96): "sm90a 128",
    (90, "backward", LONG, 136): "sm80 192",
    (90, "forward", FEW, 64): "sm80 64",
    (90, "forward", FEW, 128): "sm80 128",
    (90, "backward", FEW, 128): "sm90a 128",
    (80, "forward", FEW, 128): "sm80 128",
    (100, "forward", LONG, 128): "sm80 128",
    (75, "forward", LONG, 64): "none",
    (90, "forward", LONG, 264): "none",
    (90, "forward", LONG, 12): "none",
}
ONLY_SM90A = {
    (90, "forward", LONG, 128): "sm90a 128",
    (90, "forward", FEW, 128): "sm90a 128",
    (90, "backward", FEW, 128): "sm90a 128",
    (90, "forward", LONG, 192): "none",
}
ONLY_SM80 = {(90, "forward", LONG, 128): "sm80 128"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "main.cc").write_text(PROGRAM)
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    sources = [str(folder / "main.cc"), str(ROOT / "custom_ops/core/kernel_registry.cc")]
    command = [*compiler, "-std=c++17", "-O0", f"-I{ROOT / 'custom_ops'}", *sources]
    subprocess.run([*command, "-o", str(folder / "program")], check=True)
    return folder / "program"


def ask(program: Path, kernels: str, questions, code: str | None = None):
    """Return what is found for each question, and what is said where nothing is."""
    words = [str(word) for question in questions for word in question]
    environment = {name: text for name, text in os.environ.items() if name != "CODE"}
    done = subprocess.run(
        [str(program), kernels, *words],
        capture_output=True,
        text=True,
        check=True,
        env=environment | ({} if code is None else {"CODE": code}),
    )
    return dict(zip(questions, done.stdout.splitlines(), strict=True)), done.stderr


@pytest.mark.parametrize(
    ("kernels", "questions"),
    [("auto", QUESTIONS), ("sm90a", ONLY_SM90A), ("sm80", ONLY_SM80)],
    ids=["auto", "sm90a", "sm80"],
)
def test_newest_kernel_with_the_least_head_dim_is_found_but_for_few_rows(
    program, kernels, questions
):
    assert ask(program, kernels, questions)[0] == questions
    everything = "sm_80+sm_90a+compute_90"
    assert ask(program, kernels, questions, everything)[0] == questions


CODES = ("sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "compute_80", "compute_90", "compute_120")
CAPABILITIES = (80, 86, 89, 90, 100, 103, 120)


@pytest.mark.parametrize("code", [*CODES, "sm_80+sm_90a", "sm_86+sm_120", "sm_90+compute_90"])
def test_kernels_are_found_where_their_code_runs(program, code):
    questions = [(capability, "forward", FEW, 128) for capability in CAPABILITIES]
    found, said = ask(program, "sm80", questions, code)
    runs = {one: any(runs_on(each, one) for each in code.split("+")) for one in CAPABILITIES}
    assert len(set(runs.values())) == 2 or code == "compute_80"
    assert found == {q: "sm80 128" if runs[q[0]] else "none" for q in questions}
    for line, capability in zip(
        [line for line in said.splitlines() if line.startswith("no kernel")],
        [one for one in CAPABILITIES if not runs[one]],
        strict=True,
    ):
        number = f"{capability // 10}.{capability % 10}"
        assert f"compute capability {number}, dtype" in line
        assert "(nothing compiled runs there: build again with FLASHMASK_ARCHS for" in line
        assert f"sm80 (compute capability 8.0 or newer, compiled for {code}): " in said
