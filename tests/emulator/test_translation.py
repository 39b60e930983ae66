"""What becomes of CUDA's own syntax before g++ sees it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("cuda", "cpp"),
    [
        ("f<<<1, 2>>>(a, b);", "::emulator::Launch(1, 2)(f, a, b);"),
        ("g<T, 3><<<n, k, 0, s>>>(*a);", "::emulator::Launch(n, k, 0, s)(g<T, 3>, *a);"),
        ("x = 1;\n  f<<<1, 2>>>();", "x = 1;\n  ::emulator::Launch(1, 2)(f);"),
        ("f<A::b>\n<<<1, 2>>>(x);", "::emulator::Launch(1, 2)(f<A::b>, x);"),
        ("__shared__ alignas(16) T t[4];", "alignas(16) static T t[4];"),
        ("no launch << 3;", "no launch << 3;"),
    ],
)
def test_launches_become_calls(cuda, cpp, builder):
    assert builder.translate(cuda) == cpp


def test_dynamic_shared_memory_is_asked_for(builder):
    cuda = "extern __shared__ __align__(1024) unsigned char memory[];"
    assert builder.translate(cuda) == "unsigned char* memory = ::emulator::DynamicShared();"
