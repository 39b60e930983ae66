"""Our GPU kernels for Ampere, on whatever GPU there is."""

from __future__ import annotations

from providers import ours_gpu


class Bench(ours_gpu.Bench):
    """What a GPU without kernels of its own runs."""

    kernels = "sm80"
