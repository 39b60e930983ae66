"""Instruction sets, GPU kernels and determinism: by function and by environment."""

from __future__ import annotations

import pytest
from support import calls, cases, tolerance
from support.cases import AttentionCase
from support.processes import run_python

from paddle_flashmask import _ops

ISAS = ("portable", "avx2", "avx512", "avx512_bf16")
ISA_RULE = "must be auto, portable, avx2, avx512 or avx512_bf16"


@pytest.fixture
def switches():
    """Put the switches of the kernel back after a test."""
    yield
    _ops.set_tile_skipping(True)
    _ops.set_cpu_isa("auto")


# Instruction sets.


def runs_on_this_machine(isa: str) -> bool:
    try:
        _ops.set_cpu_isa(isa)
    except ValueError:
        return False
    finally:
        _ops.set_cpu_isa("auto")
    return True


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("mask", ["causal_2", "four", "documents"])
def test_every_instruction_set_matches_dense(mask, dtype, isa, switches, rng):
    if not runs_on_this_machine(isa):
        pytest.skip(f"needs a CPU with {isa}")
    _ops.set_cpu_isa(isa)
    assert _ops.cpu_isa() == isa
    case = AttentionCase(
        mask, batch=2, seqlen_q=130, num_heads=4, num_heads_k=2, head_dim=72, dtype=dtype
    )
    calls.check_case(case, rng)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("length", [1, 7, 9, 63, 65])
def test_every_instruction_set_matches_dense_at_odd_lengths(length, isa, switches, rng):
    if not runs_on_this_machine(isa):
        pytest.skip(f"needs a CPU with {isa}")
    _ops.set_cpu_isa(isa)
    calls.check_case(AttentionCase("four", seqlen_q=length, head_dim=40), rng)


def test_automatic_instruction_set_is_a_named_one():
    _ops.set_cpu_isa("auto")
    assert _ops.cpu_isa() in ISAS


@pytest.mark.parametrize("name", ["sse", "", "AVX2", "avx2 ", "auto,avx2"])
def test_unknown_instruction_set_is_refused_in_words(name):
    with pytest.raises(ValueError, match=ISA_RULE) as raised:
        _ops.set_cpu_isa(name)
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize("name", [None, 2, b"avx2"])
def test_instruction_set_of_the_wrong_kind_is_refused_in_words(name):
    with pytest.raises(TypeError, match="must be a str"):
        _ops.set_cpu_isa(name)


ISA_BY_ENVIRONMENT = "from paddle_flashmask import _ops; _ops.load_ops(); print(_ops.cpu_isa())"


def test_environment_chooses_the_instruction_set(tmp_path):
    assert (
        run_python(ISA_BY_ENVIRONMENT, tmp_path, FLASHMASK_CPU_ISA="portable").stdout.split()[-1]
        == "portable"
    )


def test_wrong_instruction_set_in_the_environment_fails_in_words(tmp_path):
    process = run_python(ISA_BY_ENVIRONMENT, tmp_path, FLASHMASK_CPU_ISA="avx3")
    assert process.returncode != 0
    assert f"{ISA_RULE}; got 'avx3'" in process.stderr


# GPU kernels by name: a CPU build has none.


def test_gpu_kernels_that_are_not_there_are_refused_in_words():
    _ops.set_gpu_kernels("auto")
    with pytest.raises(ValueError, match="must be auto, since none was built; got 'sm75'"):
        _ops.set_gpu_kernels("sm75")


def test_wrong_gpu_kernels_in_the_environment_fail_in_words(tmp_path):
    process = run_python(ISA_BY_ENVIRONMENT, tmp_path, FLASHMASK_GPU_KERNELS="cpu")
    assert process.returncode != 0
    assert "FLASHMASK_GPU_KERNELS is wrong" in process.stderr
    assert "got 'cpu'" in process.stderr


# Determinism: on the CPU there is nothing to ask for.

LOAD = "from paddle_flashmask import load_ops; load_ops(); print('loaded')"


def test_deterministic_gradients_on_the_cpu_are_the_usual_ones(rng):
    case = AttentionCase(seqlen_q=100)
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    usual = calls.run(inputs, mask)
    _ops.set_deterministic(True)
    try:
        tolerance.assert_same_bits(calls.run(inputs, mask), usual)
    finally:
        _ops.set_deterministic(False)


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_environment_may_ask_for_determinism(value, tmp_path):
    process = run_python(LOAD, tmp_path, FLASHMASK_DETERMINISTIC=value)
    assert process.stdout.split()[-1] == "loaded", process.stderr


def test_wrong_wish_for_determinism_in_the_environment_fails_in_words(tmp_path):
    process = run_python(LOAD, tmp_path, FLASHMASK_DETERMINISTIC="yes")
    assert process.returncode != 0
    assert "FLASHMASK_DETERMINISTIC must be 0, 1 or unset; got 'yes'" in process.stderr
