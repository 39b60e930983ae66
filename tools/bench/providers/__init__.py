"""The contestants, one module each; a name below is all that adding one takes.

A module holds a class `Bench` with the interface of `providers.interface.Provider`. Modules import
their framework only when an object is made, so naming a provider needs nothing installed.
"""

from __future__ import annotations

import importlib

from providers.interface import Provider

MODULES = {
    "ours": "providers.ours",
    "ours_deterministic": "providers.ours_deterministic",
    "ours_sm80": "providers.ours_sm80",
    "paddle_dense": "providers.paddle_dense",
    "paddle_dense_shared": "providers.paddle_dense_shared",
    "paddle_flashmask_builtin": "providers.paddle_builtin",
    "torch_sdpa": "providers.torch_sdpa",
    "torch_flash": "providers.torch_flash",
    "torch_cudnn": "providers.torch_cudnn",
    "torch_flex": "providers.torch_flex",
    "torch_flex_flash": "providers.torch_flex_flash",
}
ON_DEVICE = {
    "cpu": (
        "ours",
        "paddle_dense",
        "paddle_flashmask_builtin",
        "torch_sdpa",
        "torch_flash",
        "torch_flex",
    ),
    "gpu": (
        "ours",
        "ours_deterministic",
        "torch_flash",
        "torch_cudnn",
        "torch_flex",
        "torch_flex_flash",
    ),
}
# Run only when named; the one of the GPU needs a GPU build of Paddle beside PyTorch.
OPTIONAL = {
    "cpu": ("paddle_dense_shared",),
    "gpu": ("ours_sm80", "paddle_flashmask_builtin"),
}


def find(name: str, device: str) -> type[Provider]:
    """Return the class of a provider; ours is the Paddle operator or, on a GPU, the C interface."""
    module = "providers.ours_gpu" if (name, device) == ("ours", "gpu") else MODULES[name]
    found: type[Provider] = importlib.import_module(module).Bench
    return found
