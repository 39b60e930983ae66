"""What tensors must be for a kernel to start: the C++ of `core`, with a kernel in name only."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = r"""
#include "core/kernel_registry.h"

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

using namespace flashmask;

Status Forward(const ForwardParams&) { return Status::Ok(); }
Status Backward(const BackwardParams&) { return Status::Ok(); }
template <typename Params>
size_t Workspace(const Params&) { return 300; }

alignas(256) char memory[1 << 16];

template <typename Params>
void Fill(const std::map<std::string, TensorView*>& views, int argc, char** argv, Params* params) {
  for (const auto& [name, view] : views) {
    const int64_t heads = name.find("key") + 1 || name.find("value") + 1 ? 2 : 4;
    *view = {memory, 8 * heads * 64, heads * 64, 64};
  }
  params->execution.workspace = memory;
  params->execution.workspace_bytes = 300;
  params->softmax_lse = reinterpret_cast<float*>(memory);
  // Arguments come in threes: a tensor, what of it, and its value.
  for (int i = 3; i + 2 < argc; i += 3) {
    const std::string name = argv[i], what = argv[i + 1];
    const int64_t value = std::atoll(argv[i + 2]);
    void* given = what == "null" ? nullptr : memory + value;
    if (name == "workspace") params->execution.workspace = given;
    if (name == "workspace_bytes") params->execution.workspace_bytes = value;
    if (name == "softmax_lse") params->softmax_lse = nullptr;
    if (name == "num_heads") params->sizes.num_heads = value;
    if (name == "seqlen_k") params->sizes.seqlen_k = value;
    if (name == "batch") params->sizes.batch = value;
    if (views.count(name) == 0) continue;
    TensorView& view = *views.at(name);
    if (what == "address" || what == "null") view.data = given;
    if (what == "batch") view.batch_stride = value;
    if (what == "row") view.row_stride = value;
    if (what == "head") view.head_stride = value;
  }
}

int main(int argc, char** argv) {
  const bool is_forward = std::string(argv[1]) == "forward";
  const Device device = std::string(argv[2]) == "cpu" ? Device::kCpu : Device::kCuda;
  const Kernel kernel{"x", device, 80, 80, {}, 8, 64, Forward, Backward,
                      device == Device::kCpu ? nullptr : Workspace<ForwardParams>,
                      device == Device::kCpu ? nullptr : Workspace<BackwardParams>};
  Status status = Status::Ok();
  if (is_forward) {
    ForwardParams params;
    params.sizes = {2, 5, 6, 4, 2, 1, 64};
    Fill({{"query", &params.query}, {"key", &params.key}, {"value", &params.value},
          {"out", &params.out}}, argc, argv, &params);
    status = Start(kernel, params);
  } else {
    BackwardParams params;
    params.sizes = {2, 5, 6, 4, 2, 1, 64};
    Fill({{"query", &params.query}, {"key", &params.key}, {"value", &params.value},
          {"out", &params.out}, {"grad_out", &params.grad_out},
          {"grad_query", &params.grad_query}, {"grad_key", &params.grad_key},
          {"grad_value", &params.grad_value}}, argc, argv, &params);
    status = Start(kernel, params);
  }
  std::cout << (status.ok() ? "started" : status.message()) << std::flush;
  return 0;
}
"""
FORWARD = ("query", "key", "value", "out")
BACKWARD = (*FORWARD, *(f"grad_{name}" for name in ("out", "query", "key", "value")))
PLACES = [("forward", name) for name in FORWARD] + [("backward", name) for name in BACKWARD]
WRONG = [("address", 2), ("address", 8), ("batch", 2052), ("row", 260), ("head", 68)]
FINE = [("address", 16), ("batch", 4096), ("row", 512), ("head", 72)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    (folder / "main.cc").write_text(PROGRAM)
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    sources = [str(folder / "main.cc"), str(ROOT / "custom_ops/core/kernel_registry.cc")]
    command = [*compiler, "-std=c++17", "-O0", f"-I{ROOT / 'custom_ops'}", *sources]
    subprocess.run([*command, "-o", str(folder / "program")], check=True)
    return folder / "program"


def answer(program: Path, *words: object) -> str:
    command = [str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("way", "name"), PLACES)
@pytest.mark.parametrize(("what", "value"), WRONG)
def test_what_cannot_be_moved_16_bytes_at_a_time_is_named(program, way, name, what, value):
    text = answer(program, way, "gpu", name, what, value)
    assert text.startswith(
        f"{name} must on a GPU start at a multiple of 16 bytes and have strides that are multiples "
        "of 8 elements; got strides "
    )
    assert text.endswith(" and an address that is no such multiple") == (what == "address")
    assert what == "address" or str(value) in text
    assert answer(program, way, "cpu", name, what, value) == "started"


@pytest.mark.parametrize(("way", "name"), PLACES)
@pytest.mark.parametrize(("what", "value"), FINE)
def test_what_can_be_moved_is_started(program, way, name, what, value):
    assert answer(program, way, "gpu", name, what, value) == "started"


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_workspace_starts_at_a_multiple_of_256_bytes(program, way):
    wanted = "workspace must start at a multiple of 256 bytes"
    assert answer(program, way, "gpu", "workspace", "", 128) == wanted
    assert answer(program, way, "gpu", "workspace", "", 512) == "started"


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("way", "name"), [*PLACES, ("forward", "softmax_lse"), ("backward", "softmax_lse")]
)
def test_null_is_refused_where_something_is_read_or_written(program, way, name, device):
    optional = name == "grad_out"
    wanted = "started" if optional else f"{name} must not be null"
    assert answer(program, way, device, name, "null", 0) == wanted
    assert answer(program, way, device, name, "null", 0, "batch", "", 0) == "started"


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_workspace_that_is_needed_is_not_null(program, way):
    assert answer(program, way, "gpu", "workspace", "null", 0) == "workspace must not be null"
    assert answer(program, way, "cpu", "workspace", "null", 0) == "started"


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_workspace_is_as_long_as_the_kernel_asks(program, way):
    for given in (0, 299):
        wanted = f"workspace must have 300 bytes; got {given}"
        assert answer(program, way, "gpu", "workspace_bytes", "", given) == wanted
    assert answer(program, way, "gpu", "workspace_bytes", "", 301) == "started"
    assert answer(program, way, "cpu", "workspace_bytes", "", 0) == "started"


def test_strides_that_are_never_used_may_be_anything(program):
    assert answer(program, "forward", "gpu", "query", "head", 68) != "started"
    one_head = ("num_heads", "", 1)
    assert answer(program, "forward", "gpu", "query", "head", 68, *one_head) == "started"
    no_keys = ("seqlen_k", "", 0)
    assert answer(program, "backward", "gpu", "grad_key", "address", 2, *no_keys) == "started"
